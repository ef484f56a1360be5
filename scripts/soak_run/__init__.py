"""A soak: a server, sidecar, archiver and the pipeline on Spark run for hours, and what they use is sampled."""
