"""Positions that move while the captured tables are idle, and what a start after a kill reads again."""

from pathlib import Path

import pytest

from tests.support.processes.captures import Sidecar, change_log
from tests.support.servers.postgres import SUPERUSER, Cluster
from tests.support.servers.proxies import cable
from tidemark.io.process.metrics import CONFIRMED_LSN
from tidemark.io.readers.outbox import OutboxReader
from tidemark.model.change import GroupItem, LogicalMessage
from tidemark.model.lsn import Lsn, parse_lsn
from tidemark.model.message_prefix import HEARTBEAT_PREFIX

ROUNDS = 3
KILLS = 3
RETRY_S = 0.3
ATTEMPTS = 6  # while the node is away: many times the interval of heartbeats
ROUND_BYTES = 8 << 20
USER_TABLES = "SELECT relname FROM pg_stat_user_tables"


@pytest.mark.feature("U01")
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
                sidecar.wait_until(lambda upto=written: sidecar.restart_lsn() >= upto, "the pointer")  # type: ignore[misc]
                sidecar.wait_until(
                    lambda upto=written: sidecar.metric(f'{CONFIRMED_LSN}{{capture="main"}}') >= upto,  # type: ignore[misc]
                    "the confirmed position",
                )
            assert reader.head() == head, "no value"
        assert {row[0] for row in cluster.sql(USER_TABLES, database)} == {"item", "other"}
        assert cluster.sql("SELECT count(*) FROM item", database) == [(1,)]
        stored = sidecar.restart_lsn()
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


@pytest.mark.feature("U18")
def test_heartbeats_come_while_nothing_changes_and_changes_are_delivered_once_between_them(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    cluster.sql("CREATE TABLE item (id int PRIMARY KEY)", database)
    sidecar = Sidecar(cluster, database, tmp_path, TIDEMARK_DELIVER__HEARTBEAT_S="0.3")
    sidecar.init()
    with OutboxReader.open(sidecar.folder) as reader:
        try:
            for row in range(KILLS):
                sidecar.start()
                cluster.sql(f"INSERT INTO item VALUES ({row})", database)
                sidecar.wait_until_delivered()
                known = len(heartbeats(sidecar, reader))
                sidecar.wait_until(
                    lambda known=known: len(heartbeats(sidecar, reader)) >= known + 2,  # type: ignore[misc]
                    "heartbeats",
                )
                sidecar.kill()
        finally:
            sidecar.close()
        rows = [row["_after"] for row in change_log(items(sidecar, reader), "item")]
        assert rows == [{"id": row} for row in range(KILLS)]
        positions = [item.position for item in heartbeats(sidecar, reader)]
        assert positions == sorted(set(positions))


@pytest.mark.feature("U18")
def test_no_heartbeat_comes_while_nothing_is_heard_from_the_node(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    with cable(cluster.port) as way:
        sidecar = Sidecar(
            cluster,
            database,
            tmp_path,
            TIDEMARK_CAPTURE__DSN=f"host=127.0.0.1 port={way.port} dbname={database} user={SUPERUSER}",
            TIDEMARK_DELIVER__HEARTBEAT_S="0.1",
            TIDEMARK_RETRY__FIRST_S=str(RETRY_S),
            TIDEMARK_RETRY__MAX_S=str(RETRY_S),
        )
        sidecar.init()
        try:
            with OutboxReader.open(sidecar.folder) as reader:
                sidecar.start()
                sidecar.wait_until(lambda: len(heartbeats(sidecar, reader)) > 1, "heartbeats")
                way.unplug()
                sidecar.wait_until(lambda: attempts(sidecar) >= 1, "the end of the connection")
                known = len(heartbeats(sidecar, reader))
                sidecar.wait_until(lambda: attempts(sidecar) >= ATTEMPTS, "attempts to connect")
                assert len(heartbeats(sidecar, reader)) <= known + 1, "of what was heard before"
                way.plug()
                sidecar.wait_until(lambda: len(heartbeats(sidecar, reader)) > known + 1, "heartbeats again")
        finally:
            sidecar.close()


def attempts(sidecar: Sidecar) -> int:
    return sum(event["event"] == "lost the connection to the node" for event in sidecar.events())


def items(sidecar: Sidecar, reader: OutboxReader) -> list[GroupItem]:
    return list(sidecar.items(reader, reader.ledger().trimmed, reader.head()))


def heartbeats(sidecar: Sidecar, reader: OutboxReader) -> list[LogicalMessage]:
    messages = [item for item in items(sidecar, reader) if isinstance(item, LogicalMessage)]
    return [message for message in messages if message.prefix == HEARTBEAT_PREFIX]
