"""The Spark query on the driver: session, source, batches, progress, metrics."""
