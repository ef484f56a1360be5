"""The ledger beside a list; torn or foreign bytes are an empty ledger, never an error."""

import struct
import zlib
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.io.hole_ledger import LEDGER_BYTES, ROUND_PAUSE_S, SLOTS, HoleLedger

_REASONS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=100)
HEADER_BYTES = 64
SECOND = 10**9
ROUND = (0, 1, 2)  # the server tries three times, and then again a minute later


def fresh(folder: Path) -> Path:
    path = folder / "holes"
    HoleLedger.create(path, 0o600)
    return path


@given(reasons=st.lists(_REASONS, max_size=5))
def test_what_was_given_up_is_told_in_order(tmp_path_factory: pytest.TempPathFactory, reasons: list[str]) -> None:
    path = fresh(tmp_path_factory.mktemp("ledger"))
    for number, reason in enumerate(reasons):
        with HoleLedger.open(path, writable=True) as ledger:
            ledger.give_up(f"{number:024X}", reason)
    with HoleLedger.open(path, writable=False) as ledger:
        assert [hole.name for hole in ledger.holes()] == [f"{number:024X}" for number in range(len(reasons))]
        assert all(reason.startswith(hole.reason) for hole, reason in zip(ledger.holes(), reasons, strict=True))
        assert ledger.hole_count == len(reasons)
    assert path.stat().st_size == LEDGER_BYTES


def test_the_latest_holes_are_kept_and_the_file_does_not_grow(tmp_path: Path) -> None:
    path = fresh(tmp_path)
    with HoleLedger.open(path, writable=True) as ledger:
        for number in range(SLOTS + 7):
            ledger.give_up(f"{number:024X}", "full")
        assert [hole.name for hole in ledger.holes()] == [f"{number:024X}" for number in range(7, SLOTS + 7)]
    assert path.stat().st_size == LEDGER_BYTES


def test_failure_is_counted_from_its_first_time_until_a_success_and_anew_after_a_boot(tmp_path: Path) -> None:
    path = fresh(tmp_path)
    with HoleLedger.open(path, writable=True) as ledger:
        assert ledger.note_failure() == 0
        first, second = ledger.note_failure(), ledger.note_failure()
        assert 0 < first < second
        ledger.give_up("A", "full")
        assert ledger.note_failure() > second
        ledger.note_success()
        assert ledger.note_failure() == 0
        assert ledger.hole_count == 1


def test_time_in_which_nobody_tried_is_not_counted(tmp_path: Path) -> None:
    path = fresh(tmp_path)
    with HoleLedger.open(path, writable=True) as ledger:
        ledger.note_failure()
        assert ledger.note_failure(apart_s=60) > 0
        assert ledger.note_failure(apart_s=0) == 0
        assert ledger.note_failure(apart_s=60) > 0


@pytest.mark.feature("I25")
def test_the_minute_between_two_rounds_of_the_server_is_not_counted(tmp_path: Path) -> None:
    """The disk is full for 5 s, free for 50, and full again: nobody tried while it was free."""
    with HoleLedger.open(fresh(tmp_path), writable=True) as ledger:
        for at_s in (*ROUND, *(62 + second for second in ROUND)):
            failed_s = ledger.note_failure(began_ns=(1000 + at_s) * SECOND, now_ns=(1000 + at_s) * SECOND + SECOND // 2)
    assert failed_s == 2.5 + 2.5


@given(
    attempts=st.lists(st.tuples(st.integers(0, 2 * 10**10), st.integers(0, 3 * 10**10)), min_size=1, max_size=8),
)
def test_what_is_counted_are_the_attempts_and_the_short_pauses_between_them(
    tmp_path_factory: pytest.TempPathFactory, attempts: list[tuple[int, int]]
) -> None:
    at_ns, spans = SECOND, []
    for pause_ns, taken_ns in attempts:
        spans.append((at_ns + pause_ns, at_ns + pause_ns + taken_ns))
        at_ns += pause_ns + taken_ns
    pauses = [after[0] - before[1] for before, after in pairwise(spans)]
    expected_ns = sum(end - begin for begin, end in spans) + sum(p for p in pauses if p <= ROUND_PAUSE_S * SECOND)
    with HoleLedger.open(fresh(tmp_path_factory.mktemp("ledger")), writable=True) as ledger:
        counted = [ledger.note_failure(began_ns=begin, now_ns=end) for begin, end in spans]
    assert counted[-1] == expected_ns / 1e9
    assert counted == sorted(counted)


def test_a_ledger_of_version_1_is_read_and_goes_on(tmp_path: Path) -> None:
    path = fresh(tmp_path)
    with HoleLedger.open(path, writable=True) as ledger:
        ledger.give_up("A", "full")
        ledger.note_failure(began_ns=SECOND, now_ns=60 * SECOND)
    version_2 = path.read_bytes()
    rest = version_2[12:56]
    version_1 = b"TMHOLES1" + struct.pack("<I", zlib.crc32(rest)) + rest + bytes(72) + version_2[128:]
    path.write_bytes(version_1)
    with HoleLedger.open(path, writable=True) as ledger:
        assert [hole.name for hole in ledger.holes()] == ["A"]
        assert ledger.failing_s is not None
        assert ledger.note_failure(began_ns=61 * SECOND, now_ns=62 * SECOND) == 2, "counted from now on"
        ledger.give_up("B", "full")
        assert [hole.name for hole in ledger.holes()] == ["A", "B"]


@given(where=st.integers(0, 127), byte=st.integers(1, 255))
def test_a_torn_header_counts_as_an_empty_ledger(
    tmp_path_factory: pytest.TempPathFactory, where: int, byte: int
) -> None:
    path = fresh(tmp_path_factory.mktemp("ledger"))
    with HoleLedger.open(path, writable=True) as ledger:
        ledger.give_up("A", "full")
    packed = bytearray(path.read_bytes())
    packed[where] ^= byte
    path.write_bytes(packed)
    with HoleLedger.open(path, writable=True) as ledger:
        assert ledger.hole_count in ((0,) if where < HEADER_BYTES else (1,))
        ledger.give_up("B", "full")
        assert ledger.holes()[-1].name == "B"
