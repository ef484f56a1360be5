"""Divides a range of WAL into parts that are decoded independently: the plan of `cdcctl decode --jobs`.

A part *owns* the transactions that commit in its range [from, to). It begins to read at the least first LSN of these,
and passes over every other transaction that is open at a cut on the way: their rows are skipped unread. So a
transaction that is prepared for days costs only the part that contains its COMMIT PREPARED. Other transactions between
the begin of reading and the range are small; they are read and left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidemark.model.lsn import INVALID_LSN, INVALID_XID, FullXid, Lsn, Xid
from tidemark.model.transaction_map import Cut, OpenAtCut, TransactionMap

LSN_MAX = Lsn((1 << 64) - 1)


@dataclass(frozen=True, slots=True)
class OpenAtStart:
    """A transaction, or a subtransaction with its top-level one, that is open where reading begins, or later."""

    xid: Xid
    top_xid: Xid  # 0: top-level
    first_lsn: Lsn


@dataclass(frozen=True, slots=True)
class RangeStart:
    """Where reading for a range begins, and what it skips."""

    lsn: Lsn  # a record begins here
    next_xid: FullXid  # a 64-bit xid from near this place
    passed_over: tuple[OpenAtStart, ...] = ()
    own: tuple[OpenAtStart, ...] = ()  # transactions of the range that are open at its cut

    def unseen_before(self, lsn: Lsn) -> Iterator[OpenAtStart]:
        """Yield the transactions of the range that began before `lsn`."""
        return (each for each in self.own if each.first_lsn < lsn)


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """A part of the plan: the transactions that commit in [from, to); None: open."""

    from_lsn: Lsn | None
    to_lsn: Lsn | None
    start: RangeStart | None = None  # None: as decoding from `from_lsn` starts without a plan


def plan_ranges(
    found: TransactionMap, from_lsn: Lsn | None, to_lsn: Lsn | None, *, count: int, is_complete: bool = True
) -> Sequence[PlannedRange]:
    """Divide [from, to) into at most `count` ranges of about the same size, in order.

    `is_complete`: the map ends where WAL does, or at or after `to_lsn`. Otherwise transactions may commit after it.
    """
    begin_lsn = found.start_lsn if from_lsn is None else from_lsn
    end_lsn = found.end_lsn if to_lsn is None else min(to_lsn, found.end_lsn)
    inner = [cut for cut in found.cuts if begin_lsn < cut.lsn < end_lsn]
    chosen = _chosen(inner, count)
    ends = [*(cut.lsn for cut in chosen), end_lsn if is_complete else to_lsn]
    ranges = [PlannedRange(from_lsn, ends[0])]
    for cut, to in zip(chosen, ends[1:], strict=True):
        is_known = is_complete or to is not ends[-1]
        ranges.append(PlannedRange(cut.lsn, to, _start(found, cut, to, from_lsn=cut.lsn, is_complete=is_known)))
    return ranges


def start_from_map(found: TransactionMap, from_lsn: Lsn, to_lsn: Lsn | None, *, base_lsn: Lsn) -> PlannedRange | None:
    """Return [from, to) as one range that begins at a cut; None if no cut is nearer than the base at `base_lsn`.

    Nothing is assumed about WAL after the map: a transaction without a known commit may commit in the range.
    """
    cut = max((cut for cut in found.cuts if base_lsn < cut.lsn <= from_lsn), key=lambda cut: cut.lsn, default=None)
    if cut is None:
        return None
    return PlannedRange(from_lsn, to_lsn, _start(found, cut, to_lsn, from_lsn=from_lsn, is_complete=False))


def _chosen(cuts: Sequence[Cut], count: int) -> Sequence[Cut]:
    """Return at most `count` - 1 cuts, equally many cells apart: the empty rest of a segment has none."""
    numbers = {(len(cuts) + 1) * number // count - 1 for number in range(1, count)}
    return [cuts[number] for number in sorted(numbers) if number >= 0]


def _start(found: TransactionMap, cut: Cut, to_lsn: Lsn | None, *, from_lsn: Lsn, is_complete: bool) -> RangeStart:
    """Return where reading for [from, to) begins: at a cut before it, or earlier.

    Unless `is_complete`, a transaction without a known commit may commit there.
    """
    end_lsn = LSN_MAX if to_lsn is None else to_lsn

    def owns(each: OpenAtCut) -> bool:
        return each.commits_in(from_lsn, end_lsn) or (not is_complete and each.commit_lsn == INVALID_LSN)

    own = {each.xid: OpenAtStart(each.xid, INVALID_XID, each.first_lsn) for each in cut.open if owns(each)}
    start_lsn = min((each.first_lsn for each in own.values()), default=cut.lsn)
    others = [each for crossed in found.cuts if start_lsn <= crossed.lsn < end_lsn for each in crossed.open]
    passed_over = {each.xid: OpenAtStart(each.xid, INVALID_XID, each.first_lsn) for each in others if not owns(each)}
    for child, top in cut.top_of:
        if top not in own:
            passed_over.setdefault(child, OpenAtStart(child, top, cut.lsn))
    return RangeStart(start_lsn, cut.next_xid, tuple(passed_over.values()), tuple(own.values()))
