"""Jobs of Spark that write the files of a run, on a local session: what they write, and why they fail."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark import SparkConf
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from tests.support.lakes.local_executors import local_writers
from tests.support.processes.spark_process import wait_for
from tests.support.workloads.feeder import RandomTables, feed, make_state
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.log_output import get_log
from tidemark.io.process.lake_config import DEFAULT_LAKE
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeBatch
from tidemark.model.position import NO_SEQUENCE
from tidemark.pipeline.delta_log.applied import NOTHING
from tidemark.pipeline.delta_log.unused_files import delete_unused_files
from tidemark.pipeline.driver.executor_jobs import STOPPED_S
from tidemark.pipeline.driver.executor_writers import SKIPPED_MAX, ExecutorWriters, RefusedRuns
from tidemark.pipeline.driver.executors import DYNAMIC, WITHOUT_S, Executors
from tidemark.pipeline.lake.layout import lake_columns
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.landing.metrics import (
    EXECUTOR_BYTES,
    EXECUTOR_FILES,
    EXECUTOR_LATE_JOBS,
    EXECUTOR_REFUSALS,
    EXECUTOR_SECONDS,
    EXECUTOR_THRESHOLD_BYTES,
    PipelineMetrics,
)
from tidemark.pipeline.merge.merging import ReplicaFormat
from tidemark.pipeline.sinks.executors.executor_files import LogFiles, ReplicaFiles, WrittenFiles
from tidemark.pipeline.sinks.executors.write_costs import RunWriter
from tidemark.pipeline.sinks.rows.logshape import log_schema
from tidemark.pipeline.sinks.steps import PackedRun, Rows, bounds_of
from tidemark.pipeline.source.offsets import OutboxReplaced
from tidemark.pipeline.source.options import SourceOptions
from tidemark.pipeline.source.rows.unread_rows import UnreadRows, UnreadValues
from tidemark.wire.values import ValueKind

RUNS, REFUSED = 10, 3  # the runs 1, 3 and 6 are read; 1, 2 and 4 of the next ones are skipped


class ClockOf(SystemClock):
    """The real clock, which a condition puts forward."""

    def __init__(self, ahead_s: Callable[[], float]) -> None:
        self._ahead_s = ahead_s

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self._ahead_s()


def run_of(outbox: OutboxReader, outbox_id: str) -> PackedRun:
    """Return the first value of rows as a run that is not read yet."""
    values = outbox.headers(NO_SEQUENCE, outbox.head())
    header = next(one for one in values if one.kind is ValueKind.BATCH)
    relation = outbox.relation(header.schema_version)
    batch = ChangeBatch(
        header.database, relation, UnreadRows(UnreadValues(outbox, outbox_id, [header.sequence]), header)
    )
    return PackedRun(relation, [(header.sequence, batch)], bounds_of(batch)[1])


def test_a_job_writes_the_rows_of_a_run_and_names_a_renumbered_outbox(tmp_path: Path, spark: SparkSession) -> None:
    folder, table = StateFolder(tmp_path / "state"), tmp_path / "log"
    make_state(folder.root)
    feed(folder.root, RandomTables(1).groups(4))
    table.mkdir()
    source = SourceOptions.parse({"state": str(folder.root)})
    metrics = PipelineMetrics("test")
    writers = local_writers(ExecutorWriters, source, tmp_path, metrics, spark)
    with OutboxReader.open(folder) as outbox:
        run = run_of(outbox, outbox.outbox_id)
        ((_, batch),) = run.batches
        schema = log_schema(run.relation, batch.rows.schema.field("_after").type)
        written = writers.write(LogFiles(str(table), schema), run)
        assert written is not None
        (file,) = table.glob("*.parquet")
        assert [action.path for action in written.added] == [file.name]
        counted = {name: sample(metrics, name) for name in (EXECUTOR_FILES, EXECUTOR_BYTES, EXECUTOR_REFUSALS)}
        assert counted == {EXECUTOR_FILES: 1, EXECUTOR_BYTES: file.stat().st_size, EXECUTOR_REFUSALS: 0}
        assert sample(metrics, EXECUTOR_SECONDS) > 0
        threshold = writers.bytes_min
        for _ in range(10):
            writers.record(RunWriter.EXECUTORS, threshold, 100.0)
        assert threshold < writers.bytes_min == sample(metrics, EXECUTOR_THRESHOLD_BYTES)
        with pytest.raises(OutboxReplaced, match="and the query reads another"):
            writers.write(LogFiles(str(table), schema), run_of(outbox, "another"))


def sample(metrics: PipelineMetrics, name: str) -> float:
    return metrics.registry.get_sample_value(name, {"capture": "test"}) or 0.0


def test_runs_that_executors_cannot_write_are_not_given_to_them_again_and_again(
    tmp_path: Path, spark: SparkSession
) -> None:
    """The replica has other columns than the run, so that executors write nothing."""
    folder = StateFolder(tmp_path / "state")
    make_state(folder.root)
    feed(folder.root, RandomTables(1).groups(4))
    metrics = PipelineMetrics("test")
    source = SourceOptions.parse({"state": str(folder.root)})
    writers = local_writers(ExecutorWriters, source, tmp_path, metrics, spark)
    with OutboxReader.open(folder) as outbox:
        run = run_of(outbox, outbox.outbox_id)
        form = ReplicaFormat((), (), 1000)
        target = ReplicaFiles(
            str(tmp_path / "replica"),
            pa.schema([]),
            lake_columns(run.relation),
            ("id",),
            form,
            can_merge=True,
            appends=True,
        )
        for _ in range(RUNS):
            assert writers.write(target, run) is None
    assert sample(metrics, EXECUTOR_REFUSALS) == REFUSED


def test_a_run_that_executors_wrote_ends_the_pause_of_its_table_and_of_no_other() -> None:
    refused = RefusedRuns()
    for _ in range(20):
        refused.record("one", is_written=False)
    assert sum(iter(lambda: refused.skips("one"), False)) == SKIPPED_MAX
    assert not refused.skips("other")
    refused.record("one", is_written=True)
    assert not refused.skips("one")
    refused.record("one", is_written=False)
    assert [refused.skips("one") for _ in range(3)] == [True, False, False]


@dataclass(frozen=True, slots=True, eq=False)
class HungFiles(LogFiles):
    """A log whose files are written, by an executor that then hangs in a system call: nobody writes to the pipe."""

    pipe: str

    def write(self, rows: Rows) -> WrittenFiles | None:
        written = LogFiles.write(self, rows)
        Path(f"{self.pipe}.pid").write_text(str(os.getpid()), encoding="ascii")
        with Path(self.pipe).open(encoding="ascii"):
            return written


@pytest.mark.parametrize(
    ("stopping", "lasts_s"), [(False, DEFAULT_LAKE.executor_job_s), (True, STOPPED_S)], ids=["running", "stopping"]
)
def test_the_driver_gets_the_run_of_an_executor_that_hangs_and_the_vacuum_its_files(
    tmp_path: Path, spark: SparkSession, *, stopping: bool, lasts_s: float
) -> None:
    folder, table, pipe = StateFolder(tmp_path / "state"), tmp_path / "log", tmp_path / "pipe"
    make_state(folder.root)
    feed(folder.root, RandomTables(1).groups(4))
    os.mkfifo(pipe)
    source, metrics = SourceOptions.parse({"state": str(folder.root)}), PipelineMetrics("test")
    ahead_s = 0.0
    hangs = Path(f"{pipe}.pid")
    stop, first_s = Event(), iter([0.0])
    clock = ClockOf(lambda: ahead_s + (next(first_s, lasts_s) if hangs.exists() else 0.0))
    writers = local_writers(ExecutorWriters, source, tmp_path, metrics, spark, clock=clock, stop=stop)
    if stopping:
        stop.set()
    with OutboxReader.open(folder) as outbox, capture_logs() as lines:
        run = run_of(outbox, outbox.outbox_id)
        schema = log_schema(run.relation, run.batches[0][1].rows.schema.field("_after").type)
        log = LakeTable(str(table), "app")
        log.create(schema, NOTHING)
        assert writers.write(HungFiles(str(table), schema, str(pipe)), run) is None
        assert not writers.are_there(), "the driver writes all runs for a while"
        assert writers.write(LogFiles(str(table), schema), run) is None
        assert sample(metrics, EXECUTOR_LATE_JOBS) == 1
        ahead_s = DEFAULT_LAKE.executor_job_s
        assert writers.are_there()
        assert writers.write(LogFiles(str(table), schema), run) is not None
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == [
        "executors are late: the driver writes the files itself"
    ]
    late, written = sorted(table.glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)
    assert not DeltaTable(str(table)).file_uris(), "neither of them is committed"
    wait_for(lambda: not is_running(int(hangs.read_text())), "the end of the executor that hangs", lambda: "")
    os.utime(late, (0, 0))
    assert delete_unused_files(str(table), 1, 0, 10, Lock()) == 1
    assert list(table.glob("*.parquet")) == [written]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class StandingClock(SystemClock):
    """A clock that only waiting puts forward."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def monotonic_s(self) -> float:
        return self._now_s

    def wait(self, seconds: float) -> None:
        self._now_s += seconds


def test_a_cluster_without_executors_is_reported_and_the_driver_writes(spark: SparkSession) -> None:
    clock = StandingClock()
    with capture_logs() as lines:
        executors = Executors(get_log("test"), clock, clock.wait)
        executors.attach(spark)
        assert not executors.are_there()
        assert clock.monotonic_s() == WITHOUT_S
        assert not executors.are_there()
        assert clock.monotonic_s() == WITHOUT_S, "it waits once"
    assert [line["event"] for line in lines] == ["spark has no executors: the driver writes all files itself"]


class AllocatedExecutors(Executors):
    """Executors that Spark starts for a task, and ends when they are idle."""

    tasks = idle = 0

    def run_empty_task(self, spark: SparkSession) -> None:
        super().run_empty_task(spark)
        self.tasks += 1

    def count(self) -> int:
        return self.tasks - self.idle


class AwaitedExecutors(Executors):
    """Executors that a cluster without free cores does not start."""

    requests = 0
    released = Event()

    def count(self) -> int:
        return 0

    def run_empty_task(self, _spark: SparkSession) -> None:
        self.requests += 1
        self.released.wait()


@pytest.fixture
def dynamic(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with dynamic allocation, as far as its settings say: a local one has no executors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spark.sparkContext, "getConf", lambda: SparkConf(loadDefaults=False).set(DYNAMIC, "true"))
        yield spark


def test_executors_that_spark_allocates_as_needed_are_requested_each_time_that_they_have_gone(
    dynamic: SparkSession,
) -> None:
    executors = AllocatedExecutors(get_log("test"), SystemClock(), time.sleep)
    executors.attach(dynamic)
    for _ in range(2):
        executors.idle += executors.count()
        assert executors.are_there()
        assert executors.are_there()
        assert executors.count() == 1


def test_executors_are_requested_once_while_a_cluster_has_none_to_give(dynamic: SparkSession) -> None:
    clock = StandingClock()
    executors = AwaitedExecutors(get_log("test"), clock, clock.wait)
    executors.attach(dynamic)
    try:
        assert not executors.are_there()
        assert not executors.are_there()
    finally:
        executors.released.set()
    assert executors.requests == 1
    assert clock.monotonic_s() == WITHOUT_S, "it waits once"
