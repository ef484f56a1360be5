"""The package in which Spark finds the format `tidemark`; the source is `tidemark.pipeline.driver.source`."""

from tidemark.pipeline.driver.source import OutboxSource as DefaultSource

__all__ = ["DefaultSource"]
