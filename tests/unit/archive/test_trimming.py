"""The files of a spool that may be removed: whole segments below the horizon's, selected by name alone."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tidemark.io.archive.trimming import Horizon, horizon_of, removable
from tidemark.io.state.state_views import StateView
from tidemark.model.lsn import Lsn, SystemIdentifier, TimelineId
from tidemark.model.mode import Stage
from tidemark.model.position import Pointer, Position, Sequence
from tidemark.wal.segments import segment_name
from tidemark.wire.state.copy_progress import Recopies
from tidemark.wire.state.event_logs import LossLog, RewindLog, SwitchLog
from tidemark.wire.state.history_index import BaseEntry, HistoryIndex, JournalMark
from tidemark.wire.state.outbox_ledger import OutboxLedger
from tidemark.wire.state.readers import Reader
from tidemark.wire.state.values import HandOver, Identity, Watermark

MB = 1 << 20
TL1, TL2, TL3 = TimelineId(1), TimelineId(2), TimelineId(3)


def name(number: int, timeline: int = TL1, more: str = "") -> str:
    return segment_name(timeline, number, MB) + more


def mark(restart_lsn: int, timeline: TimelineId = TL1) -> Watermark:
    return Watermark(Pointer(Position(timeline, Lsn(restart_lsn + 1000), 0), Lsn(restart_lsn)), Sequence(1))


def view(delivered: Watermark | None, confirmed: Watermark | None = None, *, bases: tuple[int, ...] = ()) -> StateView:
    entries = tuple(BaseEntry(f"base-{lsn}", TL1, Lsn(lsn), Lsn(lsn - 100), 1) for lsn in bases)
    readers = {"lake": Reader(Sequence(1), Sequence(1), 0)} if confirmed else {}
    return StateView(
        stage=Stage.REALTIME,
        term=None,
        delivered=delivered,
        confirmed=confirmed,
        ledger=OutboxLedger(),
        readers=readers,
        followed=None,
        overtaken=None,
        damaged_readers=frozenset(),
        identity=Identity("main", SystemIdentifier(7), "0a", 15, MB, 1 << 30),
        beginning=None,
        history=HistoryIndex(entries),
        journal=JournalMark(),
        copies={},
        recopies=Recopies(),
        fingerprint=None,
        hand_over=HandOver(),
        switches=SwitchLog(),
        losses=LossLog(),
        rewinds=RewindLog(),
    )


def test_only_segments_wholly_below_the_horizons_are_removed_and_the_oldest_first() -> None:
    files = [name(number) for number in (5, 3, 4, 2, 6)]
    at_start, inside, at_end = 5 * MB, 5 * MB + 17, 6 * MB - 1
    for lsn in (at_start, inside, at_end):
        assert removable(files, Horizon(TL1, Lsn(lsn)), MB) == [name(2), name(3), name(4)]
    assert removable(files, Horizon(TL1, Lsn(6 * MB)), MB)[-1] == name(5)


def test_partial_copies_are_removed_with_their_segment_and_history_and_foreign_files_stay() -> None:
    gone = [
        f".{name(2)}.new",
        name(2, more=".00000028.backup"),
        name(2, more=".gz"),
        name(2, more=".partial"),
        name(2, more=".partial.lz4"),
    ]
    kept = [
        "00000001.history",
        "00000002.history.gz",
        ".tidemark",
        ".holes",
        "history",
        "notes.txt",
        f"{name(2)}.txt",
        f"x{name(2)}",
        name(2)[:-1],
        name(8),  # the newest segment is always kept
        name(9, more=".partial"),
        f".{name(9)}.new",
    ]
    assert sorted(removable(kept + gone, Horizon(TL1, Lsn(5 * MB)), MB)) == sorted(gone)


def test_earlier_timelines_are_removed_with_the_horizon_and_later_ones_stay() -> None:
    files = [*(name(2, timeline) for timeline in (TL1, TL2, TL3)), name(8, TL3)]
    assert removable(files, Horizon(TL2, Lsn(5 * MB)), MB) == [name(2, TL1), name(2, TL2)]


def test_the_newest_whole_segment_stays_even_below_the_horizon() -> None:
    files = [name(2), name(3), name(4, more=".partial")]
    assert removable(files, Horizon(TL1, Lsn(5 * MB)), MB) == [name(2), name(4, more=".partial")]


@given(
    numbers=st.lists(st.integers(0, 40), unique=True), lsn=st.integers(0, 41 * MB), seed=st.integers(), done=st.data()
)
def test_trimming_that_breaks_off_anywhere_leaves_one_run_up_to_the_newest(
    numbers: list[int], lsn: int, seed: int, done: st.DataObject
) -> None:
    files = [name(number) for number in numbers]
    random.Random(seed).shuffle(files)
    gone = removable(files, Horizon(TL1, Lsn(lsn)), MB)
    left = set(files) - set(gone[: done.draw(st.integers(0, len(gone)))])
    assert left == {file for file in files if file >= min(left, default="~")}
    assert left >= {name(number) for number in numbers if number >= lsn // MB}


@given(
    segments=st.lists(st.tuples(st.sampled_from((TL1, TL2, TL3)), st.integers(0, 12)), unique=True),
    number=st.integers(0, 13),
    timeline=st.sampled_from((TL1, TL2, TL3)),
    shift=st.sampled_from((4088, 4095, 8190)),
)
def test_the_upper_half_of_an_lsn_makes_no_difference(
    segments: list[tuple[TimelineId, int]], number: int, timeline: TimelineId, shift: int
) -> None:
    low = removable([name(each, of) for of, each in segments], Horizon(timeline, Lsn(number * MB)), MB)
    shifted = {name(each, of): name(each + shift, of) for of, each in segments}
    high = removable(list(shifted.values()), Horizon(timeline, Lsn((number + shift) * MB)), MB)
    assert high == [shifted[file] for file in low]


def test_the_horizon_is_the_least_of_all_that_is_needed() -> None:
    confirmed, delivered = mark(7 * MB), mark(9 * MB)
    assert horizon_of(view(None), keep_bytes=0, copied_lsn=None) is None
    assert horizon_of(view(delivered), keep_bytes=0, copied_lsn=None) == Horizon(TL1, Lsn(9 * MB))
    both = view(delivered, confirmed, bases=(2 * MB, 4 * MB, 6 * MB))
    for keep_bytes, copied_lsn, wanted in (
        (0, None, 7 * MB),
        (0, Lsn(8 * MB), 7 * MB),
        (0, Lsn(5 * MB), 5 * MB),
        (2 * MB, None, 4 * MB - 100),  # the base from which WAL from 5 MB on is decoded
        (2 * MB, Lsn(5 * MB), 2 * MB - 100),
        (6 * MB, None, MB),  # no base is that old
        (9 * MB, None, 0),
    ):
        assert horizon_of(both, keep_bytes=keep_bytes, copied_lsn=copied_lsn) == Horizon(TL1, Lsn(wanted))
    for read_lsn, wanted in ((3 * MB, 3 * MB), (8 * MB, 7 * MB)):  # a marker scan that lags, and one that does not
        assert horizon_of(both, keep_bytes=0, copied_lsn=None, read_lsn=Lsn(read_lsn)) == Horizon(TL1, Lsn(wanted))


def test_after_a_rewind_the_wal_of_its_restart_stays_whatever_is_confirmed_on_the_dead_branch() -> None:
    rewound = Watermark(Pointer(Position(TL2, Lsn(8 * MB), 0), Lsn(5 * MB)), Sequence(1))
    behind = view(rewound, mark(9 * MB))
    assert horizon_of(behind, keep_bytes=0, copied_lsn=None) == Horizon(TL1, Lsn(5 * MB))
    assert behind.horizon is not None
    assert behind.horizon.pointer.position == mark(9 * MB).pointer.position


def test_nothing_is_removed_while_a_registered_reader_has_confirmed_nothing_or_is_damaged() -> None:
    waiting = replace(view(mark(9 * MB)), readers={"lake": Reader(Sequence(0), Sequence(0), 0)})
    assert horizon_of(waiting, keep_bytes=0, copied_lsn=None) is None
    damaged = replace(view(mark(9 * MB), mark(7 * MB)), damaged_readers=frozenset({"lake"}))
    assert horizon_of(damaged, keep_bytes=0, copied_lsn=None) is None
