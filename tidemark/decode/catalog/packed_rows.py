"""Rows of a catalog by tid: those of a base in one run of bytes, and changed rows in a dictionary.

A hundred thousand columns are a hundred thousand rows of pg_attribute. As an object, each would take some hundred bytes
besides its contents; in one run it takes sixteen, and loading a base is a matter of slicing. Rows from WAL are stored
in a dictionary beside the run, until the next base is written, which packs all rows again.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, MutableMapping
from itertools import accumulate, chain
from operator import sub
from typing import NewType

from tidemark.decode.catalog.run_index import are_ascending, chain_rows, rows_with, sum_up

SLOTS_MIN = 64  # of an index; a power of two
ROWS_A_SLOT = 2  # at most: most keys have several rows, and the rows of a key share one slot

Tid = NewType("Tid", int)
"""A location in a heap: block number in the high bits, line pointer in the low 16."""


class PackedRows(MutableMapping[Tid, bytes]):
    """Rows by tid."""

    __slots__ = ("_changed", "_ends", "_gone", "_run", "_tids")

    def __init__(self, tids: "array[int] | None" = None, lengths: "array[int] | None" = None, run: bytes = b"") -> None:
        """Begin with consecutive rows in `run`, with these lengths and tids."""
        self._changed: dict[Tid, bytes] = {}
        self._gone: set[Tid] = set()  # of the run
        self._tids = tids if tids is not None else array("Q")
        self._ends = array("Q", bytes(8 * len(self._tids)))
        self._run = run
        if lengths is not None:
            sum_up(lengths, self._ends)
        if not are_ascending(self._tids):  # written by a version that did not sort them
            self._changed.update(self.pairs())
            self._tids, self._ends, self._run = array("Q"), array("Q"), b""

    def pack(self) -> "tuple[array[int], array[int], bytes]":
        """Pack all rows into one run; return their tids in order, their lengths, and the run."""
        if self._changed or self._gone:
            rows = sorted(self.pairs())
            self._tids = array("Q", (tid for tid, _ in rows))
            self._ends = array("Q", accumulate(len(packed) for _, packed in rows))
            self._run = b"".join(packed for _, packed in rows)
            self._changed.clear()
            self._gone.clear()
        return self._tids, array("H", map(sub, self._ends, chain((0,), self._ends))), self._run

    def __getitem__(self, tid: Tid) -> bytes:
        packed = self.find(tid)
        if packed is None:
            raise KeyError(tid)
        return packed

    def __setitem__(self, tid: Tid, packed: bytes) -> None:
        self._changed[tid] = packed

    def __delitem__(self, tid: Tid) -> None:
        if self.take(tid) is None:
            raise KeyError(tid)

    def __contains__(self, tid: object) -> bool:
        return self.find(tid) is not None  # type: ignore[arg-type]

    def find(self, tid: Tid) -> bytes | None:
        """Return the row at `tid`; None if there is none."""
        packed = self._changed.get(tid)
        if packed is None and self._is_in_run(tid) and tid not in self._gone:
            return self._of_run(bisect_left(self._tids, tid))
        return packed

    def take(self, tid: Tid) -> bytes | None:
        """Remove the row at `tid` and return it; None if there is none."""
        packed = self._changed.pop(tid, None)
        if self._is_in_run(tid) and tid not in self._gone:
            self._gone.add(tid)
            return packed if packed is not None else self._of_run(bisect_left(self._tids, tid))
        return packed

    def __iter__(self) -> Iterator[Tid]:
        return (tid for tid, _ in self.pairs())

    def pairs(self) -> Iterator[tuple[Tid, bytes]]:
        """Yield all rows, those of the run first; faster than `items`."""
        changed, gone, run = self._changed, self._gone, self._run
        begin = 0
        for tid, end in zip(self._tids, self._ends, strict=True):
            if tid not in changed and tid not in gone:
                yield Tid(tid), run[begin:end]
            begin = end
        yield from changed.items()

    def index(self, offset: int) -> "RunIndex":
        """Return an index of the run by the column at `offset`, valid until the next `pack`."""
        return RunIndex(self._run, self._ends, offset)

    def indexes(self, index: "RunIndex") -> bool:
        """Return whether `index` is still valid."""
        return index.ends is self._ends

    def of_run(self, index: "RunIndex", key: int) -> list[tuple[Tid, bytes]]:
        """Return the rows of the run whose column is `key`, without those that are gone or have changed."""
        changed, gone, tids = self._changed, self._gone, self._tids
        found = [(Tid(tids[number]), self._of_run(number)) for number in index.rows(self._run, key)]
        if changed or gone:
            return [(tid, packed) for tid, packed in found if tid not in changed and tid not in gone]
        return found

    def changed(self) -> Iterator[tuple[Tid, bytes]]:
        """Yield the rows that are not in the run, or have changed since."""
        yield from self._changed.items()

    def __len__(self) -> int:
        covered = sum(1 for tid in self._changed if tid not in self._gone and self._is_in_run(tid))
        return len(self._tids) - len(self._gone) + len(self._changed) - covered

    def _is_in_run(self, tid: Tid) -> bool:
        at = bisect_left(self._tids, tid)
        return at < len(self._tids) and self._tids[at] == tid

    def _of_run(self, index: int) -> bytes:
        return self._run[self._ends[index - 1] if index else 0 : self._ends[index]]


class RunIndex:
    """The rows of one run by the value of one column."""

    __slots__ = ("_following", "_heads", "_offset", "ends")

    def __init__(self, run: bytes, ends: "array[int]", offset: int) -> None:
        """`offset` is the column's, from the start of a row's columns."""
        self.ends = ends
        self._offset = offset
        slots = SLOTS_MIN
        while slots * ROWS_A_SLOT < len(ends):
            slots *= 2
        self._heads = array("I", bytes(4 * slots))
        self._following = array("I", bytes(4 * len(ends)))
        chain_rows(run, ends, offset, self._heads, self._following)

    def rows(self, run: bytes, key: int) -> list[int]:
        """Return the numbers of the rows whose column is `key`, in order."""
        return rows_with(run, self.ends, self._offset, self._heads, self._following, key)
