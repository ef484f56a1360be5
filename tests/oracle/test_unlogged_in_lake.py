"""A table that is unlogged for a while: its changes are not in WAL then, and its replica has all rows afterwards."""

from pathlib import Path

import pytest

from tests.support.lakes.routed import Routing, lake_rows
from tests.support.servers.postgres import Cluster, database_in

DATABASE = "unlogged_in_lake"


@pytest.mark.feature("P21")
@pytest.mark.parametrize("changed", ["TRUNCATE t", "DELETE FROM t", "DELETE FROM t WHERE id > 2", "SELECT"])
def test_a_replica_equals_a_table_that_is_logged_again(oracle_cluster: Cluster, tmp_path: Path, changed: str) -> None:
    with database_in(oracle_cluster, DATABASE):
        ours = Routing(oracle_cluster, [DATABASE])
        ours.settle()
        oracle_cluster.sql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2), (3)", DATABASE)
        statements = ("ALTER TABLE t SET UNLOGGED", changed, "ALTER TABLE t SET LOGGED", "INSERT INTO t VALUES (4)")
        for statement in statements:
            oracle_cluster.sql(statement, DATABASE)
            ours.feed(tmp_path)
        rows = oracle_cluster.sql("SELECT id FROM t", DATABASE)
        assert lake_rows(tmp_path, "t") == sorted(repr({"id": key}) for (key,) in rows)
        ours.changes.close()
