"""When a catalog base is due, by measured costs; and which bases are removed so that few and small ones remain."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.engine.base_schedule import (
    BASE_BYTES_MAX,
    BASES_MAX,
    DISTANCE_BYTES_MIN,
    ESTIMATED_S_PER_BASE_BYTE,
    EXPECTED_READERS,
    WAL_BYTES_PER_BASE_BYTE,
    BaseSchedule,
)
from tidemark.model.lsn import Lsn

MIB, GIB = 1 << 20, 1 << 30
DISTANCE_MAX = GIB
SMALL = 50_000  # bytes of a base of a few tables
S_PER_BYTE = 1e-8  # of decoding


@dataclass(frozen=True)
class Saved:
    lsn: Lsn
    byte_count: int = SMALL


def distances(*, write_s: float, s_per_byte: float, base_bytes: int = SMALL, rounds: int = 5) -> list[int]:
    """Return how far apart bases are written in a stream with these costs, to a mebibyte."""
    schedule = BaseSchedule([Saved(Lsn(GIB), base_bytes)], DISTANCE_MAX)
    lsn, decode_s, found = GIB, 0.0, [GIB]
    while len(found) <= rounds:
        lsn += MIB
        decode_s += MIB * s_per_byte
        if schedule.is_due(Lsn(lsn), decode_s):
            decode_s += write_s
            schedule.record_base(Saved(Lsn(lsn), base_bytes), write_s, decode_s)
            found.append(lsn)
    return [later - earlier for earlier, later in pairwise(found)]


def test_a_base_is_due_when_its_readers_would_decode_for_longer_than_writing_it_takes() -> None:
    write_s = 0.02
    expected = write_s / EXPECTED_READERS / S_PER_BYTE
    measured = distances(write_s=write_s, s_per_byte=S_PER_BYTE)[1:]
    assert all(expected <= distance < expected + 2 * MIB for distance in measured)


def test_expensive_bases_are_rarer_and_expensive_wal_has_more_of_them() -> None:
    usual = distances(write_s=0.02, s_per_byte=S_PER_BYTE)[-1]
    assert distances(write_s=0.06, s_per_byte=S_PER_BYTE)[-1] > 2 * usual
    assert distances(write_s=0.02, s_per_byte=3 * S_PER_BYTE)[-1] < usual / 2


def test_the_first_base_of_a_process_is_judged_by_the_size_of_the_last_one() -> None:
    base_bytes = 2 * MIB
    expected = base_bytes * ESTIMATED_S_PER_BASE_BYTE / EXPECTED_READERS / S_PER_BYTE
    (first,) = distances(write_s=9.0, s_per_byte=S_PER_BYTE, base_bytes=base_bytes, rounds=1)
    assert expected <= first < expected + 2 * MIB


@pytest.mark.parametrize(("write_s", "s_per_byte"), [(60.0, S_PER_BYTE), (0.001, 0.0)], ids=["dear", "empty WAL"])
def test_no_cost_puts_bases_farther_apart_than_the_bound(write_s: float, s_per_byte: float) -> None:
    assert set(distances(write_s=write_s, s_per_byte=s_per_byte)[1:]) == {DISTANCE_MAX}


def test_no_cost_puts_bases_nearer_than_a_segment_or_lets_them_fill_the_disk() -> None:
    assert set(distances(write_s=0.0, s_per_byte=1.0)[1:]) == {DISTANCE_BYTES_MIN}
    large = 4 * MIB
    assert set(distances(write_s=0.0, s_per_byte=1.0, base_bytes=large)[1:]) == {WAL_BYTES_PER_BASE_BYTE * large}


def test_a_stretch_before_the_start_of_the_process_counts_at_the_rate_measured_since() -> None:
    schedule = BaseSchedule([Saved(Lsn(GIB))], DISTANCE_MAX)
    started = GIB + 500 * MIB
    assert not schedule.is_due(Lsn(started), 1.0)
    assert not schedule.is_due(Lsn(started + DISTANCE_BYTES_MIN - 1), 1.2)
    assert schedule.is_due(Lsn(started + DISTANCE_BYTES_MIN), 1.2)


def test_after_a_fork_the_distance_counts_from_the_newest_base_that_is_left() -> None:
    schedule = BaseSchedule([Saved(Lsn(GIB)), Saved(Lsn(2 * GIB))], DISTANCE_MAX)
    assert not schedule.is_due(Lsn(2 * GIB + MIB), 0.0)
    schedule.restart([Saved(Lsn(GIB))])
    assert schedule.is_due(Lsn(2 * GIB + MIB), 0.0)


@settings(max_examples=8)
@given(st.lists(st.tuples(st.integers(16, 1500), st.integers(1, 40)), min_size=BASES_MAX, max_size=BASES_MAX + 40))
def test_surplus_bases_leave_few_and_small_ones_unless_readers_would_be_too_far_from_the_next(
    steps: list[tuple[int, int]],
) -> None:
    lsn, bases = 0, []
    for distance, size in steps:
        lsn += distance * MIB
        bases.append(Saved(Lsn(lsn), size * MIB // 16))
    surplus = BaseSchedule(bases, DISTANCE_MAX).surplus(bases)
    kept = [base for base in bases if base not in surplus]
    assert [kept[0], kept[-1]] == [bases[0], bases[-1]]
    written_apart = {base.lsn: base.lsn - before.lsn for before, base in pairwise(bases)}
    assert all(base.lsn - before.lsn <= max(DISTANCE_MAX, written_apart[base.lsn]) for before, base in pairwise(kept))
    is_small = len(kept) <= BASES_MAX and sum(base.byte_count for base in kept) <= BASE_BYTES_MAX
    assert is_small or all(after.lsn - before.lsn > DISTANCE_MAX for before, after in zip(kept, kept[2:], strict=False))


def test_bases_of_recent_wal_are_nearer_to_each_other_than_those_of_old_wal() -> None:
    schedule = BaseSchedule([], 1 << 44)
    kept: list[Saved] = []
    for number in range(1, 4 * BASES_MAX):
        kept.append(Saved(Lsn(number * 16 * MIB)))
        surplus = schedule.surplus(kept)
        kept = [base for base in kept if base not in surplus]
    gaps = [later.lsn - earlier.lsn for earlier, later in pairwise(kept)]
    assert len(kept) == BASES_MAX
    assert sum(gaps[:20]) > 5 * sum(gaps[-20:])


def test_a_restart_keeps_the_measured_cost_of_a_base_of_the_same_size() -> None:
    schedule = BaseSchedule([], DISTANCE_MAX)
    base, dear_s = Saved(Lsn(GIB)), 1e6
    schedule.record_base(base, dear_s, 0.0)
    schedule.restart([base])
    assert not schedule.is_due(Lsn(2 * GIB - 1), 1000.0)


def test_a_base_that_costs_nothing_is_due_after_a_segment_that_cost_nothing() -> None:
    schedule = BaseSchedule([], DISTANCE_MAX)
    assert not schedule.is_due(Lsn(DISTANCE_BYTES_MIN - 1), 0.0)
    assert schedule.is_due(Lsn(2 * DISTANCE_BYTES_MIN), 0.0)


def of_max_bytes(*lsns: int) -> list[Saved]:
    """Return bases at these places that have exactly the bytes that all bases may have."""
    return [Saved(Lsn(lsn), BASE_BYTES_MAX // len(lsns)) for lsn in lsns]


def test_bases_of_exactly_the_permitted_size_remain() -> None:
    bases = of_max_bytes(*(number * MIB for number in range(1, 9)))
    assert BaseSchedule(bases, DISTANCE_MAX).surplus(bases) == []


def test_the_base_is_removed_whose_gap_is_the_smallest_part_of_its_distance_from_the_end() -> None:
    bases = [*of_max_bytes(*(lsn * MIB for lsn in (1, 100, 101, 102, 300))), Saved(Lsn(301 * MIB), MIB)]
    assert BaseSchedule(bases, DISTANCE_MAX).surplus(bases) == [bases[2]]


def test_a_base_between_neighbours_as_far_apart_as_permitted_is_removed_and_no_other() -> None:
    bases = [*of_max_bytes(MIB, MIB + GIB // 2, MIB + GIB, 1 + MIB + 2 * GIB), Saved(Lsn(MIB + 4 * GIB), GIB)]
    assert BaseSchedule(bases, DISTANCE_MAX).surplus(bases) == [bases[1]]
