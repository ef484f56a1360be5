"""The archive of a table: transactions across segments, savepoints, PREPARE, DDL and TRUNCATE of another table."""

import shutil
from contextlib import ExitStack
from pathlib import Path

from tests.support.oracles.oracle import ROLE, ensure_role
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.servers.postgres import Cluster, StopMode, new_cluster, sql

CELL_SWITCHES = 5  # segments of 1 MB: more than a cell


def record_table(root: Path) -> dict[str, str]:
    """Run a server with a state folder; return the options that name the state and the archive."""
    settings = {"wal_keep_size": "1GB", "max_prepared_transactions": "2"}
    with new_cluster(15, settings, initdb=["--wal-segsize=1"]) as cluster:
        ensure_role(cluster)
        cluster.sql("CREATE DATABASE app")
        cluster.sql("CREATE TABLE account (id int, note text)", "app")
        cluster.sql("ALTER TABLE account REPLICA IDENTITY FULL", "app")
        cluster.sql("CREATE TABLE other (a int)", "app")
        cluster.sql("CREATE TABLE retyped (a int[])", "app")
        cluster.sql("CHECKPOINT")
        succeeded(cdcctl("init", "--state", root / "state", "--dsn", cluster.dsn("app", ROLE)))
        _work(cluster)
        cluster.sql("SELECT pg_switch_wal()")
        cluster.stop(StopMode.FAST)
        shutil.copytree(cluster.data / "pg_wal", root / "archive", ignore=shutil.ignore_patterns("archive_status"))
    return {"state": str(root / "state"), "archive": str(root / "archive")}


def _work(cluster: Cluster) -> None:
    with ExitStack() as stack:
        spanning = stack.enter_context(cluster.connect("app", autocommit=False))
        sql(spanning, "INSERT INTO account VALUES (1, 'spanning')")
        cluster.sql("BEGIN; INSERT INTO account VALUES (2, 'prepared'); PREPARE TRANSACTION 'old'", "app")
        for turn in range(3):
            cluster.sql(f"INSERT INTO account SELECT n, 'new' FROM generate_series({turn}00, {turn}50) n", "app")
            cluster.sql(f"UPDATE account SET note = 'changed' WHERE id % 7 = {turn}", "app")
            sql(spanning, f"SAVEPOINT s{turn}")
            sql(spanning, f"INSERT INTO account VALUES ({turn}, repeat(md5('{turn}'), 300))")
            sql(spanning, f"ROLLBACK TO s{turn}" if turn == 1 else f"RELEASE s{turn}")
            if turn == 1:
                cluster.sql("INSERT INTO other VALUES (1)", "app")
                cluster.sql("DELETE FROM account WHERE id > 120", "app")
                cluster.sql("BEGIN; ALTER TABLE other ADD COLUMN b int; INSERT INTO other VALUES (2, 3); COMMIT", "app")
            for _ in range(CELL_SWITCHES):
                cluster.sql("SELECT pg_logical_emit_message(false, 'filler', ''), pg_switch_wal()", "app")
        spanning.commit()
        cluster.sql("COMMIT PREPARED 'old'", "app")
        cluster.sql("TRUNCATE other", "app")
        cluster.sql("INSERT INTO retyped VALUES ('{1,2}')", "app")
        cluster.sql("ALTER TABLE retyped ALTER COLUMN a TYPE text", "app")
        cluster.sql("INSERT INTO account VALUES (9999, 'last')", "app")
