"""The Spark pipeline: all code that imports pyspark, from the source over the outbox to the sinks of the lake."""
