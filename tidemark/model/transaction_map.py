"""Where the transactions of WAL begin and commit, at places where decoding can be divided.

WAL is divided into *cells* of equal size; a *cut* is the first record that ends after a cell. At a cut, the map has all
open transactions: their first LSN, and their commit LSN if they committed later. The transactions that commit between
two cuts are then decoded from the least first LSN of those that are open at the first cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.model.lsn import INVALID_LSN, FullXid, Lsn, SystemIdentifier, Xid

CELL_SEGMENTS = 4  # of a cell: 64 MB of WAL take about 0.15 s to decode, the start of a range 0.03 s
CUTS_MAX = 1 << 16  # in a map: 4 TB of WAL in cells of 64 MB; above it every second cut is dropped
OPEN_MAX = 1 << 16  # transactions and subtransactions at a cut; a place with more is no cut
OPEN_SUM_MAX = 1 << 18  # of those at all cuts of a map, about 30 MB; above it every second of the largest is dropped


@dataclass(frozen=True, slots=True)
class OpenAtCut:
    """A top-level transaction that is open at a cut."""

    xid: Xid
    first_lsn: Lsn
    commit_lsn: Lsn = INVALID_LSN  # invalid: it did not commit in the mapped WAL

    def commits_in(self, begin_lsn: Lsn, end_lsn: Lsn) -> bool:
        """Return whether it commits in [begin, end)."""
        return self.commit_lsn != INVALID_LSN and begin_lsn <= self.commit_lsn < end_lsn


@dataclass(frozen=True, slots=True)
class EndMark:
    """A commit or abort record, which has a time: WAL with the same record there is the same WAL up to it.

    A restored copy of a cluster has the same system identifier, and after its first own transaction other WAL.
    """

    lsn: Lsn
    crc: int


NO_END = EndMark(INVALID_LSN, 0)


@dataclass(frozen=True, slots=True)
class Cut:
    """A place where WAL can be divided."""

    lsn: Lsn  # a record begins here, or will
    next_xid: FullXid  # a 64-bit xid from near this place
    open: tuple[OpenAtCut, ...]
    top_of: tuple[tuple[Xid, Xid], ...]  # open subtransactions and their top-level transactions
    last_end: EndMark = NO_END  # before this place

    @property
    def open_count(self) -> int:
        """The open transactions and subtransactions."""
        return len(self.open) + len(self.top_of)


@dataclass(frozen=True, slots=True)
class TransactionMap:
    """The cuts of [start, end)."""

    system_identifier: SystemIdentifier
    cell_bytes: int
    start_lsn: Lsn
    end_lsn: Lsn
    cuts: tuple[Cut, ...] = ()
    last_end: EndMark = NO_END  # that was read, perhaps after the last cut


def within_bounds(cuts: Sequence[Cut], cuts_max: int, open_sum_max: int) -> list[Cut]:
    """Return the cuts without every second one, or every second one of the largest, until they are few and small."""
    kept = list(cuts)
    while len(kept) > cuts_max:
        del kept[::2]
    while (open_sum := sum(cut.open_count for cut in kept)) > open_sum_max:
        large = [number for number, cut in enumerate(kept) if cut.open_count * len(kept) >= open_sum]
        for number in reversed(large[::2]):
            del kept[number]
    return kept
