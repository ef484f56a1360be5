"""An archive read for its markers alone: damage is reported and skipped, also at the end of the archived WAL."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.processes.captures import config_for
from tests.support.processes.failover import archiving_node
from tests.support.processes.waiting import wait_until
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.host.log_output import get_log
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import Lsn, SystemIdentifier, TimelineId
from tidemark.model.message_prefix import MARKER_PREFIX
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


def test_a_segment_that_stays_incomplete_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "archive"
    folder.mkdir()
    state, metrics, listed = StateFolder(tmp_path / "state"), Metrics("main"), list[ArchiveFolder]()

    def listing(
        path: Path, *, complete_only: bool, of: SystemIdentifier, since: tuple[TimelineId, Lsn] | None
    ) -> ArchiveFolder:
        listed.append(ArchiveFolder(path, complete_only=complete_only, of=of, since=since))
        return listed[-1]

    monkeypatch.setattr("tidemark.runtime.daemon.marker_scan.ArchiveFolder", listing)
    with archiving_node() as archive:
        config = config_for(archive.node, "postgres")
        config = replace(config, archive=replace(config.archive, folder=str(folder), filled_by="pg_receivewal"))
        initialise(config, state)
        archive.node.sql("SELECT pg_logical_emit_message(true, 'filler', repeat('x', 300000))")
        (incomplete,) = archive.switch()
        archive.wait_until_archived()
        content = (archive.spool.folder / incomplete).read_bytes()
    (folder / incomplete).write_bytes(content[: MB // 2])
    key = parse_segment_name(incomplete, MB)
    assert key is not None
    with StateStore.open(state) as store:
        start_lsn = segment_start(key[1], MB)
        scan = MarkerScan(folder, store.identity, start_lsn, lambda *_: None, metrics=metrics, log=get_log("test"))
        scan.start()
        try:
            wait_for(lambda: len(listed) > 3, scan)
        finally:
            scan.stop()
    assert metrics.registry.get_sample_value("tidemark_errors_total", {"capture": "main"}) == 1
