"""The package in which Spark finds the format `tidemark`; the source is `tidemark.pipeline.source.format`.

`open_values` opens the values of a query without the option `table`. A name is imported when it is first used: the
programs of `cdcctl` in this package need no Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemark.model.change import ChangeBatch
    from tidemark.pipeline.source.format import OutboxSource as DefaultSource
    from tidemark.pipeline.source.opened_values import open_values

__all__ = ["ChangeBatch", "DefaultSource", "open_values"]
_PLACES = {
    "ChangeBatch": ("tidemark.model.change", "ChangeBatch"),
    "DefaultSource": ("tidemark.pipeline.source.format", "OutboxSource"),
    "open_values": ("tidemark.pipeline.source.opened_values", "open_values"),
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PLACES[name]
    found: object = getattr(import_module(module), attribute)
    globals()[name] = found
    return found
