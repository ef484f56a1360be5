"""Tidemark: realtime change data capture for PostgreSQL that never holds back the database.

The names in `__all__` are the library for applications (`docs/engine.md`); all other modules are internal. A name is
imported when it is first used: programs of Tidemark that import this package load nothing of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemark.embedding.batch import Batch, Change
    from tidemark.embedding.engine import Engine
    from tidemark.embedding.pool_consumer import EngineEvent
    from tidemark.engine.commit_policy import ALWAYS, CommitPolicy, every
    from tidemark.engine.dispatch import Order
    from tidemark.engine.lifecycle import EngineState, IllegalTransition
    from tidemark.model.change import (
        CopyBoundary,
        LogicalMessage,
        Op,
        PartitionEvent,
        RewriteBoundary,
        SchemaEvent,
        Truncation,
    )
    from tidemark.model.errors import (
        ConfigError,
        ConsumerFailed,
        CorruptWal,
        Fenced,
        InternalError,
        NodeUnfit,
        NodeUnreachable,
        StateError,
        TidemarkError,
        WalGap,
    )
    from tidemark.model.position import Epoch, Position

__all__ = [
    "ALWAYS",
    "Batch",
    "Change",
    "CommitPolicy",
    "ConfigError",
    "ConsumerFailed",
    "CopyBoundary",
    "CorruptWal",
    "Engine",
    "EngineEvent",
    "EngineState",
    "Epoch",
    "Fenced",
    "IllegalTransition",
    "InternalError",
    "LogicalMessage",
    "NodeUnfit",
    "NodeUnreachable",
    "Op",
    "Order",
    "PartitionEvent",
    "Position",
    "RewriteBoundary",
    "SchemaEvent",
    "StateError",
    "TidemarkError",
    "Truncation",
    "WalGap",
    "every",
]
_MODULES = {
    "embedding.batch": ("Batch", "Change"),
    "embedding.engine": ("Engine",),
    "embedding.pool_consumer": ("EngineEvent",),
    "engine.commit_policy": ("ALWAYS", "CommitPolicy", "every"),
    "engine.dispatch": ("Order",),
    "engine.lifecycle": ("EngineState", "IllegalTransition"),
    "model.change": (
        *("CopyBoundary", "LogicalMessage", "Op", "PartitionEvent", "RewriteBoundary", "SchemaEvent", "Truncation"),
    ),
    "model.errors": (
        *("ConfigError", "ConsumerFailed", "CorruptWal", "Fenced", "InternalError", "NodeUnfit", "NodeUnreachable"),
        *("StateError", "TidemarkError", "WalGap"),
    ),
    "model.position": ("Epoch", "Position"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
