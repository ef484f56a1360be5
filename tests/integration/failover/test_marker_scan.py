"""An archive read for its markers alone: damage is reported and skipped, also at the end of the archived WAL."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.support.processes.captures import config_for
from tests.support.processes.failover import archiving_node
from tests.support.processes.waiting import wait_until
from tidemark.io.host.logs import get_log
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import MARKER_PREFIX
from tidemark.runtime.daemon.marker_scan import MarkerScan
from tidemark.runtime.seed.initialise import initialise
from tidemark.wal.segments import parse_segment_name, segment_start

MB = 1 << 20


def wait_for(condition: Callable[[], bool], scan: MarkerScan) -> None:
    def holds() -> bool:
        assert scan.error is None, scan.error
        return condition()

    wait_until(holds)


def test_a_damaged_segment_at_the_archives_end_is_skipped_once_later_segments_arrive(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    folder.mkdir()
    state = StateFolder(tmp_path / "state")
    with archiving_node() as archive:
        config = config_for(archive.node, "postgres")
        config = replace(config, archive=replace(config.archive, folder=str(folder), filled_by="pg_receivewal"))
        initialise(config, state)
        archive.node.sql("SELECT pg_logical_emit_message(true, 'filler', repeat('x', 300000))")
        (damaged,) = archive.switch()
        archive.node.sql(f"SELECT pg_logical_emit_message(true, '{MARKER_PREFIX}', 'behind')")
        (behind,) = archive.switch()
        archive.wait_until_archived()
        content = bytearray((archive.spool.folder / damaged).read_bytes())
        content[200_000] ^= 0xFF
        (folder / damaged).write_bytes(content)
        key = parse_segment_name(damaged, MB)
        assert key is not None
        met: list[bytes] = []
        with StateStore.open(state) as store:
            scan = MarkerScan(
                folder,
                store.identity,
                segment_start(key[1], MB),
                lambda _lsn, found: met.append(found),
                metrics=Metrics("main"),
                log=get_log("test"),
            )
            scan.start()
            try:
                wait_for(lambda: scan.broken is not None, scan)
                shutil.copy(archive.spool.folder / behind, folder)
                wait_for(lambda: b"behind" in met, scan)
            finally:
                scan.stop()
