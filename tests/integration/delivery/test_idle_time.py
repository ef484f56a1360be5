"""The outbox's target in idle time, and with groups of a first copy, over a real LMDB."""

import threading

from tests.support.forged import groups
from tests.support.forged.deliveries import OWNER, group, outbox_target
from tidemark.engine.progress import Progress
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state import StateStore
from tidemark.model.errors import Fenced
from tidemark.model.position import Epoch, Sequence
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress


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
        assert settled() == (0, 0)
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
        store.begin_epoch(OWNER)
        try:
            target.idle()
        except Fenced:
            return True
        return False

    def settle() -> None:
        outbox_target(store, store.begin_epoch(OWNER), progress, stopping).idle()

    outbox_target(store, epoch, progress, stopping).deliver(group(100))
    assert not begins(), "there is no reader"
    with OutboxReader.open(store.folder) as reader:
        for name in ("spark", "other"):
            reader.register(name)
        assert not begins()
        outbox_target(store, store.begin_epoch(OWNER), progress, stopping).deliver(group(200))
        reader.confirm("spark", Sequence(4), Sequence(4))
        assert not begins(), "the other one holds it"
        reader.confirm("other", Sequence(4), Sequence(0))
        assert begins()
        settle()
        assert not begins(), "what both hold is confirmed, and one may still ask for it"
        reader.confirm("other", Sequence(4), Sequence(4))
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
