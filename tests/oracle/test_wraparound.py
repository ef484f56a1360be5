"""Transaction ids wrap around (2^32): before, across and after it our lines equal the server's."""

from pathlib import Path

from tests.conftest import NewCluster
from tests.support.oracles.oracle import Oracle
from tests.support.processes.captures import change_log, replayed, running
from tests.support.servers.postgres import Cluster, StopMode, sql
from tests.support.servers.wraparound import XIDS, full_xid, move_to, use_up

OPEN = (
    "BEGIN; INSERT INTO t VALUES ({0}); SAVEPOINT a; INSERT INTO t VALUES ({0} + 1); SAVEPOINT b;"
    " DELETE FROM t WHERE id = {0}"
)
CLOSE = (
    "INSERT INTO t VALUES ({0} + 2); ROLLBACK TO b; SAVEPOINT c; INSERT INTO t VALUES ({0} + 3, repeat(md5('x'), 300));"
    " CREATE TABLE made_{0} (id int PRIMARY KEY, v text); INSERT INTO made_{0} VALUES (1, 'in a new epoch'); COMMIT"
)


def wrapping(new_cluster: NewCluster, major: int, left: int) -> Cluster:
    node = new_cluster(major, autovacuum="off", max_prepared_transactions=10)
    node.sql("CREATE TABLE t (id int PRIMARY KEY, v text); ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
    move_to(node, left)
    assert XIDS - left - 10 < full_xid(node) < XIDS
    return node


def test_lines_are_the_servers_own_across_the_end_of_all_xids(new_cluster: NewCluster, major: int) -> None:
    node = wrapping(new_cluster, major, 400)
    with Oracle(node, "postgres") as oracle:
        with node.connect() as session, node.connect() as prepared, node.connect() as rolled_back:
            for at, number in ((session, 10), (prepared, 20), (rolled_back, 30)):
                at.execute(OPEN.format(number).encode())
            sql(prepared, "PREPARE TRANSACTION 'across'")
            node.sql("INSERT INTO t VALUES (1, 'before')")
            oracle.check("before")
            use_up(node, "postgres", 450)
            assert full_xid(node) > XIDS
            sql(session, CLOSE.format(10))
            sql(rolled_back, "INSERT INTO t VALUES (33); ROLLBACK")
        node.sql("CREATE TABLE behind (id int PRIMARY KEY); INSERT INTO behind SELECT generate_series(1, 5)")
        assert any("in a new epoch" in line for line in oracle.check("behind"))
        node.restart(StopMode.IMMEDIATE)
        node.sql("COMMIT PREPARED 'across'")
        node.sql("BEGIN; ALTER TABLE behind ADD v text; SAVEPOINT s; UPDATE behind SET v = 'x'; ROLLBACK TO s; COMMIT")
        assert any("id[integer]:21" in line for line in oracle.check("restarted"))


def test_a_seed_shortly_after_it_contains_what_was_created_before(new_cluster: NewCluster, major: int) -> None:
    node = wrapping(new_cluster, major, 60)
    node.sql("CREATE TABLE before_it (id int PRIMARY KEY, v text)")
    with node.connect() as session:
        sql(session, "BEGIN; CREATE TABLE meanwhile (id int PRIMARY KEY); INSERT INTO meanwhile VALUES (1)")
        use_up(node, "postgres", 80)
        sql(session, "ALTER TABLE before_it ADD more int DEFAULT 7; COMMIT")
    assert full_xid(node) > XIDS
    with Oracle(node, "postgres") as oracle:
        oracle.ours.check_catalogs("seed")
        node.sql("INSERT INTO before_it VALUES (1, 'a'); INSERT INTO meanwhile VALUES (2); DROP TABLE t")
        assert len([line for line in oracle.check("behind") if line.startswith("table")]) == 2


def test_a_sidecar_that_was_killed_before_it_continues_after_it(
    new_cluster: NewCluster, major: int, tmp_path: Path
) -> None:
    node = wrapping(new_cluster, major, 400)
    with running(node, "postgres", tmp_path, copy=True) as sidecar, node.connect() as session:
        sidecar.wait_until(
            lambda: not sidecar.status()["copying"], "the end of the first copy"
        )  # it waits for the open one
        sql(session, OPEN.format(10))
        node.sql("INSERT INTO t SELECT n, 'before' FROM generate_series(100, 120) n")
        before = sidecar.catch_up()
        sidecar.kill()
        use_up(node, "postgres", 450)
        sql(session, CLOSE.format(10))
        node.sql("UPDATE t SET v = 'behind' WHERE id > 110; DELETE FROM t WHERE id = 100")
        sidecar.start()
        items = sidecar.catch_up()
        assert full_xid(node) > XIDS
        table = replayed(change_log(items, "t"))
        expected = {row[0]: row[1] for row in node.sql("SELECT id, v FROM t")}
        assert {key: row["v"] for key, row in table.items()} == expected
        assert len(items) > len(before)
