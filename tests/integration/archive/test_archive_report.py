"""The daemons' report on the archive: when the folder is listed again, and when the last listing is still valid."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.processes.waiting import wait_until
from tests.support.workloads.feeder import make_state
from tidemark.io.archive.archive_state import ArchiveState
from tidemark.io.host.folder_changes import MTIME_TICK_S_MAX
from tidemark.io.host.log_output import get_log
from tidemark.io.node.node import NodeArchiving
from tidemark.io.process.config_loading import load_config
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.daemon.archive_report import LISTING_S, ArchiveReport
from tidemark.runtime.daemon.archiving_watch import ArchivingWatch
from tidemark.runtime.daemon.node_requests import NodeRequests, NodeSettings
from tidemark.wal.segments import segment_name


class AnsweredWatch(ArchivingWatch):
    """A watch on archiving with a given answer of the node."""

    archived_file = ""

    def poll(self) -> None:
        """Query nothing."""

    @property
    def answer(self) -> NodeArchiving:
        """The given answer."""
        return NodeArchiving(may_switch=True, timeout_s=0, is_on=True, failed_file="", archived_file=self.archived_file)


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> Iterator[float]:
    """Return times that are far enough apart for a report, which are also those of the folder's views."""
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr("tidemark.io.host.folder_changes.time", SimpleNamespace(monotonic=lambda: clock.now_s))

    def advanced() -> Iterator[float]:
        while True:
            clock.now_s += max(LISTING_S, 2 * MTIME_TICK_S_MAX)
            yield clock.now_s

    return advanced()


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[AnsweredWatch]:
    folder = StateFolder(tmp_path / "state")
    make_state(folder.root)
    config = load_config(None, {"TIDEMARK_CAPTURE__DSN": "host=127.0.0.1 port=1"})
    with StateStore.open(folder) as store:
        context = CaptureContext(store, Metrics("main"), get_log("test"))
        requests = NodeRequests(NodeSettings.of(config), store, b"k" * 16, counts=context.metrics, log=context.log)
        with closing(requests):
            yield AnsweredWatch(context, config.archive, requests)


def reported(report: ArchiveReport, now_s: float) -> ArchiveState:
    found: list[ArchiveState] = []

    def is_found() -> bool:
        found.extend(state for state in [report.step(now_s)] if state is not None)
        return bool(found)

    wait_until(is_found)
    return found[0]


def test_a_listing_is_newer_than_the_newest_file_that_the_node_has_archived(
    tmp_path: Path, now_s: Iterator[float], watch: AnsweredWatch
) -> None:
    """Otherwise a segment on a file system that leaves the folder's mtime unchanged would be reported as lost."""
    archive, segment_bytes = tmp_path / "archive", watch.context.store.identity.segment_bytes
    archive.mkdir()

    def fill(number: int) -> str:
        file = segment_name(1, number, segment_bytes)
        (archive / file).touch()
        os.utime(archive, ns=(0, 10**18))
        return file

    fill(1)
    report = ArchiveReport(watch.context, str(archive), watch)
    assert [reported(report, next(now_s)).file_count for _ in range(2)] == [1, 1]
    archived_file = fill(2)
    assert reported(report, next(now_s)).file_count == 1, "an unchanged folder is not listed"
    watch.archived_file = archived_file
    assert reported(report, next(now_s)).file_count == 2
