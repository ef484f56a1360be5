"""The pipeline: one streaming query over the outbox that writes the tables of the lake, and retries after failures.

Spark defines where batches end; the lake stores the positions. A batch is what the lake lacks up to that end, and is
confirmed to the outbox once the tables contain it: a deleted checkpoint, a repeated batch or a killed helper process
costs only time. The driver reads the values itself, so a batch runs no Spark job; on a cluster, executors write large
runs (`executor_writers`).
"""

import threading
import time
from collections.abc import Iterator

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tidemark.io.host.disk import StateFull
from tidemark.io.host.logs import Log, describe_error
from tidemark.io.host.memory import FreedMemory, return_freed_memory
from tidemark.io.host.systemd import ALIVE, READY, STOPPING, notify
from tidemark.io.readers.outbox import OutboxTrimmed
from tidemark.model.errors import ConsumerFailed, Disposition
from tidemark.model.position import Sequence
from tidemark.pipeline.driver.capture_place import SERVER_OUTAGE
from tidemark.pipeline.driver.checkpoint_files import checkpoint_url
from tidemark.pipeline.driver.executor_writers import ExecutorWriters
from tidemark.pipeline.driver.offset_log import OffsetLog
from tidemark.pipeline.driver.pipeline_waits import PipelineWaits, named_error
from tidemark.pipeline.driver.session import SparkGone, is_alive, local_dir_of
from tidemark.pipeline.failures import first_reason
from tidemark.pipeline.lake.tables.table_errors import LakeFailed, TableFenced
from tidemark.pipeline.landing.capture_port import CapturePort
from tidemark.pipeline.landing.feed import Feed, newest_commit
from tidemark.pipeline.landing.lake_epoch import LakeHold
from tidemark.pipeline.landing.landing import LakePositions, Landing
from tidemark.pipeline.landing.late_begin import LATE_HINT
from tidemark.pipeline.landing.metrics import BatchStage
from tidemark.pipeline.landing.portions import feeds
from tidemark.pipeline.landing.progress import PipelineProgress
from tidemark.pipeline.landing.restored_lake import check_not_restored
from tidemark.pipeline.landing.settings import Settings
from tidemark.pipeline.source.format import OutboxSource
from tidemark.pipeline.source.offsets import Offset, OutboxReplaced
from tidemark.pipeline.source.options import FORMAT
from tidemark.pipeline.source.outbox_port import OutboxPort
from tidemark.pipeline.storage.store_errors import StoreUnavailable

OVER = (OutboxReplaced, OutboxTrimmed)  # raised by a query whose sequences ended at a promotion of this host's node
QUERY = "tidemark"
BATCH_BYTES = 256 << 20  # processed in portions; Spark's share of a batch costs the same for any size
ALREADY_KNOWN = "DATA_SOURCE_ALREADY_EXISTS"  # Spark's error condition
BURST_ROWS = 500_000  # in ten seconds
POLL_S = 0.2
POLL_TIMEOUT_MS = 500  # of the source; the query has no other source, which would wait as well
RESTARTS_MAX = 5  # in a row, without a batch between them
BATCH_S_MAX = 60.0  # limit for the current batch at a stop if Spark's JVM has ended; below TimeoutStopSec of the unit
RESTART_WAIT_S = 2.0  # a killed driver's JVM lives for up to three seconds and may hold the checkpoint
_RETRIED = (LakeFailed, StoreUnavailable, TableFenced)


class QueryFailed(ConsumerFailed):
    """The streaming query failed repeatedly."""

    hint = "see Spark's own log; the lake is unchanged, and a restart continues from its positions"


class Pipeline:
    """One pipeline on one Spark session."""

    def __init__(
        self,
        settings: Settings,
        outbox: OutboxPort,
        landing: Landing,
        progress: PipelineProgress,
        log: Log,
        *,
        capture: CapturePort,
        hold: LakeHold | None = None,
        writers: ExecutorWriters | None = None,
    ) -> None:
        """`hold` entitles the pipeline to write to the lake; None: nothing else writes to it.

        `writers` are those of `landing`, which write large runs.
        """
        self._writers = writers
        self._settings = settings
        self._hold = hold
        self._outbox = outbox
        self._capture = capture
        self._metrics = progress.metrics
        self._progress = progress
        self._log = log
        self._stop = threading.Event()  # replaced by the caller's in `run`
        self._landing = landing
        self._outbox_id = outbox.outbox_id  # when the query started
        self._failure: BaseException | None = None  # of the last batch; Spark reports it only as text
        self._in_batch = threading.Lock()
        self._freed_memory = FreedMemory(BURST_ROWS, _return_freed_memory)
        self._waits = PipelineWaits(settings, outbox, progress, log)

    def run(self, spark: SparkSession, stop: threading.Event) -> None:
        """Run until `stop` is set, or with `once` until the outbox is empty; raise the error that ends it."""
        self._stop = stop
        if self._writers is not None:
            self._writers.attach(spark, stop)
        self._waits.include_disk_of(local_dir_of(spark))
        with self._landing.maintained():
            self._run_queries(spark, stop)
        if self._settings.once:
            self._landing.complete_maintenance(stop.is_set)

    def _run_queries(self, spark: SparkSession, stop: threading.Event) -> None:
        failed = 0
        while not stop.is_set():
            if not self._waits.are_over():
                stop.wait(POLL_S)
                continue
            self._failure = None
            batches = self._progress.batches
            try:
                self._landing.open(stop.is_set)
                self._run_query(spark, stop)
            except (PySparkException, Py4JError, OSError, StateFull, *_RETRIED, *SERVER_OUTAGE) as error:
                if stop.is_set():  # NB: a service manager may stop Spark's JVM at the same moment as this process
                    self._finish_batch(error)
                    return
                if not is_alive(spark):  # first: a dead JVM may cause any kind of failure
                    raise SparkGone("Spark's JVM has ended") from error
                if self._waits.begin_after(error, self._failure):
                    continue
                failed = failed + 1 if self._progress.batches == batches else 1
                try:
                    self._judge(error, failed)
                except (*_RETRIED, *SERVER_OUTAGE) as found:  # the outbox or the lake was asked, and did not answer
                    self._failure = found
                    if self._waits.begin_after(found, self._failure):
                        continue
                    raise
                self._metrics.restarts.inc()
                stop.wait(RESTART_WAIT_S)
            else:
                return

    def _finish_batch(self, error: Exception) -> None:
        """Wait for the batch that is being written although Spark is gone; after the limit it is replayed later."""
        is_finished = self._in_batch.acquire(timeout=BATCH_S_MAX)
        self._log.info("spark ended during the stop", is_batch_finished=is_finished, **describe_error(error))

    def _run_query(self, spark: SparkSession, stop: threading.Event) -> None:
        while not stop.is_set() and self._resume(merges=False):
            notify(ALIVE)
        query = self._start(spark)
        try:
            notify(READY)
            while query.isActive and not stop.is_set():
                notify(ALIVE)
                if self._hold is not None:
                    self._hold.check_idle()
                self._record_maintenance()
                if not self._in_batch.locked():
                    self._freed_memory.step(self._progress.rows, time.monotonic())
                if not self._resume():
                    stop.wait(POLL_S)
        finally:
            if stop.is_set():
                notify(STOPPING)
            # NB: waits for the callback of a running batch, so that the batch ends cleanly.
            if query.isActive:
                query.stop()
        failure = query.exception()
        if failure is not None and not stop.is_set():
            raise failure
        while self._settings.once and not stop.is_set() and self._resume(is_end=True):
            notify(ALIVE)

    def _resume(self, *, merges: bool = True, is_end: bool = False) -> bool:
        """Let tables that are behind catch up by one slice, between two batches; return whether there was one."""
        if not self._landing.is_behind or not self._in_batch.acquire(timeout=POLL_S):
            return False
        try:
            return self._landing.catch_up(merges=merges, is_end=is_end)
        finally:
            self._in_batch.release()

    def _record_maintenance(self) -> None:
        """Record the results of maintenance, if no batch does."""
        if self._in_batch.acquire(blocking=False):
            try:
                self._landing.record_maintenance()
            finally:
                self._in_batch.release()

    def _start(self, spark: SparkSession) -> StreamingQuery:
        settings = self._settings
        self._outbox_id = self._outbox.outbox_id
        check_not_restored(settings.lake, self._landing.positions, self._outbox, self._capture, settings.reader)
        start = starting_sequence(self._landing.positions, self._outbox)
        lake = self._landing.positions.lake_id()  # a checkpoint belongs to one lake, and a state may serve two
        register_source(spark)
        self._log.info("query starts", lake=settings.lake, outbox=self._outbox_id, after=start)
        if begins_late := self._landing.positions.begins_late:
            self._log.warning("the lake lacks earlier changes", reason=begins_late, hint=LATE_HINT)
        rows = (
            spark.readStream.format(FORMAT)
            .options(**settings.source)
            .option("startingSequence", start)
            .option("pollTimeoutMs", POLL_TIMEOUT_MS)
            .option("maxBytesPerTrigger", settings.batch_bytes)
            .option("offsetsOnly", "true")
            .load()
        )
        checkpoint = checkpoint_url(spark, f"{settings.checkpoint}/{self._outbox_id}-{lake}{self._adoptions()}")
        offsets = OffsetLog(spark, checkpoint)
        writer = (
            rows.writeStream.queryName(QUERY)
            .option("checkpointLocation", checkpoint)
            .foreachBatch(lambda _rows, batch_id: self._batch(offsets, batch_id))
        )
        query = writer.trigger(availableNow=True) if settings.once else writer.trigger(processingTime="0 seconds")
        return query.start()

    def _adoptions(self) -> str:
        """Return what a reader that went back adds to the name of its checkpoint: the earlier one is ahead of it."""
        registered = self._outbox.registered(self._settings.reader)
        return f"-{registered.adoptions}" if registered is not None and registered.adoptions else ""

    def _batch(self, offsets: OffsetLog, batch_id: int) -> None:
        """Write one batch to the lake. NB: its number finds its end in the checkpoint; a new one counts from 0."""
        with self._in_batch:
            try:
                with self._metrics.in_stage(BatchStage.OFFSETS):
                    end = offsets.end(batch_id)
                self._land(end)
            except BaseException as error:
                self._failure = error
                raise

    def _land(self, end: Offset) -> None:
        """Write what the lake lacks up to the end of a batch: Spark may repeat a batch that the lake contains."""
        landing, metrics = self._landing, self._metrics
        started = time.monotonic()
        if end["outbox"] != self._outbox.outbox_id:
            raise OutboxReplaced(
                f"the batch belongs to outbox {end['outbox']}, but {self._outbox.place} has another one"
            )
        after, upto = starting_sequence(landing.positions, self._outbox), Sequence(int(end["sequence"]))
        if after >= upto:
            landing.confirm()
        writers = self._writers.taken() if self._writers is not None else None
        for feed in self._timed(feeds(self._outbox, self._outbox_id, after, upto, writers=writers)):
            if self._hold is not None:
                self._hold.check()
            landing.land(feed)
            with metrics.in_stage(BatchStage.REPORT):
                seconds, (head, head_lsn) = time.monotonic() - started, newest_commit(self._outbox, feed)
                positions = landing.positions
                settled = len(positions.settled)
                self._progress.landed(feed, positions.tables, head, head_lsn, seconds, settled=settled)
                landing.end_portion()
            started = time.monotonic()
            del feed  # two portions at once, not three: the next one but one is read during the next write

    def _timed(self, portions: Iterator[Feed]) -> Iterator[Feed]:
        """Yield the portions, and record how long each was awaited."""
        while True:
            with self._metrics.in_stage(BatchStage.READ):
                feed = next(portions, None)
            if feed is None:
                return
            yield feed
            del feed

    def _judge(self, error: Exception, failed: int) -> None:
        """Return if the query may be retried; otherwise raise the error that ends the pipeline."""
        failure = named_error(error, self._failure)
        if isinstance(failure, TableFenced) and self._hold is not None and self._hold.is_newest:
            self._hold.check()
            self._log.warning("an older pipeline committed: opening the lake again", **describe_error(failure))
            return
        if isinstance(failure, OVER) and self._outbox.outbox_id != self._outbox_id:
            self._log.info("the outbox was renumbered; starting a new query", before=self._outbox_id)
            return
        if failure is not None and failure.disposition is not Disposition.RETRY:
            raise failure
        cause = failure or self._failure or error
        fields = {**describe_error(cause), "error": first_reason(str(cause))}  # the whole text may have column values
        self._log.warning("query failed", attempt=failed, **fields)
        if failed > RESTARTS_MAX:
            raise QueryFailed(f"the query failed {failed} times in a row: {first_reason(str(error))}") from error


def _return_freed_memory() -> None:
    pa.default_memory_pool().release_unused()
    return_freed_memory()


def register_source(spark: SparkSession) -> None:
    """Register the format in a session that did not find it: the pipeline's own does not search (`session`).

    A format that Spark found must not be registered again.
    """
    try:
        spark.dataSource.register(OutboxSource)
    except PySparkException as error:
        if error.getCondition() != ALREADY_KNOWN:
            raise


def starting_sequence(positions: LakePositions, outbox: OutboxPort) -> Sequence:
    """Return the sequence after which the lake lacks values: its applied sequence.

    An outbox that is new to the lake starts at its beginning; changes that the lake contains are skipped by position. A
    lake without a recorded outbox begins with the first value, or late (`late_begin`).
    """
    if positions.outbox == outbox.outbox_id or not (positions.outbox or positions.begins_late):
        return positions.applied.sequence
    return outbox.ledger().trimmed
