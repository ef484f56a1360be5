"""A connection that becomes slow, and then breaks, in the middle of a table's COPY."""

import threading
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tests.integration.first_copy.test_first_copy import fill, newest_generation, source_rows
from tests.support.processes.captures import Sidecar, change_log, replayed, running
from tests.support.servers.postgres import Cluster
from tests.support.servers.proxies import proxy
from tidemark.io.node import copy_stream
from tidemark.io.node.copy_stream import BlockBounds, copied_blocks
from tidemark.io.readers.outbox import OutboxReader
from tidemark.model.change import ChangeBatch, CopyBoundary, GroupItem

DEADLINE_S = 120.0


class Faltering:
    """Forwards a connection up to any of these bytes, waits there until it may break it, and does; once."""

    def __init__(self, *upto: bytes) -> None:
        self.is_there = threading.Event()
        self.may_break = threading.Event()
        self._upto = upto

    def change(self, said: bytes) -> bytes:
        if any(upto in said for upto in self._upto) and not self.is_there.is_set():
            self.is_there.set()
            assert self.may_break.wait(DEADLINE_S)
            raise ConnectionResetError
        return said


@pytest.mark.feature("P22")
def test_rows_are_emitted_while_more_arrive_and_again_if_the_copy_breaks_off(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    fill(cluster, database)
    faltering = Faltering(b"\told 5000\n", b"\told 5001\n")  # the bytes of one of them at least arrive together
    with proxy(cluster.port, faltering.change) as port:
        through = f"host=127.0.0.1 port={port} dbname={database} user=postgres"
        options = {"TIDEMARK_CAPTURE__DSN": through, "TIDEMARK_DELIVER__GROUP_ROWS_MAX": "500"}
        with running(cluster, database, tmp_path, copy=True, **options) as sidecar:
            sidecar.wait_until(faltering.is_there.is_set, "the middle of the COPY")
            sidecar.wait_until(
                lambda: any(isinstance(item, ChangeBatch) for item in given(sidecar)), "a row before that"
            )
            faltering.may_break.set()
            items = sidecar.catch_up()
    boundaries = [(item.begin, item.generation) for item in items if isinstance(item, CopyBoundary)]
    assert boundaries == [(True, 1), (True, 2), (False, 2)]
    assert replayed(change_log(newest_generation(items), "account")) == source_rows(sidecar)


def test_an_abandoned_copy_waits_for_a_silent_server_for_a_bounded_time(
    cluster: Cluster, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_stream, "CANCEL_S", 1.0)
    fill(cluster, database)
    faltering = Faltering(b"\told 5000\n", b"\told 5001\n")
    with proxy(cluster.port, faltering.change) as port:
        session = psycopg.connect(f"host=127.0.0.1 port={port} dbname={database} user=postgres sslmode=disable")
        try:
            copy = sql.SQL("COPY (SELECT * FROM account) TO STDOUT").format()
            blocks = copied_blocks(session, copy, BlockBounds(500, 1 << 20))
            assert next(block for block in blocks if block.rows)
            assert faltering.is_there.wait(DEADLINE_S)
            blocks.close()
            assert session.closed
        finally:
            faltering.may_break.set()
            session.close()


def test_an_abandoned_copy_is_received_for_a_bounded_time_if_its_cancel_is_lost(
    cluster: Cluster, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_stream, "CANCEL_S", 1.0)
    monkeypatch.setattr(psycopg.Connection, "cancel_safe", lambda *_, **__: None)  # as with a pooler
    with psycopg.connect(cluster.dsn(database)) as session:
        copy = sql.SQL("COPY (SELECT repeat('x', 50) FROM generate_series(1, 30000000)) TO STDOUT").format()
        blocks = copied_blocks(session, copy, BlockBounds(500, 1 << 20))
        assert next(block for block in blocks if block.rows)
        blocks.close()
        assert session.closed


def given(sidecar: Sidecar) -> list[GroupItem]:
    with OutboxReader.open(sidecar.folder) as reader:
        return list(sidecar.items(reader, reader.ledger().trimmed, reader.head()))
