"""Our lines equal the server's: test_decoding compared with our decoder, over scripts of everything that SQL can do.

The same tests run on every major: `scripts/oracle --major N`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest
from psycopg.errors import LockNotAvailable

from tests.conftest import NewCluster
from tests.support.oracles.oracle import Oracle, assert_same_lines, without_other_values
from tests.support.servers.postgres import Cluster, Session, StopMode, database_in, sql
from tests.support.workloads.workloads import choices, pgbench, run_script, savepoint_storm

LOCK_MS = 5_000
_numbers = count(1)


@pytest.fixture
def database(oracle_cluster: Cluster) -> Iterator[str]:
    """Create a database for one test."""
    with database_in(oracle_cluster, f"oracle_{next(_numbers)}") as name:
        yield name


@pytest.mark.feature("P01")
@pytest.mark.feature("P07")
@pytest.mark.feature("P12")
@pytest.mark.parametrize(
    "script",
    ["ddl", "catalogs", "toast", "two_phase", "edges", "missing_values", "mapped", "types", "names", "contrib"],
)
def test_scripts_print_the_same_lines(oracle_cluster: Cluster, database: str, script: str) -> None:
    with Oracle(oracle_cluster, database) as oracle:
        run_script(oracle_cluster, database, script)
        assert oracle.check(script)


def test_types_on_the_closed_list_change_nothing_else_on_their_lines(oracle_cluster: Cluster, database: str) -> None:
    with Oracle(oracle_cluster, database) as oracle:
        run_script(oracle_cluster, database, "closed_list")
        assert oracle.check("closed list", without_other_values)


def test_many_savepoints_emit_exactly_the_released_rows(oracle_cluster: Cluster, database: str) -> None:
    with Oracle(oracle_cluster, database) as oracle:
        savepoint_storm(oracle_cluster, database)
        assert len(oracle.check("savepoint storm")) > 200


TYPES_OF_NO_SCHEMA = """
    CREATE SCHEMA gone;
    CREATE TYPE mood AS ENUM ('ok', 'So so');
    CREATE TYPE "Pair" AS (a int, b mood);
    CREATE DOMAIN few AS int CHECK (value < 9);
    CREATE TABLE t (id int PRIMARY KEY, m mood, ms mood[], p "Pair", f few);
    CREATE TABLE named (a regtype, b regclass, c regnamespace);
"""


@contextmanager
def without_waiting(session: Session) -> Iterator[None]:
    """Skip the test where the server waits: later minor releases (15.20 does) lock what a new object refers to."""
    sql(session, f"SET lock_timeout = {LOCK_MS}")
    try:
        yield
    except LockNotAvailable:
        pytest.skip("this minor release locks what a new object refers to")


def test_types_whose_schema_is_dropped_while_they_move_into_it_print_the_same_lines(
    oracle_cluster: Cluster, database: str
) -> None:
    """ALTER TYPE does not lock the schema, and its DROP does not see them: they are in no schema from then on."""
    with Oracle(oracle_cluster, database) as oracle, oracle_cluster.connect(database) as session:
        sql(session, TYPES_OF_NO_SCHEMA)
        with oracle_cluster.connect(database, autocommit=False) as dropping, without_waiting(session):
            sql(dropping, "DROP SCHEMA gone")
            for name in ("mood", '"Pair"', "few"):
                sql(session, f"ALTER TYPE {name} SET SCHEMA gone")
            dropping.commit()
        sql(session, """INSERT INTO t VALUES (1, 'ok', '{ok,"So so"}', '(1,ok)', 2)""")
        sql(session, "ALTER TABLE t ADD COLUMN note text DEFAULT 'x'")
        sql(session, "UPDATE t SET m = 'So so'")
        oids = "SELECT oid, typrelid, typnamespace FROM pg_type WHERE typname IN ('mood', '_mood', 'Pair', 'few')"
        sql(session, f"INSERT INTO named {oids}")
        lines = oracle.check("types in no schema")
    assert "t: INSERT: id[integer]:1 m[mood]:" in "".join(lines)


@contextmanager
def types_dropped_meanwhile(oracle_cluster: Cluster, database: str) -> Iterator[Session]:
    """Drop two types in one transaction; yield another session, which does not wait for it."""
    with oracle_cluster.connect(database) as session:
        sql(session, "CREATE TYPE mood AS ENUM ('ok'); CREATE DOMAIN few AS int; CREATE TABLE other (id int)")
        with oracle_cluster.connect(database, autocommit=False) as dropping, without_waiting(session):
            sql(dropping, "DROP TYPE mood, few")
            yield session
            dropping.commit()


def check_without_types(oracle: Oracle, columns: str) -> None:
    """Check the lines of changes of the table `t`, whose key is `id`; the types of these columns do not exist."""
    for statement in (
        "INSERT INTO other VALUES (1)",
        "DELETE FROM t WHERE id = 1",
        "ALTER TABLE t ADD COLUMN note text DEFAULT 'x'",
        "ALTER TABLE t RENAME TO u",
        "TRUNCATE u",
        f"ALTER TABLE u {', '.join(f'DROP COLUMN {column}' for column in columns.split())}",
        "INSERT INTO u VALUES (3)",
        "DROP TABLE u",
        "INSERT INTO other VALUES (2)",
    ):
        oracle.cluster.sql(statement, oracle.database)
    lines = oracle.check("types that do not exist")
    assert "table public.t: DELETE: id[integer]:1" in lines
    assert "table public.u: INSERT: id[integer]:3 note[text]:'x'" in lines


def test_a_table_whose_types_are_dropped_while_it_is_created_prints_the_same_lines(
    oracle_cluster: Cluster, database: str
) -> None:
    """CREATE TABLE locks no type, and DROP TYPE does not see the table: the server fails where it needs the type."""
    with Oracle(oracle_cluster, database) as oracle:
        with types_dropped_meanwhile(oracle_cluster, database) as session:
            sql(session, "CREATE TABLE t (id int PRIMARY KEY, m mood, ms mood[], f few)")
            sql(session, "INSERT INTO t VALUES (1, 'ok', '{ok}', 2), (2, NULL, NULL, NULL)")
        check_without_types(oracle, "m ms f")


@pytest.mark.parametrize(
    "definition",
    ["DOMAIN made AS mood", "DOMAIN made AS few[]", "TYPE made AS (m mood)", "TYPE made AS RANGE (subtype = few)"],
)
def test_a_type_made_of_a_type_that_is_dropped_meanwhile_prints_the_same_lines(
    oracle_cluster: Cluster, database: str, definition: str
) -> None:
    """CREATE DOMAIN and CREATE TYPE lock no type either."""
    with Oracle(oracle_cluster, database) as oracle:
        with types_dropped_meanwhile(oracle_cluster, database) as session:
            sql(session, f"CREATE {definition}")
            sql(session, "CREATE TABLE t (id int PRIMARY KEY, m made, ms made[])")
            sql(session, "INSERT INTO t VALUES (1)")
        check_without_types(oracle, "m ms")


@pytest.mark.feature("P02")
def test_a_prepared_transaction_survives_a_crash_and_is_printed_when_it_is_committed(
    new_cluster: NewCluster, major: int
) -> None:
    node = new_cluster(major)
    with Oracle(node, "postgres") as oracle:
        node.sql("CREATE TABLE t (a int)")
        with node.connect() as session:
            for gid, value in (("kept", 1), ("dropped", 2)):
                sql(session, "BEGIN")
                sql(session, f"CREATE TABLE {gid} AS SELECT {value} AS a")
                sql(session, "SAVEPOINT undone")
                sql(session, "INSERT INTO t VALUES (0)")
                sql(session, "ROLLBACK TO undone")
                sql(session, f"INSERT INTO t VALUES ({value})")
                sql(session, f"PREPARE TRANSACTION '{gid}'")
        node.restart(StopMode.IMMEDIATE)
        node.sql("INSERT INTO t VALUES (3)")
        assert not [line for line in oracle.check("prepared") if "a[integer]:1" in line]
        node.restart(StopMode.FAST)
        node.sql("COMMIT PREPARED 'kept'")
        node.sql("ROLLBACK PREPARED 'dropped'")
        node.sql("INSERT INTO kept VALUES (4)")
        rows = [line for line in oracle.check("ended") if line.startswith("table")]
        assert rows == [
            "table public.kept: INSERT: a[integer]:1",
            "table public.t: INSERT: a[integer]:1",
            "table public.kept: INSERT: a[integer]:4",
        ]


def test_a_message_is_emitted_in_the_order_of_wal(oracle_cluster: Cluster, database: str) -> None:
    """The server may print the change after it first (`server_order`); nothing else may change its place."""
    with Oracle(oracle_cluster, database) as oracle:
        run_script(oracle_cluster, database, "messages")
        lines = oracle.check("messages")
        changes = [line for line in lines if line.startswith(("message", "table"))]
        assert len(changes) == 8
        swapped = [*lines[:-3], lines[-2], lines[-3], lines[-1]]
        with pytest.raises(AssertionError, match="differs"):
            assert_same_lines("swapped", lines, swapped)


@pytest.mark.feature("P01")
def test_pgbench_prints_the_same_lines(oracle_cluster: Cluster, database: str) -> None:
    with Oracle(oracle_cluster, database) as oracle:
        pgbench(oracle_cluster, database, transactions=4000)
        assert len(oracle.check("pgbench")) > 100_000


def test_a_seed_contains_the_earlier_rows(oracle_cluster: Cluster, database: str) -> None:
    run_script(oracle_cluster, database, "before_seed")
    for checkpoint in (True, False):  # rows known from SQL only, and partly from WAL
        if checkpoint:
            oracle_cluster.sql("CHECKPOINT")
        with Oracle(oracle_cluster, database) as oracle:
            oracle.ours.check_catalogs("seed")
            if not checkpoint:
                run_script(oracle_cluster, database, "after_seed")
                assert oracle.check("after the seed")


@pytest.mark.parametrize(
    ("script", "compression", "every"),
    [("ddl", "off", 1), ("catalogs", "pglz", 2), ("edges", "lz4", 1), ("two_phase", "zstd", 3)],
)
def test_page_images_everywhere_change_nothing(
    oracle_cluster: Cluster, database: str, script: str, compression: str, every: int
) -> None:
    """After a checkpoint the next change of every page writes its image, and no separate tuple."""
    known = choices(oracle_cluster, "wal_compression")  # 14 has on and off; builds without a library have fewer
    oracle_cluster.configure(wal_compression=compression if compression in known else "on")
    with Oracle(oracle_cluster, database) as oracle:
        # From another database: no session can enter this one while its catalogs are rewritten.
        run_script(oracle_cluster, database, script, every=every, between=lambda: oracle_cluster.sql("CHECKPOINT"))
        assert oracle.check(script)
    oracle_cluster.configure(wal_compression="off")
