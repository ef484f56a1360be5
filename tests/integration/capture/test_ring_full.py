"""A full ring ends realtime once: nothing is received afterwards, and its memory is freed (I06)."""

import re
from pathlib import Path

import pytest

from tests.support.processes.captures import OnDemandReader, Sidecar, change_log, replayed
from tests.support.processes.failover import Pair, paired
from tests.support.servers.archiving import ArchivingServer
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state import StateStore
from tidemark.model.change import ChangeBatch
from tidemark.model.mode import Stage
from tidemark.model.position import NO_SEQUENCE
from tidemark.wire.marker import MarkerKind

RING_BYTES = 24 << 20
ROWS_AT_ONCE = 2000
STOPS = ("ring is full, capture stops", "capture failed", "mode switched")
OPTIONS = {
    "TIDEMARK_ARCHIVE__KEEP_BYTES": str(1 << 30),  # so that all markers are there at the end
    "TIDEMARK_DELIVER__GROUP_BYTES_MAX": str(1 << 18),
    "TIDEMARK_DECODE__QUEUE_BYTES": str(1 << 20),
    "TIDEMARK_REALTIME__AUTOMATIC_RETURN": "false",
    "TIDEMARK_RING__BYTES_MAX": str(RING_BYTES),
}


def resident_bytes(process: Sidecar) -> int:
    """Return the resident memory of a process."""
    assert process.process is not None
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process.process.pid}/status").read_text())
    assert found
    return int(found[1]) << 10


def write_rows(pair: Pair, first: int) -> int:
    """Write rows of a kilobyte each; return the next number."""
    last = first + ROWS_AT_ONCE - 1
    pair.node.sql(f"INSERT INTO account SELECT n, repeat('x', 1000) FROM generate_series({first}, {last}) n")
    return last + 1


def has_confirmed(pair: Pair) -> bool:
    """Return whether a value is confirmed, so that there is a new pointer for a confirm marker."""
    with StateStore.open(pair.sidecar.folder) as store:
        confirmed = store.marks().confirmed
    return confirmed is not None and confirmed.sequence > NO_SEQUENCE


@pytest.mark.feature("I06")
def test_a_full_ring_stops_realtime_until_a_switch_and_its_memory_is_released(
    node: ArchivingServer, tmp_path: Path
) -> None:
    with (
        paired(node, tmp_path, options=OPTIONS, bytes_max=1 << 20) as pair,
        OutboxReader.open(pair.sidecar.folder) as reader,
    ):
        on_demand = OnDemandReader(reader)
        pair.insert(1)
        pair.catch_up()
        on_demand.read()
        pair.sidecar.wait_until(lambda: has_confirmed(pair), "the confirmation")
        received, used = (
            f'tidemark_{name}{{capture="main"}}' for name in ("wal_received_bytes_total", "ring_used_bytes")
        )
        number, peak_bytes = 2, 0
        while pair.stage is Stage.REALTIME:
            number = write_rows(pair, number)
            peak_bytes = max(peak_bytes, resident_bytes(pair.sidecar))
            assert number < 100 * ROWS_AT_ONCE, pair.reported()
        pair.sidecar.wait_for_event("stopped")
        assert pair.sidecar.status()["link"] is None
        pair.wait_for(lambda: peak_bytes - resident_bytes(pair.sidecar) > RING_BYTES // 2, "the ring's memory")
        assert pair.sidecar.metric(used) == 0
        received_bytes = pair.sidecar.metric(received)
        number = write_rows(pair, number)
        pair.wait_for(lambda: pair.archiver.status().get("role") == "active", "active")
        assert pair.node.sql("SELECT count(*) FROM pg_stat_replication") == [(0,)], "nobody streams any more"

        def has_all() -> bool:
            return sum(len(item.rows) for item in on_demand.read() if isinstance(item, ChangeBatch)) >= number - 1

        pair.wait_for(has_all, "all rows, by the archiver")
        assert list(replayed(change_log(on_demand.items, "account"))) == list(range(1, number))
        assert pair.stage is Stage.ARCHIVE
        assert pair.sidecar.metric(received) == received_bytes
        lines = [event["event"] for event in pair.sidecar.events() if event["event"] in STOPS]
        assert sorted(map(str, lines)) == sorted(STOPS), "one line each"
        (switched,) = pair.switches()
        assert switched.reason.startswith(f"the ring of {RING_BYTES} bytes is full at ")
        (stop,) = [marker for marker in pair.markers() if marker.kind is MarkerKind.STOP]
        assert stop.reason == switched.reason
        assert stop.pointer is not None
