"""Positions that move while the captured tables are idle, and what a start after a kill reads again."""

from pathlib import Path

import pytest

from tests.support.processes.captures import Sidecar
from tests.support.servers.postgres import Cluster
from tidemark.io.process.metrics import CONFIRMED_LSN
from tidemark.io.state.outbox import OutboxReader
from tidemark.io.state.state import StateStore
from tidemark.model.lsn import Lsn, parse_lsn

ROUNDS = 3
ROUND_BYTES = 8 << 20
USER_TABLES = "SELECT relname FROM pg_stat_user_tables"


@pytest.mark.feature("U02")
def test_the_stored_position_follows_foreign_wal_without_a_value_or_a_row_and_a_start_continues_there(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    cluster.sql("CREATE TABLE item (id int PRIMARY KEY)", database)
    cluster.sql("CREATE TABLE other (note text)", database)
    cluster.sql("ALTER TABLE other ALTER note SET STORAGE EXTERNAL", database)
    sidecar = Sidecar(cluster, database, tmp_path, TIDEMARK_SELECT__TABLES="public.item")
    sidecar.init()
    try:
        sidecar.start()
        cluster.sql("INSERT INTO item VALUES (1)", database)
        sidecar.wait_until_delivered()
        with OutboxReader.open(sidecar.folder) as reader:
            head = reader.head()
            for _ in range(ROUNDS):
                before = flushed_lsn(cluster)
                cluster.sql(
                    f"INSERT INTO other SELECT repeat('x', 8192) FROM generate_series(1, {ROUND_BYTES >> 13})", database
                )
                written = flushed_lsn(cluster)
                assert written - before >= ROUND_BYTES
                sidecar.wait_until(lambda upto=written: restart_lsn(sidecar) >= upto, "the pointer")  # type: ignore[misc]
                sidecar.wait_until(
                    lambda upto=written: sidecar.metric(f'{CONFIRMED_LSN}{{capture="main"}}') >= upto,  # type: ignore[misc]
                    "the confirmed position",
                )
            assert reader.head() == head, "no value"
        assert {row[0] for row in cluster.sql(USER_TABLES, database)} == {"item", "other"}
        assert cluster.sql("SELECT count(*) FROM item", database) == [(1,)]
        stored = restart_lsn(sidecar)
        sidecar.kill()
        sidecar.start()
        started = [event["restart_lsn"] for event in sidecar.events() if event["event"] == "starting"][-1]
        assert parse_lsn(str(started)) >= stored >= written, "it reads again only what the last interval brought"
        cluster.sql("INSERT INTO item VALUES (2)", database)
        sidecar.wait_until_delivered()
    finally:
        sidecar.close()


def flushed_lsn(cluster: Cluster) -> Lsn:
    return parse_lsn(str(cluster.sql("SELECT pg_current_wal_flush_lsn()")[0][0]))


def restart_lsn(sidecar: Sidecar) -> Lsn:
    """Return where a start would begin to read."""
    with StateStore.open(sidecar.folder) as store:
        start = store.view().start
    assert start is not None
    return start.restart_lsn
