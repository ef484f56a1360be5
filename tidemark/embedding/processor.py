"""A processor: an application's own way from the stream to its target, on the engine's threads."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from tidemark.engine.pool.batch import Batch
from tidemark.model.change import EngineEvent
from tidemark.model.errors import ConfigError
from tidemark.runtime.pool.pending_batch import PendingBatch, Processing
from tidemark.serializers.serializer import SerializedBatch


class WorkerPool(Protocol):
    """The threads of an engine, `workers` of them, for the calls of a processor."""

    def submit(self, call: Callable[[], None]) -> None:
        """Have a function called by one of the threads; calls of several run at the same time, in any order.

        After an error it is called again, `retries` times; then the engine ends with this error. After the end of the
        engine nothing is called. Any thread may call this.
        """


class ProcessorPart:
    """A part of the stream: changes of one table, or an event. Any thread may use it."""

    def __init__(
        self, part: Batch | PendingBatch | EngineEvent, processing: Processing, finish: Callable[[], None]
    ) -> None:
        self._part = part
        self._processing = processing
        self._finish = finish

    @property
    def event(self) -> EngineEvent | None:
        """The event; None: it has changes."""
        return None if isinstance(self._part, Batch | PendingBatch) else self._part

    def transformed(self) -> Sequence[Batch]:
        """Apply the engine's `transforms`; return the resulting batches. An event has none."""
        if isinstance(self._part, PendingBatch):
            return self._part.transformed()
        return (self._part,) if isinstance(self._part, Batch) else ()

    def serialized(self) -> Sequence[SerializedBatch]:
        """Apply the `transforms` and the `serializer`; return the records of each batch."""
        if self._processing.serializer is None:
            raise ConfigError("tidemark.Engine: the processor needs serializer=...")
        return [self._processing.serialized(batch) for batch in self.transformed() if len(batch)]

    def finish(self) -> None:
        """Acknowledge the part: it need not be delivered again. Parts may be finished in any order, by any thread.

        Confirmed is the contiguous prefix of finished parts, when the engine's commit policy says so.
        """
        self._finish()


class Processor(Protocol):
    """Processes the parts of a stream on threads and at times of its choice. One thread makes these calls.

    A class needs these three methods, and no base class. If it keeps parts, it should have a method `flush()` as well:
    write and finish what is kept, while the engine continues. The engine calls it before a new copy of tables
    (`Engine.recopy`), which begins when everything before it is finished and confirmed.
    """

    def start(self, pool: WorkerPool) -> None:
        """Open the target. Called once, before the first part."""

    def process(self, part: ProcessorPart) -> None:
        """Take the next part, in the order of the stream, and return; `part.finish` acknowledges it, now or later.

        It may keep parts, up to the engine's `buffer_bytes`. What it raises ends the engine, without retries.
        """

    def stop(self) -> None:
        """Write and finish what is kept: nothing more comes, and the pool then ends with what it has.

        Called once, also after an error. What is not finished comes again at the next start.
        """


@runtime_checkable
class FlushingProcessor(Processor, Protocol):
    """A processor that can finish what it keeps before its next part."""

    def flush(self) -> None:
        """Write and finish what is kept."""
