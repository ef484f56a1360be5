"""A target that a streaming query of a table keeps equals the source, however the table is copied again."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.archive.test_archive_repair import Holed, make_the_hole
from tests.integration.first_copy.test_interrupted_captures import two_databases
from tests.integration.replay.test_unselected import CREATE, EXCLUDED, TABLES, Unselected
from tests.support.lakes.kept_target import FORMS, KeptTarget, register, targets
from tests.support.processes.captures import Sidecar, initialised
from tests.support.servers.outbox_server import outbox_server, token_file
from tests.support.servers.postgres import Cluster, new_cluster
from tidemark.model.mode import Stage
from tidemark.pipeline.source.rows.query_table import ChangesMissing

pytestmark = pytest.mark.feature("L03")
FILLED = f"{CREATE}; INSERT INTO account SELECT n, 'first' FROM generate_series(1, 30) n"
MISSED = "DELETE FROM account WHERE id % 3 = 0; UPDATE account SET note = 'missed' WHERE id % 5 = 0"


@contextmanager
def capturing(cluster: Cluster, database: str, root: Path, setup: str, **options: str) -> Iterator[Unselected]:
    """Capture the tables of `setup`, with a copy; the outbox keeps all for the targets."""
    cluster.sql(setup, database)
    with initialised(cluster, database, root, copy=True, **{TABLES: "public.*", EXCLUDED: "", **options}) as sidecar:
        register(sidecar.folder)
        sidecar.start()
        sidecar.catch_up()
        yield Unselected(sidecar, root / "lake")


@pytest.fixture
def captured(cluster: Cluster, database: str, tmp_path: Path) -> Iterator[Unselected]:
    with capturing(cluster, database, tmp_path, FILLED) as found:
        yield found


def source_rows(sidecar: Sidecar, table: str = "account", database: str | None = None) -> list[tuple[object, object]]:
    rows = sidecar.cluster.sql(f"SELECT id, note FROM {table} ORDER BY id", database or sidecar.database)
    return [(row[0], row[1]) for row in rows]


def filled_targets(sidecar: Sidecar, table: str = "account") -> list[KeptTarget]:
    """Return a target of each form that has received everything so far."""
    sidecar.catch_up()
    found = list(targets(sidecar.folder.root, table))
    for target in found:
        target.advance()
        assert target.notes() == source_rows(sidecar, table)
    return found


def check(sidecar: Sidecar, found: list[KeptTarget], table: str = "account", evolution: str = "fail") -> None:
    """Check that the targets equal the source once they have received everything."""
    sidecar.catch_up()
    for target in found:
        target.advance(schemaEvolution=evolution)
        assert target.notes() == source_rows(sidecar, table), target.columns


def check_missing(sidecar: Sidecar, found: list[KeptTarget]) -> None:
    """Check that the queries end, unless they ignore missing changes."""
    sidecar.catch_up()
    for target in found:
        with pytest.raises(ChangesMissing):
            target.advance()


def test_a_requested_copy(captured: Unselected) -> None:
    found = filled_targets(captured.sidecar)
    captured.sql(MISSED)
    captured.recopy("public.account")
    captured.sql("INSERT INTO account VALUES (100, 'after')")
    check(captured.sidecar, found)
    for target in found:
        assert target.ops().count("t") == 2, "one before each copy"
        assert target.ops()[0] == "t"


def test_a_copy_below_rows_whose_deletes_were_missed(captured: Unselected) -> None:
    """The targets have rows that no change removes, as after a loss."""
    found = filled_targets(captured.sidecar)
    for target in found:
        target.keep(500, "gone")
    captured.recopy("public.account")
    check(captured.sidecar, found)


@pytest.mark.parametrize("moved", ["configured", "renamed"])
def test_a_table_that_leaves_the_selection_and_returns(captured: Unselected, moved: str) -> None:
    """The queries end where it leaves; those that ignore the missing changes equal the source after the copy."""
    found, sidecar = filled_targets(captured.sidecar), captured.sidecar
    captured.sql("UPDATE account SET note = 'last' WHERE id = 1")
    if moved == "configured":
        captured.restart(**{EXCLUDED: "public.account"})
        captured.sql(MISSED)
        captured.restart(**{EXCLUDED: ""})
    else:
        captured.sql("CREATE SCHEMA away; ALTER TABLE account SET SCHEMA away")
        captured.sql(MISSED.replace("account", "away.account"))
        captured.sql("ALTER TABLE away.account SET SCHEMA public")
        captured.restart()
    sidecar.wait_until(lambda: sum(event["event"] == "table copied" for event in sidecar.events()) == 2, "the copy")
    captured.sql("INSERT INTO account VALUES (100, 'after')")
    check_missing(sidecar, found)
    assert all((1, "last") in target.notes() for target in found)
    check(sidecar, found, evolution="ignore")


@pytest.fixture
def node() -> Iterator[Cluster]:
    """Return a server with small segments, of which one can be lost."""
    with new_cluster(15, initdb=["--wal-segsize=1"]) as made:
        made.sql("CREATE DATABASE shop")
        yield made


def test_a_loss_that_is_given_up(node: Cluster, tmp_path: Path) -> None:
    holed = Holed(node, tmp_path)
    sidecar = holed.sidecar
    holed.sql("CREATE TABLE kept (id int PRIMARY KEY, note text)", "CREATE TABLE dropped (id int PRIMARY KEY)")
    holed.sql("CREATE TABLE altered (id int PRIMARY KEY, note int)", "INSERT INTO kept VALUES (9, 'copied')")
    sidecar.init()
    register(sidecar.folder)
    try:
        sidecar.start()
        found = filled_targets(sidecar, "kept")
        make_the_hole(holed)
        holed.run("repair", "--yes")
        holed.set_stage(Stage.REALTIME)
        sidecar.start()
        holed.sql("UPDATE kept SET note = 'after' WHERE id = 4")
        check(sidecar, found, "kept")
    finally:
        sidecar.close()


def test_a_database_that_is_renamed_away_and_back(cluster: Cluster, database: str, tmp_path: Path) -> None:
    with two_databases(cluster, database, tmp_path, copied=True, before_start=register) as (captured, other):
        sidecar = captured.sidecar
        found = list(targets(sidecar.folder.root, "elsewhere"))
        for target in found:
            target.advance()
        cluster.sql(f"ALTER DATABASE {other} RENAME TO {other}_gone")
        cluster.sql("DELETE FROM elsewhere", f"{other}_gone")
        cluster.sql(f"ALTER DATABASE {other}_gone RENAME TO {other}")
        cluster.sql("INSERT INTO elsewhere VALUES (2, 'last')", other)
        captured.restart()
        check_missing(sidecar, found)
        for target in found:
            target.advance(schemaEvolution="ignore")
            assert target.notes() == [(2, "last")]


@pytest.mark.parametrize("kept", ["", "WHERE id > 2"])
def test_a_table_that_is_unlogged_for_a_while(captured: Unselected, kept: str) -> None:
    """Its rows come back as rewritten ones, which Debezium's form does not have: its query ends."""
    found, sidecar = filled_targets(captured.sidecar), captured.sidecar
    captured.sql("ALTER TABLE account SET UNLOGGED")
    captured.sql(f"DELETE FROM account {kept}")
    captured.sql("ALTER TABLE account SET LOGGED")
    captured.sql("INSERT INTO account VALUES (100, 'after')")
    *others, debezium = found
    check(sidecar, others)
    if kept:
        check_missing(sidecar, [debezium])
        captured.recopy("public.account")
    check(sidecar, [debezium], evolution="ignore")


def test_a_table_whose_keys_ddl_changes(captured: Unselected) -> None:
    """All rows are rewritten, without deletes; Debezium's form does not have them."""
    *found, _ = filled_targets(captured.sidecar)
    captured.sql("ALTER TABLE account ALTER id TYPE int USING id + 1000")
    captured.sql("INSERT INTO account VALUES (1, 'after')")
    check(captured.sidecar, found)


def test_a_table_that_is_dropped_and_created_again(captured: Unselected) -> None:
    found = filled_targets(captured.sidecar)
    captured.sql(f"DROP TABLE account; {CREATE}; INSERT INTO account VALUES (7, 'new')")
    check(captured.sidecar, found)


ROOT = """
CREATE TABLE parts (id int PRIMARY KEY, note text) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (10);
CREATE TABLE middle PARTITION OF parts FOR VALUES FROM (10) TO (20);
CREATE TABLE high PARTITION OF parts FOR VALUES FROM (20) TO (40);
INSERT INTO parts SELECT n, 'first' FROM generate_series(1, 30) n
"""
OF_PARTITIONS = (
    "TRUNCATE low",
    "INSERT INTO parts VALUES (1, 'again')",
    "DROP TABLE middle; CREATE TABLE middle PARTITION OF parts FOR VALUES FROM (10) TO (20)",
    "INSERT INTO parts VALUES (11, 'again')",
    "UPDATE parts SET id = 5, note = 'moved' WHERE id = 11",
    "ALTER TABLE parts DETACH PARTITION high",
    "CREATE TABLE late (id int PRIMARY KEY, note text); INSERT INTO late VALUES (50, 'attached')",
    "ALTER TABLE parts ATTACH PARTITION late FOR VALUES FROM (50) TO (60)",
)


def test_partitions_under_their_root(cluster: Cluster, database: str, tmp_path: Path) -> None:
    roots = {"TIDEMARK_SELECT__PARTITION_ROOTS": "public.parts"}
    with capturing(cluster, database, tmp_path, ROOT, **roots) as captured:
        found = filled_targets(captured.sidecar, "parts")
        for statement in OF_PARTITIONS[:-1]:
            captured.sql(statement)
            check(captured.sidecar, found, "parts")
        captured.sql(OF_PARTITIONS[-1])
        captured.restart()  # it copies the rows of the attached partition
        captured.sql("DELETE FROM parts WHERE id = 1")
        captured.recopy("public.parts")
        check(captured.sidecar, found, "parts")
        captured.sql("TRUNCATE parts")
        check(captured.sidecar, found, "parts")


def test_a_partition_under_its_root_that_is_unlogged_for_a_while(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    roots = {"TIDEMARK_SELECT__PARTITION_ROOTS": "public.parts"}
    with capturing(cluster, database, tmp_path, ROOT, **roots) as captured:
        *others, debezium = filled_targets(captured.sidecar, "parts")
        for statement in ("SET UNLOGGED", "SET LOGGED"):
            captured.sql(f"ALTER TABLE low {statement}; DELETE FROM low WHERE id = 3")
        check(captured.sidecar, others, "parts")
        check_missing(captured.sidecar, [debezium])
        captured.recopy("public.parts")
        check(captured.sidecar, [*others, debezium], "parts", evolution="ignore")


def test_partitions_under_their_own_names(cluster: Cluster, database: str, tmp_path: Path) -> None:
    """A copy of one of them leaves the rows of the others; each row names its table."""
    with capturing(cluster, database, tmp_path, "SELECT") as captured:
        captured.sql(ROOT)
        captured.sidecar.catch_up()
        found = list(targets(captured.sidecar.folder.root, "parts", FORMS[:2]))
        check(captured.sidecar, found, "parts")
        captured.recopy("public.low")
        captured.recopy("public.high")
        captured.sql("DELETE FROM parts WHERE id IN (3, 13)")
        check(captured.sidecar, found, "parts")
        for statement in OF_PARTITIONS[:5]:
            captured.sql(statement)
            check(captured.sidecar, found, "parts")


def test_tables_of_one_query_that_are_copied_one_after_the_other(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    setup = "".join(
        f"CREATE TABLE t{n} (id int PRIMARY KEY, note text); INSERT INTO t{n} VALUES ({n}, 'first'), ({n + 10}, 'x');"
        for n in (1, 2)
    )
    with capturing(cluster, database, tmp_path, setup) as captured:
        found = list(targets(captured.sidecar.folder.root, "t*", FORMS[:2]))
        for target in found:
            target.advance()
        captured.sql("DELETE FROM t1 WHERE id = 11")
        captured.recopy("public.t1")
        captured.sidecar.catch_up()
        for target in found:
            target.keep(501, "gone", _table="public.t1")
            target.keep(502, "kept", _table="public.t2")
            target.advance()
            assert target.notes() == [(1, "first"), (2, "first"), (12, "x"), (502, "kept")]


def test_the_rows_over_a_server_and_in_a_batch_are_those_of_the_stream(captured: Unselected, tmp_path: Path) -> None:
    found = filled_targets(captured.sidecar)
    captured.sql(MISSED)
    captured.recopy("public.account")
    check(captured.sidecar, found)
    token = token_file(tmp_path)
    with outbox_server(captured.sidecar.folder.root) as (_, url):
        served = {"server": url, "tokenFile": str(token)}
        for target in found:
            whole = KeptTarget(captured.sidecar.folder.root, "account", target.columns)
            whole.read_once()
            far = KeptTarget(served, "account", target.columns)
            far.read_once()
            assert far.seen == whole.seen == target.seen
            assert whole.notes() == target.notes()
