"""Maintenance beside the stream: it changes no row, loses to the stream, and may be killed in each of its phases."""

import gc
import os
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

import pytest
from deltalake import DeltaTable

from tests.support.lakes.lakes import IDENTITY, Crash, batch, log_rows, replica_rows
from tests.support.lakes.maintained import maintain, maintenance_of
from tests.support.lakes.scripted_table import DATABASE, RELATION, ScriptedTable
from tests.support.processes.python_calls import counted_calls
from tidemark.io.host.failpoints import arm
from tidemark.io.host.log_output import get_log
from tidemark.io.process.lake_config import LakeConfig
from tidemark.pipeline.delta_log.commit_files import CHECKPOINT_EVERY
from tidemark.pipeline.delta_log.durability import sync_checkpoint
from tidemark.pipeline.delta_log.lineage import NEVER_WRITTEN
from tidemark.pipeline.delta_log.log_cleanup import KEEP_S, LogCleanup
from tidemark.pipeline.failpoints import MaintenanceFailpoint
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.positions.positions import FOLDER as POSITIONS
from tidemark.pipeline.lake.positions.table_position import TableState
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.lake.tables.table_locks import TableLocks
from tidemark.pipeline.landing import maintenance as maintenance_thread
from tidemark.pipeline.landing.maintenance import Maintenance
from tidemark.pipeline.landing.metrics import (
    MAINTENANCE_CONFLICTS,
    MAINTENANCE_FAILING_SECONDS,
    MAINTENANCE_FAILURES,
    PipelineMetrics,
)
from tidemark.pipeline.merge import clustering
from tidemark.pipeline.merge.clustering import Reclustered
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.table_writes import Upkeep

pytestmark = pytest.mark.feature("L10")
FOLDER = f"{DATABASE}/public/Orders"
BATCHES = 6
PHASES = (
    MaintenanceFailpoint.CHECKPOINT_WRITTEN,
    MaintenanceFailpoint.MAINTENANCE_WRITTEN,
    MaintenanceFailpoint.MAINTENANCE_COMMITTED,
    MaintenanceFailpoint.UNUSED_FILE_DELETED,
)


class FedLake:
    """A lake that stays open, its maintenance, and a table whose batches each add files to log and replica."""

    def __init__(self, root: Path, *, keep_hours: int = 1, batches: int = BATCHES) -> None:
        self.root, self._locks, self.metrics = root, TableLocks(), PipelineMetrics("test")
        self.table, self._fed, self._key = ScriptedTable(), 0, 0
        self._keep_hours = keep_hours
        self.reopen()
        for _ in range(batches):
            self.insert()

    def reopen(self) -> None:
        """Open lake and maintenance as after a restart."""
        self._locks = TableLocks()
        self.lake = Lake(
            str(self.root), IDENTITY, shape_of, constants_of, keep_hours=self._keep_hours, locks=self._locks
        )
        self.maintenance = self.maintained_by(LakeConfig(maintain_commits=1))

    def maintained_by(self, config: LakeConfig) -> Maintenance:
        return maintenance_of(str(self.root), config, self._locks, self.metrics)

    def insert(self) -> None:
        self._key += 1
        self.table.insert({1: self._key, 2: "new", 3: None})
        self.apply()

    def update(self, key: int) -> None:
        self.table.update((key,), {2: "changed"})
        self.apply()

    def apply(self) -> None:
        self.table.commit()
        items = self.table.delivered()
        self.lake.apply(batch(items[self._fed :]))
        self._fed = len(items)

    def delta(self, name: str) -> DeltaTable:
        return DeltaTable(str(self.root / FOLDER / name))

    def files(self, name: str) -> set[str]:
        """Return the data files on disk, whether or not a version needs them."""
        return {path.name for path in (self.root / FOLDER / name).glob("*.parquet")}

    def files_in_use(self, name: str) -> set[str]:
        return {Path(uri).name for uri in self.delta(name).file_uris()}

    def count(self, metric: str) -> float:
        return self.metrics.registry.get_sample_value(metric, {"capture": "test"}) or 0.0

    def check(self) -> None:
        """Compare log and replica with the source, and the versions in `_positions` with the tables."""
        assert replica_rows(self.root, FOLDER) == self.table.expected()
        assert len(log_rows(self.root, FOLDER)) == self.table.changes
        known = Lake(str(self.root), IDENTITY, shape_of, constants_of).positions.tables[DATABASE, RELATION]
        assert known.state is TableState.LIVE
        assert (known.log_version, known.replica_version) == tuple(
            self.delta(name).version() for name in ("log", "replica")
        )


class MaintenanceClock:
    """The monotonic clock of maintenance, which a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.module = SimpleNamespace(monotonic=lambda: self.now_s)


class KillAt:
    """Raises `Crash` at a failpoint, and at every one after it."""

    def __init__(self, point: MaintenanceFailpoint) -> None:
        self._point, self._is_dead = point, False

    def __call__(self, point: Enum) -> None:
        self._is_dead = self._is_dead or point is self._point
        if self._is_dead:
            raise Crash(point)


class Beside:
    """Runs an action of the stream when maintenance passes a failpoint for the first time."""

    def __init__(self, point: MaintenanceFailpoint, action: Callable[[], None]) -> None:
        self._point, self._action = point, action

    def __call__(self, point: Enum) -> None:
        if point is self._point:
            arm(None)
            self._action()


def test_small_files_are_combined_and_an_idle_lake_names_the_new_versions(tmp_path: Path) -> None:
    fed = FedLake(tmp_path)
    before = {name: fed.delta(name).version() for name in ("log", "replica")}
    maintain(fed.lake, fed.maintenance)
    for name, version in before.items():
        assert len(fed.delta(name).file_uris()) == 1
        assert fed.delta(name).version() == version + 1
        assert fed.delta(name).history(1)[0]["operation"] == "OPTIMIZE"
    fed.check()
    maintain(fed.lake, fed.maintenance)  # nothing to do: no commit
    assert all(fed.delta(name).version() == version + 1 for name, version in before.items())
    fed.update(1)
    fed.check()


def test_files_of_the_version_that_positions_name_are_never_deleted(tmp_path: Path) -> None:
    fed = FedLake(tmp_path, keep_hours=0)
    known = fed.lake.positions.tables[DATABASE, RELATION]
    maintain(fed.lake, fed.maintenance, refresh=False)  # as if the stream were down before it recorded the commits
    maintain(fed.lake, fed.maintenance, refresh=False)
    for name, version in (("log", known.log_version), ("replica", known.replica_version)):
        table = DeltaTable(str(tmp_path / FOLDER / name), version=version)
        assert table.to_pyarrow_table().num_rows == BATCHES, name
        assert table.version() < fed.delta(name).version()
    fed.reopen()
    fed.insert()
    maintain(fed.lake, fed.maintenance)
    maintain(fed.lake, fed.maintenance)
    assert all(len(fed.files(name)) == len(fed.delta(name).file_uris()) for name in ("log", "replica"))
    fed.check()


def test_an_append_during_maintenance_is_before_its_commit_and_keeps_its_position(tmp_path: Path) -> None:
    fed = FedLake(tmp_path)
    arm(Beside(MaintenanceFailpoint.MAINTENANCE_WRITTEN, fed.insert))
    try:
        maintain(fed.lake, fed.maintenance)
    finally:
        arm(None)
    assert fed.count(MAINTENANCE_CONFLICTS) == 0
    assert len(fed.delta("log").file_uris()) <= 2
    fed.check()
    fed.lake.apply(batch(fed.table.delivered()))  # nothing is repeated: the position of the stream stays in effect
    fed.check()


def test_maintenance_loses_to_a_merge_into_its_files_and_is_repeated_later(tmp_path: Path) -> None:
    fed, written = FedLake(tmp_path), set[str]()
    fed.maintenance.report([(f"{FOLDER}/replica", 1)], fed.lake.upkeep)

    def merge() -> None:
        written.update(fed.files("replica") - {Path(uri).name for uri in fed.delta("replica").file_uris()})
        fed.update(1)

    version = fed.delta("replica").version()
    arm(Beside(MaintenanceFailpoint.MAINTENANCE_WRITTEN, merge))
    try:
        assert fed.maintenance.step()
    finally:
        arm(None)
    assert fed.delta("replica").version() == version + 1, "the stream's commit, at once and alone"
    assert written
    assert not written & fed.files("replica")
    assert fed.count(MAINTENANCE_CONFLICTS) == 1
    assert not fed.maintenance.step(), "it waits"
    assert fed.maintenance.take_results() is None
    fed.check()
    maintain(fed.lake, fed.maintained_by(LakeConfig(maintain_commits=1)))
    assert len(fed.delta("replica").file_uris()) == 1
    fed.check()


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: str(phase.value))
def test_a_kill_in_each_phase_leaves_a_correct_lake_that_is_maintained_later(
    tmp_path: Path, phase: MaintenanceFailpoint
) -> None:
    is_checkpoint = phase is MaintenanceFailpoint.CHECKPOINT_WRITTEN
    fed = FedLake(tmp_path, keep_hours=0, batches=CHECKPOINT_EVERY + 2 if is_checkpoint else BATCHES)
    arm(KillAt(phase))
    try:
        with pytest.raises(Crash):
            maintain(fed.lake, fed.maintenance)
    finally:
        arm(None)
    assert replica_rows(tmp_path, FOLDER) == fed.table.expected()
    fed.reopen()
    fed.insert()
    assert replica_rows(tmp_path, FOLDER) == fed.table.expected()
    assert len(log_rows(tmp_path, FOLDER)) == fed.table.changes
    maintain(fed.lake, fed.maintenance)
    maintain(fed.lake, fed.maintenance)
    fed.check()
    assert all(len(fed.delta(name).file_uris()) == 1 for name in ("log", "replica"))
    for name in ("log", "replica"):
        for path in (tmp_path / FOLDER / name).glob("*.parquet"):
            os.utime(path, (0, 0))
    fed.insert()
    maintain(fed.lake, fed.maintenance)
    maintain(fed.lake, fed.maintenance)
    assert all(len(fed.files(name)) == len(fed.delta(name).file_uris()) for name in ("log", "replica")), "no orphans"


def test_a_failure_of_maintenance_is_counted_and_the_stream_goes_on(tmp_path: Path) -> None:
    fed = FedLake(tmp_path)
    (tmp_path / FOLDER / "log" / Path(fed.delta("log").file_uris()[0]).name).unlink()
    maintain(fed.lake, fed.maintenance)
    assert fed.count(MAINTENANCE_FAILURES) == 1
    fed.insert()
    assert replica_rows(tmp_path, FOLDER) == fed.table.expected()
    assert fed.lake.positions.tables[DATABASE, RELATION].state is TableState.DIVERGED


def test_an_unexpected_error_ends_the_maintenance_of_no_other_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed, recluster = FedLake(tmp_path), clustering.recluster

    def failing(table: LakeTable, *arguments: object, **named: object) -> Reclustered | None:
        if table.uri.endswith("log"):
            raise KeyError("a column")
        return recluster(table, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(maintenance_thread, "recluster", failing)
    maintain(fed.lake, fed.maintenance)
    assert fed.count(MAINTENANCE_FAILURES) == 1
    assert len(fed.delta("log").file_uris()) == BATCHES
    assert len(fed.delta("replica").file_uris()) == 1
    fed.check()


def test_a_failing_checkpoint_is_repeated_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed, clock = FedLake(tmp_path, batches=1), MaintenanceClock()
    monkeypatch.setattr(maintenance_thread, "time", clock.module)

    def failing(_uri: str, _version: int) -> None:
        raise OSError

    monkeypatch.setattr(maintenance_thread, "sync_checkpoint", failing)
    fed.maintenance.report([(f"{FOLDER}/log", CHECKPOINT_EVERY)], {})
    for now_s, failures in ((0.0, 1), (0.9, 1), (1.1, 2), (3.0, 2), (3.2, 3)):
        clock.now_s = now_s
        fed.maintenance.step()
        assert fed.count(MAINTENANCE_FAILURES) == failures, now_s
        assert fed.count(MAINTENANCE_FAILING_SECONDS) == now_s, "other work succeeded"
    monkeypatch.setattr(maintenance_thread, "sync_checkpoint", sync_checkpoint)
    clock.now_s = 100.0
    assert fed.count(MAINTENANCE_FAILING_SECONDS) == 100.0
    fed.maintenance.step()
    assert fed.count(MAINTENANCE_FAILING_SECONDS) == 0


def test_maintenance_that_ends_by_an_error_counts_as_failing_until_it_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BrokenCleanup(LogCleanup):
        def run(self, written: Iterable[tuple[str, int]], removed_max: int = 0) -> int:  # noqa: ARG002 - as the base
            raise KeyError("a table")

    clock, metrics, log = MaintenanceClock(), PipelineMetrics("test"), get_log("test")
    monkeypatch.setattr(maintenance_thread, "time", clock.module)
    cleanup = BrokenCleanup(str(tmp_path), KEEP_S, log)
    maintenance = Maintenance(LakeConfig(), TableLocks(), cleanup, metrics, log)

    def failing_s() -> float | None:
        return metrics.registry.get_sample_value(MAINTENANCE_FAILING_SECONDS, {"capture": "test"})

    maintenance.complete(lambda: False)
    clock.now_s = 7.0
    assert failing_s() == 7.0
    maintenance.complete(lambda: True)
    assert failing_s() == 0


def test_a_damage_is_reported_once_for_each_version(tmp_path: Path) -> None:
    fed = FedLake(tmp_path)
    folder, version = f"{FOLDER}/log", fed.delta("log").version()
    (tmp_path / folder / Path(fed.delta("log").file_uris()[0]).name).unlink()
    for reported, is_tried in ((version, True), (version, False), (version + 1, True)):
        again = fed.maintained_by(LakeConfig(maintain_commits=1)) if reported > version else fed.maintenance
        again.report([(folder, reported)], fed.lake.upkeep)
        assert again.step() is is_tried
        results = again.take_results()
        assert (list(results.damaged) if results else []) == [folder] * is_tried


def test_files_are_deleted_when_they_are_unused_for_long_enough_whatever_is_reported_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed, clock = FedLake(tmp_path, keep_hours=1, batches=1), MaintenanceClock()
    monkeypatch.setattr(maintenance_thread, "time", clock.module)
    fed.update(1)
    written = [(f"{FOLDER}/replica", fed.delta("replica").version())]
    fed.maintenance.report(written, fed.lake.upkeep)
    assert fed.maintenance.step()
    assert not fed.maintenance.step(), "one file, and the one it replaced is too young"
    clock.now_s = 3000
    fed.maintenance.report(written, fed.lake.upkeep)
    assert not fed.maintenance.step()
    (replaced,) = fed.files("replica") - {Path(uri).name for uri in fed.delta("replica").file_uris()}
    os.utime(tmp_path / FOLDER / "replica" / replaced, (0, 0))
    clock.now_s = 3602
    assert fed.maintenance.step()
    assert not fed.maintenance.step()


def test_unused_files_of_a_table_are_deleted_in_a_step_that_commits(tmp_path: Path) -> None:
    fed = FedLake(tmp_path, keep_hours=1)
    orphan = tmp_path / FOLDER / "log" / "orphan.parquet"
    orphan.touch()
    os.utime(orphan, (0, 0))
    version = fed.delta("log").version()
    fed.maintenance.report([(f"{FOLDER}/log", version)], fed.lake.upkeep)
    assert fed.maintenance.step()
    assert fed.delta("log").version() == version + 1
    assert not orphan.exists()


def test_small_commits_do_not_write_a_large_file_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustering, "SMALL_ROWS", 0)
    fed = FedLake(tmp_path, batches=2 * BATCHES)
    maintain(fed.lake, fed.maintenance)
    (large,) = fed.files_in_use("log")
    for _ in range(BATCHES):
        fed.insert()
        maintain(fed.lake, fed.maintenance)
        assert large in fed.files_in_use("log")
    assert len(fed.files_in_use("log")) <= 3
    for _ in range(BATCHES):
        fed.insert()
        maintain(fed.lake, fed.maintenance)
    assert large not in fed.files_in_use("log"), "as many rows came as it has"
    fed.check()


def test_one_step_rewrites_and_deletes_a_bounded_number_of_files(tmp_path: Path) -> None:
    fed = FedLake(tmp_path, keep_hours=0, batches=20)
    sizes = [Path(uri).stat().st_size for uri in fed.delta("log").file_uris()]
    bounded = fed.maintained_by(LakeConfig(maintain_commits=1, maintain_bytes=3 * max(sizes), maintain_files=2))
    bounded.report([(f"{FOLDER}/log", fed.delta("log").version())], fed.lake.upkeep)
    assert bounded.step()
    removed = [line for line in _last_commit(fed, "log") if line.startswith('{"remove"')]
    assert 2 <= len(removed) <= len(sizes) // 2
    positions = fed.maintained_by(LakeConfig(maintain_commits=1, maintain_files=2))
    positions.report([(POSITIONS, fed.lake.positions.version)], fed.lake.upkeep)
    before = len(list((tmp_path / POSITIONS).glob("*.parquet")))
    assert positions.step()
    assert len(list((tmp_path / POSITIONS).glob("*.parquet"))) == before - 2


def test_a_dropped_table_is_maintained_once_more_and_then_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def known() -> int:
        gc.collect()
        return sum(type(one).__name__ == "_DueTable" for one in gc.get_objects())

    fed, clock, before = FedLake(tmp_path), MaintenanceClock(), known()
    monkeypatch.setattr(maintenance_thread, "time", clock.module)
    fed.update(1)
    fed.maintenance.report(fed.lake.written, fed.lake.upkeep)
    fed.maintenance.finish([f"{FOLDER}/{name}" for name in ("log", "replica")])
    while fed.maintenance.step():
        pass
    assert len(fed.files_in_use("log")) == 1, "its files are combined"
    assert known() == before + 3, "the files that this replaced are not old enough, and there is `_positions`"
    clock.now_s = 2 * 3600
    while fed.maintenance.step():
        pass
    assert known() == before + 1
    fed.maintenance.report([(f"{FOLDER}/log", fed.delta("log").version())], fed.lake.upkeep)
    assert fed.maintenance.step(), "it has changes again"


def test_quiet_tables_cost_a_step_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed, clock = FedLake(tmp_path, batches=1), MaintenanceClock()
    monkeypatch.setattr(maintenance_thread, "time", clock.module)
    calls = []
    for count in (10, 1000):
        idle, folders = fed.maintained_by(LakeConfig()), [f"quiet/{number}" for number in range(count)]
        upkeep = dict.fromkeys(folders, Upkeep("app", NEVER_WRITTEN, (), 0, keep_hours=1))
        idle.report([(folder, 7) for folder in folders], upkeep)
        assert not idle.step()
        with counted_calls() as counted:
            assert not idle.step()
        calls.append(counted.total)
    assert calls[0] == calls[1] < 20


def test_no_table_is_left_out_while_another_one_is_always_due(tmp_path: Path) -> None:
    fed, maintained = FedLake(tmp_path), set[str]()
    for _ in range(4):
        fed.insert()
        fed.maintenance.report(fed.lake.written, fed.lake.upkeep)  # each batch makes log, replica and positions due
        assert fed.maintenance.step()
        results = fed.maintenance.take_results()
        maintained |= results.committed if results else set()
    assert maintained == {f"{FOLDER}/log", f"{FOLDER}/replica"}


def test_without_maintenance_in_the_configuration_no_file_is_touched(tmp_path: Path) -> None:
    fed = FedLake(tmp_path)
    files = fed.files("log")
    maintain(fed.lake, fed.maintained_by(LakeConfig(maintain_commits=0)))
    assert fed.files("log") == files


def _last_commit(fed: FedLake, name: str) -> list[str]:
    version = fed.delta(name).version()
    return (fed.root / FOLDER / name / "_delta_log" / f"{version:020}.json").read_text().splitlines()
