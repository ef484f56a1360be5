"""The format `tidemark` of Spark: the outbox as values, and the rows of a table with their own types."""
