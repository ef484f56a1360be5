"""The times of commit and abort records, for a whole block of records: a search by time makes no object for each.

A record that is not in the ordinary form, and a time before 2000, is left to `xact.parse`. The module is compiled if a
compiler is available; its `.pxd` declares the types.
"""
# ruff: noqa: PLR0917 - columns of a block: a struct of them would be an object a call

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.model.commit_time import PG_EPOCH_US
from tidemark.wal import record
from tidemark.wal import rmgr as managers
from tidemark.wal.rmgr import xact
from tidemark.wal.versions import RECORD_HEADER_BYTES

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if not cython.compiled:
    from tidemark.wal.byte_readers import read_u32
else:
    from cython.cimports.tidemark.wal.byte_readers import read_u32  # type: ignore[no-redef] # the same one

if TYPE_CHECKING:
    from array import array

NOT_READ = -1  # in place of a time, which is counted from 1970 here and not before 2000

# Copies as C integers, which Python code does not see.
RM_XACT = managers.RM_XACT
OPCODE = xact.OPCODE_MASK
COMMIT, ABORT = xact.COMMIT, xact.ABORT
COMMIT_PREPARED, ABORT_PREPARED = xact.COMMIT_PREPARED, xact.ABORT_PREPARED
ID_MAIN_SHORT = record.ID_MAIN_SHORT
RECORD_HEADER = RECORD_HEADER_BYTES
TIME_AT = RECORD_HEADER + 2  # after the header of the main data
TIME_END = TIME_AT + 8
NO_ORDINARY_TIME = xact.NO_ORDINARY_TIME
POSTGRES_EPOCH_US = int(PG_EPOCH_US)
UNREAD = NOT_READ

Buffer = bytes | bytearray


def find_ends(
    linear: Buffer,
    rmgrs: array[int],
    infos: array[int],
    offsets: array[int],
    lengths: array[int],
    stop: int,
    indices: array[int],
    times_us: array[int],
) -> int:
    """Write index and time of each commit and abort among the first `stop` records; return how many there are."""
    found = 0
    at = 0
    with cython.nogil:
        while at < stop:
            opcode = infos[at] & OPCODE
            if rmgrs[at] == RM_XACT and opcode in (COMMIT, ABORT, COMMIT_PREPARED, ABORT_PREPARED):
                begin = offsets[at]
                length = lengths[at]
                time = UNREAD
                if length >= TIME_END and linear[begin + RECORD_HEADER] == ID_MAIN_SHORT:
                    main = linear[begin + RECORD_HEADER + 1]
                    low = read_u32(linear, begin + TIME_AT)
                    high = read_u32(linear, begin + TIME_AT + 4)
                    if main == length - TIME_AT and high < NO_ORDINARY_TIME:
                        time = (low | high << 32) + POSTGRES_EPOCH_US
                indices[found] = at
                times_us[found] = time
                found += 1
            at += 1
    return found
