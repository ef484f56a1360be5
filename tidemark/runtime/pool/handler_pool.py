"""The threads that call the handler: as many as requested, in the order that `Dispatch` permits.

Without threads, the caller of `submit` handles everything itself, one part after the other: a serial engine.

A part whose call fails is called again, with the same part, within the limit of retries. When that is used up, nothing
more is started, and `error` is the cause. A handler that raises `Stopped` ends the pool as well, without an error.

A thread for which the order has no part prepares one that waits, so that only the handler's own time is in sequence.
"""

import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from time import thread_time
from typing import Generic, Protocol, TypeVar

from tidemark.engine.pool.dispatch import Dispatch, Dispatched
from tidemark.engine.retry import Backoff, RetryPolicy
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.logs import Log, describe_raised
from tidemark.model.arguments import HANDLER
from tidemark.model.errors import Disposition, TidemarkError
from tidemark.runtime.context import Stopped

PART = TypeVar("PART")
GIVEN_contra = TypeVar("GIVEN_contra", contravariant=True)
THREAD_NAME = "tidemark-handler"
NOT_AWAITED = -1


class PartPool(Protocol[GIVEN_contra]):
    """What handles the parts of a stream, and records which prefix of its units is finished."""

    @property
    def error(self) -> BaseException | None:
        """The error that ended it."""

    @property
    def settled_units(self) -> int:
        """The length of the finished prefix."""

    def start(self) -> None:
        """Start the threads."""

    def submit(self, parts: Sequence[tuple[GIVEN_contra, Hashable | None]], byte_count: int) -> bool:
        """Add the next unit of the stream; return False if nothing more is started."""

    def wait_below(self, bytes_max: int) -> None:
        """Wait until at most `bytes_max` are unfinished, or nothing more is started."""

    def flush(self) -> None:
        """Let the application finish what it keeps of the parts so far; return at once."""

    def is_own(self, thread: threading.Thread) -> bool:
        """Return whether a thread is one of this pool."""

    @property
    def cpu_s(self) -> Sequence[float]:
        """The CPU seconds by thread, up to the end of its last part."""

    def drain(self, within_s: float) -> tuple[str, ...]:
        """Finish what it has and end; return the names of threads that are still in the application's code."""


class HandlerPool(Generic[PART]):
    """Calls a handler with each part, from `workers` threads."""

    def __init__(
        self,
        handle: Callable[[PART], None],
        *,
        prepare: Callable[[PART], None] | None = None,
        isolate: Callable[[PART, Exception], bool] | None = None,
        workers: int,
        retries: int,
        backoff: tuple[float, float],
        log: Log,
        on_retry: Callable[[], None] | None = None,
        name_of: Callable[[PART], str] = lambda _part: HANDLER,
    ) -> None:
        """Start nothing. `backoff`: the first delay between retries and the longest, in seconds.

        workers: 0: the caller of `submit` handles the parts.
        prepare: called for parts that wait, at most once for each, before `handle` and in any order. Its errors are
        left to `handle`. At most `workers` prepared parts wait.
        isolate: called after the last retry; if it returns true, the part is handled further.
        on_retry: called before each retry, by the thread that makes it.
        name_of: returns the name of the application's function that is called with a part, for the log.
        """
        self._handle = handle
        self._prepare = prepare
        self._isolate = isolate
        self._retries = retries
        self._backoff = backoff
        self._log = log
        self._on_retry = on_retry
        self._name_of = name_of
        self._clock = SystemClock()
        self._dispatch: Dispatch[PART] = Dispatch()
        self._error: BaseException | None = None
        self._is_over = False  # no part is started any more
        self._is_abandoned = False  # what finishes has no effect any more
        self._in_handler: dict[str, float] = {}  # names of threads, and since when each one is in its call
        self._caller: threading.Thread | None = None  # of `submit`, in a serial engine
        lock = threading.RLock()
        self._ready = threading.Condition(lock)  # for the threads: a part may be taken, or the pool is over
        self._changed = threading.Condition(lock)  # for those who wait for the threads
        self._awaited_bytes = NOT_AWAITED  # the bound of `wait_below`: only then is its thread woken up
        self._no_retries = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"{THREAD_NAME}-{number + 1}", daemon=True)
            for number in range(workers)
        ]
        self._cpu_s = [0.0] * workers

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    @property
    def error(self) -> BaseException | None:
        """The first error that a handler raised after its last retry."""
        return self._error

    @property
    def settled_units(self) -> int:
        """The length of the finished prefix."""
        return self._dispatch.settled_units

    @property
    def cpu_s(self) -> Sequence[float]:
        """The CPU seconds by thread, up to the end of its last part."""
        return tuple(self._cpu_s)

    @property
    def longest_call_s(self) -> float:
        """For how long the handler has been in its present call: the longest one."""
        with self._changed:
            return self._clock.monotonic_s() - min(self._in_handler.values(), default=self._clock.monotonic_s())

    def submit(self, parts: Sequence[tuple[PART, Hashable | None]], byte_count: int) -> bool:
        """Add the next unit of the stream, None as the lane of a barrier; return False if the pool starts no more."""
        with self._changed:
            if self._is_over:
                return False
            self._dispatch.add(parts, byte_count)
            self._ready.notify(len(parts))
        if not self._threads:
            self._caller = threading.current_thread()
            self._run()
        return True

    def wait_below(self, bytes_max: int) -> None:
        """Wait until at most `bytes_max` are unfinished, or the pool starts no more."""
        with self._changed:
            self._awaited_bytes = bytes_max
            self._changed.wait_for(lambda: self._is_over or self._dispatch.unsettled_bytes <= bytes_max)
            self._awaited_bytes = NOT_AWAITED

    def flush(self) -> None:
        """Do nothing: a part whose call has returned is finished."""

    def is_own(self, thread: threading.Thread) -> bool:
        """Return whether a thread is one of this pool."""
        return thread in self._threads or thread is self._caller

    def drain(self, within_s: float) -> tuple[str, ...]:
        """Finish all parts and end the threads; return the names of those that are still in the handler.

        After an error only running calls are waited for. What finishes after this call has no effect.
        """
        until_s = self._clock.monotonic_s() + within_s
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._dispatch.is_empty, within_s)
            self._end()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until_s - self._clock.monotonic_s()))
        self._no_retries.set()
        with self._changed:
            self._changed.wait_for(lambda: not self._in_handler, max(0.0, until_s - self._clock.monotonic_s()))
            self._is_abandoned = True
            return tuple(sorted(self._in_handler))

    def _run(self, number: int | None = None) -> None:
        """Handle parts until there are none; `number`: of a thread of the pool."""
        taken = self._next(None)
        while taken is not None:
            try:
                if taken.is_preparing:
                    self._call_ahead(taken.part)
                else:
                    self._call(taken.part)
            except BaseException as error:  # noqa: BLE001 - the one place: it ends the engine, with this cause
                self._fail(error)
                return
            finally:
                if number is not None:
                    self._cpu_s[number] = thread_time()
            taken = self._next(taken)

    def _next(self, done: Dispatched[PART] | None) -> Dispatched[PART] | None:
        """Finish a part, or its preparation, and wait for the next one; None if no part is started any more."""
        name = threading.current_thread().name
        with self._changed:
            if done is not None:
                self._in_handler.pop(name, None)
                if self._is_abandoned:
                    self._changed.notify_all()
                    return None
                if done.is_preparing:
                    self._dispatch.prepared(done)
                else:
                    self._dispatch.finish(done)
                if self._is_over or self._dispatch.is_empty or self._dispatch.unsettled_bytes <= self._awaited_bytes:
                    self._changed.notify_all()
            while not self._is_over:
                taken = self._dispatch.take() or self._take_ahead()
                if taken is not None:
                    self._in_handler[name] = self._clock.monotonic_s()
                    self._ready.notify(self._startable)  # NB: what was taken may have made room for others
                    return taken
                if not self._threads:
                    break
                self._ready.wait()
        return None

    def _take_ahead(self) -> Dispatched[PART] | None:
        return None if self._prepare is None else self._dispatch.take_ahead(len(self._threads))

    @property
    def _startable(self) -> int:
        """How many parts other threads may start or prepare; the lock is held."""
        ahead = 0 if self._prepare is None else self._dispatch.ahead_count(len(self._threads))
        return self._dispatch.ready_count + ahead

    def _call_ahead(self, part: PART) -> None:
        assert self._prepare is not None, "nothing is taken ahead without it"
        with suppress(Exception):  # `handle` meets it again, where it is retried
            self._prepare(part)

    def _call(self, part: PART) -> None:
        retry = RetryPolicy(self._retries, Backoff(*self._backoff))
        while True:
            try:
                self._handle(part)
            except Stopped:
                raise
            except Exception as error:
                is_transient = not isinstance(error, TidemarkError) or error.disposition is Disposition.RETRY
                delay_s = retry.failed(self._clock.monotonic_s()) if is_transient else None
                if delay_s is None and self._isolate is not None and self._isolate(part, error):
                    retry.succeeded()
                    continue
                if delay_s is None:
                    count = retry.backoff.failures
                    error.add_note(f"raised for a batch, after {count} {'retry' if count == 1 else 'retries'}")
                    raise
                self._log.warning(
                    "the handler failed; it is called again with the same batch",
                    retry_s=delay_s,
                    **describe_raised(error, self._name_of(part)),
                )
                if self._on_retry is not None:
                    self._on_retry()
            else:
                return
            if not self._waits_for_retry(delay_s):
                raise Stopped

    def _waits_for_retry(self, delay_s: float) -> bool:
        """Wait outside of the handler; return false if there are no more retries."""
        name = threading.current_thread().name
        with self._changed:
            self._in_handler.pop(name, None)
            self._changed.notify_all()
        if self._no_retries.wait(delay_s):
            return False
        with self._changed:
            self._in_handler[name] = self._clock.monotonic_s()
        return True

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._in_handler.pop(threading.current_thread().name, None)
            if not isinstance(error, Stopped) and not self._is_abandoned:
                self._error = self._error or error
            self._end()
        self._no_retries.set()

    def _end(self) -> None:
        """Start no further part; the lock is held."""
        self._is_over = True
        self._ready.notify_all()
        self._changed.notify_all()
