"""Counts the changes of each table in a transaction, and numbers each change among them (P11).

Only if requested: it costs a few steps for each batch, and none for each transaction. It counts delivered changes, so
the numbers depend on the selection; a change's number in the whole transaction is its ordinal, which is fixed. Changes
of one table are counted in stream order. Counts are kept until the transaction's end is reported: at most one
transaction is open at the end of a group.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.decode.transactions.reorder_buffer.committed_run import EndsInGroup, EndsPart, SmallTransactions
from tidemark.model.change import TABLE_ORDINAL, ChangeBatch, TableCount, TransactionEnd
from tidemark.model.lsn import Lsn, Oid
from tidemark.model.relation import Relation

_FIELD = pa.field(TABLE_ORDINAL, pa.int64(), nullable=False)
_TableOids = tuple[Oid, Oid]  # of a database, of a table


class _TableChanges(NamedTuple):
    """Changes of one table in some transactions, with the table's description at that time."""

    key: _TableOids
    relation: Relation
    commit_lsns: npt.NDArray[np.int64]
    changes: npt.NDArray[np.int64]


class _Last(NamedTuple):
    """The last transaction that changed a table, and its number of changes so far."""

    commit_lsn: int
    changes: int


@dataclass(frozen=True, slots=True)
class TableCounts:
    """Table counts of some transactions: those of transaction n are at `begins[n]` to `begins[n + 1]`."""

    begins: npt.NDArray[np.int64]
    tables: npt.NDArray[np.int64]  # indexes in `relations`
    counts: npt.NDArray[np.int64]
    relations: Sequence[Relation]

    def of(self, number: int) -> tuple[TableCount, ...]:
        """Return the counts of one transaction."""
        here = slice(self.begins[number], self.begins[number + 1])
        found = zip(self.tables[here].tolist(), self.counts[here].tolist(), strict=True)
        named = ((self.relations[table], count) for table, count in found)
        return tuple(TableCount(table.oid, table.namespace, table.name, count) for table, count in named)

    def part(self, start: int, stop: int) -> "TableCounts":
        """Return the counts of the transactions `start` to `stop`."""
        return TableCounts(self.begins[start : stop + 1], self.tables, self.counts, self.relations)


class CountedEnds(EndsInGroup):
    """The ends of transactions in a group, with their counts."""

    def __init__(self, parts: Sequence[EndsPart], counts: TableCounts) -> None:
        super().__init__(parts)
        self._counts = counts

    def __iter__(self) -> Iterator[TransactionEnd]:
        for number, end in enumerate(super().__iter__()):
            yield replace(end, tables=self._counts.of(number))

    def counted_parts(self) -> Iterator[tuple[EndsPart, TableCounts]]:
        """Yield each part, columns as columns and single ends without counts, together with its counts."""
        at = 0
        for part in self.parts:
            yield part, self._counts.part(at, at + len(part))
            at += len(part)


class TransactionCounts:
    """Counts delivered changes by transaction and table."""

    def __init__(self) -> None:
        self._tallies: list[_TableChanges] = []  # of transactions whose end was not reported
        self._last: dict[_TableOids, _Last] = {}

    def count(self, commit_lsn: Lsn, database: Oid, relation: Relation, changes: int) -> None:
        """Count changes of a table."""
        lsns, counted = np.array([commit_lsn], np.int64), np.array([changes], np.int64)
        self._count(_TableChanges((database, relation.oid), relation, lsns, counted))

    def number(self, batches: Sequence[ChangeBatch]) -> list[ChangeBatch]:
        """Return batches of one table, in stream order, with each change's number in its transaction."""
        return [self._numbered(batch) for batch in batches]

    def counted_ends(self, ends: EndsInGroup) -> CountedEnds:
        """Return the ends of transactions with their counts, and remove these counts."""
        ended = np.concatenate([np.zeros(0, np.int64), *map(_commit_lsns, ends.parts)])
        found, left = [], []
        for tally in self._tallies:
            has_ended = np.isin(tally.commit_lsns, ended)
            found.append(_chosen(tally, has_ended))
            left += [] if has_ended.all() else [_chosen(tally, ~has_ended)]
        self._tallies = _merged(left)
        waiting = {(tally.key, int(lsn)) for tally in self._tallies for lsn in tally.commit_lsns[-1:]}
        self._last = {key: last for key, last in self._last.items() if (key, last.commit_lsn) in waiting}
        return CountedEnds(ends.parts, _summed(found, ended))

    def _numbered(self, batch: ChangeBatch) -> ChangeBatch:
        rows = batch.rows
        lsns = rows.column("_commit_lsn").to_numpy()
        starts = np.concatenate([[0], np.flatnonzero(np.diff(lsns)) + 1])
        lengths = np.diff([*starts, len(lsns)])
        key = batch.database, batch.relation.oid
        numbers = np.arange(len(lsns)) - np.repeat(starts, lengths)
        numbers[: lengths[0]] += self._before(key, int(lsns[0]))
        self._count(_TableChanges(key, batch.relation, lsns[starts], lengths))
        return replace(batch, given=rows.append_column(_FIELD, pa.array(numbers, pa.int64())))

    def _count(self, tally: _TableChanges) -> None:
        lsn, changes = int(tally.commit_lsns[-1]), int(tally.changes[-1])
        self._last[tally.key] = _Last(lsn, self._before(tally.key, lsn) + changes)
        self._tallies.append(tally)

    def _before(self, key: _TableOids, commit_lsn: int) -> int:
        """Return how many changes of a table were counted in a transaction."""
        last = self._last.get(key)
        return last.changes if last is not None and last.commit_lsn == commit_lsn else 0


def _commit_lsns(part: EndsPart) -> npt.NDArray[np.int64]:
    if isinstance(part, SmallTransactions):
        return np.frombuffer(part.commit_lsns, np.int64)
    return np.array([end.commit_lsn for end in part], np.int64)


def _chosen(tally: _TableChanges, chosen: npt.NDArray[np.bool_]) -> _TableChanges:
    return tally._replace(commit_lsns=tally.commit_lsns[chosen], changes=tally.changes[chosen])


def _merged(tallies: Sequence[_TableChanges]) -> list[_TableChanges]:
    """Return one tally for each table of the open transaction, which can span any number of groups."""
    merged: dict[tuple[_TableOids, int], _TableChanges] = {}
    for tally in tallies:
        for at, commit_lsn in enumerate(tally.commit_lsns.tolist()):
            changes = tally.changes[at : at + 1]
            known = merged.get((tally.key, commit_lsn))
            merged[tally.key, commit_lsn] = tally._replace(
                commit_lsns=tally.commit_lsns[at : at + 1],
                changes=changes if known is None else known.changes + changes,
            )
    return list(merged.values())


def _summed(tallies: Sequence[_TableChanges], ended: npt.NDArray[np.int64]) -> TableCounts:
    """Return the counts of ended transactions, with tables in the order in which they were first counted."""
    keys: dict[_TableOids, int] = {}
    relations, versions = _named(tallies)
    sizes = [len(tally.commit_lsns) for tally in tallies]
    none = np.zeros(0, np.int64)
    lsns = np.concatenate([none, *(tally.commit_lsns for tally in tallies)])
    changes = np.concatenate([none, *(tally.changes for tally in tallies)])
    tables = np.repeat(np.array([keys.setdefault(tally.key, len(keys)) for tally in tallies], np.int64), sizes)
    numbers = np.repeat(np.arange(len(tallies)), sizes)
    # Sort by transaction, table, order of counting; each table takes its first index and its last name.
    order = np.lexsort((numbers, tables, lsns))
    lsns, tables, numbers, changes = lsns[order], tables[order], numbers[order], changes[order]
    is_first = np.ones(len(lsns), np.bool_)
    is_first[1:] = (lsns[1:] != lsns[:-1]) | (tables[1:] != tables[:-1])
    firsts = np.flatnonzero(is_first)
    counts = np.add.reduceat(changes, firsts) if len(firsts) else changes
    named = numbers[np.append(firsts[1:], len(numbers)) - 1] if len(firsts) else numbers
    order = np.lexsort((numbers[firsts], lsns[firsts]))
    lsns, counts, named = lsns[firsts][order], counts[order], versions[named][order]
    return TableCounts(np.append(np.searchsorted(lsns, ended), len(lsns)), named, counts, relations)


def _named(tallies: Sequence[_TableChanges]) -> tuple[Sequence[Relation], npt.NDArray[np.int64]]:
    """Return a version for each name that a table had, and the index of that version for each tally."""
    known: dict[tuple[_TableOids, str, str], int] = {}
    versions = [known.setdefault((tally.key, *_name(tally)), len(known)) for tally in tallies]
    by_name = {number: tally.relation for number, tally in zip(versions, tallies, strict=True)}
    return [by_name[number] for number in range(len(known))], np.array(versions, np.int64)


def _name(tally: _TableChanges) -> tuple[str, str]:
    return tally.relation.namespace, tally.relation.name
