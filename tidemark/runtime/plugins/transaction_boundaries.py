"""The boundaries of transactions around the items of groups, for consumers that want them (`deliver.transactions`).

A transaction has a begin and an end if any change or event of it is delivered. Both come once, also if the transaction
spans several groups or a restart (P11).
"""

from collections.abc import Iterator
from dataclasses import replace

from tidemark.decode.groups.transaction_counts import CountedEnds
from tidemark.model.change import ChangeBatch, ChangeGroup, GroupItem, TransactionBoundary, TransactionEnd
from tidemark.model.lsn import Lsn
from tidemark.model.position import Position


class TransactionBoundaries:
    """Records which transactions have begun. For one thread, and groups in the order of the stream."""

    def __init__(self) -> None:
        self._waiting: dict[Lsn, TransactionEnd] = {}  # begun in WAL, and nothing of them was delivered so far
        self._open: set[Lsn] = set()

    def around(self, group: ChangeGroup) -> Iterator[GroupItem | TransactionBoundary]:
        """Yield the items of a group between the begins and the ends of its transactions, if these are counted."""
        ended = _counted(group)
        if not ended and not len(group.begun) and not self._waiting:
            yield from group.items
            return
        self._waiting.update((end.commit_lsn, end) for end in group.begun)
        delivered = {_last_commit_lsn(item) for item in group.items}
        delivered |= {end.commit_lsn for end in ended if end.tables}
        begun = tuple(end for lsn, end in sorted(self._waiting.items()) if lsn in delivered)
        for end in begun:
            del self._waiting[end.commit_lsn]
            self._open.add(end.commit_lsn)
        if begun:
            yield TransactionBoundary(_before(group.first), True, begun)
        yield from group.items
        over = tuple(end for end in ended if end.commit_lsn in self._open or end.commit_lsn in delivered)
        for end in ended:
            self._waiting.pop(end.commit_lsn, None)
            self._open.discard(end.commit_lsn)
        if over:
            yield TransactionBoundary(group.last.position, False, over)


def _counted(group: ChangeGroup) -> tuple[TransactionEnd, ...]:
    """Return the transactions that end in a group, if they are counted; of a part of a group they are a tuple."""
    ends = group.transactions
    return tuple(end for end in ends if end.tables is not None) if isinstance(ends, CountedEnds | tuple) else ()


def _last_commit_lsn(item: GroupItem) -> Lsn:
    """Return the commit LSN of the last change of an item: only the last transaction of a group may continue in it."""
    if not isinstance(item, ChangeBatch):
        return item.position.commit_lsn
    rows = item.rows
    return Lsn(rows.column("_commit_lsn")[rows.num_rows - 1].as_py())


def _before(position: Position) -> Position:
    """Return a position between all changes before a change and this change: records begin at multiples of 8."""
    if position.ordinal:
        return replace(position, ordinal=position.ordinal - 1)
    return replace(position, commit_lsn=Lsn(position.commit_lsn - 1))
