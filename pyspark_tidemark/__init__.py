"""The package in which Spark finds the format `tidemark`; the source is `tidemark.pipeline.source.format`."""

from tidemark.pipeline.source.format import OutboxSource as DefaultSource

__all__ = ["DefaultSource"]
