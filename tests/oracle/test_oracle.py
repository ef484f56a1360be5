"""Our lines equal the server's: test_decoding compared with our decoder, over scripts of everything that SQL can do.

The same tests run on every major: `scripts/oracle --major N`.
"""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.conftest import NewCluster
from tests.support.oracles.oracle import Oracle, assert_same_lines, without_other_values
from tests.support.servers.postgres import Cluster, StopMode, database_in, sql
from tests.support.workloads.workloads import choices, pgbench, run_script, savepoint_storm

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
