"""The connection between node and sidecar, intact or not: the stream, markers, the return to realtime."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes.captures import change_log, replayed
from tests.support.processes.failover import Pair, archiving_node, paired
from tests.support.processes.waiting import wait_until
from tests.support.servers.proxies import cable, proxy
from tidemark.model.mode import Stage

COPY_BOTH = b"W"  # the server's answer to START_REPLICATION


class Withheld:
    """A server's stream, held back while the gate is closed; other messages pass."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self._connection = threading.local()

    def change(self, said: bytes) -> bytes:
        """Receive what a connection's server sends."""
        if getattr(self._connection, "is_streaming", False):
            self.gate.wait()
        elif said.startswith(COPY_BOTH):
            self._connection.is_streaming = True
        return said


class Spoilt:
    """A server's stream, with one row changed on its way, once."""

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before, self._after = before, after
        self.is_done = False

    def change(self, said: bytes) -> bytes:
        """Receive what a connection's server sends."""
        if self.is_done or self._before not in said:
            return said
        self.is_done = True
        return said.replace(self._before, self._after)


@contextmanager
def writing(pair: Pair) -> Iterator[list[int]]:
    """Insert rows of a page each continuously; yield their keys."""
    keys: list[int] = []
    stopping = threading.Event()

    def write() -> None:
        with pair.node.connect("postgres") as session:
            session.execute("ALTER TABLE account ALTER note SET STORAGE EXTERNAL")
            while not stopping.wait(0.03):
                session.execute("INSERT INTO account VALUES (%s, repeat('x', 10000))", (len(keys),))
                keys.append(len(keys))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield keys
    finally:
        stopping.set()
        thread.join()


def test_the_archiver_may_reach_the_marker_before_the_buffer_has_received_it(tmp_path: Path) -> None:
    withheld = Withheld()
    with archiving_node() as node, proxy(node.node.port, withheld.change) as port:
        node.node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        direct = node.node.dsn()
        through = {
            "TIDEMARK_CAPTURE__DSN": f"host=127.0.0.1 port={port} dbname=postgres user=postgres",
            "TIDEMARK_MARKERS__DSN": direct,
        }
        with paired(node, tmp_path, options=through) as pair:
            pair.switch_off()
            with writing(pair) as keys:
                withheld.gate.clear()
                pair.switch_on()
                pair.wait_for(lambda: Stage.RETURNED in [each.after for each in pair.switches()], "the hand-over")
                written = len(keys) + 30
                wait_until(lambda: len(keys) >= written, "rows that the buffer does not receive")
                withheld.gate.set()
                pair.wait_for_stage(Stage.REALTIME)
            assert list(replayed(change_log(pair.catch_up(), "account"))) == keys
            assert pair.stage is Stage.REALTIME
            assert pair.sidecar.running, pair.reported()


@pytest.mark.feature("I22")
def test_wal_archived_while_only_the_sidecar_is_disconnected_is_delivered_by_the_archiver(tmp_path: Path) -> None:
    with archiving_node() as node, cable(node.node.port) as way:
        node.node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        through = {
            "TIDEMARK_CAPTURE__DSN": f"host=127.0.0.1 port={way.port} dbname=postgres user=postgres",
            "TIDEMARK_REALTIME__AWAY_S": "1",
        }
        with paired(node, tmp_path, options=through) as pair:
            pair.insert(1)
            pair.catch_up()
            way.unplug()
            pair.insert(2)
            node.switch()
            node.wait_until_archived()
            pair.wait_for(lambda: keys_of(pair) == [1, 2], "what is archived")
            assert pair.stage is Stage.ARCHIVE
            assert "archived up to" in pair.switches()[-1].reason
            way.plug()
            pair.wait_for_stage(Stage.REALTIME)
            pair.insert(3)
            pair.catch_up()
            assert keys_of(pair) == [1, 2, 3]


def test_a_record_that_is_damaged_in_the_stream_is_read_from_the_archive(tmp_path: Path) -> None:
    spoilt = Spoilt(b"as it was written", b"as it was changed")
    with archiving_node() as node, proxy(node.node.port, spoilt.change) as port:
        node.node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        through = {"TIDEMARK_CAPTURE__DSN": f"host=127.0.0.1 port={port} dbname=postgres user=postgres"}
        with paired(node, tmp_path, options=through) as pair:
            pair.insert(1)
            pair.catch_up()
            node.node.sql("INSERT INTO account VALUES (2, 'as it was written')")
            pair.wait_for(lambda: Stage.ARCHIVE in [each.after for each in pair.switches()], "the archiver's turn")
            assert spoilt.is_done
            assert "CRC" in pair.switches()[0].reason
            pair.wait_for_stage(Stage.REALTIME)
            pair.insert(3)
            found = replayed(change_log(pair.catch_up(), "account"))
            assert [(key, row["note"]) for key, row in found.items()] == [
                (1, "n1"),
                (2, "as it was written"),
                (3, "n3"),
            ]
            assert pair.sidecar.running, pair.reported()


def test_delivery_continues_without_markers_and_a_return_waits_for_its_marker(tmp_path: Path) -> None:
    with archiving_node() as node, cable(node.node.port) as way:
        node.node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        node.node.configure(archive_timeout="1s")  # segment switches take the same connection as the markers
        through = {"TIDEMARK_MARKERS__DSN": f"host=127.0.0.1 port={way.port} dbname=postgres user=postgres"}
        with paired(node, tmp_path, options=through) as pair:
            pair.insert(1)
            pair.catch_up()
            way.unplug()
            pair.switch_off()
            pair.insert(2)
            pair.catch_up()
            assert keys_of(pair) == [1, 2]
            pair.switch_on()
            reported = pair.sidecar.wait_for_event("the try-start marker was not written")
            assert f"port={way.port}" in str(reported["error"])
            assert pair.sidecar.metric('tidemark_markers_failed_total{capture="main"}') > 0
            pair.insert(3)
            pair.catch_up()
            assert (keys_of(pair), pair.stage) == ([1, 2, 3], Stage.RETURNING)
            way.plug()
            pair.wait_for_stage(Stage.REALTIME)
            pair.insert(4)
            pair.catch_up()
            assert keys_of(pair) == [1, 2, 3, 4]


def keys_of(pair: Pair) -> list[object]:
    """Return the keys of the delivered table."""
    return list(replayed(change_log(pair.delivered(), "account")))
