"""The cost of a small commit in Python from the socket to the consumer: numbers of calls, no times.

`scripts/bench/delivery_calls` lists the functions. The median counts: on a busy host the server sends the WAL of some
transactions in two parts, each of which is received and decoded by itself.
"""

from pathlib import Path
from statistics import median

import pytest

from scripts.bench.server_load.delivery_calls import APPLICATION, SETUP, TRANSACTION, count_calls
from tests.support.servers.postgres import Cluster
from tidemark.wal.kernel import COMPILED

COMMITS = 60
ONE_ROW = "CREATE TABLE account (id serial PRIMARY KEY, note text)", b"INSERT INTO account (note) VALUES ('x')"
FOUR_TABLES = SETUP, TRANSACTION  # as TPC-B
OTHERS_MAX = 30  # in the other threads, which such a commit bypasses: less than 1, and 17 beside much other load
SLEEPS_MAX = 0.5  # nearly 0: it waits for WAL alone, so a commit wakes it once


@pytest.mark.skipif(not COMPILED, reason="interpreted kernels are Python")
@pytest.mark.parametrize(
    ("load", "to_outbox", "calls_max"),
    [(ONE_ROW, False, 190), (FOUR_TABLES, False, 202), (FOUR_TABLES, True, 430)],
    ids=["one row", "four tables", "four tables to the outbox"],
)
def test_a_commit_on_its_own_is_received_decoded_and_delivered_by_one_thread_and_few_calls(
    cluster: Cluster, database: str, tmp_path: Path, load: tuple[str, bytes], *, to_outbox: bool, calls_max: int
) -> None:
    setup, commit = load
    calls = count_calls(cluster, database, tmp_path, COMMITS, setup=setup, commit=commit, to_outbox=to_outbox)
    by_thread = calls.by_thread(calls.python)
    assert len(calls.by_delivery) == COMMITS
    assert median(calls.by_delivery) < calls_max, calls.by_delivery
    assert (by_thread["network"] + by_thread["decode"]) / COMMITS < OTHERS_MAX, by_thread
    assert calls.builtin[APPLICATION, "sleep"] / COMMITS < SLEEPS_MAX
