"""Jobs of Spark that write the files of a run, on a local session: what they write, and why they fail."""

from pathlib import Path

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
from tidemark.pipeline.driver.executor_writers import ExecutorWriters
from tidemark.pipeline.sinks.executor_files import LogFiles
from tidemark.pipeline.sinks.logshape import log_schema
from tidemark.pipeline.sinks.steps import PackedRun, bounds_of
from tidemark.pipeline.source.offsets import OutboxReplaced
from tidemark.pipeline.source.options import SourceOptions
from tidemark.pipeline.source.unread_rows import UnreadRows
from tidemark.wire.values import ValueKind


class LocalWriters(ExecutorWriters):
    """Writers whose executor is the local session itself, which Spark does not count."""

    def _count(self) -> int:
        return 1


def run_of(outbox: OutboxReader, outbox_id: str) -> PackedRun:
    """Return the first value of rows as a run that is not read yet."""
    values = outbox.headers(NO_SEQUENCE, outbox.head())
    header = next(one for one in values if one.kind is ValueKind.BATCH)
    relation = outbox.relation(header.schema_version)
    batch = ChangeBatch(header.database, relation, UnreadRows(outbox, outbox_id, header))
    return PackedRun(relation, [(header.sequence, batch)], bounds_of(batch)[1])


def test_a_job_writes_the_rows_of_a_run_and_names_a_renumbered_outbox(tmp_path: Path, spark: SparkSession) -> None:
    folder, table = StateFolder(tmp_path / "state"), tmp_path / "log"
    make_state(folder.root)
    feed(folder.root, RandomTables(1).groups(4))
    table.mkdir()
    source = SourceOptions.parse({"state": str(folder.root)})
    writers = LocalWriters(source, str(tmp_path), DEFAULT_LAKE, get_log("test"))
    writers.attach(spark)
    with OutboxReader.open(folder) as outbox:
        run = run_of(outbox, outbox.outbox_id)
        ((_, batch),) = run.batches
        schema = log_schema(run.relation, batch.rows.schema.field("_after").type)
        written = writers.write(LogFiles(str(table), schema), run)
        assert written is not None
        assert [action.path for action in written.added] == [path.name for path in table.glob("*.parquet")]
        with pytest.raises(OutboxReplaced, match="and the query reads another"):
            writers.write(LogFiles(str(table), schema), run_of(outbox, "another"))


def test_a_cluster_without_executors_is_reported_and_the_driver_writes(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = StateFolder(tmp_path / "state")
    make_state(folder.root)
    monkeypatch.setattr(executor_writers, "WITHOUT_S", 0.0)
    with capture_logs() as lines:
        source = SourceOptions.parse({"state": str(folder.root)})
        writers = ExecutorWriters(source, str(tmp_path), DEFAULT_LAKE, get_log("test"))
        writers.attach(spark)
        assert not writers.are_there()
        assert not writers.are_there()
    assert [line["event"] for line in lines] == ["spark has no executors: the driver writes all files itself"]
