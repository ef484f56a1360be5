"""A batch of the stream on its way to the handler: what is made of it, and how much of that is handled.

It runs in a thread of the pool. The handler gets one of four kinds of units, by one table; which of them run at the
same time is the order's decision (`tidemark.engine.dispatch`).
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidemark.engine.batch import ROWS_AT_ONCE, Batch, Change
from tidemark.engine.ports import Clock
from tidemark.model.commit_time import NSECS_PER_USEC
from tidemark.serializers.serializer import SerializedBatch, SerializedChange, Serializer
from tidemark.transforms.plan import TransformPlan

Unit = Batch | SerializedBatch | Change | SerializedChange
UnitHandler = Callable[[Unit], None]
GivenHandler = (
    Callable[[Batch], None]
    | Callable[[SerializedBatch], None]
    | Callable[[Change], None]
    | Callable[[SerializedChange], None]
)


@dataclass(frozen=True, slots=True)
class Processing:
    """How batches are handled."""

    takes_changes: bool  # the handler takes single changes
    serializer: Serializer | None
    clock: Clock

    @property
    def is_plain(self) -> bool:
        """Return whether the handler takes batches as they come."""
        return not self.takes_changes and self.serializer is None

    def units(self, batch: Batch) -> Sequence[Unit]:
        """Return what the handler is called with for a batch, one after the other."""
        return UNITS[self.takes_changes, self.serializer is not None](self, batch)

    def serialized(self, batch: Batch) -> SerializedBatch:
        """Serialize a batch."""
        assert self.serializer is not None, "chosen by it"
        return self.serializer.serialized(batch, self.clock.wall_us() * NSECS_PER_USEC)

    def sections(self, batch: Batch) -> Sequence[Batch]:
        """Return the parts of a batch that are processed at a time: single changes are Python objects."""
        if not self.takes_changes:
            return (batch,)
        starts = range(0, len(batch), ROWS_AT_ONCE)
        return [replace(batch, arrow=batch.arrow.slice(start, ROWS_AT_ONCE)) for start in starts]


UNITS: Mapping[tuple[bool, bool], Callable[[Processing, Batch], Sequence[Unit]]] = {
    # (takes single changes, has a serializer)
    (False, False): lambda _processing, batch: (batch,),
    (False, True): lambda processing, batch: (processing.serialized(batch),),
    (True, False): lambda _processing, batch: list(batch),
    (True, True): lambda processing, batch: list(processing.serialized(batch)),
}


class PendingBatch:
    """A batch with what is not handled of it. After an error, the handler is called again with the unit that failed."""

    def __init__(self, batch: Batch, plan: TransformPlan | None, processing: Processing) -> None:
        self._batch = batch
        self._plan = plan
        self._processing = processing
        self._sections: deque[Batch] | None = None
        self._units: deque[Unit] = deque()

    def __len__(self) -> int:
        return len(self._batch)

    def handle(self, handler: UnitHandler) -> None:
        """Call the handler with each unit, continuing after those that it has returned from."""
        if self._sections is None:
            batches = (self._batch,) if self._plan is None else self._plan.apply(self._batch)
            self._sections = deque(part for batch in batches for part in self._processing.sections(batch))
        while self._units or self._sections:
            if not self._units:
                self._units = deque(self._processing.units(self._sections[0]))
                self._sections.popleft()
            while self._units:
                handler(self._units[0])
                self._units.popleft()
