"""The package in which Spark finds the format `tidemark`; the source is `tidemark.pipeline.source.format`.

`open_values` opens the values of a query without the option `table`.
"""

from tidemark.model.change import ChangeBatch
from tidemark.pipeline.source.format import OutboxSource as DefaultSource
from tidemark.pipeline.source.opened_values import open_values

__all__ = ["ChangeBatch", "DefaultSource", "open_values"]
