"""Databases that leave the selection: the DROP of their tables, or their own, is the last event of each table."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.first_copy.test_copy_to_consumer import KeepingConsumer
from tests.integration.first_copy.test_copy_to_consumer import captured as consuming
from tests.integration.first_copy.test_interrupted_captures import DATABASES, two_databases
from tests.integration.first_copy.test_left_tables import ROOTS, drops
from tests.integration.replay.test_unselected import CREATE, READER, Unselected, created
from tests.support.processes.captures import config_for
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.servers.postgres import Cluster
from tidemark.decode.catalog.databases import by_name
from tidemark.io.state.history_files import load_catalogs
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.capture_change import CaptureChange
from tidemark.model.change import NO_COMMIT_TIME, SchemaChange, SchemaEvent
from tidemark.model.lsn import Lsn, TimelineId
from tidemark.pipeline.lake.positions.table_position import TableState
from tidemark.pipeline.lake.report import OpenedLake
from tidemark.runtime.recovery.resumption import (
    Resumption,
    TableCorrections,
    WrongTables,
    captures_without_copies,
    table_corrections,
)
from tidemark.runtime.seed.initialise import initialise
from tidemark.wire.items import relation_of
from tidemark.wire.state.copy_progress import CopyPhase

pytestmark = pytest.mark.feature("L03")


class TwoDatabases:
    """A capture of two databases, the second of which leaves the selection."""

    def __init__(self, captured: Unselected, other: str) -> None:
        self.captured = captured
        self.cluster = captured.sidecar.cluster
        self.name = other  # at the source

    def sql(self, statement: str) -> None:
        """Run a statement in the second database."""
        self.cluster.sql(statement, self.name)

    def exclude(self) -> None:
        """Exclude the second database by the configuration."""
        self.captured.restart(**{DATABASES: self.captured.sidecar.database})

    def include(self) -> None:
        """Select both databases by the configuration."""
        self.captured.restart(**{DATABASES: f"{self.captured.sidecar.database},{self.name}"})

    def rename(self, name: str) -> None:
        """Rename the second database."""
        self.cluster.sql(f"ALTER DATABASE {self.name} RENAME TO {name}")
        self.name = name

    def drop(self) -> None:
        """Drop the second database."""
        self.cluster.sql(f"DROP DATABASE {self.name} WITH (FORCE)")

    def drop_table(self, *, with_database: bool) -> None:
        """Drop the table `elsewhere`, or its database."""
        if with_database:
            self.drop()
        else:
            self.sql("DROP TABLE elsewhere")

    def leave(self, *, is_renamed: bool) -> None:
        """Let the second database leave the selection by a rename, or by the configuration."""
        if is_renamed:
            self.rename(f"{self.name}_gone")
        else:
            self.exclude()

    def stop_before_a_change(self) -> None:
        """Change the second database, stop the capture, and change it again."""
        self.sql("INSERT INTO elsewhere VALUES (1, 'first')")
        self.captured.land()
        self.captured.sidecar.kill()
        self.sql("INSERT INTO elsewhere VALUES (2, 'unseen')")

    def start_without(self) -> None:
        """Start the stopped capture with a configuration that excludes the second database."""
        self.captured.sidecar.options[DATABASES] = self.captured.sidecar.database
        self.captured.sidecar.start()
        self.captured.sql(CREATE)

    def drops(self) -> list[tuple[str, CaptureChange]]:
        """Return the delivered DROPs, with the names of the tables."""
        return [(drop.before.name, drop.capture) for drop in drops(self.captured) if drop.before is not None]

    def check_dropped(self, *names: str) -> None:
        """Check that the last DROP of each table of the second database has its time, and that no copy remains."""
        found = [name for name, capture in self.drops() if capture is CaptureChange.NONE]
        assert sorted(found) == sorted(names)
        self.captured.land()
        for name in names:
            table = self.captured.table(name)
            assert (table.state, table.dropped_us > NO_COMMIT_TIME) == (TableState.DROPPED, True)
        assert self.copies() == set()

    def copies(self) -> set[int]:
        """Return the tables of unselected databases of which a copy is recorded."""
        ((oid,),) = self.cluster.sql(
            f"SELECT oid::int8 FROM pg_database WHERE datname = '{self.captured.sidecar.database}'"
        )
        with StateStore.open(self.captured.sidecar.folder, read_only=True) as store:
            return {relation for database, relation in store.view().copies if database != oid}


def corrections(two: TwoDatabases, *, copying: bool, unknown_too: bool = False) -> TableCorrections:
    """Return the corrections of all tables of a stopped capture, as after a rewind."""
    config = two.captured.sidecar.config
    selected = replace(config.select, databases=(two.captured.sidecar.database,))
    with StateStore.open(two.captured.sidecar.folder, read_only=True) as store:
        view = store.view()
        assert view.delivered is not None
        lsn = Lsn(view.delivered.pointer.position.commit_lsn + 1)
        captured = by_name(selected.selection().selects_database)
        mirrors = load_catalogs(store.folder.history, view.history, view.journal, lsn, captured).mirrors
        at = Resumption(TimelineId(1), lsn, lsn, view.history, mirrors, mirrors.known().keys())
        correct = table_corrections if copying else captures_without_copies
        wrong = WrongTables(only=None, unknown_too=unknown_too)
        return correct(replace(config, select=selected), store, view, at, wrong)


@pytest.fixture
def two(cluster: Cluster, database: str, tmp_path: Path) -> Iterator[TwoDatabases]:
    with two_databases(cluster, database, tmp_path, copied=True) as (captured, other):
        yield TwoDatabases(captured, other)


@pytest.fixture(params=[False, True], ids=["without copy", "with copy"])
def with_or_without_copy(
    request: pytest.FixtureRequest, cluster: Cluster, database: str, tmp_path: Path
) -> Iterator[TwoDatabases]:
    with two_databases(cluster, database, tmp_path, copied=request.param) as (captured, other):
        yield TwoDatabases(captured, other)


@pytest.mark.parametrize("is_database", [False, True])
@pytest.mark.parametrize("starts", [0, 1])
@pytest.mark.parametrize("is_renamed", [False, True])
def test_the_drop_in_a_database_that_has_left_the_selection_is_reported(
    two: TwoDatabases, *, is_renamed: bool, starts: int, is_database: bool
) -> None:
    """`starts`: those between the leave and the DROP. `is_database`: the whole database is dropped."""
    two.sql("INSERT INTO elsewhere VALUES (1, 'first')")
    two.sql("CREATE TABLE further (id int)")
    two.sql("INSERT INTO further VALUES (1)")
    two.leave(is_renamed=is_renamed)
    two.captured.sql(CREATE)
    two.sql("INSERT INTO elsewhere VALUES (2, 'unseen')")
    for _ in range(starts):
        two.captured.restart()
    two.sql("CREATE TABLE unseen (id int); INSERT INTO unseen VALUES (1); ALTER TABLE elsewhere ADD COLUMN more int")
    two.sql("ALTER TABLE elsewhere RENAME TO renamed; CREATE TABLE elsewhere (id int); SELECT 1")
    two.sql("SELECT pg_logical_emit_message(true, 'unseen', 'x')")
    before = len(two.drops())
    assert before == (2 if is_renamed else 0)
    if is_database:
        two.drop()
    else:
        two.sql("DROP TABLE unseen, renamed, further, elsewhere")
    two.check_dropped("elsewhere", "further")
    assert len(two.drops()) == before + 2
    assert not {"unseen", "renamed"} & {
        item.after.name for item in two.captured.items() if isinstance(item, SchemaEvent) and item.after is not None
    }


@pytest.mark.parametrize("is_database", [False, True])
@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_drop_while_the_capture_is_stopped_is_reported(
    two: TwoDatabases, *, is_renamed: bool, is_database: bool
) -> None:
    two.sql("INSERT INTO elsewhere VALUES (1, 'first')")
    two.leave(is_renamed=is_renamed)
    two.captured.sql(CREATE)
    two.captured.land()
    two.captured.sidecar.kill()
    two.drop_table(with_database=is_database)
    two.captured.sidecar.start()
    two.check_dropped("elsewhere")


@pytest.mark.parametrize("is_database", [False, True])
def test_a_drop_before_the_start_that_excludes_the_database_is_reported(
    with_or_without_copy: TwoDatabases, *, is_database: bool
) -> None:
    two = with_or_without_copy
    two.stop_before_a_change()
    two.drop_table(with_database=is_database)
    two.start_without()
    two.check_dropped("elsewhere")
    assert two.captured.events() == [("elsewhere", CaptureChange.ENDS)]


def test_a_database_that_is_renamed_before_the_start_that_excludes_it_has_left(
    with_or_without_copy: TwoDatabases,
) -> None:
    """Its present name was never selected; its changes until the start were, by its former name."""
    two = with_or_without_copy
    two.stop_before_a_change()
    two.rename(f"{two.name}_gone")
    two.start_without()
    assert two.captured.events() == [("elsewhere", CaptureChange.ENDS)]
    two.drop()
    two.check_dropped("elsewhere")


def test_a_database_whose_drop_was_delivered_does_not_leave_with_a_later_start(
    with_or_without_copy: TwoDatabases,
) -> None:
    """An open transaction keeps the restart LSN, whose catalogs have the database, before the DROP."""
    two = with_or_without_copy
    two.captured.sql(CREATE)
    two.sql("INSERT INTO elsewhere VALUES (1, 'first')")
    with two.cluster.connect(two.captured.sidecar.database, autocommit=False) as holder:
        holder.execute("INSERT INTO account VALUES (1, 'open')")
        two.drop()
        two.check_dropped("elsewhere")
        two.exclude()
        holder.commit()
    two.captured.sql("INSERT INTO account VALUES (2, 'last')")
    assert two.captured.events() == []
    two.check_dropped("elsewhere")


def test_an_unlogged_table_that_had_left_is_dropped_with_its_database(two: TwoDatabases) -> None:
    two.sql("INSERT INTO elsewhere VALUES (1, 'first')")
    two.sql("CREATE SCHEMA away; ALTER TABLE elsewhere SET SCHEMA away")
    two.sql("ALTER TABLE away.elsewhere SET UNLOGGED")
    two.drop()
    two.captured.land()
    assert two.drops() == [("elsewhere", CaptureChange.NONE)]
    assert not any(drop.still_exists for drop in drops(two.captured))
    assert two.copies() == set()


@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_database_that_returns_is_captured_and_dropped_once(two: TwoDatabases, *, is_renamed: bool) -> None:
    two.sql("INSERT INTO elsewhere VALUES (1, 'first')")
    selected = two.name
    two.leave(is_renamed=is_renamed)
    two.captured.sql(CREATE)
    two.sql("CREATE TABLE meanwhile (id int PRIMARY KEY)")
    two.captured.land()
    if is_renamed:
        two.rename(selected)
        two.captured.restart()
    else:
        two.include()
    two.sql("INSERT INTO elsewhere VALUES (2, 'returned')")
    two.sql("CREATE TABLE later (id int PRIMARY KEY); INSERT INTO later VALUES (1)")
    two.captured.land()
    for name in ("elsewhere", "later"):
        assert (two.captured.table(name).state, two.captured.table(name).dropped_us) == (
            TableState.LIVE,
            NO_COMMIT_TIME,
        )
    two.drop()
    two.check_dropped("elsewhere", "meanwhile", "later")


def test_the_tables_that_had_left_before_their_database_are_dropped_with_it(two: TwoDatabases) -> None:
    two.sql("INSERT INTO elsewhere VALUES (1, 'first')")
    two.sql("CREATE SCHEMA away; ALTER TABLE elsewhere SET SCHEMA away")
    two.sql("CREATE TABLE elsewhere (id int PRIMARY KEY)")
    two.rename(f"{two.name}_gone")
    two.captured.sql(CREATE)
    assert two.drops() == [("elsewhere", CaptureChange.ENDS)]  # of the table that was still selected
    two.drop()
    two.captured.land()
    assert [capture for _, capture in two.drops()] == [CaptureChange.ENDS, CaptureChange.NONE, CaptureChange.NONE]
    assert two.copies() == set()


@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_table_that_was_a_root_is_dropped_with_its_database(two: TwoDatabases, *, is_renamed: bool) -> None:
    """Its name is still selected when the database leaves."""
    two.captured.restart(**{ROOTS: "public.parts"})
    two.sql("CREATE TABLE parts (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)")
    two.sql("CREATE TABLE part PARTITION OF parts DEFAULT")
    two.sql("INSERT INTO parts VALUES (1, 'first')")
    two.sql("ALTER TABLE parts RENAME TO former")
    two.leave(is_renamed=is_renamed)
    two.drop()
    two.captured.sql(CREATE)
    two.check_dropped("elsewhere", "part", "parts")


def test_a_database_that_takes_the_name_of_one_that_left_is_another_one(two: TwoDatabases) -> None:
    """Both have a table of one name; the DROP of the former database is not that of the present one."""
    two.sql("INSERT INTO elsewhere VALUES (1, 'first')")
    two.captured.land()
    selected = two.name
    two.cluster.sql(f"CREATE DATABASE {selected}_next")
    two.cluster.sql("CREATE TABLE elsewhere (id int PRIMARY KEY)", f"{selected}_next")
    two.rename(f"{selected}_gone")
    two.cluster.sql(f"ALTER DATABASE {selected}_next RENAME TO {selected}")
    two.cluster.sql("INSERT INTO elsewhere VALUES (7)", selected)
    two.captured.restart()
    two.drop()
    two.captured.land()
    assert [capture for _, capture in two.drops()] == [CaptureChange.ENDS, CaptureChange.NONE]
    assert len(two.copies()) == 1
    two.name = selected


@pytest.mark.parametrize("is_renamed", [False, True])
@pytest.mark.parametrize("copying", [False, True])
def test_corrections_do_not_concern_tables_of_a_database_that_left(
    two: TwoDatabases, *, copying: bool, is_renamed: bool
) -> None:
    """A copy would begin with an event that empties the replica of a table that is not copied then."""
    two.sql("INSERT INTO elsewhere VALUES (1, 'first')")
    two.captured.sql(CREATE)
    two.leave(is_renamed=is_renamed)
    two.captured.sql("CREATE TABLE later (id int)")
    two.captured.land()
    two.captured.sidecar.stop()
    (relation,) = two.copies()
    found = corrections(two, copying=copying)
    assert relation not in {oid for _, oid in found.gone}
    assert {progress.phase for (_, oid), progress in found.copies.items() if oid == relation} == {CopyPhase.LEFT}
    assert relation not in {item.before.oid for item in found.items if isinstance(item, SchemaEvent) and item.before}


@pytest.mark.parametrize("copying", [False, True])
def test_corrections_do_not_concern_unlogged_tables(two: TwoDatabases, *, copying: bool) -> None:
    """Their names are selected. One of them had left before it became unlogged."""
    two.captured.sql(CREATE)
    two.captured.sql("CREATE SCHEMA away; ALTER TABLE account SET SCHEMA away")
    two.captured.sql("ALTER TABLE away.account SET UNLOGGED; ALTER TABLE away.account SET SCHEMA public")
    two.captured.sql("CREATE UNLOGGED TABLE never (id int PRIMARY KEY); CREATE TABLE later (id int)")
    two.captured.land()
    two.captured.sidecar.stop()
    query = "SELECT 'account'::regclass::oid::int8, 'never'::regclass::oid::int8"
    ((account, never),) = two.cluster.sql(query, two.captured.sidecar.database)
    found = corrections(two, copying=copying, unknown_too=True)
    phases = {oid: progress.phase for (_, oid), progress in found.copies.items()}
    assert (phases[account], never in phases) == (CopyPhase.LEFT, False)
    assert found.gone == []
    assert {account, never}.isdisjoint(table.oid for item in found.items if (table := relation_of(item)) is not None)


@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_custom_consumer_gets_the_drop_in_a_database_that_left(
    cluster: Cluster, database: str, tmp_path: Path, *, is_renamed: bool
) -> None:
    """Its state has no outbox. The DROP is in a later start than the leave."""
    other = f"{database}_other"
    cluster.sql(f"CREATE DATABASE {other}")
    cluster.sql(CREATE, other)
    config, folder = config_for(cluster, database), StateFolder(tmp_path / "state")
    both = replace(config, select=replace(config.select, databases=(database, other)))
    initialise(both, folder)
    found: list[SchemaEvent] = []
    last = f"{other}_gone" if is_renamed else other
    try:
        for number, statement in enumerate(["", f"ALTER DATABASE {other} RENAME TO {last}", f"DROP DATABASE {last}"]):
            is_excluded = number > 0 and not is_renamed
            selecting = replace(both, select=replace(both.select, databases=(database,))) if is_excluded else both
            consumer = KeepingConsumer(0)
            with consuming(selecting, folder, consumer) as wait:
                if number == 0:
                    cluster.sql("INSERT INTO account VALUES (1, 'x')", other)
                elif is_renamed or number == 2:
                    cluster.sql(statement)
                cluster.sql(f"CREATE TABLE other{number} ()", database)
                wait(lambda kept=consumer, name=f"other{number}": name in created(kept.items))  # type: ignore[misc]
            found += [item for item in consumer.items if isinstance(item, SchemaEvent) and item.before is not None]
    finally:
        cluster.sql(f"DROP DATABASE IF EXISTS {other}")
        cluster.sql(f"DROP DATABASE IF EXISTS {last}")
    leave = SchemaChange.DROP if is_renamed else SchemaChange.ALTER
    assert [(event.change, event.capture) for event in found] == [
        (leave, CaptureChange.ENDS),
        (SchemaChange.DROP, CaptureChange.NONE),
    ]
    with StateStore.open(folder, read_only=True) as store:
        assert CopyPhase.LEFT not in {copy.phase for copy in store.view().copies.values()}


@pytest.mark.parametrize("is_database", [False, True])
def test_the_drop_of_a_table_that_was_removed_from_the_lake_does_not_bring_it_back(
    two: TwoDatabases, *, is_database: bool
) -> None:
    two.sql("INSERT INTO elsewhere VALUES (1, 'first')")
    two.rename(f"{two.name}_gone")
    two.captured.sql(CREATE)
    two.captured.land()
    folder = two.captured.lake / two.captured.table("elsewhere").folder
    two.captured.sidecar.stop()
    place = ("--lake", two.captured.lake, "--reader", READER, "--state", two.captured.sidecar.folder.root)
    succeeded(cdcctl("lake", "remove", "public.elsewhere", "--yes", *place, **two.captured.sidecar.options))
    two.captured.sidecar.start()
    two.drop_table(with_database=is_database)
    two.captured.land()
    assert [capture for _, capture in two.drops()] == [CaptureChange.ENDS, CaptureChange.NONE]
    assert {table.name for table in OpenedLake(str(two.captured.lake)).tables if table.relation} == {"account"}
    assert not folder.exists()
