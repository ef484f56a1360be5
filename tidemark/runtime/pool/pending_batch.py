"""A batch of the stream before the handler: its transformed form, and how much of it is handled.

It runs in a thread of the pool. The handler gets one of four kinds of units, by one table; which of them run at the
same time is the order's decision (`tidemark.engine.pool.dispatch`).
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from tidemark.engine.pool.batch import ROWS_AT_ONCE, Batch, Change
from tidemark.engine.pool.poison import CallPart, CallParts, ParkedBatch, rows_of
from tidemark.engine.ports import Clock
from tidemark.model.arguments import HANDLER, check_has_run
from tidemark.model.commit_time import NSECS_PER_USEC
from tidemark.model.poison import PoisonChange, WorkerPoison, WorkerProgress, WorkerRaised
from tidemark.runtime.context import Stopped
from tidemark.runtime.plugins.poison_handling import ParkedRetries, PoisonHandling
from tidemark.runtime.pool.keys import RowIndexes, rows_at
from tidemark.serializers.serializer import SerializedBatch, SerializedChange, Serializer
from tidemark.transforms.plan import TransformPlan

Unit = Batch | SerializedBatch | Change | SerializedChange
UnitHandler = Callable[[Unit], object]
GivenHandler = (
    Callable[[Batch], None]
    | Callable[[SerializedBatch], None]
    | Callable[[Change], None]
    | Callable[[SerializedChange], None]
)


def _processors() -> threading.BoundedSemaphore:
    """Return a slot for each CPU of this process."""
    return threading.BoundedSemaphore(len(os.sched_getaffinity(0)))


@dataclass(frozen=True, slots=True)
class Processing:
    """How batches are handled."""

    takes_changes: bool  # the handler takes single changes
    serializer: Serializer | None
    clock: Clock
    # For what only computes: more threads than CPUs would wait for each other's interpreter lock, which costs CPU.
    processors: threading.BoundedSemaphore = field(default_factory=_processors)

    @property
    def is_plain(self) -> bool:
        """Return whether the handler takes batches as they come."""
        return not self.takes_changes and self.serializer is None

    def units(self, batch: Batch) -> Sequence[tuple[int, Unit]]:
        """Return what the handler is called with for a batch, one after the other; single changes with their rows."""
        return UNITS[self.takes_changes, self.serializer is not None](self, batch)

    def serialized(self, batch: Batch) -> SerializedBatch:
        """Serialize a batch."""
        assert self.serializer is not None, "chosen by it"
        with self.processors if self.serializer.only_computes else nullcontext():
            return self.serializer.serialized(batch, self.clock.wall_us() * NSECS_PER_USEC)

    def serialized_changes(self, batch: Batch) -> Sequence[tuple[int, SerializedChange]]:
        """Serialize a batch; return its records with the rows of their changes."""
        made = self.serialized(batch)
        return [(record.row, change) for record, change in zip(made.records, made, strict=True)]

    def sections(self, batch: Batch) -> Sequence[Batch]:
        """Return the parts of a batch that are processed at a time: single changes are Python objects."""
        if not self.takes_changes:
            return (batch,)
        starts = range(0, len(batch), ROWS_AT_ONCE)
        return [batch.with_rows(batch.arrow.slice(start, ROWS_AT_ONCE)) for start in starts]


UNITS: Mapping[tuple[bool, bool], Callable[[Processing, Batch], Sequence[tuple[int, Unit]]]] = {
    # (takes single changes, has a serializer)
    (False, False): lambda _processing, batch: ((0, batch),),
    (False, True): lambda processing, batch: ((0, processing.serialized(batch)),),
    (True, False): lambda _processing, batch: list(enumerate(batch)),
    (True, True): lambda processing, batch: processing.serialized_changes(batch),
}


class PendingBatch:
    """A batch with what is not handled of it. After an error, the handler is called again with the unit that failed."""

    def __init__(
        self,
        batch: Batch,
        plan: TransformPlan | None,
        processing: Processing,
        poison: PoisonHandling | None = None,
        chosen: RowIndexes | None = None,
    ) -> None:
        """`poison`: None: no change is left out. `chosen`: the indexes of its rows in `batch`, ascending; None: all."""
        self._batch = batch
        self._chosen = chosen
        self._plan = plan
        self._processing = processing
        self._poison = poison
        self._parts_left: CallParts | None = None
        self._units: deque[tuple[int, Unit]] = deque()  # of the first part, with the rows of single changes
        self._rows_of_parts = 0  # of the parts that are handled
        self._rows_known = 0  # to be handled, at the last call of `progress`

    def __len__(self) -> int:
        chosen = self._chosen  # NB: another thread may be in `transformed`
        return len(self._batch if chosen is None else chosen)

    def transformed(self) -> Sequence[Batch]:
        """Return the batches that the transforms make of it."""
        if self._chosen is not None:
            with self._processing.processors:
                self._batch, self._chosen = self._batch.with_rows(rows_at(self._batch.arrow, self._chosen)), None
        return (self._batch,) if self._plan is None else self._plan.apply(self._batch)

    def prepare(self) -> None:
        """Transform the rows, and serialize the first of them: the work that may run before the batch is due."""
        part = self._parts().first
        if part is not None:
            self._fill(part)

    def handle(self, handler: UnitHandler) -> None:
        """Call the handler with each unit, continuing after those that it has returned from."""
        parts_left = self._parts()
        while (part := parts_left.first) is not None:
            try:
                self._handle_first(part, handler)
            except Stopped:
                raise
            except Exception as error:
                if self._has_units or _progress_of(error).is_one_change or not parts_left.narrow(error):
                    raise
                self._units.clear()
            else:
                self._rows_of_parts += part.size
                parts_left.finish()

    def progress(self) -> WorkerProgress:
        """Return, in a worker process, how far a call came that raised: nothing is left out there."""
        if not self._processing.takes_changes:
            return WorkerProgress()
        handled = self._rows_of_parts + (self._units[0][0] if self._units else 0)
        is_new, self._rows_known = handled > self._rows_known, handled
        return WorkerProgress(handled, is_new, is_one_change=bool(self._units))

    def isolate(self, error: Exception) -> bool:
        """After the last retry: narrow down to the change that cannot be handled, and leave it out.

        Return false if the error is final: by the policy, or because it is not one of a change.
        """
        if self._poison is None or not self._poison.isolates or self._parts_left is None:
            return False
        if not self._parts_left.can_isolate(error):
            return False
        part = self._parts_left.first
        if self._has_units and part is not None:
            self._poison.leave_out(self._first_change(part), error)
            row = self._units[0][0]
            while self._units and self._units[0][0] == row:  # the other records of the change
                self._units.popleft()
            if not self._units:
                self._parts_left.finish()
            return True
        self._units.clear()
        progress = _progress_of(error)
        self._parts_left.finish_rows(progress.rows_handled)
        found = self._parts_left.isolate(PoisonChange(0) if progress.is_one_change else error)
        if found is not None:
            self._poison.leave_out(found, error)
        return True

    @property
    def _has_units(self) -> bool:
        """Return whether the error is that of one change: otherwise it is the whole part that failed."""
        return self._processing.takes_changes and bool(self._units)

    def _first_change(self, part: CallPart) -> Batch:
        (batch,) = part.items
        assert isinstance(batch, Batch), "events are no part of a batch"
        row = self._units[0][0]
        return rows_of(batch, row, row + 1)

    def _parts(self) -> CallParts:
        """Return the remaining part of the batch; transform it first, if necessary."""
        if self._parts_left is None:
            sections = map(self._processing.sections, self.transformed())
            self._parts_left = CallParts(*((part,) for section in sections for part in section))
        return self._parts_left

    def _fill(self, part: CallPart) -> None:
        """Make the units of the first part, if there are none."""
        if not self._units:
            (batch,) = part.items
            assert isinstance(batch, Batch), "events are no part of a batch"
            self._units.extend(self._processing.units(batch))

    def _handle_first(self, part: CallPart, handler: UnitHandler) -> None:
        self._fill(part)
        while self._units:
            found = 0 if self._poison is None else self._poison.found
            try:
                if (returned := handler(self._units[0][1])) is not None:
                    check_has_run(returned, HANDLER)
            except Exception as error:
                if self._poison is not None and _progress_of(error).is_new:
                    self._poison.handled(found)
                raise
            self._units.popleft()
            if self._poison is not None:
                self._poison.handled(found)


class RetriedChange:
    """A parked change that is delivered again, once."""

    def __init__(self, parked: ParkedBatch, processing: Processing, retries: ParkedRetries) -> None:
        self._parked = parked
        self._processing = processing
        self._retries = retries

    def handle(self, handler: UnitHandler) -> None:
        """Call the handler with the units of the change; it stays parked if one of them fails."""
        try:
            PendingBatch(self._parked.batch, None, self._processing).handle(handler)
        except Stopped:
            raise
        except Exception as error:  # noqa: BLE001 - the handler's own: the operator asked whether it can handle it now
            self._retries.failed(self._parked, error)
        else:
            self._retries.delivered(self._parked)
            self._retries.confirmed()


def _progress_of(error: Exception) -> WorkerProgress:
    for each in (error, error.__cause__):  # an error of Tidemark has the class that it had in the worker process
        if isinstance(each, WorkerRaised | WorkerPoison):
            return each.progress
    return WorkerProgress()
