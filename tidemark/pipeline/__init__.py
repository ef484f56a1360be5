"""Everything that imports pyspark: the source over the outbox and the sinks."""
