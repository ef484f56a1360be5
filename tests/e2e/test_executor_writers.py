"""Jobs of Spark that write the files of a run, on a local session: what they write, and why they fail."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from tests.support.workloads.feeder import RandomTables, feed, make_state
from tidemark.io.host.log_output import get_log
from tidemark.io.process.lake_config import DEFAULT_LAKE
from tidemark.io.state.outbox import OutboxReader
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeBatch
from tidemark.model.position import NO_SEQUENCE
from tidemark.pipeline.driver import executor_writers
from tidemark.pipeline.driver.executor_writers import SKIPPED_MAX, ExecutorWriters, RefusedRuns
from tidemark.pipeline.landing.metrics import (
    EXECUTOR_BYTES,
    EXECUTOR_FILES,
    EXECUTOR_REFUSALS,
    EXECUTOR_SECONDS,
    PipelineMetrics,
)
from tidemark.pipeline.sinks.executor_files import LogFiles, ReplicaFiles
from tidemark.pipeline.sinks.logshape import log_schema
from tidemark.pipeline.sinks.steps import PackedRun, bounds_of
from tidemark.pipeline.source.offsets import OutboxReplaced
from tidemark.pipeline.source.options import SourceOptions
from tidemark.pipeline.source.unread_rows import UnreadRows, UnreadValues
from tidemark.wire.values import ValueKind

RUNS, REFUSED = 10, 3  # the runs 1, 3 and 6 are read; 1, 2 and 4 of the next ones are skipped


class LocalWriters(ExecutorWriters):
    """Writers whose executor is the local session itself, which Spark does not count."""

    def _count(self) -> int:
        return 1


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
    writers = LocalWriters(source, str(tmp_path), DEFAULT_LAKE, get_log("test"), metrics)
    writers.attach(spark)
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
        with pytest.raises(OutboxReplaced, match="and the query reads another"):
            writers.write(LogFiles(str(table), schema), run_of(outbox, "another"))


def sample(metrics: PipelineMetrics, name: str) -> float:
    return metrics.registry.get_sample_value(name, {"capture": "test"}) or 0.0


def test_runs_that_have_to_be_merged_are_not_given_to_executors_again_and_again(
    tmp_path: Path, spark: SparkSession
) -> None:
    """The replica has other columns than the run, so that executors write nothing."""
    folder = StateFolder(tmp_path / "state")
    make_state(folder.root)
    feed(folder.root, RandomTables(1).groups(4))
    metrics = PipelineMetrics("test")
    source = SourceOptions.parse({"state": str(folder.root)})
    writers = LocalWriters(source, str(tmp_path), DEFAULT_LAKE, get_log("test"), metrics)
    writers.attach(spark)
    with OutboxReader.open(folder) as outbox:
        run = run_of(outbox, outbox.outbox_id)
        for _ in range(RUNS):
            assert writers.write(ReplicaFiles(str(tmp_path / "replica"), pa.schema([]), ("id",), (), 1000), run) is None
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


def test_a_cluster_without_executors_is_reported_and_the_driver_writes(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = StateFolder(tmp_path / "state")
    make_state(folder.root)
    monkeypatch.setattr(executor_writers, "WITHOUT_S", 0.0)
    with capture_logs() as lines:
        source = SourceOptions.parse({"state": str(folder.root)})
        writers = ExecutorWriters(source, str(tmp_path), DEFAULT_LAKE, get_log("test"), PipelineMetrics("test"))
        writers.attach(spark)
        assert not writers.are_there()
        assert not writers.are_there()
    assert [line["event"] for line in lines] == ["spark has no executors: the driver writes all files itself"]
