"""The boundaries of transactions around the items of a group, for consumers that want them (`deliver.transactions`).

A transaction has a begin and an end if any change or event of it is delivered. Both come once, also if the transaction
spans several groups or a restart (P11).
"""

from collections.abc import Iterator
from dataclasses import replace

from tidemark.decode.groups.transaction_counts import CountedEnds
from tidemark.model.change import ChangeBatch, ChangeGroup, GroupItem, TransactionBoundary
from tidemark.model.lsn import Lsn
from tidemark.model.position import Position


def with_boundaries(group: ChangeGroup) -> Iterator[GroupItem | TransactionBoundary]:
    """Yield the items of a group between the begins and the ends of its transactions, if these were counted."""
    ended = tuple(group.transactions) if isinstance(group.transactions, CountedEnds) else None
    if ended is None:
        yield from group.items
        return
    events = {item.position.commit_lsn for item in group.items if not isinstance(item, ChangeBatch)}
    passed_over = {end.commit_lsn for end in ended if not end.tables} - events
    begun = tuple(end for end in group.begun if end.commit_lsn not in passed_over)
    if begun:
        yield TransactionBoundary(_before(group.first), True, begun)
    yield from group.items
    if ended := tuple(end for end in ended if end.commit_lsn not in passed_over):
        yield TransactionBoundary(group.last.position, False, ended)


def _before(position: Position) -> Position:
    """Return a position behind all changes before this one: records begin at multiples of 8."""
    if position.ordinal:
        return replace(position, ordinal=position.ordinal - 1)
    return replace(position, commit_lsn=Lsn(position.commit_lsn - 1))
