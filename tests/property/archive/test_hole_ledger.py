"""The ledger beside a list; torn or foreign bytes are an empty ledger, never an error."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.io.hole_ledger import LEDGER_BYTES, SLOTS, HoleLedger

_REASONS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=100)
HEADER_BYTES = 56


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
