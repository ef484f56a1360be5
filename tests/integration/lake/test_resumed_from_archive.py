"""`cdcctl table resume --archive`: a table that was paused for too long gets its changes from archived WAL, exactly."""

import json
import shutil
import signal
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from pyspark_tidemark import missed_changes
from pyspark_tidemark.held_lake import LakePlaces, held_lake
from pyspark_tidemark.missed_changes import GivenUpTables
from tests.support.lakes.lake_contents import log_of, replica_of, rows_at_source, without_lock
from tests.support.lakes.lakes import Crash, feed_by_hand
from tests.support.processes.captures import Sidecar, initialised
from tests.support.processes.cdcctl import Done, cdcctl, refused, reported, succeeded
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster, StopMode, new_cluster
from tidemark.decode.groups.group_builder import GROUP_ROWS
from tidemark.engine.selection import Selection
from tidemark.io.host.failpoints import arm
from tidemark.io.process.config_loading import load_config
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.readers.state_capture import StateCapture
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import INVALID_LSN, Lsn, parse_lsn
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.faults import OPEN_END, Fault, LogBreak
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.positions import Positions, TablePosition, TableState
from tidemark.pipeline.lake.report import OpenedLake
from tidemark.pipeline.landing.paused_tables import PausedTables
from tidemark.pipeline.landing.portions import ITEMS
from tidemark.pipeline.sinks.lake_batch import LakeBatch, LakeItem
from tidemark.pipeline.sinks.sinks import Lake
from tidemark.pipeline.sinks.slow_writes import SlowWrites
from tidemark.runtime.plugins.plugins import load_plugins
from tidemark.wal.segments import segment_name
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress
from tidemark.wire.state.plugin_log import PluginLog, PluginUses
from tidemark.wire.state.state_keys import PLUGINS

pytestmark = pytest.mark.feature("N16")
DATABASE = "shop"
READER, ALWAYS = "lake", "always"
SELECTED = {
    "TIDEMARK_SELECT__DATABASES": DATABASE,
    "TIDEMARK_SELECT__PARTITION_ROOTS": "public.parts",
}
DDL = """
CREATE TABLE other (id int PRIMARY KEY);
CREATE TABLE keyed (id int PRIMARY KEY, amount int, note text, big text);
ALTER TABLE keyed ALTER big SET STORAGE EXTERNAL;
CREATE TABLE keyless (id int, note text); ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE TABLE parts (id int PRIMARY KEY, note text) PARTITION BY RANGE (id);
CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (20);
CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (20) TO (1000);
CREATE TABLE former (id int PRIMARY KEY, note text);
CREATE TABLE dropped (id int PRIMARY KEY, note text);
CREATE TABLE logged (id int PRIMARY KEY, note text);
CREATE TABLE merged (id int PRIMARY KEY, note text);
CREATE TABLE copied (id int PRIMARY KEY, note text);
CREATE TABLE large (id int PRIMARY KEY, note text);
INSERT INTO keyed SELECT g, g, 'copied', repeat('x', 3000) FROM generate_series(1, 20) g;
INSERT INTO dropped VALUES (1, 'copied');
"""
ALL = ("keyed", "keyless", "parts", "former", "dropped", "logged", "merged", "copied", "large")
IN_PART = {"logged": ("log",), "merged": ("replica",)}  # the others are paused whole
PAUSED_PARTS = tuple(f"/{table}/{part}" for table in ALL for part in IN_PART.get(table, ("log", "replica")))
LAST_WRITTEN = tuple(f"INSERT INTO {table} (id, note) VALUES ({at}00, 'last')" for at, table in enumerate(ALL, 1))
LARGE_ROWS = GROUP_ROWS + 1000  # of a transaction with two groups
CREATED = (
    "CREATE TABLE created (id int PRIMARY KEY, note text)",
    "INSERT INTO created SELECT g, 'missed' FROM generate_series(1, 5) g",
)  # while nothing can be written to its folder
MISSED = (
    *CREATED,
    "INSERT INTO keyed SELECT g, g, 'missed', repeat('y', 3000) FROM generate_series(21, 40) g",
    "UPDATE keyed SET note = 'second' WHERE id % 3 = 0",
    "INSERT INTO keyless SELECT g % 5, 'row ' || g FROM generate_series(1, 30) g",
    "INSERT INTO parts SELECT g, 'part' FROM generate_series(1, 39) g",
    "ALTER TABLE keyed ALTER amount TYPE bigint",
    "UPDATE keyed SET amount = 5000000000 WHERE id = 3",
    "ALTER TABLE former RENAME TO renamed",
    "INSERT INTO renamed VALUES (2, 'under its new name')",
    f"INSERT INTO large SELECT g, 'x' FROM generate_series(1000, {1000 + LARGE_ROWS - 1}) g",
    "UPDATE dropped SET note = 'before it is dropped'",
    *(f"INSERT INTO {table} VALUES (2, 'missed')" for table in ("logged", "merged", "copied")),
)
MISSED_LATER = (
    "ALTER TABLE keyed RENAME note TO remark",
    "UPDATE keyed SET id = id + 1000 WHERE id < 5",
    "ALTER TABLE keyless ALTER id TYPE text USING 'n' || id",
    "DELETE FROM keyless WHERE id = 'n2'",
    "TRUNCATE keyless",
    "INSERT INTO keyless VALUES ('after', 'truncate'), ('after', 'truncate')",
    "ALTER TABLE keyed DROP COLUMN big",
    "DELETE FROM keyed WHERE id = 10",
    "BEGIN; ALTER TABLE parts ADD COLUMN extra int DEFAULT 7; UPDATE parts SET id = id + 70 WHERE id = 5; COMMIT",
    "DROP TABLE dropped",
    "UPDATE logged SET note = 'changed'; UPDATE merged SET note = 'changed' WHERE id = 2",
    "UPDATE created SET note = 'changed' WHERE id = 2",
    "INSERT INTO other VALUES (7)",
)
LATER = (
    "UPDATE keyed SET remark = 'third' WHERE id % 5 = 0",
    "ALTER TABLE keyed ADD COLUMN more text",
    "INSERT INTO keyed (id, more) VALUES (5000, 'later')",
    "DELETE FROM keyless WHERE note = 'truncate'",
    "INSERT INTO parts (id, note) VALUES (600, 'later')",
    "INSERT INTO renamed VALUES (3, 'later')",
    "INSERT INTO logged VALUES (3, 'later'); INSERT INTO merged VALUES (3, 'later')",
    "DELETE FROM large WHERE id < 2000",
)
PRESENT = (
    "keyed",
    "keyless",
    "parts",
    "renamed",
    "logged",
    "merged",
    "large",
    "created",
)  # and not copied again
KILLS = ("log-appended", "files-written", "replica-changed:2", "table-caught-up", "table-caught-up:2")


class PausingWrites(SlowWrites):
    """Reports logs and replicas as too slow whose URI ends with one of some names."""

    def __init__(self, parts: Collection[str]) -> None:
        super().__init__(0.0)
        self._parts = tuple(parts)
        self._written: list[str] = []

    def record(self, uri: str, seconds: float) -> None:
        """Record that a log or replica was written."""
        del seconds
        self._written.append(uri)

    def end_batch(self) -> dict[str, str]:
        """Return the ones to pause."""
        return {uri: "it lags" for uri in self._written if self._parts and uri.endswith(self._parts)}


@dataclass(frozen=True)
class GivenUpLake:
    """A lake with given up tables, one that always had all changes, the archived WAL and the rest of the outbox."""

    root: Path
    state: StateFolder
    archive: Path
    rows: dict[str, list[object]]  # of each table at the source, in the end
    moments: tuple[Lsn, ...]  # after LAST_WRITTEN, MISSED, MISSED_LATER

    @property
    def always(self) -> Path:
        return self.root / "always"

    def lake(self, to: Path) -> Path:
        return Path(shutil.copytree(self.root / "lake", to / "lake"))

    def resume(self, lake: Path | str, *tables: str | Path, **variables: str) -> Done:
        places = ("--state", self.state.root, "--lake", lake, "--archive", self.archive, "--reader", READER)
        return cdcctl("table", "resume", *places, *tables, **{**SELECTED, **variables})

    def places(self, lake: Path, spill: Path) -> LakePlaces:
        return LakePlaces(self.state.root, self.archive, str(lake), None, READER, spill)

    def land_rest(self, lake: Path) -> None:
        land(self.state, lake, READER)

    def with_state(self, to: Path) -> "GivenUpLake":
        """Return it with a copy of the state, for changes."""
        state = StateFolder(to / "state")
        shutil.copytree(self.state.root, state.root, ignore=shutil.ignore_patterns("*.sock"))
        return replace(self, state=state)


def land(state: StateFolder, root: Path, reader: str, pausing: Collection[str] = ()) -> None:
    """Write the new values of an outbox into a lake, as a pipeline that keeps nothing for paused tables."""
    with OutboxReader.open(state) as outbox, StateStore.open(state) as store:
        lake = Lake(str(root), store.identity, shape_of, constants_of, slow_writes=PausingWrites(pausing))
        values = list(outbox.read(lake.positions.applied.sequence, outbox.head()))
        items: list[LakeItem] = [(one.header.sequence, one.item()) for one in values if one.header.kind in ITEMS]
        PausedTables(outbox, StateCapture(outbox, Selection()), reader, 0).give_up_oldest(lake)
        lake.apply(LakeBatch(outbox.outbox_id, outbox.head(), values[-1].header.pointer.position, items))


@contextmanager
def capturing(cluster: Cluster, root: Path) -> Iterator[Sidecar]:
    with initialised(cluster, DATABASE, root, copy=True, **SELECTED) as sidecar:
        with OutboxReader.open(sidecar.folder) as outbox:
            outbox.register(READER)  # confirms nothing: the outbox keeps everything
        sidecar.start()
        yield sidecar


def fork(cluster: Cluster) -> None:
    """Let the node recover to the end of its WAL and continue on the next timeline."""
    cluster.stop(StopMode.FAST)
    cluster.configure(reload=False, restore_command="false")
    (cluster.data / "recovery.signal").touch()
    cluster.start()
    wait_until(lambda: cluster.sql("SELECT pg_is_in_recovery()") == [(False,)], "the end of recovery", within_s=60)


@contextmanager
def unwritable(lake: Path, table: str) -> Iterator[None]:
    """Let the folder of a new table not be created."""
    (schema,) = lake.glob("*/public")
    (schema / table).touch()
    yield
    (schema / table).unlink()


def run_all(sidecar: Sidecar, statements: Sequence[str]) -> Lsn:
    for statement in statements:
        sidecar.cluster.sql(statement, DATABASE)
    end = parse_lsn(sidecar.cluster.flush_lsn())
    sidecar.catch_up()
    return end


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> GivenUpLake:
    return record_given_up_tables(tmp_path_factory.mktemp("given-up"))


def record_given_up_tables(root: Path) -> GivenUpLake:
    """Run a server and a capture whose lake has paused tables, until their changes are given up."""
    with new_cluster(15, {"wal_keep_size": "1GB"}, initdb=["--wal-segsize=1"]) as cluster:
        cluster.sql(f"CREATE DATABASE {DATABASE}")
        cluster.sql(DDL, DATABASE)
        with capturing(cluster, root) as sidecar:
            sidecar.catch_up()
            land(sidecar.folder, root / "lake", READER)
            moments = [run_all(sidecar, LAST_WRITTEN)]
            land(sidecar.folder, root / "lake", READER, PAUSED_PARTS)
            moments.append(run_all(sidecar, MISSED))
            with unwritable(root / "lake", "created"):
                land(sidecar.folder, root / "lake", READER)
            fork(cluster)
            moments.append(run_all(sidecar, MISSED_LATER))
            recopy = ("table", "recopy", "public.copied", "--state", sidecar.folder.root)
            succeeded(cdcctl(*recopy, **sidecar.options))
            sidecar.catch_up()
            land(sidecar.folder, root / "lake", READER)
            run_all(sidecar, LATER)
            feed_by_hand(sidecar.folder, root / "always", ALWAYS)
        rows = {table: rows_at_source(cluster, DATABASE, table) for table in PRESENT}
        cluster.sql("SELECT pg_switch_wal()")
        cluster.stop(StopMode.FAST)
        shutil.copytree(cluster.data / "pg_wal", root / "archive", ignore=shutil.ignore_patterns("archive_status"))
    return GivenUpLake(root, StateFolder(root / "state"), root / "archive", rows, tuple(moments))


def table_of(lake: Path, table: str) -> TablePosition:
    return OpenedLake(str(lake)).find(f"public.{table}")


def fault_of(lake: Path, table: str) -> Fault:
    known = table_of(lake, table)
    fault = known.log.fault or known.replica.fault
    assert fault is not None
    return fault


def put_break(captured: GivenUpLake, lake: Path, table: str, gap: LogBreak) -> None:
    with StateStore.open(captured.state) as store:
        positions = Positions(str(lake), store.identity)
    known = replace(table_of(lake, table), breaks=(gap,))
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
        missed = tables.missed("public.large")
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
        rows = tables.feed(tables.missed("public.large"))["rows"]
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
    put_break(captured, lake, "keyless", LogBreak("a reason", fault_of(lake, "keyless").position, OPEN_END))
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


def test_nothing_is_written_where_no_lake_is(captured: GivenUpLake, tmp_path: Path) -> None:
    refused(captured.resume(tmp_path / "mistyped", "public.keyed"), ExitCode.CONFIG, "is not a lake")
    assert list(tmp_path.iterdir()) == []


def test_an_archive_without_the_changes_is_refused_with_the_remedy(captured: GivenUpLake, tmp_path: Path) -> None:
    lake = captured.lake(tmp_path)
    for number, (from_lsn, to_lsn, said) in enumerate(
        [
            (Lsn(0), captured.moments[1], "has no WAL before"),
            (Lsn(captured.moments[0] + (2 << 20)), captured.moments[1], "is not in"),
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
