"""Rows as entries of fixed size beside an arena of their tuples, and the loops over them.

An entry says of a row what its tuples do not; the tuples themselves lie end to end in another buffer, the old one of a
row before its new one, in the order of the entries. So two buffers hold any number of rows, and a run of rows is copied
by two slices.

    0 u8 op, the letter           4 u32 index of the relation version     12 u32 length of the new tuple     24 u64 LSN
    1 u8 BeforeKind               8 u32 xid of the subtransaction         16 u32 length of the old tuple
    2 u16 replication origin

The module is compiled where a compiler is there (its `.pxd` has the types) and runs interpreted otherwise; both do the
same. NB: a byte is named before it is shifted, and no literal exceeds 31 bits: see the `.pxd`.
"""
# ruff: noqa: PLR0917 - columns and their bounds: a struct of them would be an object a call

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from array import array

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy

ENTRY = Struct("<BBHIIIIxxxxQ")
ENTRY_BYTES = 32
ORIGIN_AT = 2
RELATION_AT = 4
XID_AT = 8
NEW_AT = 12
OLD_AT = 16
LSN_AT = 24
ABSENT = 0xFFFFFFFF  # length of a tuple that is not there

# The same as C integers, which Python does not see: in words of four bytes, of which the first has op, kind and origin.
STEP = ENTRY_BYTES // 4
TO_RELATION = RELATION_AT // 4
TO_NEW = NEW_AT // 4
TO_OLD = OLD_AT // 4
TO_LSN = LSN_AT // 4
NO_TUPLE = (1 << 32) - 1
LOW_BITS = (1 << 32) - 1
BYTE = 0xFF
MISFIT = -1  # also an offset or a length that is none

Buffer = bytes | bytearray


def tuple_bytes(entries: Buffer, start: int, stop: int) -> int:
    """Return how many bytes the tuples of entries `start` to `stop` take together."""
    words = memoryview(entries).cast("I")
    total = 0
    with cython.nogil:
        for row in range(start, stop):
            length = words[row * STEP + TO_NEW]
            if length != NO_TUPLE:
                total += length
            length = words[row * STEP + TO_OLD]
            if length != NO_TUPLE:
                total += length
    return total


def rows_within(entries: Buffer, start: int, stop: int, room: int) -> int:
    """Return how many entries from `start` on fit, the one that passes `room` bytes of tuples included."""
    words = memoryview(entries).cast("I")
    row = start
    with cython.nogil:
        while row < stop and room > 0:
            length = words[row * STEP + TO_NEW]
            if length != NO_TUPLE:
                room -= length
            length = words[row * STEP + TO_OLD]
            if length != NO_TUPLE:
                room -= length
            row += 1
    return row - start


def tally(entries: Buffer, rows: array[int], tuples: array[int]) -> int:
    """Add to `rows` and `tuples` how many entries and bytes of tuples each relation version has; return the entries."""
    words = memoryview(entries).cast("I")
    count = len(words) // STEP
    with cython.nogil:
        for row in range(count):
            relation = words[row * STEP + TO_RELATION]
            rows[relation] += 1
            length = words[row * STEP + TO_NEW]
            if length != NO_TUPLE:
                tuples[relation] += length
            length = words[row * STEP + TO_OLD]
            if length != NO_TUPLE:
                tuples[relation] += length
    return count


def arrange(
    entries: Buffer,
    tuples: Buffer,
    run_rows: array[int],
    run_ordinals: array[int],
    next_row: array[int],
    next_byte: array[int],
    base_byte: array[int],
    data: bytearray,
    op: bytearray,
    before_kind: bytearray,
    origin: array[int],
    lsn: array[int],
    run_of: array[int],
    ordinal: array[int],
    new_at: array[int],
    new_length: array[int],
    old_at: array[int],
    old_length: array[int],
) -> int:
    """Sort entries and tuples by relation version, the order inside each kept, into columns; return how many moved.

    `run_rows` are the entries up to each run's end, `run_ordinals` the ordinals of its first. `next_row` and
    `next_byte` say per version where the next of its rows goes in the columns and in `data`, negative for a version
    that is left out; they are moved on. Offsets of tuples count from the version's `base_byte`. MISFIT: the tuples end
    too early.
    """
    words = memoryview(entries).cast("I")
    count = len(words) // STEP
    at = 0
    run = 0
    moved = 0
    first = 0
    with cython.nogil:
        for row in range(count):
            while row >= run_rows[run]:
                first = run_rows[run]
                run += 1
            entry = row * STEP
            relation = words[entry + TO_RELATION]
            new = words[entry + TO_NEW]
            old = words[entry + TO_OLD]
            new_size = 0 if new == NO_TUPLE else new
            old_size = 0 if old == NO_TUPLE else old
            size = new_size + old_size
            to = next_row[relation]
            if to >= 0:
                place = next_byte[relation]
                if at + size > len(tuples) or place + size > len(data):
                    return MISFIT
                if cython.compiled:
                    if size > 0:
                        memcpy(cython.address(data[place]), cython.address(tuples[at]), size)
                else:
                    data[place : place + size] = tuples[at : at + size]
                low = words[entry]
                op[to] = low & BYTE
                before_kind[to] = low >> 8 & BYTE
                origin[to] = low >> 16
                low = words[entry + TO_LSN]
                high = words[entry + TO_LSN + 1]
                lsn[to] = low | high << 32
                run_of[to] = run
                ordinal[to] = run_ordinals[run] + row - first
                new_at[to] = new_length[to] = old_at[to] = old_length[to] = MISFIT
                place -= base_byte[relation]
                if old != NO_TUPLE:
                    old_at[to] = place
                    old_length[to] = old
                if new != NO_TUPLE:
                    new_at[to] = place + old_size
                    new_length[to] = new
                next_byte[relation] += size
                next_row[relation] = to + 1
                moved += 1
            at += size
    return moved


def spread(run_of: array[int], start: int, stop: int, values: array[int], out: array[int]) -> int:
    """Give each row from `start` to `stop` the value of its run; return how many there are."""
    with cython.nogil:
        for row in range(start, stop):
            out[row - start] = values[run_of[row]]
    return stop - start


def shift(values: array[int], start: int, stop: int, by: int, out: array[int]) -> int:
    """Give out the values from `start` to `stop`, `by` larger; return how many there are."""
    with cython.nogil:
        for at in range(start, stop):
            out[at - start] = values[at] + by
    return stop - start


def narrow(values: array[int], start: int, stop: int, out: array[int]) -> int:
    """Give out the low 32 bits of the values from `start` to `stop`; return how many there are."""
    with cython.nogil:
        for at in range(start, stop):
            out[at - start] = values[at] & LOW_BITS
    return stop - start
