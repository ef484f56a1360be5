"""Where Spark looks for `spark.readStream.format("tidemark")`; the source is `tidemark.pipeline.driver.source`."""

from tidemark.pipeline.driver.source import OutboxSource as DefaultSource

__all__ = ["DefaultSource"]
