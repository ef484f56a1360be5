"""Lets Spark's executors write the data files of large runs; the driver plans them and makes the commits.

The executors read the values from the outbox server, and read and write the lake: both must be reachable from them.
They need the packages of the driver. Without executors the driver writes by itself, and reports it.

A run is read in parts, each by one task. To merge it, these tasks send the changes to those that rewrite files, through
Spark's shuffle: so each value is read from the server once, however many files its changes touch.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Event

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tidemark.engine.ports import Clock
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.loaded_objects import skipping_loaded_objects
from tidemark.io.host.logs import Log
from tidemark.io.process.lake_config import LakeConfig
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.driver.executor_jobs import ExecutorJobs, ExecutorsFailed
from tidemark.pipeline.driver.executors import Executors
from tidemark.pipeline.lake.positions.table_position import TableId
from tidemark.pipeline.landing.metrics import PipelineMetrics
from tidemark.pipeline.landing.portions import Writers
from tidemark.pipeline.merge.keys import Indexes
from tidemark.pipeline.merge.merge_tasks import MergeTask
from tidemark.pipeline.merge.merging import MergedFiles
from tidemark.pipeline.sinks.executors.executor_files import ReplicaFiles, TargetFiles, WrittenFiles, joined
from tidemark.pipeline.sinks.executors.write_costs import MergeCosts, ReadCosts, RunWriter, WriteCosts
from tidemark.pipeline.sinks.steps import PackedRun, Rows, run_of_rows
from tidemark.pipeline.source.opened_outbox import open_outbox
from tidemark.pipeline.source.options import SourceOptions
from tidemark.pipeline.source.rows.unread_rows import UnreadRows, read_batches
from tidemark.pipeline.storage.stores import open_lake

TASK_BYTES = 16 << 20  # of values: one file of a log
SKIPPED_MAX = 64  # runs of a log or replica that the driver writes without asking, after runs that it had to write
Sent = MergeTask | tuple[int, bytes]
"""What a task of a merge gets: its description, and the changes of each part of the run."""


@dataclass(frozen=True, slots=True, eq=False)
class FileTask:
    """A part of a run, and where its files belong."""

    source: SourceOptions
    lake: str
    lake_config: LakeConfig
    outbox_id: str
    sequences: tuple[OutboxSequence, ...]
    target: TargetFiles

    def read(self) -> Rows:
        """Read the values of the part."""
        batches = read_batches(open_outbox(self.source, is_started=True), self.outbox_id, list(self.sequences))
        return run_of_rows(list(zip(self.sequences, batches, strict=True)))


@skipping_loaded_objects()
def write_part(task: FileTask) -> WrittenFiles | None:
    """Write the files of a part of a run; on an executor."""
    open_lake(task.lake, task.lake_config)
    return task.target.write(task.read())


@dataclass(frozen=True, slots=True, eq=False)
class SentPart:
    """A part of a run that is merged: its changes for each task, and the tasks that this part describes."""

    part: int
    of: FileTask
    rows: Mapping[int, Indexes]  # by task
    tasks: Mapping[int, MergeTask]


def send_part(sent: SentPart) -> Iterator[tuple[int, Sent]]:
    """Yield what each task of a merge gets from a part of the run; on an executor."""
    with skipping_loaded_objects():
        yield from sent.tasks.items()
        if sent.rows:
            changes = sent.of.read().changes
            for task, rows in sent.rows.items():
                yield task, (sent.part, _packed(changes.take(pa.array(rows))))


def _packed(changes: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, changes.schema) as stream:
        stream.write_table(changes)
    content: bytes = sink.getvalue().to_pybytes()
    return content


@dataclass(frozen=True, slots=True, eq=False)
class MergeRun:
    """Merges what the tasks of one partition of the shuffle got; on an executor."""

    of: FileTask

    def __call__(self, received: Iterable[tuple[int, Sent]]) -> Iterator[tuple[int, MergedFiles]]:
        """Yield the number of each task and the files that it wrote."""
        open_lake(self.of.lake, self.of.lake_config)
        assert isinstance(self.of.target, ReplicaFiles)
        tasks, changes = dict[int, MergeTask](), dict[int, list[tuple[int, bytes]]]()
        for number, sent in received:
            if isinstance(sent, MergeTask):
                tasks[number] = sent
            else:
                changes.setdefault(number, []).append(sent)
        with skipping_loaded_objects():
            for number, task in tasks.items():
                parts = [pa.ipc.open_stream(content).read_all() for _, content in sorted(changes.pop(number))]
                yield number, self.of.target.merge(task, pa.concat_tables(parts))


def itself(number: int) -> int:
    """Return the partition of the shuffle for a task."""
    return number


class RefusedRuns:
    """The logs and replicas whose runs executors read in vain: each time, twice as many of the next runs are skipped.

    Executors find out only by reading a run that its table has another layout, or that a part has to be applied here.
    So it is with a merge that fails: its keys were read before.
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
        self._jobs = ExecutorJobs(log, metrics, self._clock, executors, lake_config.executor_job_s)
        self._refused = RefusedRuns()
        self._changing: set[str] = set()  # the URIs of replicas whose last run changed rows
        self._costs, self._merge_costs, self._read_costs = WriteCosts(), MergeCosts(), ReadCosts()

    def attach(self, spark: SparkSession, stop: Event) -> None:
        """Use the executors of a session, which may come somewhat later. `stop` is set once the pipeline stops."""
        self._jobs.attach(spark, stop)

    def are_there(self) -> bool:
        """Return whether executors may write a run; wait for those that are late."""
        return self._jobs.are_there()

    def taken(self) -> Writers:
        """Return which tables of a portion executors write."""
        return Writers(self.are_there, self.bytes_min, self._bytes_min_of, self._read_costs.record)

    @property
    def bytes_min(self) -> int:
        """Return the least bytes of a run of which executors write the files."""
        threshold = self._lake_config.executor_bytes_min or self._costs.threshold_bytes
        self._metrics.executor_threshold_bytes.set(threshold)
        return threshold

    def _bytes_min_of(self, table: TableId) -> int:
        """Return the same for one table: its merges may rewrite much more than they change."""
        merged_min = None if self._lake_config.executor_bytes_min else self._merge_costs.changes_min(table)
        return self.bytes_min if merged_min is None else min(self.bytes_min, merged_min)

    def appends(self, byte_count: int) -> bool:
        """Return whether executors append so many bytes to a log as fast as the driver."""
        return byte_count >= self.bytes_min

    def merges(self, table: TableId, byte_count: int, file_bytes: int | None = None) -> bool:
        """Return whether executors merge a run as fast as the driver."""
        least = self._lake_config.executor_bytes_min
        return byte_count >= least if least else self._merge_costs.pays(table, byte_count, file_bytes)

    def expects_merge(self, uri: str) -> bool:
        """Return whether the last run of a replica changed rows."""
        return uri in self._changing

    def record(self, writer: RunWriter, byte_count: int, seconds: float) -> None:
        """Record how long it took to write a run into a log."""
        self._costs.record(writer, byte_count, seconds + self._read_s(writer, byte_count))

    def record_merge(self, writer: RunWriter, table: TableId, byte_count: int, file_bytes: int, seconds: float) -> None:
        """Record how long it took to merge a run into a replica."""
        self._merge_costs.record(writer, table, byte_count, file_bytes, seconds + self._read_s(writer, byte_count))

    def _read_s(self, writer: RunWriter, byte_count: int) -> float:
        """Return the time of reading a run that was not measured with it: executors read it in their job."""
        return self._read_costs.seconds(byte_count) if writer is RunWriter.DRIVER else 0.0

    def write(self, target: TargetFiles, run: PackedRun) -> WrittenFiles | None:
        """Let the executors write the files of a run; None if the driver has to write it."""
        tasks = list(self._tasks(target, run))
        if not tasks or self._jobs.are_paused or self._refused.skips(target.uri):
            return None
        begun_s = self._clock.monotonic_s()
        try:
            parts = self._jobs.run(
                target.uri,
                len(tasks),
                lambda context: list(context.parallelize(tasks, len(tasks)).map(write_part).collect()),
            )
        except ExecutorsFailed as error:  # as in `merge`
            self._refuse(target.uri)
            self._log.warning("executors did not write: the driver does", table=target.uri, reason=str(error))
            return None
        if parts is None:
            return None
        written = joined(parts)
        if written is None:
            self._refuse(target.uri)
            return None
        if isinstance(target, ReplicaFiles):
            (self._changing.discard if written.only_adds else self._changing.add)(target.uri)
        if written.is_complete:
            self._refused.record(target.uri, is_written=True)  # NB: another run may still fail to be merged
            files = [MergedFiles(written.added)]
            self._report("executors wrote a run", target.uri, run, files, self._clock.monotonic_s() - begun_s)
        return written

    def merge(self, target: ReplicaFiles, run: PackedRun, tasks: Sequence[MergeTask]) -> Sequence[MergedFiles] | None:
        """Let the executors merge a run, of which they read the keys before; None if the driver has to merge it."""
        parts = list(self._tasks(target, run))
        if not parts or self._jobs.are_paused:
            return None
        begun_s = self._clock.monotonic_s()
        sent = [
            SentPart(
                part,
                of,
                {number: task.rows[part] for number, task in enumerate(tasks) if part in task.rows},
                {n: replace(task, rows={}) for n, task in enumerate(tasks) if n % len(parts) == part},
            )
            for part, of in enumerate(parts)
        ]
        merging = MergeRun(parts[0])

        def job(context: SparkContext) -> list[tuple[int, MergedFiles]]:
            given = context.parallelize(sent, len(sent)).flatMap(send_part)
            return list(given.partitionBy(len(tasks), itself).mapPartitions(merging).collect())

        try:
            found = self._jobs.run(target.uri, len(tasks), job)
        except ExecutorsFailed as error:
            # NB: a file of the lake may be lost, or its disk full: the driver finds out which, with the same files.
            self._refuse(target.uri)
            self._log.warning("executors did not merge: the driver does", table=target.uri, reason=str(error))
            return None
        if found is None:
            return None
        merged = [files for _, files in sorted(found, key=lambda one: one[0])]
        assert len(merged) == len(tasks), "Spark returns the result of each partition once"
        self._refused.record(target.uri, is_written=True)
        self._report("executors merged a run", target.uri, run, merged, self._clock.monotonic_s() - begun_s)
        return merged

    def _refuse(self, uri: str) -> None:
        self._refused.record(uri, is_written=False)
        self._metrics.executor_refusals.inc()

    def _report(self, event: str, uri: str, run: PackedRun, files: Sequence[MergedFiles], seconds: float) -> None:
        added = [action.size for one in files for action in one.added]
        self._metrics.executor_files.inc(len(added))
        self._metrics.executor_bytes.inc(sum(added))
        replaced = sum(len(one.removed) for one in files)
        found = {"files": len(added), "bytes": sum(added), "rows": run.row_count, "seconds": round(seconds, 3)}
        self._log.info(event, table=uri, **found, replaced=replaced)

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
