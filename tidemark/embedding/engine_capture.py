"""The captures of an engine, one after the other, with one consumer: a table that is to be copied needs a new one.

Before a restart the consumer is held: it takes nothing, and what it has is finished and confirmed. So the next capture
continues where this one ends, and no change is delivered twice. A handler or a processor that does not finish within
`deliver.stop_s` gets further changes first, and is held again later, each time for longer.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from tidemark.engine.selection import Selection
from tidemark.io.host.clock import SystemClock
from tidemark.io.node.node_queries import NodeQueries
from tidemark.io.process.config import Config
from tidemark.io.state.locking.heartbeat import START_S_MAX, Slot
from tidemark.io.state.state import StateStore
from tidemark.model.errors import ConfigError
from tidemark.model.position import Epoch
from tidemark.model.table_name import TableName
from tidemark.runtime.capture.capture import Capture
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.first_copy.recopy_restart import RecopyRestart
from tidemark.runtime.first_copy.recopying import request_recopies
from tidemark.runtime.first_copy.table_finder import TableFinder, captured_databases, present_lsn
from tidemark.runtime.pool.pool_consumer import PoolConsumer

HOLD_S_MAX = 600.0  # of the consumer before a restart; as long as this again lies between two holds


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """The settings that restarts for copies read."""

    dsn: str
    selection: Selection
    stop_s: float

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return the settings of a configuration."""
        return cls(config.capture.dsn, config.select.selection(), config.deliver.stop_s)


class EngineCapture:
    """Runs the capture of an engine, and restarts it for copies. One thread calls all but `recopy`."""

    def __init__(
        self,
        context: CaptureContext,
        settings: RestartSettings,
        epoch: Epoch,
        consumer: PoolConsumer,
        make_capture: Callable[[], Capture],
    ) -> None:
        """Queue the requested copies, and make the first capture."""
        self._store = context.store
        self._log = context.log
        self._settings = settings
        self._epoch = epoch
        self._consumer = consumer
        self._make_capture = make_capture
        self._clock = SystemClock()
        self._node_queries = NodeQueries(settings.dsn, context.store.identity.system_identifier)
        self._recopies = RecopyRestart(context, self._node_queries)
        self._hold_s = settings.stop_s
        self._held_until_s: float | None = None  # None: the consumer is not held
        self._not_before_s = 0.0
        self._is_over = False
        self._using_store = threading.Lock()  # by `recopy`, which any thread calls
        self._capture: Capture | None = self._next_capture()

    def start(self) -> None:
        """Start the first capture."""
        assert self._capture is not None, "it was made"
        self._capture.start()

    def poll(self) -> BaseException | None:
        """Check the capture and return its first error; restart it if tables are to be copied."""
        assert self._capture is not None, "it is not stopped"
        error = self._capture.poll()
        if error is None and self._may_restart(self._capture):
            self._restart(self._capture)
        return error

    def stop(self) -> None:
        """Stop the capture, if there is one; no request is accepted any more."""
        with self._using_store:
            self._is_over = True
        capture, self._capture = self._capture, None
        try:
            if capture is not None:
                capture.stop()
        finally:
            self._node_queries.close()

    def recopy(self, names: Sequence[TableName]) -> None:
        """Make a request for copies durable; raise if a table does not exist, is not selected, or cannot be read."""
        with self._open_store() as store:
            identity, databases = store.identity, captured_databases(store)
        dsn, selection = self._settings.dsn, self._settings.selection
        requested = TableFinder(dsn, selection, identity.system_identifier, databases).find(names)
        after_lsn = present_lsn(dsn)
        with self._open_store() as store:
            request_recopies(store, requested, after_lsn, self._clock.wall_us())

    @contextmanager
    def _open_store(self) -> Iterator[StateStore]:
        """Keep the state open; raise if it is closed, or about to be."""
        with self._using_store:
            if self._is_over:
                raise ConfigError("the engine has stopped: it copies no tables")
            yield self._store

    def _next_capture(self) -> Capture:
        self._recopies.queue(self._epoch)
        capture = self._make_capture()
        self.progress = capture.progress
        return capture

    def _may_restart(self, capture: Capture) -> bool:
        """Return whether to restart now: a copy is due, and the consumer, which is held, has finished everything."""
        now_s = self._clock.monotonic_s()
        has_copies = capture.has_waiting_copies or self._recopies.has_requests
        if has_copies:
            self._consumer.finish_kept()
        if self._held_until_s is None:
            self._consumer.confirms_at_once = has_copies
            may_hold = now_s >= self._not_before_s and not self._consumer.takes_nothing
            if not may_hold or not self._is_due(capture):
                return False
            self._held_until_s = now_s + self._hold_s
            self._consumer.is_held = True
        if self._consumer.is_at_rest(self.progress):
            return True
        if now_s >= self._held_until_s:
            self._log.warning("tables wait for a copy: the handler did not finish what it has", waited_s=self._hold_s)
            self._not_before_s = now_s + self._hold_s
            self._hold_s = min(HOLD_S_MAX, 2 * self._hold_s)
            self._release_consumer()
        return False

    def _is_due(self, capture: Capture) -> bool:
        if capture.must_restart:
            return True
        return self._recopies.is_due(self.progress, self._epoch, copying=capture.status().copying)

    def _restart(self, capture: Capture) -> None:
        self._log.info("restarting capture to copy the tables that waited for the stream, or that were requested")
        self._capture = None
        capture.stop()
        self._store.environment.heartbeat.beat(Slot.SIDECAR, ahead_s=START_S_MAX)
        self._hold_s = self._settings.stop_s
        self._release_consumer()
        self._capture = self._next_capture()
        self._capture.start()

    def _release_consumer(self) -> None:
        self._held_until_s = None
        self._consumer.is_held = False
