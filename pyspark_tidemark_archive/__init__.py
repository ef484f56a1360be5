"""The package in which Spark finds the format `tidemark.archive`: Spark looks for one source in each `pyspark_*`."""

from pyspark_tidemark.archive_source import ArchiveSource as DefaultSource

__all__ = ["DefaultSource"]
