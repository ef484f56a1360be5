"""Merges by jobs of Spark, on a local session: what they leave in the replica, also after a job that failed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from tests.support.lakes.lakes import IDENTITY, folder_of, log_rows, replica_rows
from tests.support.lakes.local_executors import local_writers
from tests.support.lakes.scripted_table import ScriptedTable
from tests.support.lakes.stored_lake import StoredLake
from tests.support.servers.object_store import object_store
from tests.support.workloads.feeder import RandomTables, feed, group_of, make_state
from tidemark.io.process.lake_config import LakeConfig
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.position import NO_SEQUENCE
from tidemark.pipeline.driver.executor_writers import ExecutorWriters
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.landing.metrics import EXECUTOR_REFUSALS, PipelineMetrics
from tidemark.pipeline.landing.portions import feeds
from tidemark.pipeline.merge.merge_tasks import MergeTask
from tidemark.pipeline.merge.merging import MergedFiles
from tidemark.pipeline.sinks.executors.executor_files import LogFiles, ReplicaFiles, TargetFiles, WrittenFiles
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.steps import PackedRun
from tidemark.pipeline.source.options import SourceOptions

GROUPS, PORTION_BYTES = 40, 20_000
STORED_GROUPS = 20
CREDENTIALS = "[default]\naws_access_key_id = key\naws_secret_access_key = secret\n"
EACH_GROUP = 1  # byte: a portion has at least one group
ALL_RUNS = LakeConfig(executor_bytes_min=1)
ROWS = 20
RUNS = 8
OPEN_FROM = 4
LOST = 2  # merges that find a file lost
TRIED = {1: False, 3: False, 6: True, 7: True}  # runs that are given to executors: after failures not the next 1, 2


class CountedWriters(ExecutorWriters):
    """Counts the files that merges have replaced."""

    replaced = 0

    def merge(self, target: ReplicaFiles, run: PackedRun, tasks: Sequence[MergeTask]) -> Sequence[MergedFiles] | None:
        found = super().merge(target, run, tasks)
        self.replaced += sum(len(files.removed) for files in found or ())
        return found


@pytest.mark.feature("L06")
def test_jobs_merge_the_runs_that_change_rows(tmp_path: Path, spark: SparkSession) -> None:
    folder, lake_root, world = StateFolder(tmp_path / "state"), tmp_path / "lake", RandomTables(2)
    make_state(folder.root)
    feed(folder.root, world.groups(GROUPS))
    source, metrics = SourceOptions.parse({"state": str(folder.root)}), PipelineMetrics("test")
    writers = local_writers(CountedWriters, source, lake_root, metrics, spark, settings=ALL_RUNS)
    with OutboxReader.open(folder) as outbox:
        lake = Lake(str(lake_root), IDENTITY, shape_of, constants_of, writers=writers)
        ends = (NO_SEQUENCE, outbox.head())
        for portion in feeds(outbox, outbox.outbox_id, *ends, PORTION_BYTES, writers=writers.taken()):
            lake.apply(portion.lake_batch)
    assert writers.replaced > 0
    for table in world.tables:
        assert replica_rows(lake_root, folder_of(table.relation)) == table.expected()


class NumberedWriters(ExecutorWriters):
    """Knows the number of the present run."""

    run = 0


WritersOfRuns = TypeVar("WritersOfRuns", bound=NumberedWriters)


def applied_runs(
    made: type[WritersOfRuns], table: ScriptedTable, root: Path, spark: SparkSession, check: Callable[[int], None]
) -> tuple[WritersOfRuns, list[str], float | None]:
    """Apply the groups of a table, each as one run, and call `check` after each.

    Return the writers, the warnings, and how many runs executors refused by the metric.
    """
    folder, lake_root = StateFolder(root / "state"), root / "lake"
    make_state(folder.root)
    feed(folder.root, (group_of([item]) for item in table.items))
    source, metrics = SourceOptions.parse({"state": str(folder.root)}), PipelineMetrics("test")
    writers = local_writers(made, source, lake_root, metrics, spark, settings=ALL_RUNS)
    with OutboxReader.open(folder) as outbox, capture_logs() as lines:
        lake = Lake(str(lake_root), IDENTITY, shape_of, constants_of, writers=writers)
        given = (outbox, outbox.outbox_id, NO_SEQUENCE, outbox.head(), EACH_GROUP)
        for run, portion in enumerate(feeds(*given, writers=writers.taken())):
            writers.run = run
            lake.apply(portion.lake_batch)
            check(run)
    warnings = [line["event"] for line in lines if line["log_level"] == "warning"]
    return writers, warnings, metrics.registry.get_sample_value(EXECUTOR_REFUSALS, {"capture": "test"})


class LosingWriters(NumberedWriters):
    """The files of a replica are gone while executors merge the first runs, and are there again for the driver."""

    merged: Mapping[int, bool] = MappingProxyType({})

    def merge(self, target: ReplicaFiles, run: PackedRun, tasks: Sequence[MergeTask]) -> Sequence[MergedFiles] | None:
        with without_files(Path(target.uri), tasks if len(self.merged) < LOST else ()):
            found = super().merge(target, run, tasks)
        self.merged = {**self.merged, self.run: found is not None}
        return found


@contextmanager
def without_files(replica: Path, tasks: Sequence[MergeTask]) -> Iterator[None]:
    paths = [replica / path for task in tasks for path in task.added.column("path").to_pylist()]
    for path in paths:
        path.rename(path.with_suffix(".lost"))
    try:
        yield
    finally:
        for path in paths:
            path.with_suffix(".lost").rename(path)


@pytest.mark.feature("L06")
def test_the_driver_merges_what_executors_could_not_and_spares_them_ever_more_runs(
    tmp_path: Path, spark: SparkSession
) -> None:
    lake_root, table = tmp_path / "lake", ScriptedTable()
    for run in range(max(TRIED) + 1):
        table.commit()
        for key in range(ROWS):
            if run:
                table.update((key,), {2: f"in run {run}"})
            else:
                table.insert({1: key, 2: "new", 3: "big"})
        table.cut()

    def check(run: int) -> None:
        notes = {row["note"] for row in replica_rows(lake_root, folder_of(table.relation))}
        assert notes == {f"in run {run}" if run else "new"}

    writers, warnings, refusals = applied_runs(LosingWriters, table, tmp_path, spark, check)
    assert replica_rows(lake_root, folder_of(table.relation)) == table.expected()
    assert writers.merged == TRIED
    assert warnings == ["executors did not merge: the driver does"] * LOST
    assert refusals == LOST


class ShutWriters(NumberedWriters):
    """A file is in the place of the folder of a log while executors write the first runs."""

    written: Mapping[int, bool] = MappingProxyType({})

    def write(self, target: TargetFiles, run: PackedRun) -> WrittenFiles | None:
        if not isinstance(target, LogFiles):
            return super().write(target, run)
        log, is_shut = Path(target.uri), self.run < OPEN_FROM
        if is_shut:
            log.rename(log.with_suffix(".shut"))
            log.touch()
        try:
            found = super().write(target, run)
        finally:
            if is_shut:
                log.unlink()
                log.with_suffix(".shut").rename(log)
        self.written = {**self.written, self.run: found is not None}
        return found


@pytest.mark.feature("L06")
def test_the_driver_appends_what_executors_could_not(tmp_path: Path, spark: SparkSession) -> None:
    lake_root, table = tmp_path / "lake", ScriptedTable()
    for run in range(RUNS):
        table.commit()
        table.insert({1: run, 2: "new", 3: "big"})
        table.cut()

    def check(run: int) -> None:
        assert len(log_rows(lake_root, folder_of(table.relation))) == run + 1

    writers, warnings, refusals = applied_runs(ShutWriters, table, tmp_path, spark, check)
    assert warnings == ["executors did not write: the driver does"] * LOST
    assert refusals == LOST
    assert writers.written == {run: run in TRIED and TRIED[run] for run in range(1, RUNS)}


@pytest.mark.slow
@pytest.mark.feature("L07")
def test_jobs_merge_into_a_lake_in_an_object_store(tmp_path: Path, spark: SparkSession) -> None:
    """The executors are other processes, without credentials in their environment."""
    folder, world, credentials = StateFolder(tmp_path / "state"), RandomTables(3), tmp_path / "credentials"
    credentials.touch(0o600)
    credentials.write_text(CREDENTIALS, encoding="ascii")
    make_state(folder.root)
    feed(folder.root, world.groups(STORED_GROUPS))
    source, metrics = SourceOptions.parse({"state": str(folder.root)}), PipelineMetrics("test")
    with object_store() as server, OutboxReader.open(folder) as outbox:
        server.create_bucket("lakes")
        stored = StoredLake(server, "s3://lakes/of/executors")
        settings = replace(server.config, executor_bytes_min=1, store_credentials_file=str(credentials))
        writers = local_writers(CountedWriters, source, stored.root, metrics, spark, settings=settings)
        lake = Lake(stored.root, IDENTITY, shape_of, constants_of, config=settings, writers=writers)
        ends = (NO_SEQUENCE, outbox.head())
        for portion in feeds(outbox, outbox.outbox_id, *ends, PORTION_BYTES, writers=writers.taken()):
            lake.apply(portion.lake_batch)
        assert writers.replaced > 0
        for table in world.tables:
            rows = stored.rows(f"{folder_of(table.relation)}/replica").to_pylist()
            assert sorted(rows, key=repr) == table.expected()
