"""The parts that a pool receives, and how each is handled: a batch, an event, or a parked change."""

from collections.abc import Callable
from dataclasses import dataclass

from tidemark.engine.pool.batch import Batch
from tidemark.model.arguments import HANDLER, check_has_run
from tidemark.model.change import EngineEvent
from tidemark.runtime.pool.pending_batch import PendingBatch, RetriedChange, UnitHandler

PoolPart = Batch | PendingBatch | EngineEvent | RetriedChange


@dataclass(frozen=True, slots=True)
class PartHandler:
    """Calls a handler with the parts of a pool."""

    handler: UnitHandler
    on_event: Callable[[EngineEvent], object] | None

    def __call__(self, part: PoolPart) -> None:
        """Handle a part."""
        if isinstance(part, Batch):
            check_has_run(self.handler(part), HANDLER)
        elif isinstance(part, PendingBatch | RetriedChange):
            part.handle(self.handler)
        elif self.on_event is not None:
            check_has_run(self.on_event(part), "on_event")


def name_of(part: PoolPart) -> str:
    """Return the name of the function that is called with a part."""
    return HANDLER if isinstance(part, Batch | PendingBatch | RetriedChange) else "on_event"


def isolate(part: PoolPart, error: Exception) -> bool:
    """After the last retry: narrow a batch down to the change that fails; return whether it is handled further."""
    return isinstance(part, PendingBatch) and part.isolate(error)


def preparation(*, has_transforms: bool, has_serializer: bool) -> Callable[[PoolPart], None] | None:
    """Return the function that prepares a batch before it is due; None if it needs no preparation."""
    return _prepare if has_transforms or has_serializer else None


def _prepare(part: PoolPart) -> None:
    if isinstance(part, PendingBatch):
        part.prepare()
