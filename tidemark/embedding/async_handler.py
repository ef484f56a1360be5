"""Hands the changes of an engine to `async for`: the pool's threads wait in the handler for the event loop."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from typing import Generic, TypeVar
from weakref import ref

from tidemark.embedding.engine import AN_ENGINE, Engine
from tidemark.engine.pool.batch import Batch, Change
from tidemark.model.errors import ConfigError
from tidemark.runtime.context import Stopped
from tidemark.serializers.serializer import SerializedBatch, SerializedChange

START_HINT = "start the engine by `async with handler.running(engine)`"
Handled = TypeVar("Handled", bound=Batch | Change | SerializedBatch | SerializedChange)


class AsyncHandler(Generic[Handled]):
    """The handler of an engine whose changes are handled in an event loop of asyncio.

    `Engine(..., handler=handler)`, `async with handler.running(engine)`, then `async for batch in handler`. A batch is
    finished when the loop asks for the next one, or by `finish`. One that is unfinished when the loop is left, by an
    error or by `break`, is not confirmed and is delivered again at the next start. Several tasks may iterate: with
    `workers=4`, they handle up to four batches at a time, within the limits of the engine's order.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: asyncio.Queue[_Call[Handled] | None] = asyncio.Queue()  # None: the engine has ended
        self._open: dict[int, _Call[Handled]] = {}  # by the id of what was handed over
        self._is_over = False
        self._lock = threading.Lock()  # of `_is_over`: no call begins to wait after it

    def __call__(self, unit: Handled) -> None:
        """Pass `unit` to the loop, and wait until it is finished: called by the threads of the engine."""
        call = _Call(unit)
        with self._lock:
            if self._loop is None:
                raise ConfigError(
                    "an AsyncHandler was called outside of its event loop",
                    hint=START_HINT,
                )
            if self._is_over:
                raise Stopped
            self._loop.call_soon_threadsafe(self._receive, call)
        call.finished.result()

    @asynccontextmanager
    async def running(self, engine: Engine) -> AsyncIterator[Engine]:
        """Start `engine`; at the end stop it, and raise the error that ended it unless the block raised another."""
        AN_ENGINE("tidemark.AsyncHandler.running: engine", engine)
        if self._loop is not None:
            raise ConfigError("an AsyncHandler belongs to one engine", hint="create one for each engine")
        self._loop = asyncio.get_running_loop()
        starting = asyncio.ensure_future(asyncio.to_thread(engine.start))
        # A thread of its own: those of the loop's executor may all be busy with the application's work.
        ended = threading.Thread(target=self._wait_for_end, args=(engine,), name="tidemark-async-end", daemon=True)
        try:
            await asyncio.shield(starting)
            ended.start()
            yield engine
        finally:
            self._release()
            await asyncio.wait([starting])  # a start that was cancelled here goes on in its thread
            await asyncio.to_thread(engine.stop)
            if ended.ident is not None:
                await asyncio.to_thread(ended.join)
        engine.wait()

    def __aiter__(self) -> AsyncIterator[Handled]:
        """Yield the engine's units until the engine ends.

        A wait for the next one may be cancelled and repeated, as by `asyncio.wait_for`. Raises `ConfigError` if the
        engine was not started by `running`, or if a loop was left without its unit: the engine waits for that.
        """
        if self._loop is None:
            raise ConfigError("an AsyncHandler has no engine yet", hint=START_HINT)
        if not self._is_over and any(call.is_left for call in self._open.values()):
            raise ConfigError(
                "a loop over this AsyncHandler was left before its batch was finished",
                hint="finish it by handler.finish(batch) before `break`, or continue with one iterator: aiter(handler)",
            )
        return _Units(self._calls, self.finish)

    def finish(self, unit: Handled) -> None:
        """Finish a yielded unit before the loop asks for the next one or is left; a second call has no effect."""
        call = self._open.pop(id(unit), None)
        if call is not None:
            call.finished.set_result(None)

    def _receive(self, call: "_Call[Handled]") -> None:
        if self._is_over:
            call.finished.set_exception(Stopped())
            return
        self._open[id(call.unit)] = call
        self._calls.put_nowait(call)

    def _release(self) -> None:
        """End all calls: their changes are delivered again after the next start."""
        with self._lock:
            self._is_over = True
        for call in self._open.values():
            call.finished.set_exception(Stopped())
        self._open.clear()

    def _wait_for_end(self, engine: Engine) -> None:
        with suppress(BaseException):  # `running` raises it
            engine.wait()
        assert self._loop is not None, "set before the engine was started"
        self._loop.call_soon_threadsafe(self._calls.put_nowait, None)


class _Call(Generic[Handled]):
    """A call of the handler, in a thread of the engine."""

    def __init__(self, unit: Handled) -> None:
        self.unit = unit
        self.finished: Future[None] = Future()
        self._yielded_by: ref[_Units[Handled]] | None = None

    def yielded(self, by: "_Units[Handled]") -> None:
        """Note which iterator yields the unit."""
        self._yielded_by = ref(by)

    @property
    def is_left(self) -> bool:
        """Return whether the loop that was given the unit has been left."""
        return self._yielded_by is not None and self._yielded_by() is None


class _Units(AsyncIterator[Handled]):
    """An iterator of one task: the unit that it yielded is finished when the task asks for the next one."""

    def __init__(self, calls: "asyncio.Queue[_Call[Handled] | None]", finish: Callable[[Handled], None]) -> None:
        self._calls = calls
        self._finish = finish
        self._call: _Call[Handled] | None = None  # that of the unit which was yielded
        self._is_waiting = False

    async def __anext__(self) -> Handled:
        if self._is_waiting:
            raise ConfigError("two tasks share an iterator", hint="each needs its own: async for batch in handler")
        if self._call is not None:
            self._finish(self._call.unit)
            self._call = None
        self._is_waiting = True
        try:
            call = await self._calls.get()
        finally:
            self._is_waiting = False
        if call is None:
            self._calls.put_nowait(None)  # for the other tasks
            raise StopAsyncIteration
        call.yielded(self)
        self._call = call
        return call.unit
