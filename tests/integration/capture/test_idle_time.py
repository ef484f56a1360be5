"""The outbox's target in idle time, and with groups of a first copy, over a real LMDB."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.capture.test_delivery import IDENTITY, OWNER, START, group, outbox_target
from tests.support.forged import groups
from tidemark.engine.progress import Progress
from tidemark.io.state.outbox import OutboxReader
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import Fenced
from tidemark.model.position import Epoch, Sequence
from tidemark.wire.state import DELIVERED, CopyPhase, CopyProgress, Watermark


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    with StateStore.create(StateFolder(tmp_path / "state"), IDENTITY) as made:
        with made.transaction(None) as transaction:
            transaction.put(DELIVERED, Watermark(START, Sequence(0)))
        yield made


@pytest.fixture
def epoch(store: StateStore) -> Epoch:
    return store.take_epoch(OWNER)


@pytest.fixture
def stopping() -> threading.Event:
    return threading.Event()


@pytest.fixture
def progress() -> Progress:
    return Progress(delivered=START)


def test_idle_time_confirms_and_trims_by_the_slowest_reader_and_moves_nothing_back(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    target = outbox_target(store, epoch, progress, stopping)

    def settled() -> tuple[int | None, int]:
        target.idle()
        marks = store.marks()
        assert progress.confirmed == (marks.confirmed.pointer if marks.confirmed else None), "what markers tell"
        return marks.confirmed.sequence if marks.confirmed else None, marks.ledger.trimmed

    with OutboxReader.open(store.folder) as reader:
        for name in ("spark", "other"):
            reader.register(name)
        for lsn in (100, 200, 300):
            target.deliver(group(lsn))
        reader.confirm("spark", Sequence(4), Sequence(0))
        assert settled() == (None, 0)
        reader.confirm("other", Sequence(2), Sequence(2))
        assert settled() == (2, 0), "held by both, and spark may still ask for it"
        reader.confirm("other", Sequence(4), Sequence(4))
        assert settled() == (4, 0)
        reader.confirm("spark", Sequence(4), Sequence(2))
        assert settled() == (4, 2), "nothing new is confirmed, and some is asked for no more"


def test_no_transaction_begins_in_idle_time_in_which_no_reader_has_moved(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    def begins() -> bool:
        """Return whether idle time begins a transaction: it is refused to an owner of an older epoch."""
        target = outbox_target(store, epoch, progress, stopping)
        store.take_epoch(OWNER)
        try:
            target.idle()
        except Fenced:
            return True
        return False

    def settle() -> None:
        outbox_target(store, store.take_epoch(OWNER), progress, stopping).idle()

    outbox_target(store, epoch, progress, stopping).deliver(group(100))
    assert not begins(), "there is no reader"
    with OutboxReader.open(store.folder) as reader:
        for name in ("spark", "other"):
            reader.register(name)
        assert not begins()
        reader.confirm("spark", Sequence(2), Sequence(2))
        assert not begins(), "the other one holds it"
        reader.confirm("other", Sequence(2), Sequence(0))
        assert begins()
        settle()
        assert not begins(), "what both hold is confirmed, and one may still ask for it"
        reader.confirm("other", Sequence(2), Sequence(2))
        assert begins()
        settle()
        assert not begins()


def test_a_copied_group_moves_no_watermark(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    target = outbox_target(store, epoch, progress, stopping)
    copied = (groups.DATABASE, groups.relation().oid, CopyProgress(CopyPhase.COPYING, 1, row_count=1))
    target.deliver(group(100))
    before = progress.delivered
    assert before == group(100).last
    target.deliver_copied(group(50), copied)
    assert progress.delivered == before
    assert store.view().copies == {copied[:2]: copied[2]}
