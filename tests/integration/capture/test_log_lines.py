"""The specified log lines: each important event is one line, with its LSNs (I43)."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.failover import RING_BYTES, Pair, archiving_node, paired
from tests.support.servers.archiving import ArchivingServer
from tidemark.io.readers.outbox import OutboxReader
from tidemark.model.mode import Stage
from tidemark.wire.control import Json

LSN = re.compile(r"[0-9A-F]+/[0-9A-F]+")
POSITION = re.compile(r"\d+:[0-9A-F]+/[0-9A-F]+:\d+")
SMALL = {
    "TIDEMARK_DELIVER__GROUP_BYTES_MAX": str(1 << 18),
    "TIDEMARK_DECODE__QUEUE_BYTES": str(1 << 20),
    "TIDEMARK_REALTIME__AUTOMATIC_RETURN": "false",
}
OUTBOX_BYTES = 1 << 20
ROWS_AT_ONCE = 400


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with archiving_node() as node, paired(node, tmp_path, options=SMALL, bytes_max=OUTBOX_BYTES) as both:
        both.node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        yield both


def the_line(events: list[dict[str, Json]], name: str) -> dict[str, Json]:
    """Return the only line of that name, without the common fields."""
    (line,) = [event for event in events if event["event"] == name]
    return {field: value for field, value in line.items() if field not in ("role", "event", "level", "timestamp")}


def lsn(text: Json) -> int:
    assert isinstance(text, str)
    assert LSN.fullmatch(text), text
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def fill_the_ring(archiving: ArchivingServer, both: Pair) -> None:
    """Write more than outbox, queue and ring can store, until realtime has ended."""
    for first in range(10, 16010, ROWS_AT_ONCE):
        rows = f"generate_series({first}, {first + ROWS_AT_ONCE - 1})"
        archiving.node.sql(f"INSERT INTO account SELECT n, repeat('x', 1000) FROM {rows} n")
    both.wait_for_stage(Stage.ARCHIVE)


@pytest.mark.feature("I13")
@pytest.mark.feature("I43")
def test_restored_full_failed_switched_and_cleared_are_one_line_each_with_their_lsns(pair: Pair) -> None:
    pair.sidecar.wait_for_event("records restored")
    begun = the_line(pair.sidecar.events(), "records restored")
    assert POSITION.fullmatch(str(begun.pop("delivered")))
    assert set(begun) == {"restart_lsn", "restored_lsn"}
    assert all(lsn(value) for value in begun.values())
    pair.insert(1)
    pair.archiving.switch(4)
    pair.catch_up()
    cleared = pair.archiver.wait_for_event("segments cleared")
    assert lsn(cleared["before_lsn"]) > lsn(begun["restart_lsn"])
    assert (cleared["timeline"], cleared["files"]) == (1, cleared["bytes"] // (1 << 20))  # type: ignore[operator]
    with OutboxReader.open(pair.sidecar.folder) as reader:
        reader.register("slow")
    fill_the_ring(pair.archiving, pair)
    events = pair.sidecar.events()
    full = the_line(events, "ring is full, capture stops")
    assert full["ring_bytes"] == RING_BYTES
    failed = the_line(events, "capture failed")
    assert (failed["kind"], failed["hint"] != "") == ("RingOverflowed", True)
    assert full["ring_end_lsn"] == failed["received_lsn"]
    assert str(full["ring_end_lsn"]) in str(failed["error"])
    assert lsn(failed["decoded_lsn"]) <= lsn(failed["received_lsn"]) <= lsn(failed["decoded_lsn"]) + RING_BYTES
    assert POSITION.fullmatch(str(failed["delivered"]))
    switched = the_line(events, "mode switched")
    assert switched == {
        "before": "realtime",
        "after": "archive",
        "reason": failed["error"],
        "epoch": "1.1",
        "delivered": failed["delivered"],
    }
    assert not [event for event in pair.archiver.events() if event["event"] == "mode switched"]
