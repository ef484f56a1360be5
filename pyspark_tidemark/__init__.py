"""Where Spark looks for `spark.readStream.format("tidemark")`; the source itself is `tidemark.pipeline.source`."""

from tidemark.pipeline.source import OutboxSource as DefaultSource

__all__ = ["DefaultSource"]
