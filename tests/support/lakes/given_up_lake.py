"""A lake with tables whose changes were given up, with the archived WAL that has them, and one that has everything."""

import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark_tidemark.held_lake import LakePlaces
from tests.support.lakes.changed_tables import DATABASE, DDL, LARGE_ROWS, REWRITTEN, WRITTEN, WRITTEN_LATER
from tests.support.lakes.lake_contents import rows_at_source
from tests.support.lakes.lakes import feed_by_hand
from tests.support.processes.captures import Sidecar, initialised
from tests.support.processes.cdcctl import Done, cdcctl, succeeded
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster, StopMode, new_cluster
from tidemark.engine.selection import Selection
from tidemark.io.process.lake_config import LakeConfig, LakeTableConfig
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.readers.state_capture import StateCapture
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import Lsn, parse_lsn
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.lake.faults import FaultKind
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.landing.behind.paused_tables import PausedTables
from tidemark.pipeline.landing.portions import ITEMS
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.lake_batch import LakeBatch, LakeItem
from tidemark.pipeline.sinks.targets.slow_writes import SlowWrites

READER, ALWAYS = "lake", "always"
SELECTED = {
    "TIDEMARK_SELECT__DATABASES": DATABASE,
    "TIDEMARK_SELECT__PARTITION_ROOTS": "public.parts",
}
OWN_DDL = """
CREATE TABLE former (id int PRIMARY KEY, note text);
CREATE TABLE dropped (id int PRIMARY KEY, note text);
CREATE TABLE logged (id int PRIMARY KEY, note text);
CREATE TABLE merged (id int PRIMARY KEY, note text);
CREATE TABLE copied (id int PRIMARY KEY, note text);
CREATE TABLE large (id int PRIMARY KEY, note text);
CREATE TABLE deferred (id int PRIMARY KEY, note text);
INSERT INTO dropped VALUES (1, 'copied');
"""
ALL = ("keyed", "keyless", "parts", "former", "dropped", "logged", "merged", "copied", "large")
IN_PART = {"logged": ("log",), "merged": ("replica",)}  # the others are paused whole
PAUSED_PARTS = ("/messages", *(f"/{table}/{part}" for table in ALL for part in IN_PART.get(table, ("log", "replica"))))
INTERVALS = LakeConfig((LakeTableConfig("public.deferred", merge_interval_s=86_400),))
MERGED = ("INSERT INTO deferred VALUES (1, 'merged'), (2, 'merged')",)  # with the first batch of a pipeline
LAST_WRITTEN = (
    *(f"INSERT INTO {table} (id, note) VALUES ({at}00, 'last')" for at, table in enumerate(ALL, 1)),
    "UPDATE deferred SET note = 'deferred' WHERE id = 1",
    "SELECT pg_logical_emit_message(true, 'app', 'last')",
)
QUIET = tuple(f"INSERT INTO other VALUES ({at}00); SELECT pg_switch_wal()" for at in range(1, 7))  # for the others
CREATED = (
    "CREATE TABLE created (id int PRIMARY KEY, note text)",
    "INSERT INTO created SELECT g, 'missed' FROM generate_series(1, 5) g",
)  # while nothing can be written to its folder
MISSED = (
    *CREATED,
    *WRITTEN,
    "ALTER TABLE former RENAME TO renamed",
    "INSERT INTO renamed VALUES (2, 'under its new name')",
    f"INSERT INTO large SELECT g, 'x' FROM generate_series(1000, {1000 + LARGE_ROWS - 1}) g",
    "UPDATE dropped SET note = 'before it is dropped'",
    "DELETE FROM deferred WHERE id = 2",
    "SELECT pg_logical_emit_message(false, 'app', 'missed'), pg_logical_emit_message(true, 'app', 'too')",
    *(f"INSERT INTO {table} VALUES (2, 'missed')" for table in ("logged", "merged", "copied")),
)
MISSED_LATER = (
    *REWRITTEN,
    "DROP TABLE dropped",
    "UPDATE logged SET note = 'changed'; UPDATE merged SET note = 'changed' WHERE id = 2",
    "UPDATE created SET note = 'changed' WHERE id = 2",
    "INSERT INTO deferred VALUES (3, 'missed')",
    "BEGIN; SELECT pg_logical_emit_message(true, 'app', 'later'); INSERT INTO other VALUES (7); COMMIT",
)
LATER = (
    *WRITTEN_LATER,
    "INSERT INTO renamed VALUES (3, 'later')",
    "INSERT INTO logged VALUES (3, 'later'); INSERT INTO merged VALUES (3, 'later')",
    "DELETE FROM large WHERE id < 2000",
    "UPDATE deferred SET note = 'later' WHERE id = 3",
    "SELECT pg_logical_emit_message(true, 'app', 'last of all')",
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
    "deferred",
)  # and not copied again


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
    moments: tuple[Lsn, ...]  # after LAST_WRITTEN, QUIET, MISSED, MISSED_LATER

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


def land(
    state: StateFolder, root: Path, reader: str, pausing: Collection[str] = (), *, cut: OutboxSequence | None = None
) -> None:
    """Write the new values of an outbox into a lake, as a pipeline that keeps nothing for tables that are behind.

    With `cut` there are two batches, of which the first ends there.
    """
    with OutboxReader.open(state) as outbox, StateStore.open(state) as store:
        writes = PausingWrites(pausing)
        lake = Lake(str(root), store.identity, shape_of, constants_of, slow_writes=writes, config=INTERVALS)
        PausedTables(outbox, StateCapture(outbox, Selection()), reader, 0).give_up_oldest(lake)
        lake.give_up(lake.deferred, "the outbox no longer contains its changes", FaultKind.DEFERRED)
        for end in [outbox.head()] if cut is None else [cut, outbox.head()]:
            values = list(outbox.read(lake.positions.applied.sequence, end))
            items: list[LakeItem] = [(one.header.sequence, one.item()) for one in values if one.header.kind in ITEMS]
            lake.apply(LakeBatch(outbox.outbox_id, end, values[-1].header.pointer.position, items))


@contextmanager
def capturing(cluster: Cluster, root: Path) -> Iterator[Sidecar]:
    bases = {"TIDEMARK_HISTORY__BASE_EVERY_BYTES": str(1 << 20)}
    with initialised(cluster, DATABASE, root, copy=True, **SELECTED, **bases) as sidecar:
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


def record_given_up_tables(root: Path) -> GivenUpLake:
    """Run a server and a capture whose lake has paused tables, until their changes are given up."""
    with new_cluster(15, {"wal_keep_size": "1GB"}, initdb=["--wal-segsize=1"]) as cluster:
        cluster.sql(f"CREATE DATABASE {DATABASE}")
        cluster.sql(DDL + OWN_DDL, DATABASE)
        with capturing(cluster, root) as sidecar:
            sidecar.catch_up()
            land(sidecar.folder, root / "lake", READER)
            run_all(sidecar, MERGED)
            with OutboxReader.open(sidecar.folder) as outbox:
                cut = outbox.head()
            moments = [run_all(sidecar, statements) for statements in (LAST_WRITTEN, QUIET)]
            land(sidecar.folder, root / "lake", READER, PAUSED_PARTS, cut=cut)
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
