"""`cdcctl table resume --archive`: a table that was paused for too long gets its changes from archived WAL, exactly."""

import json
import shutil
import signal
from dataclasses import replace
from enum import Enum
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from pyspark_tidemark import missed_changes
from pyspark_tidemark.held_lake import held_lake
from pyspark_tidemark.missed_changes import GivenUpTables
from tests.support.lakes.changed_tables import LARGE_ROWS
from tests.support.lakes.given_up_lake import (
    PRESENT,
    READER,
    SELECTED,
    GivenUpLake,
    record_given_up_tables,
)
from tests.support.lakes.lake_contents import log_of, replica_of, without_lock
from tests.support.lakes.lakes import Crash
from tests.support.processes.cdcctl import cdcctl, refused, reported, succeeded
from tidemark.io.host.failpoints import arm
from tidemark.io.process.config_loading import load_config
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import INVALID_LSN, Lsn, TimelineId
from tidemark.model.position import Position
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.faults import OPEN_END, Fault, LakeEntry, LogBreak
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.positions.table_position import TablePosition, TableState
from tidemark.pipeline.lake.report import OpenedLake
from tidemark.runtime.plugins.plugins import load_plugins
from tidemark.wal.segments import segment_name
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress
from tidemark.wire.state.plugin_log import PluginLog, PluginUses
from tidemark.wire.state.state_keys import PLUGINS

pytestmark = pytest.mark.feature("N16")
KILLS = ("log-appended", "files-written", "replica-changed:2", "table-caught-up", "table-caught-up:2")


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> GivenUpLake:
    return record_given_up_tables(tmp_path_factory.mktemp("given-up"))


def table_of(lake: Path, table: str) -> TablePosition:
    return OpenedLake(str(lake)).find(f"public.{table}")


def fault_of(lake: Path, table: str) -> Fault:
    known = table_of(lake, table)
    fault = known.log.fault or known.replica.fault
    assert fault is not None
    return fault


def put(captured: GivenUpLake, lake: Path, known: TablePosition) -> None:
    with StateStore.open(captured.state) as store:
        positions = Positions(str(lake), store.identity)
    positions.write(positions.outbox, [known], positions.applied)


def test_log_and_replica_equal_those_that_always_had_the_changes(captured: GivenUpLake, tmp_path: Path) -> None:
    lake = captured.lake(tmp_path)
    names = [f"public.{table}" for table in PRESENT]
    for table in PRESENT:
        assert fault_of(lake, table).is_given_up
        assert table_of(lake, table).state is TableState.DIVERGED
    report = json.loads(succeeded(captured.resume(lake, *names, "--json")).out)
    assert list(report) == names
    assert all(written["rows"] > 0 for written in report.values())
    for table in PRESENT:
        resumed = table_of(lake, table)
        assert (resumed.state, resumed.log.fault, resumed.replica.fault) == (TableState.LIVE, None, None)
        assert resumed.breaks == ()
    captured.land_rest(lake)
    for table in PRESENT:
        assert log_of(lake, table) == log_of(captured.always, table)
        assert replica_of(lake, table) == captured.rows[table]


def test_the_archive_reaches_back_to_the_pause_and_not_to_the_last_change_before(
    captured: GivenUpLake, tmp_path: Path
) -> None:
    lake, archive = captured.lake(tmp_path), tmp_path / "archive"
    shutil.copytree(captured.archive, archive)
    fault = fault_of(lake, "keyed")
    assert fault.complete_to is not None
    assert captured.moments[0] < fault.complete_to.commit_lsn
    with StateStore.open(captured.state) as store:
        bases = [base.restart_lsn for base in store.view().history.bases if base.lsn <= fault.complete_to.commit_lsn]
    assert captured.moments[0] < max(bases), "decoding begins at a base after the last change"
    for segment in range(max(bases) // (1 << 20)):
        (archive / segment_name(1, segment, 1 << 20)).unlink(missing_ok=True)
    after = replace(captured, archive=archive)
    names = [f"public.{table}" for table in PRESENT if table != "deferred"]
    report = json.loads(succeeded(after.resume(lake, *names, "--json")).out)
    assert {written["from"] for written in report.values()} == {str(fault.complete_to)}
    captured.land_rest(lake)
    for name in names:
        table = name.removeprefix("public.")
        assert log_of(lake, table) == log_of(captured.always, table)
        assert replica_of(lake, table) == captured.rows[table]


def test_changes_after_a_fork_are_not_left_out_because_the_lake_was_ahead_on_the_branch_that_was_left(
    captured: GivenUpLake, tmp_path: Path
) -> None:
    lake, known = captured.lake(tmp_path), table_of(captured.root / "lake", "keyed")
    left = Position(TimelineId(1), captured.moments[-1], 0)

    def with_left(entry: LakeEntry) -> LakeEntry:
        assert entry.fault is not None
        return replace(entry, fault=replace(entry.fault, complete_to=left))

    put(captured, lake, replace(known, log=with_left(known.log), replica=with_left(known.replica)))
    succeeded(captured.resume(lake, "public.keyed"))
    captured.land_rest(lake)
    assert log_of(lake, "keyed") == log_of(captured.always, "keyed")
    assert replica_of(lake, "keyed") == captured.rows["keyed"]


def test_a_deferred_replica_gets_its_changes_and_its_log_none_twice(captured: GivenUpLake, tmp_path: Path) -> None:
    lake = captured.lake(tmp_path)
    fault, before = table_of(lake, "deferred").replica.fault, log_of(lake, "deferred")
    assert fault is not None
    assert fault.reason.startswith("it was deferred (merge_interval_s")
    assert table_of(lake, "deferred").log.fault is None
    report = json.loads(succeeded(captured.resume(lake, "public.deferred", "--json")).out)
    assert report["public.deferred"]["written"] == "replica"
    assert log_of(lake, "deferred") == before
    captured.land_rest(lake)
    assert log_of(lake, "deferred") == log_of(captured.always, "deferred")
    assert replica_of(lake, "deferred") == captured.rows["deferred"]


def messages_of(lake: Path) -> list[tuple[object, ...]]:
    (folder,) = lake.glob("*/messages")
    rows = DeltaTable(str(folder)).to_pyarrow_table().sort_by([("_commit_lsn", "ascending")]).to_pylist()
    names = ("_commit_lsn", "_ordinal", "transactional", "content")
    return [tuple(row[name] for name in names) for row in rows if row["prefix"] == "app"]


def test_a_log_of_messages_gets_those_that_it_lacks_also_after_a_kill(captured: GivenUpLake, tmp_path: Path) -> None:
    lake = captured.lake(tmp_path)
    before = messages_of(lake)
    killed = captured.resume(lake, "messages", TIDEMARK_FAILPOINT="log-appended")
    assert killed.code == 128 + signal.SIGKILL, killed.err
    report = json.loads(succeeded(captured.resume(lake, "messages", "--json")).out)
    ((name, written),) = report.items()
    assert name.endswith("/messages")
    assert written["state"] == "live"
    captured.land_rest(lake)
    found = messages_of(lake)
    assert found == messages_of(captured.always)
    assert [row[-1] for row in found] == [b"last", b"missed", b"too", b"later", b"last of all"]
    assert len(before) < len(found)
    done = captured.resume(lake, "messages")
    refused(done, ExitCode.CONFIG, "messages was not given up while it was paused: it is live")


def test_a_dropped_table_gets_its_last_changes(captured: GivenUpLake, tmp_path: Path) -> None:
    lake = captured.lake(tmp_path)
    assert fault_of(lake, "dropped").is_given_up
    succeeded(captured.resume(lake, table_of(lake, "dropped").folder))
    resumed = table_of(lake, "dropped")
    assert (resumed.state, resumed.log.fault, resumed.replica.fault) == (TableState.DROPPED, None, None)
    assert log_of(lake, "dropped") == log_of(captured.always, "dropped")
    assert replica_of(lake, "dropped") == replica_of(captured.always, "dropped")


@pytest.mark.parametrize("table", ["keyed", "keyless", "parts"])
def test_a_command_that_is_killed_at_any_point_is_repeated_and_writes_every_change_once(
    captured: GivenUpLake, table: str, tmp_path: Path
) -> None:
    lake = captured.lake(tmp_path)
    for point in KILLS:
        killed = captured.resume(lake, f"public.{table}", TIDEMARK_FAILPOINT=point)
        assert killed.code == 128 + signal.SIGKILL, (point, killed.err)
        assert fault_of(lake, table).is_given_up, point
    succeeded(captured.resume(lake, f"public.{table}"))
    captured.land_rest(lake)
    assert log_of(lake, table) == log_of(captured.always, table)
    assert replica_of(lake, table) == captured.rows[table]


def test_an_interrupted_command_continues_after_the_portions_that_it_has_written(
    captured: GivenUpLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, spill = captured.lake(tmp_path), tmp_path / "spill"
    for name, value in SELECTED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(missed_changes, "PORTION_BYTES", 1)
    begun = fault_of(lake, "large").position
    with held_lake(captured.places(lake, spill)) as held:
        tables = GivenUpTables(held)
        missed = tables.missed(*tables.find("public.large"))
        passed: list[Enum] = []

        def end_in_second_portion(point: Enum) -> None:
            passed.append(point)
            if passed.count(Failpoint.TABLE_CAUGHT_UP) > 1:
                raise Crash(point)

        arm(end_in_second_portion)
        try:
            with pytest.raises(Crash):
                tables.feed(missed)
        finally:
            arm(None)
    reached = fault_of(lake, "large")
    assert reached.is_given_up
    assert reached.position > begun
    with held_lake(captured.places(lake, spill)) as held:
        tables = GivenUpTables(held)
        rows = tables.feed(tables.missed(*tables.find("public.large")))["rows"]
    assert 0 < int(rows) < LARGE_ROWS
    captured.land_rest(lake)
    assert log_of(lake, "large") == log_of(captured.always, "large")
    assert replica_of(lake, "large") == captured.rows["large"]


@pytest.mark.feature("N15")
def test_missed_changes_pass_the_transforms_of_the_configuration(captured: GivenUpLake, tmp_path: Path) -> None:
    lake, config = captured.lake(tmp_path), tmp_path / "tidemark.toml"
    config.write_text('[[transforms]]\nuse = "tidemark:Mask"\ncolumns = ["public.keyed.remark|note"]\n')
    before = log_of(lake, "keyed")
    refused(captured.resume(lake, "public.keyed", "--config", config), ExitCode.CONFIG, "transforms", "masks:Mask")
    assert log_of(lake, "keyed") == before
    masking = captured.with_state(tmp_path)
    uses = load_plugins(load_config(config, {}), "the configuration").uses
    with StateStore.open(masking.state) as store, store.transaction(None) as transaction:
        transaction.put(PLUGINS, PluginLog(uses.consumer.name, {"sidecar": uses}))
    succeeded(masking.resume(lake, "public.keyed", "--config", config))
    missed = log_of(lake, "keyed")[len(before) :]
    assert missed
    assert not any(name in row for row in missed if isinstance(row, dict) for name in ("note", "remark"))


@pytest.mark.feature("N15")
def test_transforms_that_only_a_stopped_daemon_had_are_refused(captured: GivenUpLake, tmp_path: Path) -> None:
    """Its last start may be long ago, when no column was masked."""
    lake, config = captured.lake(tmp_path), tmp_path / "tidemark.toml"
    config.write_text('[[transforms]]\nuse = "tidemark:Mask"\ncolumns = ["public.keyed.remark|note"]\n')
    masks, none = (load_plugins(load_config(path, {}), "the configuration").uses for path in (config, None))
    masking, before = captured.with_state(tmp_path), without_lock(lake)

    def put(uses: PluginUses) -> None:
        with StateStore.open(masking.state) as store, store.transaction(None) as transaction:
            transaction.put(PLUGINS, PluginLog(uses.consumer.name, {"sidecar": uses, "archiver": none}))

    put(masks)
    refused(masking.resume(lake, "public.keyed"), ExitCode.CONFIG, "of the sidecar (", "masks:Mask")
    refused(masking.resume(lake, "public.keyed", "--config", config), ExitCode.CONFIG, "of the archiver (none)")
    with RoleLock.acquire(masking.state, "sidecar") as sidecar:
        put(replace(masks, owner=sidecar.owner))
        refused(masking.resume(lake, "public.keyed"), ExitCode.CONFIG, "of the sidecar (", "masks:Mask")
        assert without_lock(lake) == before
        succeeded(masking.resume(lake, "public.keyed", "--config", config))


def test_a_change_that_the_snapshot_of_the_first_copy_shows_is_not_written_again(
    captured: GivenUpLake, tmp_path: Path
) -> None:
    """A snapshot may be hours younger than the position of its copy."""
    lake, after = captured.lake(tmp_path), captured.with_state(tmp_path)
    missed = table_of(lake, "parts")
    everything = f"1:{1 << 40}:"  # of all transactions
    with StateStore.open(after.state) as store, store.transaction(None) as transaction:
        transaction.put_copy(missed.database, missed.relation, CopyProgress(CopyPhase.DONE, 1, everything, Lsn(1)))
    before = log_of(lake, "parts")
    report = json.loads(succeeded(after.resume(lake, "public.parts", "--json")).out)
    assert report["public.parts"]["rows"] == 0
    assert log_of(lake, "parts") == before


@pytest.mark.parametrize(
    ("phase", "lx"),
    [(CopyPhase.WAITING, INVALID_LSN), (CopyPhase.COPYING, INVALID_LSN), (CopyPhase.DONE, Lsn(1 << 60))],
)
def test_a_table_whose_copy_is_not_in_the_lake_is_refused(
    captured: GivenUpLake, phase: CopyPhase, lx: Lsn, tmp_path: Path
) -> None:
    lake, after = captured.lake(tmp_path), captured.with_state(tmp_path)
    known, before = table_of(lake, "keyed"), without_lock(lake)
    with StateStore.open(after.state) as store, store.transaction(None) as transaction:
        transaction.put_copy(known.database, known.relation, CopyProgress(phase, 2, lx=lx))
    refused(after.resume(lake, "public.keyed"), ExitCode.CONFIG, "a copy of it is not in the lake yet")
    assert without_lock(lake) == before


def test_a_table_that_lacks_other_changes_is_refused_with_the_remedy(captured: GivenUpLake, tmp_path: Path) -> None:
    lake = captured.lake(tmp_path)
    gap = LogBreak("a reason", fault_of(lake, "keyless").position, OPEN_END)
    put(captured, lake, replace(table_of(lake, "keyless"), breaks=(gap,)))
    before = without_lock(lake)
    for table, code, *said in (
        ("public.missing", ExitCode.CONFIG, "has no table public.missing"),
        ("public.other", ExitCode.CONFIG, "public.other was not given up while it was paused: it is live"),
        ("public.copied", ExitCode.CONFIG, "public.copied", "it was copied since"),
        ("public.keyless", ExitCode.CONFIG, "public.keyless", "its log has a break", "a reason"),
    ):
        done = captured.resume(lake, table)
        refused(done, code, *said)
        assert ("cdcctl table recopy" in reported(done.err)[1]) is (len(said) > 1)
    with RoleLock.acquire(captured.state, f"pipeline-{READER}"):
        refused(captured.resume(lake, "public.keyed"), ExitCode.FENCED, "pipeline")
    other = captured.resume(lake, "public.keyed", TIDEMARK_SELECT__TABLES="public.keyed")
    refused(other, ExitCode.CONFIG, "the configuration does not select")
    assert without_lock(lake) == before
    state = ("table", "resume", "public.keyed", "--state", captured.state.root)
    refused(cdcctl(*state, "--archive", captured.archive), ExitCode.CONFIG, "--archive and --lake")
    done = cdcctl(*state)
    refused(done, ExitCode.CONFIG, "not paused: public.keyed")
    assert "--archive" in reported(done.err)[1]


def test_a_configuration_that_leaves_out_other_changes_or_has_other_settings_of_the_table_is_refused(
    captured: GivenUpLake, tmp_path: Path
) -> None:
    lake, config = captured.lake(tmp_path), tmp_path / "tidemark.toml"
    before = without_lock(lake)
    config.write_text('[[lake.tables]]\npattern = "public.keyed"\nschema_policy = "ignore"\n')
    other = captured.resume(lake, "public.keyed", "--config", config)
    refused(other, ExitCode.CONFIG, "public.keyed: ", "schema_policy = 'ignore'", "schema_policy = 'evolve'")
    for name, said in (("EXCLUDE_ORIGINS", "select.exclude_origins"), ("MESSAGES", "select.messages")):
        other = captured.resume(lake, "public.keyed", **{f"TIDEMARK_SELECT__{name}": "any"})
        refused(other, ExitCode.CONFIG, f"{said} of the configuration (any) is not that of the sidecar")
    assert without_lock(lake) == before
    config.write_text('[[lake.tables]]\npattern = "public.keyed"\nlog_keep_days = 30\n')
    succeeded(captured.resume(lake, "public.keyed", "--config", config))


def test_nothing_is_written_where_no_lake_is(captured: GivenUpLake, tmp_path: Path) -> None:
    refused(captured.resume(tmp_path / "mistyped", "public.keyed"), ExitCode.CONFIG, "is not a lake")
    assert list(tmp_path.iterdir()) == []


def test_an_archive_without_the_changes_is_refused_with_the_remedy(captured: GivenUpLake, tmp_path: Path) -> None:
    lake = captured.lake(tmp_path)
    for number, (from_lsn, to_lsn, said) in enumerate(
        [
            (Lsn(0), captured.moments[2], "has no WAL before"),
            (Lsn(captured.moments[1] + (2 << 20)), captured.moments[2], "is not in"),
        ]
    ):
        archive = tmp_path / f"archive-{number}"
        shutil.copytree(captured.archive, archive)
        for segment in range(from_lsn // (1 << 20), to_lsn // (1 << 20)):
            (archive / segment_name(1, segment, 1 << 20)).unlink(missing_ok=True)
        done = replace(captured, archive=archive).resume(lake, "public.keyed")
        refused(done, ExitCode.GAP, "public.keyed", said)
        assert "cdcctl table recopy" in reported(done.err)[1]
        assert fault_of(lake, "keyed").is_given_up


def test_an_archive_that_ends_before_the_lake_is_refused_until_the_wal_is_archived(
    captured: GivenUpLake, tmp_path: Path
) -> None:
    lake, archive = captured.lake(tmp_path), tmp_path / "archive"
    shutil.copytree(captured.archive, archive)
    end = OpenedLake(str(lake)).positions.applied.position
    assert (end.timeline, fault_of(lake, "keyed").position.timeline) == (2, 1)
    for path in archive.glob("00000002????????????????"):
        if path.name >= segment_name(2, end.commit_lsn // (1 << 20), 1 << 20):
            path.unlink()
    before = without_lock(lake)
    refused(replace(captured, archive=archive).resume(lake, "public.keyed"), ExitCode.GAP, "ends at")
    assert without_lock(lake) == before


def test_an_archive_that_continues_the_timeline_that_the_capture_has_left_is_refused(
    captured: GivenUpLake, tmp_path: Path
) -> None:
    lake, archive = captured.lake(tmp_path), tmp_path / "archive"
    shutil.copytree(captured.archive, archive, ignore=shutil.ignore_patterns("00000002*"))
    before = without_lock(lake)
    left = replace(captured, archive=archive)
    refused(left.resume(lake, "public.keyed"), ExitCode.CONFIG, "public.keyed: 2:", "is not in the history")
    assert without_lock(lake) == before


def test_a_log_that_another_writer_changed_is_not_written(captured: GivenUpLake, tmp_path: Path) -> None:
    lake = captured.lake(tmp_path)
    log = str(lake / table_of(lake, "renamed").folder / "log")
    write_deltalake(log, DeltaTable(log).to_pyarrow_table().slice(0, 1), mode="append")
    refused(captured.resume(lake, "public.renamed"), ExitCode.CONSUMER_FAILED, "public.renamed: its log is diverged")
    fault = table_of(lake, "renamed").log.fault
    assert fault is not None
    assert not fault.is_given_up
    assert table_of(lake, "renamed").replica.fault is not None
    succeeded(captured.resume(lake, "public.renamed"))
    assert table_of(lake, "renamed").replica.fault is None
    done = captured.resume(lake, "public.renamed")
    refused(done, ExitCode.CONFIG, "was not given up", "its log is diverged")
    assert "cdcctl table recopy" in reported(done.err)[1]
