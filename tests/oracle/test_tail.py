"""`cdcctl tail` on any database: the live path prints the server's own lines, without any installation there."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pytest

from tests.support.oracles.oracle import (
    ROLE,
    ServerSide,
    assert_same_lines,
    emit_fence,
    ensure_role,
    without_tidemarks_messages,
)
from tests.support.servers.postgres import Cluster, database_in
from tests.support.workloads.workloads import run_script
from tidemark.model.errors import ExitCode

STOP_TIMEOUT_S = 120
READY = "changes follow from here on"


@contextmanager
def tailing(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run `cdcctl tail` until it reports that changes follow; it is stopped at the end."""
    program = [sys.executable, "-c", "from tidemark_ctl.main import main; main()", "tail", *arguments]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        lines = []
        for line in stream(process.stderr):
            lines.append(line)
            if READY in line:
                break
        else:
            raise AssertionError("".join(lines))
        yield process
    finally:
        process.kill()
        process.communicate(timeout=STOP_TIMEOUT_S)


def stream(file: IO[str] | None) -> IO[str]:
    assert file is not None
    return file


@pytest.mark.feature("P01")
def test_tail_prints_the_same_lines_live(oracle_cluster: Cluster) -> None:
    with database_in(oracle_cluster, "stranger"):
        ensure_role(oracle_cluster)
        server = ServerSide(oracle_cluster, "stranger")
        with tailing(oracle_cluster.dsn("stranger", ROLE), "--format", "test_decoding") as tail:
            for script in ("ddl", "two_phase", "names"):
                run_script(oracle_cluster, "stranger", script)
            fence = emit_fence(oracle_cluster, "stranger")
            printed: list[str] = []
            for line in stream(tail.stdout):
                printed.append(line.rstrip("\n"))
                if fence in line:
                    break
        expected = "\n".join(server.lines()).split("\n")
        assert_same_lines("tail", expected, in_transactions(without_tidemarks_messages(printed)))
        server.drop()


def in_transactions(lines: list[str]) -> list[str]:
    """Remove the BEGIN of the fence, whose COMMIT was not read."""
    return lines[:-1] if lines and lines[-1].startswith("BEGIN ") else lines


def test_tail_reports_at_once_what_a_node_lacks(oracle_cluster: Cluster) -> None:
    oracle_cluster.sql("CREATE ROLE may_nothing LOGIN")
    program = [sys.executable, "-c", "from tidemark_ctl.main import main; main()", "tail"]
    for dsn, code, words in (
        (oracle_cluster.dsn(user="may_nothing"), ExitCode.NODE_UNFIT, "ALTER ROLE <role> REPLICATION"),
        (oracle_cluster.dsn("nowhere"), ExitCode.NODE_UNFIT, "does not exist"),
        (oracle_cluster.dsn(port=1), ExitCode.NODE_UNREACHABLE, "cannot connect"),
        ("postgresql://u:hunter2@localhost/x", ExitCode.CONFIG, "PGPASSFILE"),
    ):
        done = subprocess.run([*program, dsn], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, done.stderr
        assert words in done.stderr
        assert "hunter2" not in done.stderr
        assert done.stdout == ""
