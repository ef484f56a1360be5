"""The markers that a capture reads: ours are counted by kind, others by the reason for their rejection."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tidemark.io.host.log_output import get_log
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import Lsn, SystemIdentifier, TimelineId
from tidemark.model.position import Epoch, Sequence
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.daemon.marker_reading import MarkerReader
from tidemark.wire.marker import Ignored, Instance, Marker, MarkerKind, write_marker
from tidemark.wire.state.values import Identity

KEY, OTHER_KEY = b"k" * 16, b"o" * 16
SYSTEM = SystemIdentifier(77)


def content(kind: MarkerKind, sequence: int = 1, key: bytes = KEY) -> bytes:
    marker = Marker(kind, Instance(SYSTEM, "main"), Epoch(TimelineId(1), 1), Sequence(sequence), None)
    return write_marker(marker, key)


@pytest.fixture
def context(tmp_path: Path) -> Iterator[CaptureContext]:
    identity = Identity("main", SYSTEM, "0a0b", 15, 16 << 20, 4 << 20)
    with StateStore.create(StateFolder(tmp_path / "state"), identity) as store:
        yield CaptureContext(store, Metrics("main"), get_log("test"))


def counted(context: CaptureContext, name: str) -> dict[str, float]:
    """Return the changed counters of that name, by their kind."""
    samples = [sample for family in context.metrics.registry.collect() for sample in family.samples]
    return {
        next(value for label, value in sample.labels.items() if label != "capture"): sample.value
        for sample in samples
        if sample.name == name and sample.value
    }


@pytest.mark.feature("I10")
def test_valid_markers_are_read_and_counted_by_kind_and_a_check_is_kept(context: CaptureContext) -> None:
    reader = MarkerReader(context.store.identity, KEY, context.metrics, context.log)
    with capture_logs() as reported:
        found = reader.read(Lsn(100), content(MarkerKind.STOP))
        assert found is not None
        assert (found.kind, reader.last_check) == (MarkerKind.STOP, None)
        assert reader.read(Lsn(200), content(MarkerKind.CHECK, 9)) is not None
        assert reader.read(Lsn(300), content(MarkerKind.STOP)) is not None
    assert reader.last_check is not None
    assert (reader.last_check.sequence, reader.last_check.lsn) == (9, 200)
    read = counted(context, "tidemark_markers_read_total")
    assert read == {MarkerKind.STOP.value: 2, MarkerKind.CHECK.value: 1}
    assert (counted(context, "tidemark_markers_ignored_total"), reported) == ({}, [])


@pytest.mark.feature("I10")
def test_messages_that_are_not_valid_markers_are_counted_and_reported_once_for_each_reason(
    context: CaptureContext,
) -> None:
    reader = MarkerReader(context.store.identity, KEY, context.metrics, context.log)
    with capture_logs() as reported:
        for lsn in (100, 200):
            assert reader.read(Lsn(lsn), content(MarkerKind.STOP, key=OTHER_KEY)) is None
            assert reader.read(Lsn(lsn), b"rubbish") is None
            assert reader.read(Lsn(lsn), b"") is None, "a flush of our own"
    assert counted(context, "tidemark_markers_ignored_total") == {"FORGED": 2, "MALFORMED": 2}
    assert counted(context, "tidemark_markers_read_total") == {}
    assert [(line["at_lsn"], line["reason"]) for line in reported] == [
        (100, Ignored.FORGED.value),
        (100, Ignored.MALFORMED.value),
    ]
