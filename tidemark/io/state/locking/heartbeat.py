"""Heartbeats in a small mmap file beside LMDB: of each process, and of the one inside a write transaction.

    file  = magic (4 bytes), version, padding to one slot; then one slot for each role
    slot  = counter (u32, odd while it is written), pid (u32), start ticks (u64), boot clock in ns (u64), boot id (16)

A slot has one writer: its role's process, or, for WRITER, the holder of LMDB's write lock. LMDB itself cannot store
heartbeats: its writer may be the process that hangs.
"""

import errno
import fcntl
import mmap
import os
import struct
import uuid
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Self

from tidemark.io.host.clock import NS_PER_S, boot_id, boot_ns, own_start_ticks, process_start_ticks
from tidemark.io.host.disk import writing
from tidemark.model.errors import StateError

_MAGIC = b"TMHB"
_VERSION = 1
SLOT_BYTES = 64
_SLOT = struct.Struct("<IIQQ16s")
_COUNTER = struct.Struct("<I")
WATCHDOG_S_DEFAULT = 15.0  # an older heartbeat counts as the last one
WATCHDOG_S_MIN = 3.0  # two thirds of it are allowed to a write transaction: two syncs of a full group, on a busy disk
START_S_MAX = 60.0  # loading the catalog history of a hundred thousand tables
STOP_S_MAX = 60.0  # the current batch, the threads, the journal
_READ_TRIES_MAX = 100  # a writer is inside a slot for under a microsecond


class Slot(IntEnum):
    """The owner of a slot; the numbers are positions in the file and never change."""

    WRITER = 1
    SIDECAR = 2
    ARCHIVER = 3


_FILE_BYTES = SLOT_BYTES * (max(Slot) + 1)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The contents of a slot: a process, and the time of its heartbeat, which is in the future during a long step."""

    pid: int
    start_ticks: int
    boot_ns: int
    boot_id: str


class HeartbeatFile:
    """The mapped file."""

    def __init__(self, descriptor: int) -> None:
        is_writable = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
        access = mmap.ACCESS_WRITE if is_writable else mmap.ACCESS_READ
        self._map = mmap.mmap(descriptor, _FILE_BYTES, access=access)
        self._own_pid = os.getpid()
        self._own_start_ticks = own_start_ticks()
        self._own_boot = uuid.UUID(boot_id()).bytes

    @classmethod
    def open(cls, path: Path, file_mode: int = 0o600) -> Self:
        """Map the file at `path`, created if it is missing; on a read-only file system it is mapped for reading."""
        with writing(path):
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, file_mode)
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size == 0:
                with writing(path):  # blocks first: on a full disk the file stays empty and is initialised later
                    os.posix_fallocate(descriptor, 0, _FILE_BYTES)
                    os.pwrite(descriptor, _MAGIC + bytes([_VERSION]), 0)
            head = os.pread(descriptor, len(_MAGIC) + 1, 0)
            if os.fstat(descriptor).st_size != _FILE_BYTES or head != _MAGIC + bytes([_VERSION]):
                raise StateError(f"not a heartbeat file: {path}", hint="remove it while no process of Tidemark runs")
            return cls(descriptor)
        finally:
            os.close(descriptor)

    def beat(self, slot: Slot, *, ahead_s: float = 0.0) -> None:
        """Write a heartbeat of this process, or, in WRITER, the start of its write transaction.

        `ahead_s`: the next heartbeat may be later by this time, because a long step of known bound begins.
        """
        until_ns = boot_ns() + int(ahead_s * NS_PER_S)
        self._write(slot, self._own_pid, self._own_start_ticks, until_ns, self._own_boot)

    def clear(self, slot: Slot) -> None:
        """Empty a slot."""
        self._write(slot, 0, 0, 0, bytes(16))

    def read(self, slot: Slot) -> Heartbeat | None:
        """Return the contents of a slot, None if it is empty."""
        at = slot * SLOT_BYTES
        for _ in range(_READ_TRIES_MAX):
            before = _COUNTER.unpack_from(self._map, at)[0]
            _, pid, start_ticks, beat_ns, boot = _SLOT.unpack_from(self._map, at)
            if before % 2 == 0 and _COUNTER.unpack_from(self._map, at)[0] == before:
                return Heartbeat(pid, start_ticks, beat_ns, str(uuid.UUID(bytes=boot))) if pid else None
        # The writer died between the two counts: the contents are not reliable.
        return None

    def age_s(self, slot: Slot) -> float | None:
        """Return the age of a slot's heartbeat; None if its process is not alive."""
        beat = self.read(slot)
        if beat is None or beat.boot_id != boot_id() or process_start_ticks(beat.pid) != beat.start_ticks:
            return None
        return max(0, boot_ns() - beat.boot_ns) / NS_PER_S

    def count(self, slot: Slot) -> int:
        """Return a number that changes with every change of the slot."""
        return int(_COUNTER.unpack_from(self._map, slot * SLOT_BYTES)[0])

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()

    def _write(self, slot: Slot, pid: int, start_ticks: int, beat_ns: int, boot: bytes) -> None:
        at = slot * SLOT_BYTES
        odd = (_COUNTER.unpack_from(self._map, at)[0] | 1) & 0xFFFFFFFF
        _COUNTER.pack_into(self._map, at, odd)
        _SLOT.pack_into(self._map, at, odd, pid, start_ticks, beat_ns, boot)
        _COUNTER.pack_into(self._map, at, (odd + 1) & 0xFFFFFFFF)
