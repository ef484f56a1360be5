"""The engine: a capture of one node in the application's own process, with a handler called by a pool of threads.

    node ─► capture (network, decode, application thread) ─► PoolConsumer ─► HandlerPool ─► handler

The states are those of `tidemark.engine.lifecycle`. A stop ends the pool first, then stores the last position, then
ends the source and releases everything. An engine has no signal handler and changes nothing of the process: several
engines, each on its own state, run beside each other.

Its state folder is one of a sidecar: it has the sidecar's lock, epoch and heartbeat, and `cdcctl status` shows it.
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from tidemark.decode.types.codec import Dialect
from tidemark.decode.types.registry import arrow_struct
from tidemark.embedding.callbacks import Callbacks
from tidemark.embedding.engine_capture import EngineCapture, RestartSettings
from tidemark.embedding.engine_folder import open_state
from tidemark.embedding.engine_options import (
    CHECKS,
    WHERE,
    EngineOptions,
    check_pool,
    checked_processor,
    engine_config,
    one_handler,
    serializer_settings,
)
from tidemark.embedding.engine_pool import EnginePool
from tidemark.embedding.hints import noted_hints
from tidemark.embedding.library_log import LibraryLog
from tidemark.embedding.processor import Processor
from tidemark.embedding.signals import EngineSignal, Signals
from tidemark.embedding.start_deadline import StartDeadline
from tidemark.embedding.stoppable import Stoppable
from tidemark.engine.lifecycle import EngineState, IllegalTransition, StopStep, change
from tidemark.engine.pool.batch import Batch, Change
from tidemark.engine.pool.commit_policy import ALWAYS, CommitPolicy
from tidemark.engine.pool.dispatch import Order
from tidemark.engine.pool.stop_condition import StopWhen
from tidemark.engine.progress import Progress
from tidemark.io.host.clock import SystemClock
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.model.arguments import WITHIN_S, checked_arguments, instance_of
from tidemark.model.change import EngineEvent
from tidemark.model.errors import ConfigError
from tidemark.model.mode import Role
from tidemark.model.poison import Poison
from tidemark.model.position import Partition, Position
from tidemark.model.relation import Relation
from tidemark.model.table_name import TableName
from tidemark.runtime.capture.capture import Capture
from tidemark.runtime.capture.capture_settings import CaptureSettings
from tidemark.runtime.capture.wal_source import WalSettings, from_node
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.plugins.plugins import built_in
from tidemark.runtime.plugins.poison_handling import ParkedRetries, PoisonHandling
from tidemark.runtime.pool.pending_batch import Processing
from tidemark.runtime.pool.pool_consumer import PoolConsumer
from tidemark.runtime.pool.pool_kind import PoolKind
from tidemark.serializers.serializer import SerializedBatch, SerializedChange, Serializer
from tidemark.transforms.plan import TransformPlans
from tidemark.transforms.transform import Transform
from tidemark.wire.state.event_logs import Loss, Rewind
from tidemark.wire.state.plugin_log import EMBEDDED

POLL_S = 0.1  # how soon an error ends the engine
BUFFER_BYTES_DEFAULT = 64 << 20


class Engine(Stoppable):
    """Captures one node and calls a handler with its changes.

    `with Engine(...) as engine: engine.wait()` runs until an error, or until `stop` is called by another thread or by
    the handler itself.
    """

    @noted_hints()
    @checked_arguments(WHERE, CHECKS)
    def __init__(
        self,
        dsn: str,
        *,
        state: str | Path,
        handler: Callable[[Batch], None] | Callable[[SerializedBatch], None] | None = None,
        change_handler: Callable[[Change], None] | Callable[[SerializedChange], None] | None = None,
        processor: Processor | None = None,
        serializer: Serializer | None = None,
        tables: Sequence[str] = ("*.*",),
        databases: Sequence[str] = (),
        transforms: Sequence[Transform] = (),
        on_event: Callable[[EngineEvent], None] | None = None,
        update_offsets: Callable[[Mapping[Partition, Position]], Mapping[Partition, Position] | None] | None = None,
        on_loss: Callable[[Loss], None] | None = None,
        on_rewind: Callable[[Rewind], None] | None = None,
        on_signal: Callable[[str], None] | None = None,
        on_state: Callable[[EngineState], None] | None = None,
        on_stop_step: Callable[[StopStep], None] | None = None,
        on_end: Callable[[BaseException | None], None] | None = None,
        workers: int = 1,
        pool: PoolKind = PoolKind.THREADS,
        order: Order = Order.TOTAL,
        commit: CommitPolicy = ALWAYS,
        retries: int = 5,
        poison: Poison = Poison.FAIL,
        stop_when: StopWhen | None = None,
        buffer_bytes: int = BUFFER_BYTES_DEFAULT,
        start_within_s: float = 900.0,
        stop_within_s: float = 10.0,
        settings: Mapping[str, Mapping[str, object]] | None = None,
    ) -> None:
        """Check the arguments; open nothing.

        dsn: of the node, without a password, as libpq reads it.
        state: the folder of the state, on a local disk; created by the first start.
        handler: called with each batch, by `workers` threads; when it returns, the batch is finished.
        change_handler: called with each single change; give either this or `handler`.
        processor: replaces the handler; it processes the stream on threads and in an order of its choice (`Processor`).
        serializer: the handler is called with a `SerializedBatch`, or with each `SerializedChange`.
        tables, databases: patterns of the captured tables and databases; by default all tables of the DSN's database.
        transforms: applied one after the other, by the threads of the handler, to each batch before it is handled; with
            several threads, to some batches before they are due.
        on_event: called with each item that is not a row change, such as TRUNCATE, after everything before is finished.
        update_offsets: the hook of commit rounds (`Consumer.update_offsets`), called by the delivering thread.
        on_loss, on_rewind: called for changes that were given up, or are not in the node's history (`Consumer`).
        on_signal: called with the text of each signal `EngineSignal.CUSTOM`, by the thread of the engine.
        on_state: called after each change of the state, by the thread that made it.
        on_stop_step: called after each step of a stop, and of a start that failed.
        on_end: called once and last, with the error that ended the engine, also that of a failed start.
        workers: threads that call the handler; 0: the delivering thread calls it, which is for tests and debugging.
        pool: whether the workers are threads, or processes in which the handler and the serializer run.
        order: which batches are handled at the same time.
        commit: when finished batches are confirmed; after a kill, unconfirmed ones are delivered again.
        retries: how often the handler is called again with a batch after an error, with delays from 0.3 to 10 s.
        poison: what happens to a change that the handler cannot handle after all retries.
        stop_when: the engine stops at this point by itself, after everything before it is finished and confirmed.
        buffer_bytes: the limit of unfinished and unconfirmed changes; at this limit the capture waits.
        start_within_s: how long a start may take; after that it fails, and everything is released.
        stop_within_s: the default of `within_s` in `stop`.
        settings: further values of tidemark.toml, by section and key.
        """
        super().__init__()
        self._options = EngineOptions(Path(state), workers, order, commit, retries, start_within_s, stop_within_s)
        self._config = engine_config(
            dsn,
            databases,
            tables,
            buffer_bytes=buffer_bytes,
            poison=poison,
            settings=serializer_settings(serializer, settings),
        )
        self._transforms = tuple(transforms)
        self._stop_when = stop_when
        others = {
            "handler": handler is not None,
            "change_handler": change_handler is not None,
            "on_event": on_event is not None,
            "order": order is not Order.TOTAL,
            "pool": pool is not PoolKind.THREADS,
            "poison": poison is not Poison.FAIL,
        }
        self._processor = checked_processor(processor, others)
        check_pool(pool, workers)
        retry = self._config.retry
        self._log = LibraryLog()
        self._pool = EnginePool(
            None if self._processor is not None else one_handler(handler, change_handler),
            Processing(change_handler is not None, serializer, SystemClock()),
            self._options,
            processor=self._processor,
            kind=pool,
            on_event=on_event,
            has_transforms=bool(self._transforms),
            backoff=(retry.first_s, retry.max_s),
            log=self._log,
        )
        self._on_event = on_event
        self._callbacks = Callbacks(
            self._log, on_state, on_stop_step, on_end, on_signal, on_loss, on_rewind, update_offsets
        )
        self._clock = SystemClock()
        self._signals = Signals(self._log)
        self._state = EngineState.CREATED
        self._state_lock = threading.Lock()
        self._ending = threading.Event()
        self._within_s = stop_within_s
        self._unfinished: tuple[str, ...] = ()
        self._capture: EngineCapture | None = None
        self._thread: threading.Thread | None = None

    @property
    def state(self) -> EngineState:
        """The state of the life cycle."""
        return self._state

    @property
    def confirmed(self) -> Position | None:
        """The position up to which everything is confirmed and stored; None before the start."""
        delivered = self._progress.delivered
        return delivered.position if delivered is not None else None

    @property
    def _progress(self) -> Progress:
        return Progress() if self._capture is None else self._capture.progress

    @property
    def worker_pids(self) -> Sequence[int]:
        """The process ids of the workers that are processes."""
        return self._pool.worker_pids

    @property
    def worker_cpu_s(self) -> Sequence[float]:
        """The CPU seconds by worker, up to the end of its last batch; a killed process counts with its successor."""
        return self._pool.worker_cpu_s

    @noted_hints()
    def start(self) -> None:
        """Open or create the state, and start; if that fails, release everything and raise the error."""
        self._change(EngineState.CREATED, EngineState.PREPARING)
        self._pid = os.getpid()
        stack = ExitStack()
        stack.callback(self._callbacks.passed, StopStep.STATE)
        deadline = StartDeadline(self._options.start_within_s, self._clock)
        try:
            self._pool.start_processes(stack)
            store = open_state(stack, self._options.state, self._config, deadline, self._log)
            deadline.check("the state is open, and nothing is started")
            self._change(EngineState.PREPARING, EngineState.STARTING)
            self._begin(stack, store)
            deadline.check("its threads are started")
        except BaseException as error:
            self._error = error
            self._change(self._state, EngineState.CLOSING)
            self._release(stack)
            raise
        self._change(EngineState.STARTING, EngineState.RUNNING)
        assert self._thread is not None, "made by the start"
        self._thread.start()

    @noted_hints()
    @checked_arguments(f"{WHERE}.stop", {"within_s": WITHIN_S})
    def stop(self, within_s: float | None = None) -> tuple[str, ...]:
        """Stop: finish what the pool has within `within_s`, store the position, end the source, release everything.

        Return the names of threads that are still in the handler then: what they do has no effect on the position, and
        their changes are delivered again. A callback that calls this requests the stop, and does not wait for it.
        """
        self._check_process()
        here = threading.current_thread()
        is_handler = self._pool.parts.is_own(here)  # which may have changes before the start has returned
        with self._state_lock:
            is_new = self._state is EngineState.CREATED
            if self._state in (EngineState.PREPARING, EngineState.STARTING) and not is_handler:
                raise IllegalTransition(self._state, EngineState.DRAINING)
        if is_new:
            self._change(EngineState.CREATED, EngineState.STOPPED)
            self._end()
        elif not self._ending.is_set():
            self._within_s = self._options.stop_within_s if within_s is None else within_s
            self._ending.set()
        if not (here is self._thread or self._callbacks.is_inside(here) or is_handler):
            self._stopped.wait()
        return self._unfinished

    def signal(self, signal: EngineSignal, text: str = "") -> None:
        """Send a signal to the engine, from any thread; it is handled once, in the order of the calls.

        `text`: for the log, or for `on_signal`. An engine that does not run yet handles it when it does; an engine that
        has stopped raises `ConfigError`.
        """
        self._signals.send(signal, text)

    @noted_hints()
    def recopy(self, *tables: str) -> None:
        """Request a new copy of the current rows of tables, from any thread; changes stream meanwhile.

        tables: names as `schema.table`, or `database.schema.table`. The request is durable when this returns: a stop or
        a kill does not lose it. A table that does not exist, is not selected, or cannot be read is an error that names
        it, and nothing is requested. The rows are a new generation: they come between two `CopyBoundary` events, have
        the operation `c`, and replace all earlier rows of the table.
        """
        names = [TableName.parse(table) for table in dict.fromkeys(tables)]
        self._check_process()
        if self._capture is None or not names:
            raise ConfigError("recopy needs a running engine, and names of tables")
        self._capture.recopy(names)

    def _begin(self, stack: ExitStack, store: StateStore) -> None:
        """Begin an epoch; make the capture and start it with the pool."""
        lock = RoleLock.status(store.folder, Role.SIDECAR.value)
        assert lock.owner is not None, "it is ours"
        epoch = store.begin_epoch(lock.owner, self._log)
        beginning = store.view().beginning
        assert beginning is not None, "the state is complete"
        plans = TransformPlans(self._transforms, self._columns_of) if self._transforms else None
        context = CaptureContext(store, Metrics(store.identity.capture), self._log)
        consumer = PoolConsumer(
            self._pool.parts,
            order=self._options.order if self._processor is None else Order.NONE,
            lane_count=max(1, self._options.workers),
            commit=self._options.commit,
            bytes_max=self._config.deliver.unconfirmed_bytes_max,
            databases=beginning.databases,
            takes_events=self._on_event is not None or self._processor is not None,
            plans=plans,
            processing=self._pool.processing,
            poison=PoisonHandling.of(self._config.poison, context, epoch),
            retries=ParkedRetries(context, epoch) if self._processor is None else None,
            update_offsets=self._callbacks.update_offsets,
            stop_when=self._stop_when,
            on_notice=self._callbacks.noticed,
            log=self._log,
        )
        make_wal_source = partial(from_node, context, WalSettings.of(self._config, store.identity.segment_bytes))
        settings = CaptureSettings.of(self._config, replace(built_in(EMBEDDED), transforms=tuple(self._transforms)))
        make_capture = partial(Capture, context, settings, epoch, make_wal_source, consumer=consumer)
        self._capture = capture = EngineCapture(
            context, RestartSettings.of(self._config), epoch, consumer, make_capture
        )
        stack.callback(self._callbacks.passed, StopStep.SOURCE)
        stack.callback(capture.stop)
        stack.callback(self._callbacks.passed, StopStep.POSITIONS)
        stack.callback(self._callbacks.passed, StopStep.POOL)
        self._pool.parts.start()
        stack.callback(self._pool.parts.drain, 0.0)
        capture.start()
        self._thread = threading.Thread(
            target=self._run, args=(stack, capture, consumer), name="tidemark-engine", daemon=True
        )

    def _run(self, stack: ExitStack, capture: EngineCapture, consumer: PoolConsumer) -> None:
        """Watch the pool and the capture until a stop or an error; then stop both."""
        try:
            while self._error is None and not self._ending.wait(POLL_S):
                self._error = self._pool.parts.error or capture.poll()
                self._signals.handle(consumer, self._callbacks.signalled, self._progress)
                if consumer.is_paused:
                    consumer.finish_kept()
                if consumer.is_complete:
                    self._ending.set()
        except BaseException as error:  # noqa: BLE001 - the one place: whatever it is, the engine ends with it
            self._error = error
        self._change(EngineState.RUNNING, EngineState.DRAINING)
        until_s = self._clock.monotonic_s() + self._within_s
        self._unfinished = self._pool.drain(self._within_s)
        if self._unfinished:
            self._log.warning("threads are still in the handler", threads=", ".join(self._unfinished))
        self._error = self._error or self._pool.parts.error
        self._callbacks.passed(StopStep.POOL)
        self._change(EngineState.DRAINING, EngineState.CLOSING)
        consumer.store_finished(capture.progress, until_s)
        self._callbacks.passed(StopStep.POSITIONS)
        self._release(stack)

    def _release(self, stack: ExitStack) -> None:
        """Release everything; the first error is the one to report."""
        try:
            stack.close()
        except BaseException as error:  # noqa: BLE001 - reported by `wait`
            self._error = self._error or error
        self._change(EngineState.CLOSING, EngineState.STOPPED)
        self._end()

    def _end(self) -> None:
        self._signals.end()
        self._callbacks.ended(self._error)
        self._stopped.set()

    def _columns_of(self, relation: Relation) -> pa.StructType:
        return arrow_struct(relation.live_columns, Dialect(mapping=self._config.types.mapping()))

    def _change(self, expected: EngineState, wanted: EngineState) -> None:
        with self._state_lock:
            self._state = change(self._state, expected, wanted)
        self._callbacks.changed(wanted)


AN_ENGINE = instance_of(Engine, "an engine", hint="give each engine, as in EngineGroup(orders, customers)")
