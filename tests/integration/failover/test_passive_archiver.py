"""The archiver while the sidecar delivers: it reads archived WAL for its markers, and emits nothing (I13)."""

from pathlib import Path

import pytest

from tests.support.processes.failover import paired
from tests.support.servers.archiving import ArchivingServer
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state import StateStore
from tidemark.model.lsn import parse_lsn
from tidemark.model.mode import Stage
from tidemark.wal.segments import parse_segment_name
from tidemark.wire.marker import MarkerKind

MB = 1 << 20
HOUR = "3600"
PATIENT = {
    "TIDEMARK_WATCHDOG__RESTART_S": HOUR,
    "TIDEMARK_WATCHDOG__WATCHDOG_S": HOUR,
    "TIDEMARK_ARCHIVE__KEEP_BYTES": str(1 << 30),  # so that all markers are there at the end
}


@pytest.mark.feature("I13")
def test_a_passive_archiver_reads_the_markers_and_delivers_nothing_although_no_process_does(
    node: ArchivingServer, tmp_path: Path
) -> None:
    with paired(node, tmp_path, options=PATIENT) as pair, OutboxReader.open(pair.sidecar.folder) as reader:
        pair.wait_for(lambda: parse_lsn(str(pair.archiver.status()["read_lsn"])) > 0, "the begin of its scan")
        for number in range(1, 4):
            pair.insert(number)
            pair.catch_up()
            pair.wait_for(lambda: pair.sidecar.metric(by_kind("markers_written", MarkerKind.CONFIRM)) > 0, "a marker")
        pair.sidecar.kill()
        with StateStore.open(pair.sidecar.folder) as store:
            before, head = store.view(), reader.head()
        written = [marker.kind for marker in pair.markers()]
        pair.insert(*range(4, 50))
        (last,) = node.switch()
        node.wait_until_archived()
        key = parse_segment_name(last, MB)
        assert key is not None
        end_lsn = (key[1] + 1) * MB
        pair.wait_for(lambda: parse_lsn(str(pair.archiver.status()["read_lsn"])) == end_lsn, "the archive's end")
        assert pair.archiver.status()["role"] == "passive"
        confirms = written.count(MarkerKind.CONFIRM)
        assert confirms > 0
        read = by_kind("markers_read", MarkerKind.CONFIRM)
        pair.wait_for(lambda: pair.archiver.metric(read) == confirms, "the count of markers that were read")
        with StateStore.open(pair.sidecar.folder) as store:
            after = store.view()
        assert (after.delivered, after.term, after.stage) == (before.delivered, before.term, Stage.REALTIME)
        assert reader.head() == head
        assert not [event for event in pair.archiver.events() if event["event"] in ("epoch acquired", "starting")]


def by_kind(name: str, kind: MarkerKind) -> str:
    """Return a counter of markers in its exported form."""
    return f'tidemark_{name}_total{{capture="main",kind="{kind.value}"}}'
