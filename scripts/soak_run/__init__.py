"""A soak: a server, sidecar, archiver and the pipeline on Spark run for hours; their use of resources is sampled."""
