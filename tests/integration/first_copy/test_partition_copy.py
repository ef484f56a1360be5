"""The first copy of a partitioned table under its own name (P23): its replica equals SQL's result from then on."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from psycopg.errors import QueryCanceled

from tests.support.lakes.lakes import feed_by_hand
from tests.support.lakes.routed import lake_rows, source_rows
from tests.support.processes.captures import Sidecar, running
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.servers.postgres import Cluster, database_in
from tidemark.model.change import PartitionChange, PartitionEvent, SchemaEffect, SchemaEvent

DATABASE = "partition_copy"
SETUP = """
CREATE TABLE root (a int, b text, doc text, PRIMARY KEY (a, b)) PARTITION BY LIST (b);
CREATE TABLE leaf_x PARTITION OF root FOR VALUES IN ('x');
CREATE TABLE leaf_y (gone int, doc text, b text NOT NULL, a int NOT NULL, PRIMARY KEY (a, b));
ALTER TABLE leaf_y DROP gone;
ALTER TABLE root ATTACH PARTITION leaf_y FOR VALUES IN ('y');
CREATE TABLE middle PARTITION OF root FOR VALUES IN ('z') PARTITION BY RANGE (a);
CREATE TABLE leaf_low PARTITION OF middle FOR VALUES FROM (0) TO (100);
CREATE TABLE leaf_high PARTITION OF middle FOR VALUES FROM (100) TO (1000);
INSERT INTO root SELECT n, (ARRAY['x','y','z'])[n % 3 + 1], 'copied' FROM generate_series(1, 300) n;
CREATE TABLE late (b text, doc text, a int, PRIMARY KEY (a, b));
INSERT INTO late SELECT 'l', 'late', n FROM generate_series(1, 20) n;
"""
ELDER_LEAF = "CREATE TABLE elder (a int NOT NULL, b text NOT NULL, doc text, PRIMARY KEY (a, b))"
CHANGES = """
UPDATE root SET doc = 'changed' WHERE a % 4 = 0;
UPDATE root SET a = a + 400 WHERE a % 10 = 2;
UPDATE root SET b = 'x' WHERE b = 'y' AND a % 5 = 0;
DELETE FROM root WHERE a % 13 = 0;
"""


@pytest.fixture
def database(cluster: Cluster) -> Iterator[str]:
    with database_in(cluster, DATABASE, SETUP) as name:
        yield name


@pytest.mark.feature("P23")
def test_a_root_is_copied_completely_and_again_when_a_table_with_rows_becomes_its_partition(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with running(cluster, database, tmp_path, copy=True, TIDEMARK_SELECT__PARTITION_ROOTS="ro*") as sidecar:

        def compare(what: str) -> None:
            sidecar.catch_up()
            feed_by_hand(sidecar.folder, lake, "lake")
            assert lake_rows(lake, "root") == source_rows(cluster, database, "root"), what

        compare("copied")
        assert len(lake_rows(lake, "late")) == 20
        assert not list(lake.glob("*/public/leaf_*")), "a partition has no table of its own"
        cluster.sql(CHANGES, database)
        compare("changed")
        cluster.sql("ALTER TABLE root ATTACH PARTITION late FOR VALUES IN ('l')", database)
        cluster.sql("UPDATE root SET doc = 'attached' WHERE a < 10", database)
        sidecar.wait_for_event("a table was added to the selection; its rows are copied at the next start")
        sidecar.stop()
        cluster.sql("DELETE FROM root WHERE a = 11", database)
        sidecar.start()
        compare("attached")
        cluster.sql("ALTER TABLE root DETACH PARTITION leaf_y", database)
        cluster.sql("INSERT INTO leaf_y (a, b) VALUES (2000, 'y')", database)
        compare("detached")
        sidecar.stop()
        sidecar.start()
        compare("after another start")
        ((count,),) = cluster.sql("SELECT count(*)::int FROM leaf_y", database)
        (own,) = lake.glob("*/public/leaf_y")
        assert own.is_dir()
        assert len(lake_rows(lake, "leaf_y")) == count
        assert sidecar.running
    archive = ("--archive", cluster.data / "pg_wal")
    said = succeeded(cdcctl("decode", "--state", sidecar.folder.root, *archive, "--partition-root", "root"))
    rows = [json.loads(line) for line in said.lines if '"op":"u"' in line]
    assert {row["table"] for row in rows} == {"root"}
    assert all("tableoid" in row["after"] for row in rows)


@pytest.fixture
def template(cluster: Cluster) -> Iterator[str]:
    attach = "ALTER TABLE root ATTACH PARTITION elder FOR VALUES IN ('e')"
    with database_in(cluster, "template_of_partitions", ELDER_LEAF, SETUP, attach, options="IS_TEMPLATE true") as name:
        yield name
        cluster.sql(f"ALTER DATABASE {name} IS_TEMPLATE false")


@pytest.fixture
def empty(cluster: Cluster) -> Iterator[str]:
    with database_in(cluster, DATABASE) as name:
        yield name


@pytest.mark.feature("N03")
@pytest.mark.feature("P23")
def test_a_root_that_is_added_with_its_database_is_copied_and_is_dropped_with_it(
    cluster: Cluster, template: str, empty: str, tmp_path: Path
) -> None:
    lake, made = tmp_path / "lake", f"{DATABASE}_made"
    selected = {"TIDEMARK_SELECT__DATABASES": f"{DATABASE}*", "TIDEMARK_SELECT__PARTITION_ROOTS": "ro*"}
    with running(cluster, empty, tmp_path, copy=True, **selected) as sidecar:
        cluster.sql(f"CREATE DATABASE {made} TEMPLATE {template}")
        try:
            cluster.sql(CHANGES, made)
            came = _events(sidecar)
            assert _names(came) == ["root", "late"], "no partition comes by itself"
            assert isinstance(came[0], SchemaEvent), "the root comes before its partitions"
            assert {event.effect for event in came if isinstance(event, SchemaEvent)} == {SchemaEffect.UNSEEN}
            leaves = {event.partition.name for event in came if isinstance(event, PartitionEvent)}
            assert leaves == {"elder", "leaf_x", "leaf_y", "leaf_low", "leaf_high"}
            sidecar.stop()
            sidecar.start()
            cluster.sql("UPDATE root SET doc = 'copied' WHERE a < 50", made)
            sidecar.catch_up()
            feed_by_hand(sidecar.folder, lake, "lake")
            assert lake_rows(lake, "root") == source_rows(cluster, made, "root")
            before = len(_events(sidecar))
            cluster.sql(f"ALTER DATABASE {made} RENAME TO elsewhere")
            cluster.sql(f"ALTER DATABASE elsewhere RENAME TO {made}")
            reported = _events(sidecar)[before:]
            assert _names(reported) == ["root", "late", "root", "late"], "it goes, and comes again"
            changes = [event.change for event in reported if isinstance(event, PartitionEvent)]
            assert changes == [PartitionChange.CREATE] * 5, "a partition that is dropped with its root is not reported"
        finally:
            cluster.sql(f"DROP DATABASE {made} WITH (FORCE)")


def _events(sidecar: Sidecar) -> list[SchemaEvent | PartitionEvent]:
    return [item for item in sidecar.catch_up() if isinstance(item, SchemaEvent | PartitionEvent)]


def _names(events: list[SchemaEvent | PartitionEvent]) -> list[str]:
    """Return the tables of schema events."""
    tables = [event.after or event.before for event in events if isinstance(event, SchemaEvent)]
    return [table.name for table in tables if table is not None]


def test_a_root_is_copied_without_a_partition_whose_detaching_was_broken_off(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    """It stays so until FINALIZE. LOCK includes such a partition; SELECT does not read it."""
    lake = tmp_path / "lake"
    pending = "SELECT pg_sleep(0.02) FROM pg_inherits WHERE inhrelid = 'leaf_y'::regclass AND NOT inhdetachpending"
    with cluster.connect(database, autocommit=False) as reader, cluster.connect(database) as owner:
        reader.execute("TABLE root")
        with ThreadPoolExecutor(1) as pool:
            detaching = pool.submit(owner.execute, "ALTER TABLE root DETACH PARTITION leaf_y CONCURRENTLY")
            while cluster.sql(pending, database):
                pass
            owner.cancel_safe()
            with pytest.raises(QueryCanceled):
                detaching.result()
    with running(cluster, database, tmp_path, copy=True, TIDEMARK_SELECT__PARTITION_ROOTS="ro*") as sidecar:
        sidecar.wait_for_event("first copy done")
        sidecar.catch_up()
        feed_by_hand(sidecar.folder, lake, "lake")
        assert lake_rows(lake, "root") == source_rows(cluster, database, "root")
        assert len(lake_rows(lake, "leaf_y")) == 100
