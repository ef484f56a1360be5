"""Random sessions: the same lines and the same catalogs, also across crashes, and when the seed is taken under load.

`scripts/oracle --seconds N --seed S` runs them longer, and again with the same statements.
"""

import os
import re
import time

import pytest

from tests.conftest import NewCluster
from tests.support.fuzz import Fuzz
from tests.support.oracle import Oracle, OurSide, ServerSide, assert_same_lines, emit_fence, ensure_role
from tests.support.postgres import StopMode
from tidemark.model.lsn import FullXid
from tidemark.model.snapshot import Snapshot

SETTINGS = {"autovacuum_naptime": "1s", "max_wal_size": "128MB", "wal_keep_size": "2GB", "max_connections": "40"}


@pytest.fixture(scope="session")
def seconds() -> float:
    """How long each fuzz runs."""
    return float(os.environ.get("TIDEMARK_ORACLE_SECONDS", "8"))


@pytest.fixture(scope="session")
def seed() -> int:
    """Where the random statements start."""
    return int(os.environ.get("TIDEMARK_ORACLE_SEED", "1"))


def test_random_sessions_print_the_same_lines(new_cluster: NewCluster, major: int, seconds: float, seed: int) -> None:
    node = new_cluster(major, **SETTINGS)
    node.sql("CREATE DATABASE fuzz")
    with Oracle(node, "fuzz") as oracle:
        with Fuzz(node, "fuzz", seed) as fuzz:
            follow(oracle.ours, seconds)
        assert fuzz.transactions > 10
        oracle.check(f"fuzz, seed {seed}")


@pytest.mark.parametrize("round_", range(2))
def test_random_sessions_across_crashes_print_the_same_lines(
    new_cluster: NewCluster, major: int, seconds: float, seed: int, round_: int
) -> None:
    node = new_cluster(major, **SETTINGS)
    node.sql("CREATE DATABASE fuzz")
    with Oracle(node, "fuzz") as oracle:
        with Fuzz(node, "fuzz", seed + 1000 + round_):
            for _ in range(3):
                follow(oracle.ours, seconds / 4)
                node.restart(StopMode.IMMEDIATE)
            follow(oracle.ours, seconds / 4)
        oracle.check(f"crashes, seed {seed} round {round_}")


def test_a_seed_under_load_begins_exactly_at_its_snapshot(
    new_cluster: NewCluster, major: int, seconds: float, seed: int
) -> None:
    node = new_cluster(major, **SETTINGS)
    node.sql("CREATE DATABASE fuzz")
    ensure_role(node)
    server = ServerSide(node, "fuzz")
    with Fuzz(node, "fuzz", seed + 2000, messages=False) as fuzz:
        time.sleep(seconds / 8)
        ours = OurSide(node, ["fuzz"])
        follow(ours, seconds / 2)
        ours.settle()
        fuzz.stop()
    ours.read_until(emit_fence(node, "fuzz"))
    snapshot = ours.changes.snapshot
    assert isinstance(snapshot, Snapshot)
    expected = begun_after(snapshot, server.lines())
    assert expected
    assert_same_lines(f"seed under load, seed {seed}", expected, ours.taken_lines("fuzz"))
    ours.changes.close()


def follow(ours: OurSide, seconds: float) -> None:
    """Read the stream for a while."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for decoded in ours.changes.read(0.1):
            ours.take(decoded)


def begun_after(snapshot: Snapshot, lines: list[str]) -> list[str]:
    """Return the lines of the transactions that `snapshot` does not see."""
    kept: list[str] = []
    wanted = False
    for line in lines:
        if found := re.match(r"BEGIN (\d+)$", line):
            wanted = not snapshot.sees(FullXid(int(found[1])))  # a young cluster: epoch 0
        if wanted:
            kept.append(line)
    return kept
