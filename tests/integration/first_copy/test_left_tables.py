"""Tables that leave the selection, and are dropped later: the DROP is the last event of each."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.first_copy.test_copy_to_consumer import KeepingConsumer
from tests.integration.first_copy.test_copy_to_consumer import captured as consuming
from tests.integration.replay.test_unselected import CREATE, EXCLUDED, TABLES, Unselected, capturing, created, fill
from tests.support.plugins.daemons import use_config
from tests.support.processes.captures import config_for, initialised
from tests.support.servers.postgres import Cluster
from tidemark.io.state import schema_numbers
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.capture_change import CaptureChange
from tidemark.model.change import NO_COMMIT_TIME, SchemaChange, SchemaEffect, SchemaEvent
from tidemark.pipeline.lake.positions.table_position import TableState
from tidemark.runtime.seed.initialise import initialise
from tidemark.wire.state.copy_progress import CopyPhase

pytestmark = pytest.mark.feature("L03")
TRANSFORMS = """
[[transforms]]
use = "tidemark:Drop"
columns = ["public.account.note"]
has_column = "note"
[[transforms]]
use = "tidemark:Rename"
column = "public.account.other"
to = "note"
has_column = "other"
"""
RAISING = "[[transforms]]\nuse = 'tests.support.plugins.bad_plugins:NoteDropper'\n"
RENAME = "[[transforms]]\nuse = 'tidemark:Rename'\ncolumn = 'public.account.note'\nto = 'remark'\n"
ROOTS = "TIDEMARK_SELECT__PARTITION_ROOTS"


@pytest.fixture
def captured(cluster: Cluster, database: str, tmp_path: Path) -> Iterator[Unselected]:
    with capturing(cluster, database, tmp_path) as found:
        yield found


@contextmanager
def capturing_one_table(cluster: Cluster, database: str, root: Path) -> Iterator[Unselected]:
    """A capture of the table `account` by its name."""
    with capturing(cluster, database, root, copy=True) as found:
        found.restart(**{TABLES: "public.account"})
        yield found


@pytest.fixture
def one_table(cluster: Cluster, database: str, tmp_path: Path) -> Iterator[Unselected]:
    with capturing_one_table(cluster, database, tmp_path) as found:
        yield found


def drops(captured: Unselected) -> list[SchemaEvent]:
    return [item for item in captured.items() if isinstance(item, SchemaEvent) and item.change is SchemaChange.DROP]


def check_dropped(captured: Unselected, *names: str) -> None:
    """Check that one DROP of each table was delivered, as the table was delivered last, and that nothing is left."""
    found = [(drop.before.name, drop.after, drop.capture) for drop in drops(captured) if drop.before is not None]
    assert sorted(found) == [(name, None, CaptureChange.NONE) for name in sorted(names)]
    captured.land()
    with StateStore.open(captured.sidecar.folder, read_only=True) as store:
        copied = {relation for _, relation in store.view().copies}
    for name in names:
        table = captured.table(name)
        assert (table.state, table.dropped_us > NO_COMMIT_TIME) == (TableState.DROPPED, True)
        assert table.relation not in copied


@pytest.mark.parametrize("is_between", [False, True])
def test_a_swap_by_rename_of_a_table_that_is_selected_by_name_reports_the_drop(
    one_table: Unselected, *, is_between: bool
) -> None:
    """`is_between`: a start is between the rename and the DROP."""
    fill(one_table)
    one_table.land()
    one_table.sql("CREATE TABLE fresh (LIKE account INCLUDING ALL)")
    one_table.sql(
        "BEGIN; ALTER TABLE account RENAME TO former; ALTER TABLE fresh RENAME TO account; COMMIT"
        if is_between
        else "ALTER TABLE account RENAME TO former"
    )
    if is_between:
        one_table.items()
        one_table.sidecar.kill()
        one_table.sidecar.start()
        one_table.sidecar.catch_up()
    one_table.sql("ALTER TABLE former ADD COLUMN unseen int")
    one_table.sql("ALTER TABLE former RENAME TO unseen")
    one_table.sql("DROP TABLE unseen")
    check_dropped(one_table, "former")
    one_table.restart()
    one_table.sql("CREATE TABLE never (id int)")
    one_table.sql("DROP TABLE never")
    assert len(drops(one_table)) == 1


def test_the_drop_of_a_table_that_the_configuration_excludes_is_reported(captured: Unselected) -> None:
    fill(captured)
    captured.restart(**{EXCLUDED: "public.account"})
    captured.sql("CREATE TABLE other (id int)")
    captured.sql("UPDATE account SET note = 'missed'")
    captured.land()
    captured.sidecar.kill()
    captured.sidecar.start()
    captured.sql("DROP TABLE account")
    check_dropped(captured, "account")


@pytest.mark.parametrize("is_copied", [False, True])
def test_a_table_that_is_dropped_before_a_start_whose_configuration_excludes_it_has_left(
    cluster: Cluster, database: str, tmp_path: Path, *, is_copied: bool
) -> None:
    """The start lists the tables without it; the stream brings its last changes and its DROP later."""
    with capturing(cluster, database, tmp_path, copy=is_copied) as captured:
        fill(captured)
        captured.sql("CREATE TABLE other (id int)")
        captured.land()
        captured.sidecar.kill()
        captured.sql("UPDATE account SET note = 'missed'")
        captured.sql("INSERT INTO other VALUES (1)")
        captured.sql("DROP TABLE account")
        captured.sidecar.options[EXCLUDED] = "public.account"
        captured.sidecar.start()
        check_dropped(captured, "account")
        assert captured.events() == [("account", CaptureChange.ENDS)]
        captured.restart(**{EXCLUDED: ""})
        with StateStore.open(captured.sidecar.folder, read_only=True) as store:
            assert CopyPhase.LEFT not in {copy.phase for copy in store.view().copies.values()}


def test_a_table_that_returns_before_its_drop_is_dropped_once(captured: Unselected) -> None:
    captured.restart(**{TABLES: "public.account"})
    fill(captured)
    captured.sql("ALTER TABLE account RENAME TO away")
    captured.sql("ALTER TABLE away RENAME TO account")
    captured.sql("DROP TABLE account")
    check_dropped(captured, "account")


@pytest.mark.parametrize("copied", [False, True])
def test_a_table_whose_drop_was_delivered_does_not_leave_with_a_later_start(
    cluster: Cluster, database: str, tmp_path: Path, *, copied: bool
) -> None:
    """An open transaction keeps the restart LSN, whose catalogs have the table, before the DROP."""
    cluster.sql(f"{CREATE}; CREATE TABLE other (id int)", database)
    with capturing(cluster, database, tmp_path, copy=copied) as captured:
        captured.sql("INSERT INTO account VALUES (1, 'first')")
        with cluster.connect(database, autocommit=False) as holder:
            holder.execute("INSERT INTO other VALUES (1)")
            captured.sql("DROP TABLE account")
            check_dropped(captured, "account")
            captured.restart(**{EXCLUDED: "public.account"})
            holder.commit()
        captured.sql("INSERT INTO other VALUES (2)")
        assert captured.events() == []
        check_dropped(captured, "account")


def test_the_drop_of_a_table_that_had_left_and_became_a_partition_is_reported(captured: Unselected) -> None:
    captured.restart(**{ROOTS: "public.parts", EXCLUDED: "public.away"})
    fill(captured)
    captured.sql("ALTER TABLE account RENAME TO away")
    captured.sql("CREATE TABLE parts (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)")
    captured.sql("ALTER TABLE parts ATTACH PARTITION away FOR VALUES FROM (0) TO (100)")
    captured.sql("INSERT INTO parts VALUES (2, 'name of the root')")
    captured.restart()
    captured.sql("DROP TABLE away")
    check_dropped(captured, "away")


def test_the_drop_of_a_partition_whose_root_has_its_changes_now_is_reported(captured: Unselected) -> None:
    captured.sql("CREATE TABLE parts (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)")
    captured.sql("CREATE TABLE account PARTITION OF parts FOR VALUES FROM (0) TO (100)")
    captured.sql("INSERT INTO parts VALUES (1, 'own name')")
    captured.restart(**{ROOTS: "public.parts"})
    captured.sql("INSERT INTO parts VALUES (2, 'name of the root')")
    captured.land()
    captured.sql("DROP TABLE account")
    check_dropped(captured, "account")


def test_a_partition_that_is_dropped_before_a_start_with_its_root_has_left(captured: Unselected) -> None:
    captured.sql("CREATE TABLE parts (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)")
    captured.sql("CREATE TABLE account PARTITION OF parts FOR VALUES FROM (0) TO (100)")
    captured.sql("INSERT INTO parts VALUES (1, 'own name')")
    captured.land()
    captured.sidecar.kill()
    captured.sql("INSERT INTO parts VALUES (2, 'name of the root')")
    captured.sql("DROP TABLE account")
    captured.sidecar.options[ROOTS] = "public.parts"
    captured.sidecar.start()
    check_dropped(captured, "account")
    assert ("account", CaptureChange.ENDS) in captured.events()


@pytest.mark.parametrize("is_between", [False, True])
def test_the_drop_of_a_root_that_a_rename_removed_from_the_selection_is_reported(
    captured: Unselected, *, is_between: bool
) -> None:
    """Its version under the new name has no rows. `is_between`: a start is between the rename and the DROP."""
    captured.restart(**{ROOTS: "public.account", TABLES: "public.account"})
    captured.sql("CREATE TABLE account (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)")
    captured.sql("CREATE TABLE part PARTITION OF account FOR VALUES FROM (0) TO (100)")
    captured.sql("INSERT INTO account VALUES (1, 'first')")
    captured.sql("ALTER TABLE account RENAME TO former")
    captured.land()
    if is_between:
        captured.restart()
    captured.sql("DROP TABLE former")
    check_dropped(captured, "account")


def test_the_drop_names_the_table_as_it_was_delivered_last_if_an_earlier_version_came_again(
    captured: Unselected,
) -> None:
    fill(captured)
    captured.sql("ALTER TABLE account RENAME TO other")
    captured.sql("INSERT INTO other VALUES (5, 'other')")
    captured.sql("ALTER TABLE other RENAME TO account")
    captured.sql("INSERT INTO account VALUES (6, 'again')")
    captured.restart(**{EXCLUDED: "public.account"})
    captured.sql("CREATE TABLE other (id int)")
    captured.restart()
    captured.sql("DROP TABLE account")
    check_dropped(captured, "account")


@pytest.mark.parametrize("is_stopped", [False, True])
@pytest.mark.parametrize("starts", [2, 3])
@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_custom_consumer_gets_the_drop_once(
    cluster: Cluster, database: str, tmp_path: Path, *, is_renamed: bool, starts: int, is_stopped: bool
) -> None:
    """Its state has no outbox, whose values describe tables.

    `starts`: the last one is that of the DROP, which comes before it if `is_stopped`.
    """
    cluster.sql(CREATE, database)
    config, folder = config_for(cluster, database), StateFolder(tmp_path / "state")
    initialise(config, folder)
    found: list[SchemaEvent] = []
    name = "away" if is_renamed else "account"
    for number in range(starts + 1):
        excluded = ("public.away",) if is_renamed else ("public.account",) if number else ()
        statements = [f"DROP TABLE {name}"] if number == starts - 1 else []
        if is_stopped:
            cluster.sql("; ".join(statements), database)
            statements = []
        if number == 0:
            statements = ["INSERT INTO account VALUES (1, 'x')"]
            statements += ["ALTER TABLE account RENAME TO away"] if is_renamed else []
        consumer = KeepingConsumer(0)
        selecting = replace(config, select=replace(config.select, exclude_tables=excluded))
        with consuming(selecting, folder, consumer) as wait:
            cluster.sql("; ".join([*statements, f"CREATE TABLE other{number} ()"]), database)
            wait(lambda kept=consumer, name=f"other{number}": name in created(kept.items))  # type: ignore[misc]
        found += [item for item in consumer.items if isinstance(item, SchemaEvent)]
    changes = [(event.change, event.before.name) for event in found if event.before is not None]
    assert changes == [(SchemaChange.ALTER, "account"), (SchemaChange.DROP, name)]
    with StateStore.open(folder, read_only=True) as store:
        assert CopyPhase.LEFT not in {copy.phase for copy in store.view().copies.values()}


def test_the_state_of_a_custom_consumer_keeps_few_versions_of_dropped_tables(
    cluster: Cluster, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_numbers, "VERSIONS_A_CHECK", 4)
    monkeypatch.setattr(schema_numbers, "DROPPED_KEPT", 2)
    config, folder = config_for(cluster, database), StateFolder(tmp_path / "state")
    initialise(config, folder)
    selecting = replace(config, select=replace(config.select, exclude_tables=("public.away*",)))
    for number in range(1, 6):
        consumer = KeepingConsumer(0)
        with consuming(selecting, folder, consumer) as wait:
            for table in range(3):
                for statement in (CREATE, f"ALTER TABLE account RENAME TO away{table}", f"DROP TABLE away{table}"):
                    cluster.sql(statement, database)
            cluster.sql(f"CREATE TABLE other{number} ()", database)
            wait(lambda kept=consumer, name=f"other{number}": name in created(kept.items))  # type: ignore[misc]
    with StateStore.open(folder, read_only=True) as store:
        assert 0 < len(store.relations()) <= 5 + 2 + 1


@pytest.mark.parametrize(("transforms", "columns"), [(TRANSFORMS, ["id", "note"]), (RAISING, ["id", "other"])])
def test_the_drop_has_the_version_that_the_transforms_delivered(
    captured: Unselected, transforms: str, columns: list[str]
) -> None:
    """They do not change it again, which fits no column, or another one that has the name now."""
    use_config(transforms, captured.sidecar)
    captured.restart()
    captured.sql("CREATE TABLE account (id int PRIMARY KEY, note text, other text)")
    captured.sql("INSERT INTO account VALUES (1, 'dropped', 'renamed')")
    captured.restart(**{EXCLUDED: "public.account"})
    captured.sql("CREATE TABLE later (id int)")
    captured.restart()
    captured.sql("DROP TABLE account")
    check_dropped(captured, "account")
    (drop,) = drops(captured)
    assert drop.before is not None
    assert [column.name for column in drop.before.live_columns] == columns


def test_transforms_of_a_dropped_partition_whose_root_has_its_changes_are_not_announced(captured: Unselected) -> None:
    use_config(RENAME, captured.sidecar)
    captured.restart()
    captured.sql("CREATE TABLE parts (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)")
    captured.sql("CREATE TABLE account PARTITION OF parts FOR VALUES FROM (0) TO (100)")
    captured.sql("INSERT INTO parts VALUES (1, 'own name')")
    captured.restart(**{ROOTS: "public.parts"})
    captured.sql("INSERT INTO parts VALUES (2, 'name of the root')")
    captured.restart()
    captured.sql("DROP TABLE account")
    check_dropped(captured, "account")
    effects = {item.effect for item in captured.items() if isinstance(item, SchemaEvent)}
    assert SchemaEffect.TRANSFORMS not in effects


def test_the_drop_of_a_table_that_was_never_captured_is_not_reported(captured: Unselected) -> None:
    captured.restart(**{EXCLUDED: "public.late"})
    captured.sql("CREATE TABLE late (id int)")
    captured.sql("INSERT INTO late VALUES (1)")
    captured.restart()
    captured.sql("DROP TABLE late")
    assert drops(captured) == []


def test_a_table_that_is_excluded_before_its_copy_began_is_not_reported(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    cluster.sql(
        f"{CREATE}; INSERT INTO account VALUES (1, 'first'); CREATE TABLE waiting (id int PRIMARY KEY)", database
    )
    with initialised(cluster, database, tmp_path, copy=True, **{TABLES: "public.*"}) as sidecar:
        with cluster.connect(database, autocommit=False) as owner:
            owner.execute("LOCK TABLE account, waiting IN ACCESS EXCLUSIVE MODE")
            sidecar.start(wait=False)
            sidecar.wait_for_event("first copy planned", tables=2)
            sidecar.kill()
        sidecar.options[EXCLUDED] = "public.waiting"
        sidecar.start()
        captured = Unselected(sidecar, tmp_path / "lake")
        captured.sql("INSERT INTO account VALUES (2, 'second')")
        captured.land()
        captured.sql("DROP TABLE waiting")
        captured.restart()
        captured.sql("DROP TABLE account")
        check_dropped(captured, "account")
        assert captured.events() == []
        with StateStore.open(sidecar.folder, read_only=True) as store:
            assert store.view().copies == {}
