"""Our lines are the server's own: test_decoding beside our decoder, over scripts of everything that SQL can do.

The same tests run on every major: `scripts/oracle --major N`.
"""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.support.oracle import Oracle, without_raw_values
from tests.support.postgres import Cluster
from tests.support.workloads import choices, pgbench, run_script, savepoint_storm

_numbers = count(1)


@pytest.fixture
def database(oracle_cluster: Cluster) -> Iterator[str]:
    """Make a database for one test."""
    name = f"oracle_{next(_numbers)}"
    oracle_cluster.sql(f"CREATE DATABASE {name}")
    yield name
    oracle_cluster.sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.feature("P01")
@pytest.mark.feature("P07")
@pytest.mark.parametrize("script", ["ddl", "catalogs", "toast", "two_phase", "edges", "missing_values", "mapped"])
def test_scripts_print_the_same_lines(oracle_cluster: Cluster, database: str, script: str) -> None:
    with Oracle(oracle_cluster, database) as oracle:
        run_script(oracle_cluster, database, script)
        assert oracle.check(script)


def test_types_that_are_raw_so_far_change_nothing_else_on_their_lines(oracle_cluster: Cluster, database: str) -> None:
    with Oracle(oracle_cluster, database) as oracle:
        run_script(oracle_cluster, database, "other_types")
        assert oracle.check("other types", without_raw_values)


def test_a_storm_of_savepoints_keeps_what_was_kept(oracle_cluster: Cluster, database: str) -> None:
    with Oracle(oracle_cluster, database) as oracle:
        savepoint_storm(oracle_cluster, database)
        assert len(oracle.check("savepoint storm")) > 200


@pytest.mark.feature("P01")
def test_pgbench_prints_the_same_lines(oracle_cluster: Cluster, database: str) -> None:
    with Oracle(oracle_cluster, database) as oracle:
        pgbench(oracle_cluster, database, transactions=4000)
        assert len(oracle.check("pgbench")) > 100_000


def test_a_seed_knows_what_stood_there_before(oracle_cluster: Cluster, database: str) -> None:
    run_script(oracle_cluster, database, "before_seed")
    for checkpoint in (True, False):  # rows known from SQL only, and partly from WAL
        if checkpoint:
            oracle_cluster.sql("CHECKPOINT")
        with Oracle(oracle_cluster, database) as oracle:
            oracle.check_catalogs("seed")
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
    """After a checkpoint the next change of every page brings its image, and no tuple of its own."""
    known = choices(oracle_cluster, "wal_compression")  # 14 knows on and off, builds without a library less
    oracle_cluster.configure(wal_compression=compression if compression in known else "on")
    with Oracle(oracle_cluster, database) as oracle:
        # From another database: nobody can enter this one while its catalogs are being rewritten.
        run_script(oracle_cluster, database, script, every=every, between=lambda: oracle_cluster.sql("CHECKPOINT"))
        assert oracle.check(script)
    oracle_cluster.configure(wal_compression="off")
