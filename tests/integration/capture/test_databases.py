"""Several databases in one capture; some are created, dropped and renamed, also while it is stopped."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.processes.captures import OnDemandReader, Sidecar, replayed
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.servers.postgres import Cluster, StopMode, new_cluster
from tidemark.decode.types.encodings import SERVER_ENCODINGS
from tidemark.io.process.config import SeedConfig, SelectConfig
from tidemark.io.process.metrics import WAL_BYTES
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state import StateStore
from tidemark.model.change import ChangeBatch, CopyBoundary, GroupItem, SchemaChange, SchemaEvent
from tidemark.model.lsn import Oid, parse_lsn
from tidemark.wire.state.copy_progress import CopyPhase

PATTERNS = ("app", "shop_*")
NOT_CAPTURED = "a database is not captured"
WAL_READ = f'{WAL_BYTES}{{capture="main"}}'
CAME_IN = "a table was added to the selection; its rows are copied at the next start"


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    with new_cluster(15, {"autovacuum": "off", "wal_keep_size": "1GB"}) as made:
        for name in ("app", "shop_one", "golden", "plain"):
            made.sql(f"CREATE DATABASE {name}")
        for name in ("app", "shop_one", "golden"):
            made.sql("CREATE TABLE account (id int PRIMARY KEY, note text)", name)
            made.sql(f"INSERT INTO account VALUES (1, 'in {name}')", name)
        made.sql("ALTER DATABASE golden IS_TEMPLATE true")
        yield made


class Shops(Sidecar):
    """A capture of all databases that match the patterns."""

    def __init__(self, cluster: Cluster, root: Path) -> None:
        super().__init__(
            cluster,
            "app",
            root,
            copy=True,
            TIDEMARK_SELECT__DATABASES=",".join(PATTERNS),
            TIDEMARK_SELECT__EXCLUDE_DATABASES="shop_x*",
            TIDEMARK_HISTORY__BASE_EVERY_BYTES=str(1 << 20),
            TIDEMARK_ARCHIVE__KEEP_BYTES=str(1 << 30),
        )
        select = SelectConfig(databases=PATTERNS, exclude_databases=("shop_x*",))
        self.config = replace(self.config, select=select)

    def names(self) -> dict[Oid, str]:
        with StateStore.open(self.folder) as store:
            beginning = store.view().beginning
        assert beginning is not None
        return dict(beginning.databases)

    def phases(self) -> set[CopyPhase]:
        with StateStore.open(self.folder) as store:
            return {copy.phase for copy in store.view().copies.values()}

    def restart(self) -> None:
        self.kill()
        self.start()

    def accounts(self, items: list[GroupItem]) -> dict[str, dict[object, object]]:
        """Return the tables' rows after these changes, by the database's name."""
        names = self.names()
        of: dict[Oid, list[GroupItem]] = {}
        for item in items:
            if isinstance(item, ChangeBatch | CopyBoundary) and item.relation.name == "account":
                is_begin = isinstance(item, CopyBoundary) and item.begin
                of[item.database] = [] if is_begin else [*of.get(item.database, []), item]
        return {names[oid]: {key: row["note"] for key, row in replayed(_rows(of[oid])).items()} for oid in of}

    def expected(self, *names: str) -> dict[str, dict[object, object]]:
        return {name: dict(self.cluster.sql("SELECT id, note FROM account", name)) for name in names}


def _rows(items: list[GroupItem]) -> list[dict[str, object]]:
    rows = [row for item in items if isinstance(item, ChangeBatch) for row in item.rows.to_pylist()]
    return sorted(rows, key=lambda row: (row["_commit_lsn"], row["_ordinal"]))


def write(cluster: Cluster, database: str, number: int) -> None:
    """Change rows and columns."""
    cluster.sql("CREATE TABLE IF NOT EXISTS account (id int PRIMARY KEY, note text)", database)
    cluster.sql(f"INSERT INTO account VALUES ({number}, 'round {number} in {database}')", database)
    cluster.sql(f"ALTER TABLE account ADD COLUMN c{number} int", database)
    cluster.sql("VACUUM FULL pg_attribute", database)
    cluster.sql(f"UPDATE account SET note = note || '.' WHERE id = {number}", database)


def fill_wal(cluster: Cluster) -> None:
    """Let WAL grow enough for a new catalog base."""
    cluster.sql("SELECT pg_logical_emit_message(false, 'filler', repeat('x', 2000000))", "golden")


@pytest.mark.feature("N03")
@pytest.mark.feature("I37")
@pytest.mark.feature("P22")
def test_databases_are_picked_up_live_and_kept_through_kills_and_offline(server: Cluster, tmp_path: Path) -> None:
    sidecar = Shops(server, tmp_path)
    sidecar.init()
    sidecar.start()
    try:
        names = _come(sidecar, server)
        _go(sidecar, server, names)
        _is_not_known(sidecar, server)
        assert sidecar.stop() == 0
    finally:
        sidecar.close()
    _check_offline(sidecar, server, tmp_path)


def _come(sidecar: Shops, server: Cluster) -> set[str]:
    server.sql("CREATE DATABASE shop_two")
    server.sql("CREATE DATABASE shop_copied TEMPLATE golden STRATEGY FILE_COPY")
    server.sql("CREATE DATABASE shop_logged TEMPLATE golden STRATEGY WAL_LOG")
    server.sql("CREATE DATABASE shop_x")
    server.sql("CREATE DATABASE hidden TEMPLATE template0 STRATEGY FILE_COPY")
    for name in ("app", "shop_one", "shop_two", "shop_copied", "shop_logged", "shop_x", "hidden", "plain"):
        write(server, name, 2)
    fill_wal(server)
    sidecar.kill()  # perhaps while it writes a base
    server.sql("CREATE DATABASE shop_while_dead")
    write(server, "shop_while_dead", 3)
    server.sql("ALTER DATABASE hidden RENAME TO shop_found")
    write(server, "shop_found", 3)
    fill_wal(server)
    sidecar.start()
    write(server, "shop_logged", 4)
    found = sidecar.accounts(sidecar.catch_up())
    streamed = ("app", "shop_one", "shop_two", "shop_while_dead")
    assert {name: found[name] for name in streamed} == sidecar.expected(*streamed)
    names = (*streamed, "shop_copied", "shop_logged", "shop_found")
    assert found.keys() == set(names)
    assert sidecar.phases() == {CopyPhase.WAITING, CopyPhase.DONE}
    came_in = [event for event in sidecar.events() if event["event"] == CAME_IN]  # a kill may repeat the event
    assert len({(event["database_oid"], event["relation_oid"]) for event in came_in}) == 3

    sidecar.restart()  # copies the tables of new databases
    write(server, "shop_found", 5)
    assert sidecar.accounts(sidecar.catch_up()) == sidecar.expected(*names)
    assert sidecar.phases() == {CopyPhase.DONE}
    return set(names)


def _go(sidecar: Shops, server: Cluster, names: set[str]) -> None:
    server.sql("DROP DATABASE shop_two WITH (FORCE)")
    server.sql("ALTER DATABASE shop_while_dead RENAME TO archived")
    server.sql("CREATE DATABASE shop_two TEMPLATE template0")
    write(server, "shop_two", 6)
    fill_wal(server)
    items = sidecar.catch_up()
    gone = {item.database for item in items if isinstance(item, SchemaEvent) and item.change is SchemaChange.DROP}
    known = sidecar.names()
    assert {known[oid] for oid in gone} == {"shop_two", "shop_while_dead"}
    sidecar.restart()
    server.sql("INSERT INTO account (id, note) VALUES (7, 'nobody sees')", "archived")
    write(server, "shop_two", 7)
    items = [item for item in sidecar.catch_up() if getattr(item, "database", None) not in gone]
    assert sidecar.accounts(items) == sidecar.expected(*(names - {"shop_while_dead"}))


def _is_not_known(sidecar: Shops, server: Cluster) -> None:
    server.sql("CREATE DATABASE shop_unseen TEMPLATE plain STRATEGY FILE_COPY")
    write(server, "shop_unseen", 8)
    reported = sidecar.wait_for_event(NOT_CAPTURED, database="shop_unseen")
    assert "its template is not captured, and FILE_COPY writes no pages" in str(reported["reason"])
    server.sql("ALTER DATABASE plain RENAME TO shop_plain")  # it is not mirrored
    reported = sidecar.wait_for_event(NOT_CAPTURED, database="shop_plain")
    assert "before it was selected" in str(reported["reason"])
    write(server, "app", 8)
    assert sidecar.accounts(sidecar.catch_up())["app"] == sidecar.expected("app")["app"]


def _check_offline(sidecar: Shops, server: Cluster, tmp_path: Path) -> None:
    """Check that every row change is decoded again without the server."""
    server.sql("SELECT pg_switch_wal()")
    expected = {
        (f"round {number} in {name}",)
        for number, name in ((2, "shop_two"), (2, "shop_logged"), (3, "shop_while_dead"), (6, "shop_two"), (8, "app"))
    }
    server.stop(StopMode.FAST)
    archive = tmp_path / "archive"
    archive.mkdir()
    for segment in (server.data / "pg_wal").glob("0000000100*"):
        shutil.copy(segment, archive)

    def inserted(*options: str) -> set[tuple[str]]:
        place = ("--state", sidecar.folder.root, "--archive", archive, "--format", "jsonl")
        lines = map(json.loads, succeeded(cdcctl("decode", *place, *options)).lines)
        return {(line["after"]["note"],) for line in lines if line.get("op") == "i"}

    assert expected <= inserted()
    both = {(f"round {number} in shop_two",) for number in (2, 6, 7)}  # it was dropped, and another one has its name
    assert inserted("--database", "shop_two") == both
    server.start()


@pytest.mark.feature("N03")
def test_wal_of_three_databases_is_read_once_for_two_readers_each_of_which_gets_all_of_it(tmp_path: Path) -> None:
    names = ("one", "two", "three")
    with new_cluster(15, {"autovacuum": "off"}) as node:
        for name in names:
            node.sql(f"CREATE DATABASE {name}")
            node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)", name)
        sidecar = Sidecar(node, "one", tmp_path, TIDEMARK_SELECT__DATABASES=",".join(names))
        sidecar.config = replace(sidecar.config, select=SelectConfig(databases=names))
        sidecar.init()
        with OutboxReader.open(sidecar.folder) as outbox:
            quick, slow = OnDemandReader(outbox, "quick"), OnDemandReader(outbox, "slow")
            sidecar.start()
            try:
                quick.catch_up(sidecar)
                before_lsn = parse_lsn(node.flush_lsn())
                read_before = sidecar.metric(WAL_READ)
                for number in range(3):
                    for name in names:
                        node.sql(f"INSERT INTO account VALUES ({number}, '{name} {number}')", name)
                    quick.catch_up(sidecar)  # and confirms values that the other has not read
                slow.catch_up(sidecar)
                written = parse_lsn(node.flush_lsn()) - before_lsn
                assert 0 < sidecar.metric(WAL_READ) - read_before < 2 * written
                assert node.sql("SELECT count(*) FROM pg_stat_replication") == [(1,)]
            finally:
                sidecar.close()
        oids = {str(name): Oid(int(str(oid))) for name, oid in node.sql("SELECT datname, oid::int8 FROM pg_database")}
        expected = {(oids[name], f"{name} {number}") for number in range(3) for name in names}
        for on_demand in (quick, slow):
            batches = [item for item in on_demand.items if isinstance(item, ChangeBatch)]
            rows = [(item.database, row["_after"]["note"]) for item in batches for row in item.rows.to_pylist()]
            assert len(rows) == len(expected)
            assert set(rows) == expected


def test_a_half_dropped_database_does_not_prevent_a_start(tmp_path: Path) -> None:
    """As after an interrupted DROP DATABASE: marked, and its files may be missing."""
    with new_cluster(15) as node:
        for name in ("app", "half", "half_template"):
            node.sql(f"CREATE DATABASE {name}")
        node.sql("ALTER DATABASE half_template IS_TEMPLATE true")
        node.sql("UPDATE pg_database SET datconnlimit = -2 WHERE datname LIKE 'half%'")
        sidecar = Sidecar(node, "app", tmp_path)
        sidecar.config = replace(sidecar.config, select=SelectConfig(databases=("*",)))
        sidecar.init()
        with StateStore.open(sidecar.folder) as store:
            beginning = store.view().beginning
    assert beginning is not None
    assert set(beginning.databases.values()) == {"app", "postgres"}


@pytest.mark.feature("N03")
def test_a_database_that_is_followed_from_the_seed_on_can_be_renamed_into_the_selection(
    server: Cluster, tmp_path: Path
) -> None:
    for name in ("waiting", "stranger"):
        server.sql(f"CREATE DATABASE {name}")
        write(server, name, 1)
    sidecar = Shops(server, tmp_path)
    sidecar.config = replace(sidecar.config, seed=SeedConfig(databases=("wait*",)))
    sidecar.init()
    assert not {"waiting", "stranger"} & set(sidecar.names().values())
    sidecar.start()
    try:
        write(server, "waiting", 2)  # its catalogs must be known at this point
        fill_wal(server)
        sidecar.restart()  # from a base of the journal
        server.sql("ALTER DATABASE waiting RENAME TO shop_awaited")
        server.sql("ALTER DATABASE stranger RENAME TO shop_stranger")
        write(server, "shop_awaited", 3)
        reported = sidecar.wait_for_event(NOT_CAPTURED, database="shop_stranger")
        assert "before it was selected" in str(reported["reason"])
        assert "cdcctl init --database" in str(reported["hint"])
        sidecar.catch_up()
        sidecar.restart()  # copies the earlier rows
        write(server, "shop_awaited", 4)
        assert sidecar.accounts(sidecar.catch_up())["shop_awaited"] == sidecar.expected("shop_awaited")["shop_awaited"]
        assert "shop_stranger" not in sidecar.names().values()
        assert sidecar.stop() == 0
    finally:
        sidecar.close()


def test_the_numbers_of_encodings_are_the_servers(server: Cluster) -> None:
    rows = server.sql(f"SELECT pg_encoding_to_char(n) FROM generate_series(0, {len(SERVER_ENCODINGS)}) n")
    assert [name for (name,) in rows][:-1] == list(SERVER_ENCODINGS)
