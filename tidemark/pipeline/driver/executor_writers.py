"""Lets Spark's executors write the data files of large runs; the driver plans them and makes the commits.

The executors read the values from the outbox server, and write into the lake: both must be reachable from them. They
need the packages of the driver. Without executors the driver writes by itself, and reports it.

A job has a deadline: an executor that hangs in a system call would otherwise stop the pipeline. A stop of the pipeline
shortens it. After it the job is cancelled, the driver writes the run, and for as long as a job may take it gives the
executors nothing: waiting takes at most half of the time. What a late executor still writes is in no commit
(`sinks.executor_files`).
"""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from threading import Event
from uuid import uuid4

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidemark.engine.ports import Clock
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.logs import Log
from tidemark.io.process.lake_config import LakeConfig
from tidemark.model.errors import ConsumerFailed, Disposition
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.driver.executors import POLL_S, Executors
from tidemark.pipeline.failures import first_reason, named_failure
from tidemark.pipeline.landing.metrics import PipelineMetrics
from tidemark.pipeline.sinks.executor_files import TargetFiles, WrittenFiles, joined
from tidemark.pipeline.sinks.steps import PackedRun, run_of_rows
from tidemark.pipeline.sinks.write_costs import RunWriter, WriteCosts
from tidemark.pipeline.source.opened_outbox import open_outbox
from tidemark.pipeline.source.options import SourceOptions
from tidemark.pipeline.source.unread_rows import UnreadRows, read_batches
from tidemark.pipeline.storage.stores import open_lake

TASK_BYTES = 16 << 20  # of values: one file of a log
JOBS_AT_ONCE = 8  # each waits for the executors
STOPPED_S = 30.0  # for a job while the pipeline stops: a quarter of TimeoutStopSec of its unit
SKIPPED_MAX = 64  # runs of a log or replica that the driver writes without asking, after runs that had to be merged


class ExecutorsFailed(ConsumerFailed):
    """The executors could not write the files of a run."""

    disposition = Disposition.RETRY
    hint = "see the logs of Spark's executors; they need the packages of the driver, the outbox server and the lake"


@dataclass(frozen=True, slots=True, eq=False)
class FileTask:
    """A part of a run, and where its files belong."""

    source: SourceOptions
    lake: str
    lake_config: LakeConfig
    outbox_id: str
    sequences: tuple[OutboxSequence, ...]
    target: TargetFiles


def write_part(task: FileTask) -> WrittenFiles | None:
    """Write the files of a part of a run; on an executor."""
    open_lake(task.lake, task.lake_config)
    batches = read_batches(open_outbox(task.source), task.outbox_id, list(task.sequences))
    return task.target.write(run_of_rows(list(zip(task.sequences, batches, strict=True))))


class RefusedRuns:
    """The logs and replicas whose runs executors read in vain: each time, twice as many of the next runs are skipped.

    Executors find out only by reading a run that it has updates or deletes, which the driver merges.
    """

    def __init__(self) -> None:
        self._skipped: dict[str, tuple[int, int]] = {}  # by URI: how many are skipped, and how many of them are left

    def skips(self, uri: str) -> bool:
        """Return whether the next run is skipped, and count it."""
        skipped, left = self._skipped.get(uri, (0, 0))
        if not left:
            return False
        self._skipped[uri] = skipped, left - 1
        return True

    def record(self, uri: str, *, is_written: bool) -> None:
        """Record what became of a run."""
        if is_written:
            self._skipped.pop(uri, None)
            return
        skipped = min(SKIPPED_MAX, 2 * self._skipped.get(uri, (0, 0))[0] or 1)
        self._skipped[uri] = skipped, skipped


class ExecutorWriters:
    """Writes the files of runs by Spark jobs, several at a time."""

    def __init__(
        self,
        source: SourceOptions,
        lake: str,
        lake_config: LakeConfig,
        log: Log,
        metrics: PipelineMetrics,
        *,
        clock: Clock | None = None,
        executors: Executors | None = None,
    ) -> None:
        """`source` names the outbox as the executors reach it; `executors` replaces those of the session."""
        self._source, self._lake, self._lake_config = source, lake, lake_config
        self._log = log
        self._metrics = metrics
        self._clock = clock or SystemClock()
        self._executors = executors or Executors(log, self._clock, time.sleep)
        self._refused = RefusedRuns()
        self._costs = WriteCosts()
        self._pool = ThreadPoolExecutor(JOBS_AT_ONCE, "tidemark-executors")
        self._spark: SparkSession | None = None
        self._stop = Event()  # replaced by the caller's in `attach`
        self._paused_until_s = float("-inf")

    def attach(self, spark: SparkSession, stop: Event) -> None:
        """Use the executors of a session, which may come somewhat later. `stop` is set once the pipeline stops."""
        self._spark, self._stop = spark, stop
        self._executors.attach(spark)

    def are_there(self) -> bool:
        """Return whether executors may write a run; wait for those that are late."""
        return not self._is_paused() and self._executors.are_there()

    def _is_paused(self) -> bool:
        return self._clock.monotonic_s() < self._paused_until_s

    @property
    def bytes_min(self) -> int:
        """Return the least bytes of a run of which executors write the files."""
        threshold = self._lake_config.executor_bytes_min or self._costs.threshold_bytes
        self._metrics.executor_threshold_bytes.set(threshold)
        return threshold

    def record(self, writer: RunWriter, byte_count: int, seconds: float) -> None:
        """Record how long it took to write a run into a log."""
        self._costs.record(writer, byte_count, seconds)

    def write(self, target: TargetFiles, run: PackedRun) -> WrittenFiles | None:
        """Let the executors write the files of a run; None if the driver has to write it."""
        tasks = list(self._tasks(target, run))
        if self._spark is None or not tasks or self._is_paused() or self._refused.skips(target.uri):
            return None
        group, begun_s = uuid4().hex, self._clock.monotonic_s()
        job = self._pool.submit(self._run, self._spark, group, tasks)
        try:
            parts = self._result(self._spark, group, job, begun_s + self._lake_config.executor_job_s)
        except (PySparkException, Py4JError) as error:
            if self._executors.are_gone():
                return None
            named = named_failure(str(error))
            raise named or ExecutorsFailed(f"the executors did not write: {first_reason(str(error))}") from error
        finally:
            seconds = self._clock.monotonic_s() - begun_s
            self._metrics.executor_seconds.inc(seconds)
        if parts is None:
            self._pause(target.uri, len(tasks))
            return None
        written = joined(parts)
        self._refused.record(target.uri, is_written=written is not None)
        if written is None:
            self._metrics.executor_refusals.inc()
            return None
        file_count, byte_count = len(written.added), sum(action.size for action in written.added)
        self._metrics.executor_files.inc(file_count)
        self._metrics.executor_bytes.inc(byte_count)
        found = {"files": file_count, "bytes": byte_count, "rows": run.row_count, "seconds": round(seconds, 3)}
        self._log.info("executors wrote a run", table=target.uri, **found)
        return written

    def _pause(self, uri: str, task_count: int) -> None:
        pause_s = self._lake_config.executor_job_s
        self._paused_until_s = self._clock.monotonic_s() + pause_s
        self._metrics.executor_late_jobs.inc()
        hint = "see the logs of Spark's executors: a task hangs, or waits for a free core (lake.executor_job_s)"
        self._log.warning(
            "executors are late: the driver writes the files itself",
            table=uri,
            tasks=task_count,
            paused_s=pause_s,
            hint=hint,
        )

    def _tasks(self, target: TargetFiles, run: PackedRun) -> Iterator[FileTask]:
        """Yield parts of about `TASK_BYTES`; none if the rows have been read already."""
        part, part_bytes, outbox_id = list[OutboxSequence](), 0, ""

        def task() -> FileTask:
            return FileTask(self._source, self._lake, self._lake_config, outbox_id, tuple(part), target)

        for sequence, batch in run.batches:
            rows = batch.given
            if not isinstance(rows, UnreadRows):
                return
            if part and part_bytes + rows.byte_count > TASK_BYTES:
                yield task()
                part, part_bytes = [], 0
            part.append(sequence)
            part_bytes += rows.byte_count
            outbox_id = rows.outbox_id
        if part:
            yield task()

    @staticmethod
    def _run(spark: SparkSession, group: str, tasks: list[FileTask]) -> list[WrittenFiles | None]:
        context = spark.sparkContext
        context.setJobGroup(group, "files of a run")
        return list(context.parallelize(tasks, len(tasks)).map(write_part).collect())

    def _result(
        self, spark: SparkSession, group: str, job: Future[list[WrittenFiles | None]], deadline_s: float
    ) -> list[WrittenFiles | None] | None:
        """Wait for a job; cancel it if all executors are gone, or at the deadline: then return None.

        A cancelled job is not awaited: its late result is not used, and its thread ends with it.
        """
        while True:
            try:
                return job.result(POLL_S)
            except NotYet:
                now_s = self._clock.monotonic_s()
                if self._stop.is_set():
                    deadline_s = min(deadline_s, now_s + STOPPED_S)
                if now_s >= deadline_s:
                    spark.sparkContext.cancelJobGroup(group)
                    return None
                if not self._executors.count() and self._executors.are_gone():
                    spark.sparkContext.cancelJobGroup(group)
