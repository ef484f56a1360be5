"""The Spark query: session, source, batches, progress."""
