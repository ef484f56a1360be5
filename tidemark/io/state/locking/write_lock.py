"""The holder of LMDB's write lock, read from the lock itself.

The heartbeat file's WRITER slot is not enough: a process can stop after it acquired the lock and before it filled the
slot, or after it emptied the slot and before the commit released the lock. LMDB's lock is a robust futex in the lock
file, and such a futex has the thread id of its holder, so that the kernel can free it when the thread dies:

    lock file  = magic (u32), format (u32), readers' mutex, ..., padding to 64 bytes; then the write mutex
    mutex      = glibc's pthread_mutex_t; its first word is the futex: 30 bits thread id, 0 for no holder, and two flags

(mdb.c of LMDB 0.9, MDB_txninfo; robust_list(7)). On a machine or C library that is not in the table nothing is read.
"""

import os
import platform
import struct
from pathlib import Path
from typing import Self

_HEAD = struct.Struct("<II")
_KNOWN_HEAD = (0xBEEFC0DE, 0x10001)  # MDB_MAGIC; MDB_LOCK_FORMAT: version 1, readers identified by pid
_WORD = struct.Struct("<I")
_THREAD_ID_MASK = 0x3FFF_FFFF  # FUTEX_TID_MASK of linux/futex.h
_WRITE_MUTEX_AT = {
    "x86_64": 64,  # a pthread_mutex_t has 40 bytes: the part before it fits one cache line
    "aarch64": 128,  # 48 bytes: two
}


class WriteLock:
    """The lock file of an environment that this process has open."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._at = _WRITE_MUTEX_AT.get(os.uname().machine) if platform.libc_ver()[0] == "glibc" else None

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the file, after LMDB has.

        NB: close it after LMDB: closing any descriptor of the file drops all POSIX locks of this process on it, and the
        next opener of the environment would assume that it is the first and initialise all locks.
        """
        return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    @property
    def is_known(self) -> bool:
        """Return whether the file has a known layout."""
        if self._at is None:
            return False
        head = os.pread(self._descriptor, _HEAD.size, 0)
        return len(head) == _HEAD.size and _HEAD.unpack(head) == _KNOWN_HEAD

    def holder(self) -> int | None:
        """Return the id of the thread that holds the lock, None if it is free."""
        assert self._at is not None, "the layout is known"
        word = os.pread(self._descriptor, _WORD.size, self._at)
        return (_WORD.unpack(word)[0] & _THREAD_ID_MASK or None) if len(word) == _WORD.size else None

    def is_open_in(self, pid: int) -> bool:
        """Return whether a process visibly has the file open."""
        own = os.fstat(self._descriptor)
        try:
            for link in Path(f"/proc/{pid}/fd").iterdir():
                # The name first: a stat through a link to a hanging file system would hang, too.
                if link.readlink().name != "lock.mdb":
                    continue
                seen = link.stat()
                if (seen.st_dev, seen.st_ino) == (own.st_dev, own.st_ino):
                    return True
        except OSError:  # it ended meanwhile, or is another user's
            return False
        return False

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
