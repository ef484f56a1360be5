"""The ledger compared with a list; torn or foreign bytes are an empty ledger, never an error."""

import fcntl
import os
import struct
import time
import uuid
import zlib
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.io.archive import hole_ledger
from tidemark.io.archive.hole_ledger import (
    ATTEMPTS_APART_S,
    LEDGER_BYTES,
    ROUND_PAUSE_S,
    SLOTS,
    HoleLedger,
    boot_clock_ns,
)

_REASONS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=100)
HEADER_BYTES = 64
SLOTS_AT = 128
DEADLINE_S = 120
SECOND = 10**9
ROUND = (0, 1, 2)  # the server tries three times, and again a minute later


def fresh(folder: Path) -> Path:
    path = folder / "holes"
    HoleLedger.create(path, 0o600)
    return path


@given(reasons=st.lists(_REASONS, max_size=5))
def test_given_up_segments_are_reported_in_order(tmp_path_factory: pytest.TempPathFactory, reasons: list[str]) -> None:
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


def test_failure_is_counted_from_its_first_time_until_a_success_and_again_after_a_boot(tmp_path: Path) -> None:
    path = fresh(tmp_path)
    with HoleLedger.open(path, writable=True) as ledger:
        assert ledger.record_failure() == 0
        first, second = ledger.record_failure(), ledger.record_failure()
        assert 0 < first < second
        ledger.give_up("A", "full")
        assert ledger.record_failure() > second
        ledger.record_success()
        assert ledger.record_failure() == 0
        assert ledger.hole_count == 1


def test_time_without_attempts_is_not_counted(tmp_path: Path) -> None:
    path = fresh(tmp_path)
    with HoleLedger.open(path, writable=True) as ledger:
        ledger.record_failure()
        assert ledger.record_failure(apart_s=60) > 0
        assert ledger.record_failure(apart_s=0) == 0
        assert ledger.record_failure(apart_s=60) > 0


@pytest.mark.feature("I25")
def test_the_minute_between_two_rounds_of_the_server_is_not_counted(tmp_path: Path) -> None:
    """The disk is full for 5 s, free for 50, and full again: no attempt ran while it was free."""
    with HoleLedger.open(fresh(tmp_path), writable=True) as ledger:
        for at_s in (*ROUND, *(62 + second for second in ROUND)):
            failed_s = ledger.record_failure(
                began_ns=(1000 + at_s) * SECOND, now_ns=(1000 + at_s) * SECOND + SECOND // 2
            )
    assert failed_s == 2.5 + 2.5


@given(
    attempts=st.lists(st.tuples(st.integers(0, 2 * 10**10), st.integers(0, 3 * 10**10)), min_size=1, max_size=8),
)
def test_attempts_and_the_short_pauses_between_them_are_counted(
    tmp_path_factory: pytest.TempPathFactory, attempts: list[tuple[int, int]]
) -> None:
    at_ns, spans = SECOND, []
    for pause_ns, taken_ns in attempts:
        spans.append((at_ns + pause_ns, at_ns + pause_ns + taken_ns))
        at_ns += pause_ns + taken_ns
    pauses = [after[0] - before[1] for before, after in pairwise(spans)]
    expected_ns = sum(end - begin for begin, end in spans) + sum(p for p in pauses if p <= ROUND_PAUSE_S * SECOND)
    with HoleLedger.open(fresh(tmp_path_factory.mktemp("ledger")), writable=True) as ledger:
        counted = [ledger.record_failure(began_ns=begin, now_ns=end) for begin, end in spans]
    assert counted[-1] == expected_ns / 1e9
    assert counted == sorted(counted)


def test_a_ledger_of_version_1_is_read_and_continues(tmp_path: Path) -> None:
    path = fresh(tmp_path)
    with HoleLedger.open(path, writable=True) as ledger:
        ledger.give_up("A", "full")
        ledger.record_failure(began_ns=SECOND, now_ns=60 * SECOND)
    version_2 = path.read_bytes()
    rest = version_2[12:56]
    version_1 = b"TMHOLES1" + struct.pack("<I", zlib.crc32(rest)) + rest + bytes(72) + version_2[128:]
    path.write_bytes(version_1)
    with HoleLedger.open(path, writable=True) as ledger:
        assert [hole.name for hole in ledger.holes()] == ["A"]
        assert ledger.failing_s is not None
        assert ledger.record_failure(began_ns=61 * SECOND, now_ns=62 * SECOND) == 2, "counted from now on"
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


def boot(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imitate a reboot: the boot has another id."""
    name = folder / f"boot-{uuid.uuid4()}"
    name.write_text(f"{uuid.uuid4()}\n")
    monkeypatch.setattr(hole_ledger, "BOOT_ID", name)


def test_failing_begins_with_the_first_failure_and_ends_with_a_success(tmp_path: Path) -> None:
    began_ns = boot_clock_ns() - 50 * SECOND
    with HoleLedger.open(fresh(tmp_path), writable=True) as ledger:
        found = []
        for record in (ledger.record_success, partial(ledger.record_failure, began_ns=began_ns), ledger.record_success):
            record()
            found.append(ledger.failing_s)
    before, failing_s, after = found
    assert before is None
    assert failing_s is not None
    assert 50 <= failing_s <= 50 + DEADLINE_S
    assert after is None


def test_after_a_boot_failures_are_reported_since_the_boot_and_counted_from_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HoleLedger.open(fresh(tmp_path), writable=True) as ledger:
        now_ns = boot_clock_ns()
        ledger.record_failure(began_ns=now_ns - 2 * SECOND, now_ns=now_ns)
        boot(tmp_path, monkeypatch)
        since_boot_s = boot_clock_ns() / SECOND
        assert ledger.failing_s is not None
        assert since_boot_s <= ledger.failing_s <= since_boot_s + DEADLINE_S
        assert ledger.record_failure(began_ns=now_ns, now_ns=now_ns + SECOND) == 1


def test_creating_a_ledger_again_leaves_it_as_it_is(tmp_path: Path) -> None:
    path = fresh(tmp_path)
    with HoleLedger.open(path, writable=True) as ledger:
        ledger.give_up("A", "full")
    HoleLedger.create(path, 0o600)
    with HoleLedger.open(path, writable=False) as ledger:
        assert [hole.name for hole in ledger.holes()] == ["A"]


def test_a_torn_slot_or_a_truncated_file_contains_no_hole(tmp_path: Path) -> None:
    path = fresh(tmp_path)
    with HoleLedger.open(path, writable=True) as ledger:
        for name in "ABC":
            ledger.give_up(name, "full")
    packed = bytearray(path.read_bytes())
    slot_bytes = (LEDGER_BYTES - SLOTS_AT) // SLOTS
    packed[SLOTS_AT + slot_bytes + 20] ^= 1
    path.write_bytes(packed)
    with HoleLedger.open(path, writable=False) as ledger:
        assert [hole.name for hole in ledger.holes()] == ["A", "C"]
    path.write_bytes(packed[: SLOTS_AT + slot_bytes + 20])
    with HoleLedger.open(path, writable=False) as ledger:
        assert [hole.name for hole in ledger.holes()] == ["A"]
    path.write_bytes(packed[:50])
    with HoleLedger.open(path, writable=False) as ledger:
        assert ledger.hole_count == 0


def test_a_writer_is_alone_and_readers_share_the_ledger_and_write_nothing(tmp_path: Path) -> None:
    path = fresh(tmp_path)
    with path.open("rb") as other:

        def may_lock(how: int) -> bool:
            try:
                fcntl.flock(other, how | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            fcntl.flock(other, fcntl.LOCK_UN)
            return True

        with HoleLedger.open(path, writable=True):
            assert not may_lock(fcntl.LOCK_SH)
            with HoleLedger.peek(path) as ledger:
                assert ledger.hole_count == 0
        with HoleLedger.open(path, writable=False) as ledger:
            assert may_lock(fcntl.LOCK_SH)
            assert not may_lock(fcntl.LOCK_EX)
            with pytest.raises(OSError, match="Bad file descriptor"):
                ledger.give_up("A", "full")
        assert may_lock(fcntl.LOCK_EX)


def test_a_success_where_nothing_failed_writes_nothing(tmp_path: Path) -> None:
    path = fresh(tmp_path)
    with HoleLedger.open(path, writable=True) as ledger:
        os.utime(path, ns=(SECOND, SECOND))
        ledger.record_success()
        assert path.stat().st_mtime_ns == SECOND


def test_the_bounds_of_a_round_and_of_a_servers_stop_are_exact(tmp_path: Path) -> None:
    round_ns, apart_ns = int(ROUND_PAUSE_S * SECOND), int(ATTEMPTS_APART_S * SECOND)
    with HoleLedger.open(fresh(tmp_path), writable=True) as ledger:
        ledger.record_failure(began_ns=SECOND, now_ns=SECOND)
        at_ns = SECOND + round_ns
        assert ledger.record_failure(began_ns=at_ns, now_ns=at_ns) == ROUND_PAUSE_S
        at_ns += round_ns + 1
        assert ledger.record_failure(began_ns=at_ns, now_ns=at_ns) == ROUND_PAUSE_S
        at_ns += apart_ns - 1
        assert ledger.record_failure(began_ns=at_ns, now_ns=at_ns) == ROUND_PAUSE_S
        at_ns += apart_ns
        assert ledger.record_failure(began_ns=at_ns, now_ns=at_ns) == 0


def test_a_hole_has_the_given_time_or_now(tmp_path: Path) -> None:
    with HoleLedger.open(fresh(tmp_path), writable=True) as ledger:
        before_s = int(time.time())
        ledger.give_up("A", "full")
        ledger.give_up("B", "full", at_s=1234)
        now, reported = ledger.holes()
        assert before_s <= now.at_s <= time.time()
        assert reported.at_s == 1234


def test_a_torn_header_of_version_1_counts_as_an_empty_ledger(tmp_path: Path) -> None:
    path = fresh(tmp_path)
    rest = bytes(20) + struct.pack("<QQQ", 0, 3, 0)
    for crc, holes in ((zlib.crc32(rest), 3), (zlib.crc32(rest) ^ 1, 0)):
        path.write_bytes((b"TMHOLES1" + struct.pack("<I", crc) + rest).ljust(LEDGER_BYTES, b"\0"))
        with HoleLedger.open(path, writable=False) as ledger:
            assert ledger.hole_count == holes
