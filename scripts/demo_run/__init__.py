"""The demonstration: an embedded PostgreSQL, a live workload, the sidecar, Spark, two kills and a comparison."""
