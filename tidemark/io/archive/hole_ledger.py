"""The ledger beside a spool: since when archiving fails, and which files were given up (I25, I28).

Standard library only: `cdcctl-archive` writes it. `create` allocates the whole file once, and later writes are in
place, so they need no space on a full disk. A torn header or slot counts as empty: the reader of the spool finds the
missing file anyway; the ledger adds the time and the reason.

Failure is counted within attempts: the time of each failed attempt, and the second between the attempts of one round.
The server pauses for up to a minute between rounds; whether a copy would have failed meanwhile is unknown.

Format: version 2, `TMHOLES2`. Version 1 had no counted time: it is read as zero; the next write makes it version 2.
"""

import fcntl
import os
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

_MAGIC_1, _MAGIC = b"TMHOLES1", b"TMHOLES2"
_HEADER_1 = struct.Struct("<8sI4x16sQQQ")
_HEADER = struct.Struct("<8sI4x16sQQQQ")  # magic, CRC-32 of the rest, then `_Header`
_CRC_AT, _REST_AT = 8, 12
_SLOT = struct.Struct("<I4xQ40s72s")  # CRC-32 of the rest, wall clock in s, name, reason
_SLOT_REST_AT = 4
_HEADER_BYTES = 128
SLOTS = 1023
LEDGER_BYTES = _HEADER_BYTES + SLOTS * _SLOT.size
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
ATTEMPTS_APART_S = 300.0  # a running server tries again each minute: after a longer interval it was stopped in between
ROUND_PAUSE_S = 5.0  # pgarch.c waits 1 s between the three attempts of a round, and up to 60 s between rounds


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A file that archiving gave up, so that the node could continue."""

    name: str
    reason: str
    at_s: int  # wall clock


@dataclass(frozen=True, slots=True)
class _Header:
    """In the order of the file; times are of the boot clock, in ns; 0: none."""

    boot_id: bytes
    failing_since: int
    hole_count: int
    latest_failure: int
    failed_ns: int  # counted within attempts, since `failing_since`; not in version 1


_EMPTY = _Header(bytes(16), 0, 0, 0, 0)


class HoleLedger:
    """An open, locked ledger; the latest `SLOTS` holes are kept."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def create(cls, path: Path, mode: int) -> None:
        """Allocate an empty ledger; leave an existing one unchanged."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        except FileExistsError:
            return
        try:
            os.posix_fallocate(descriptor, 0, LEDGER_BYTES)
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)  # all zeros: an invalid header, which counts as empty
        finally:
            os.close(descriptor)

    @classmethod
    @contextmanager
    def open(cls, path: Path, *, writable: bool) -> Iterator[Self]:
        """Open the ledger and lock it; wait for another holder of the lock."""
        descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if writable else fcntl.LOCK_SH)
            yield cls(descriptor)
        finally:
            os.close(descriptor)

    @classmethod
    @contextmanager
    def peek(cls, path: Path) -> Iterator[Self]:
        """Open the ledger for reading, even if it is locked: a hanging copy must not block readers."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            yield cls(descriptor)
        finally:
            os.close(descriptor)

    @property
    def failing_s(self) -> float | None:
        """For how many seconds of this boot archiving has failed; None: the latest copy succeeded."""
        header = self._header()
        if not header.failing_since:
            return None
        began_ns = header.failing_since if header.boot_id == _this_boot() else 0
        return (boot_clock_ns() - began_ns) / 1e9

    @property
    def hole_count(self) -> int:
        """How many files were given up since the ledger was created."""
        return self._header().hole_count

    def record_success(self) -> None:
        """Clear the start of the failure."""
        header = self._header()
        if header.failing_since:
            self._write_header(replace(header, failing_since=0))

    def record_failure(
        self, *, began_ns: int | None = None, now_ns: int | None = None, apart_s: float = ATTEMPTS_APART_S
    ) -> float:
        """Count this attempt, begun at `began_ns`; return for how many seconds archiving has failed within attempts.

        Counting restarts after a boot, and `apart_s` or more after the previous failure: no attempt was made
        meanwhile, so the server was not running.
        """
        header = self._header()
        now_ns, this_boot = boot_clock_ns() if now_ns is None else now_ns, _this_boot()
        began_ns = now_ns if began_ns is None else min(began_ns, now_ns)
        goes_on = header.failing_since and header.boot_id == this_boot
        if goes_on and now_ns - header.latest_failure < apart_s * 1e9:
            if began_ns - header.latest_failure <= ROUND_PAUSE_S * 1e9:
                began_ns = header.latest_failure
        else:
            header = replace(header, boot_id=this_boot, failing_since=began_ns, failed_ns=0)
        header = replace(header, latest_failure=now_ns, failed_ns=header.failed_ns + now_ns - began_ns)
        self._write_header(header)
        return header.failed_ns / 1e9

    def give_up(self, name: str, reason: str, *, at_s: int | None = None) -> None:
        """Record that `name` is not archived, now or at `at_s`."""
        header = self._header()
        rest = _SLOT.pack(0, int(time.time()) if at_s is None else at_s, name.encode()[:40], _cut(reason, 72))[
            _SLOT_REST_AT:
        ]
        slot = zlib.crc32(rest).to_bytes(_SLOT_REST_AT, "little") + rest
        os.pwrite(self._descriptor, slot, _HEADER_BYTES + header.hole_count % SLOTS * _SLOT.size)
        self._write_header(replace(header, hole_count=header.hole_count + 1))

    def holes(self) -> list[GivenUp]:
        """Return the given-up files, oldest first."""
        count = self.hole_count
        found = []
        for number in range(max(0, count - SLOTS), count):
            slot = os.pread(self._descriptor, _SLOT.size, _HEADER_BYTES + number % SLOTS * _SLOT.size)
            if len(slot) == _SLOT.size and zlib.crc32(slot[_SLOT_REST_AT:]) == int.from_bytes(slot[:4], "little"):
                _, at_s, name, reason = _SLOT.unpack(slot)
                found.append(GivenUp(name.rstrip(b"\0").decode(), reason.rstrip(b"\0").decode(), at_s))
        return found

    def _header(self) -> _Header:
        packed = os.pread(self._descriptor, _HEADER.size, 0)
        if packed.startswith(_MAGIC_1) and _is_complete(packed[: _HEADER_1.size]):
            _, _, boot_id, failing_since, hole_count, latest_failure = _HEADER_1.unpack_from(packed)
            return _Header(boot_id, failing_since, hole_count, latest_failure, 0)
        if packed.startswith(_MAGIC) and len(packed) == _HEADER.size and _is_complete(packed):
            return _Header(*_HEADER.unpack(packed)[2:])
        return _EMPTY

    def _write_header(self, header: _Header) -> None:
        fields = (header.boot_id, header.failing_since, header.hole_count, header.latest_failure, header.failed_ns)
        rest = _HEADER.pack(_MAGIC, 0, *fields)[_REST_AT:]
        os.pwrite(self._descriptor, _MAGIC + zlib.crc32(rest).to_bytes(4, "little") + rest, 0)
        os.fdatasync(self._descriptor)


def _is_complete(header: bytes) -> bool:
    return int.from_bytes(header[_CRC_AT:_REST_AT], "little") == zlib.crc32(header[_REST_AT:])


def boot_clock_ns() -> int:
    """Return the clock by which failures are counted."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _this_boot() -> bytes:
    return bytes.fromhex(BOOT_ID.read_text().strip().replace("-", ""))


def _cut(text: str, size: int) -> bytes:
    return text.encode()[:size].decode(errors="ignore").encode()
