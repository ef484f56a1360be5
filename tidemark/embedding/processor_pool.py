"""The thread that hands the stream to a processor, and what the processor has finished of it."""

import threading
from collections.abc import Callable, Hashable, Sequence
from enum import Enum
from functools import partial
from itertools import count

from tidemark.embedding.processor import FlushingProcessor, Processor, ProcessorPart
from tidemark.engine.pool.dispatch import Dispatch, Dispatched
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.logs import Log
from tidemark.runtime.pool.handler_pool import HandlerPool
from tidemark.runtime.pool.pending_batch import Processing, RetriedChange
from tidemark.runtime.pool.pool_parts import PoolPart

THREAD_NAME = "tidemark-processor"
SUBMITTED = "a function that the processor submitted"
POLL_S = 0.1  # how soon an error of a call in the pool is noticed by a thread that waits for space


class Flush(Enum):
    """The request to finish what the processor keeps."""

    FLUSH = "flush"


FLUSH = Flush.FLUSH


class ProcessorPool:
    """Implements `PartPool` for a processor; `submit` of its `WorkerPool` calls functions in a `HandlerPool`."""

    def __init__(
        self,
        processor: Processor,
        processing: Processing,
        *,
        workers: int,
        retries: int,
        backoff: tuple[float, float],
        log: Log,
    ) -> None:
        """Start nothing."""
        self._processor = processor
        self._processing = processing
        self._calls: HandlerPool[Callable[[], None]] = HandlerPool(
            lambda call: call(),
            workers=workers,
            retries=retries,
            backoff=backoff,
            log=log,
            name_of=lambda _call: SUBMITTED,
        )
        self._clock = SystemClock()
        self._dispatch: Dispatch[PoolPart] = Dispatch()
        self._unfinished: set[Dispatched[PoolPart]] = set()  # of those that the processor has
        self._lanes = count()
        self._error: BaseException | None = None
        self._is_ending = self._is_over = self._is_abandoned = False
        self._keeps = False  # whether the processor got a part since it was flushed last
        self._is_flushing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)

    def start(self) -> None:
        """Start the threads."""
        self._calls.start()
        self._thread.start()

    @property
    def error(self) -> BaseException | None:
        """The first error of the processor, or of a call in the pool after its last retry."""
        return self._error or self._calls.error

    @property
    def cpu_s(self) -> Sequence[float]:
        """The CPU seconds by thread of the pool, up to the end of its last call."""
        return self._calls.cpu_s

    @property
    def settled_units(self) -> int:
        """The length of the finished prefix."""
        return self._dispatch.settled_units

    def submit(self, parts: Sequence[tuple[PoolPart, Hashable | None]], byte_count: int) -> bool:
        """Add the next unit of the stream: the order of its parts is the processor's concern."""
        with self._changed:
            if self._is_ending or self._is_over:
                return False
            self._dispatch.add([(part, next(self._lanes)) for part, _ in parts], byte_count)
            self._changed.notify_all()
        return True

    def wait_below(self, bytes_max: int) -> None:
        """Wait until at most `bytes_max` are unfinished, or no further part follows."""
        with self._changed:
            while not (self._is_ending or self.error or self._dispatch.unsettled_bytes <= bytes_max):
                self._changed.wait(POLL_S)

    def flush(self) -> None:
        """Let a processor with a method `flush` finish what it keeps, once the waiting parts are processed."""
        with self._changed:
            self._is_flushing = self._keeps and isinstance(self._processor, FlushingProcessor)
            self._changed.notify_all()

    def is_own(self, thread: threading.Thread) -> bool:
        """Return whether a thread calls the processor, or is one of its pool."""
        return thread is self._thread or self._calls.is_own(thread)

    def drain(self, within_s: float) -> tuple[str, ...]:
        """Process the waiting parts, stop the processor, then end the pool; return the names of threads that remain."""
        until_s = self._clock.monotonic_s() + within_s
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(within_s)
        names = self._calls.drain(max(0.0, until_s - self._clock.monotonic_s()))
        with self._changed:
            self._is_over = self._is_abandoned = True
            self._changed.notify_all()
        return (*names, THREAD_NAME) if self._thread.is_alive() else names

    def _run(self) -> None:
        self._guarded(self._hand_over)
        self._guarded(self._processor.stop)

    def _hand_over(self) -> None:
        self._processor.start(_SubmittedCalls(self._calls))
        while (taken := self._next()) is not None:
            if taken is FLUSH:
                assert isinstance(self._processor, FlushingProcessor), "it was requested from one"
                self._processor.flush()
                continue
            assert isinstance(taken, Dispatched), taken
            assert not isinstance(taken.part, RetriedChange), "an engine with a processor has no retries"
            self._processor.process(ProcessorPart(taken.part, self._processing, partial(self._finish, taken)))

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - the one place: it ends the engine, with this cause
            with self._changed:
                self._error = self._error or error
                self._is_over = True
                self._changed.notify_all()

    def _next(self) -> Dispatched[PoolPart] | Flush | None:
        """Wait for the next part, or the request to flush; None if there is neither any more."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_over or self._is_ending or self._dispatch.ready_count or self._is_flushing
            )
            taken = None if self._is_over else self._dispatch.take()
            if taken is not None:
                self._unfinished.add(taken)
                self._keeps = True
            elif self._is_flushing and not self._is_over:
                self._keeps = self._is_flushing = False
                return FLUSH
            return taken

    def _finish(self, taken: Dispatched[PoolPart]) -> None:
        with self._changed:
            if self._is_abandoned or taken not in self._unfinished:
                return
            self._unfinished.remove(taken)
            self._dispatch.finish(taken)
            self._changed.notify_all()


class _SubmittedCalls:
    """Implements `WorkerPool`."""

    def __init__(self, calls: HandlerPool[Callable[[], None]]) -> None:
        self._calls = calls
        self._numbers = count()

    def submit(self, call: Callable[[], None]) -> None:
        """Add a call."""
        self._calls.submit([(call, next(self._numbers))], 0)
