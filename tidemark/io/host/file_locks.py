"""Open file description locks on files that name their holder: fcntl(2), F_OFD_SETLK.

Such a lock ends with the last descriptor of its file, so also with the process; other locks of a process end with any.
"""

import fcntl
import os
import struct

HOLDER_BYTES_MAX = 4096
_FLOCK = struct.Struct("hhqqi0q")  # struct flock: l_type, l_whence, l_start, l_len (0: all), l_pid (0)
_ENTIRE_FILE = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def lock_file(descriptor: int) -> None:
    """Lock the file; raise `BlockingIOError` if another process has it, another `OSError` if locks are unsupported."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _ENTIRE_FILE)


def is_file_locked(descriptor: int) -> bool:
    """Return whether another open file description has the lock."""
    return bool(_FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _ENTIRE_FILE))[0] != fcntl.F_UNLCK)


def write_holder(descriptor: int, holder: bytes) -> None:
    """Write who holds the lock."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, holder, 0)


def read_holder(descriptor: int) -> bytes:
    """Return who holds or held the lock; empty for a moment between locking and writing."""
    return os.pread(descriptor, HOLDER_BYTES_MAX, 0)
