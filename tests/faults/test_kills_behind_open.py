"""SIGKILL while long transactions are open: a restart reads into the middle of others, and loses and doubles nothing.

The load's transactions have savepoints, TOASTed values and DDL; inside one of them is the first record of a long one,
where the next start begins to read. The long ones have values of 1.6 MB, whose chunks lie among records of the others.
"""

import random
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.processes.captures import Sidecar, change_log, replayed
from tests.support.processes.waiting import let_pass, wait_until
from tests.support.servers.postgres import Cluster, Session, sql
from tests.support.workloads.mixed_load import MixedLoad, create_tables

KILLS = 6
OPEN_AT_ONCE = 2
PAUSE_S = 0.03  # between a session's transactions: dozens are between two kills
SEED = 20261122
pytestmark = pytest.mark.usefixtures("forked")
LARGE = "string_agg(md5(piece::text), '') FROM generate_series(1, 50000) AS piece"  # chunks in several blocks of WAL


@pytest.mark.feature("I18")
def test_every_change_is_delivered_exactly_once_however_old_the_oldest_open_transaction_is(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    create_tables(cluster, database, old_rows=0)
    cluster.sql("CREATE TABLE slow (id int PRIMARY KEY, note text)", database)
    dice = random.Random(SEED)
    sidecar = Sidecar(
        cluster,
        database,
        tmp_path,
        TIDEMARK_HISTORY__BASE_EVERY_BYTES=str(2 << 20),
        TIDEMARK_HISTORY__JOURNAL_FILE_BYTES=str(1 << 16),
        TIDEMARK_DECODE__MEMORY_BYTES=str(1 << 20),
        TIDEMARK_DELIVER__IDLE_POINTER_S="0.01",
    )
    sidecar.init()
    try:
        with ExitStack() as stack:
            load = MixedLoad(cluster, database, SEED, pause_s=PAUSE_S)
            stack.enter_context(load)
            open_now: list[Session] = []
            for number in range(KILLS):
                sidecar.start()
                let_pass(dice.uniform(0.1, 1.0), "a random length of the outage")
                session = stack.enter_context(cluster.connect(database, autocommit=False))
                sql(session, f"INSERT INTO slow SELECT {number}, {LARGE}")
                open_now.append(session)
                if len(open_now) > OPEN_AT_ONCE:
                    sql(open_now[0], "UPDATE slow SET note = 'long done'")
                    open_now.pop(0).commit()
                before = load.committed
                let_pass(dice.uniform(0.1, 1.0), "a random moment for the kill")
                wait_until(lambda: load.committed > before, "a commit of the load")  # noqa: B023 - at once
                sidecar.kill()
            sidecar.start()
            for session in open_now:
                session.commit()
        items = sidecar.catch_up()
    finally:
        sidecar.close()
    for table, column in (("slow", "note"), ("account", "note"), ("letter", "counter"), ("reading", "body")):
        source: dict[object, object] = dict(cluster.sql(f"SELECT id, {column} FROM {table}", database))
        replica = replayed([row for row in change_log(items, table) if row["_op"] != "r"])
        assert {key: row[column] for key, row in replica.items()} == source, table
