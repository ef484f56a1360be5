"""Begins and ends of transactions as lines around the lines of their changes, with counts (P11).

A transaction has these lines if any of its content is delivered. The begin precedes its first line, the end follows its
last one; each occurs once, also if the transaction spans several groups or a restart. Small transactions, which are
whole in their group, have them as columns.
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

import numpy as np

from tidemark.decode.groups.transaction_counts import CountedEnds, TableCounts
from tidemark.decode.render.column_texts import Int64Array, TextColumn
from tidemark.decode.render.json_columns import instants_of, int64_column, lsns
from tidemark.decode.render.placed_lines import Lines, Piece, Placed, lines_of
from tidemark.decode.transactions.reorder_buffer.committed_run import EndsInGroup, SmallTransactions
from tidemark.decode.types.codec import without_escapes
from tidemark.model.change import ChangeGroup, TransactionEnd
from tidemark.model.commit_time import UNIX_EPOCH, USECS_PER_SECOND
from tidemark.model.lsn import XID_MASK, Oid, format_lsn
from tidemark.model.relation import Relation

BEGIN, END = "begin", "end"
BEFORE_ALL = -1  # in place of an ordinal
NO_TABLE = -1


def is_counted(group: ChangeGroup) -> bool:
    """Return whether the group has its transactions' counts."""
    return isinstance(group.transactions, CountedEnds)


@dataclass(frozen=True, slots=True)
class SmallEnds:
    """Small transactions that get a bound: the members `chosen` of `ends`."""

    ends: SmallTransactions
    counts: TableCounts  # of all of `ends`
    chosen: Int64Array

    def column(self, name: str) -> Int64Array:
        """Return an attribute of `ends`."""
        values: Int64Array = np.frombuffer(getattr(self.ends, name), np.int64)[self.chosen]
        return values

    def xids(self) -> Int64Array:
        """Return the 32-bit xids."""
        return self.column("full_xids") & XID_MASK

    def totals(self) -> Int64Array:
        """Return the number of changes of each."""
        up_to = np.concatenate([[0], np.cumsum(self.counts.counts)])
        begins = self.counts.begins
        totals: Int64Array = (up_to[begins[1:]] - up_to[begins[:-1]])[self.chosen]
        return totals

    def table_sets(self) -> tuple[Int64Array, Mapping[int, Sequence[tuple[Relation, TextColumn]]]]:
        """Return the number of each transaction's set of tables, and the tables of each set with their counts."""
        counts = self.counts
        begins, sizes = counts.begins[:-1][self.chosen], np.diff(counts.begins)[self.chosen]
        width = max(1, int(sizes.max()))
        tables = np.full((len(begins), width), NO_TABLE, np.int64)
        columns = []
        for index in range(width):
            is_there = sizes > index
            at = begins[is_there] + index
            values = np.zeros(len(begins), np.int64)
            values[is_there] = counts.counts[at]
            tables[is_there, index] = counts.tables[at]
            columns.append(int64_column(values))
        present, numbers = np.unique(tables, axis=0, return_inverse=True)
        sets = {
            number: [(counts.relations[table], columns[index]) for index, table in enumerate(row) if table != NO_TABLE]
            for number, row in enumerate(present.tolist())
        }
        return numbers.reshape(-1), sets


class BoundForm(Protocol):
    """How begins and ends are written."""

    def line(self, op: str, end: TransactionEnd) -> bytes:
        """Return the line of one transaction, with its newline; `op` is BEGIN or END."""

    def pieces(self, op: str, ends: SmallEnds) -> tuple[Int64Array, Mapping[int, Sequence[Piece]]]:
        """Return the variant of the line of each small transaction, and the pieces of each variant."""


class _Small:
    """Small transactions of the current group, and which of their bounds were written."""

    __slots__ = ("begun", "commit_lsns", "counts", "ended", "ends")

    def __init__(self, ends: SmallTransactions, counts: TableCounts) -> None:
        self.ends = ends
        self.counts = counts
        self.commit_lsns: Int64Array = np.frombuffer(ends.commit_lsns, np.int64)
        self.begun, self.ended = (np.zeros(len(ends), np.bool_) for _ in range(2))

    def begin(self, shown: Int64Array) -> Int64Array:
        """Return the numbers of the transactions whose first lines are among `shown`."""
        is_new = np.isin(self.commit_lsns, shown) & ~self.begun
        self.begun |= is_new
        return np.flatnonzero(is_new)

    def end(self, before_lsn: int | None) -> Int64Array:
        """Return the numbers of begun transactions without lines from `before_lsn` on (None: without further lines)."""
        is_over = self.begun & ~self.ended
        if before_lsn is not None:
            is_over &= self.commit_lsns < before_lsn
        self.ended |= is_over
        return np.flatnonzero(is_over)


class TransactionBounds:
    """Adds begins and ends to lines, as `form` writes them."""

    def __init__(self, form: BoundForm) -> None:
        self._form = form
        self._waiting: dict[int, TransactionEnd] = {}  # begun, without a line so far
        self._open: set[int] = set()  # begin written
        self._ending: deque[TransactionEnd] = deque()  # of the current group, in commit order
        self._small: list[_Small] = []  # of the current group: they begin and end in it

    def begin(self, group: ChangeGroup) -> None:
        """Add the transactions of a group."""
        assert isinstance(group.begun, EndsInGroup), group
        assert isinstance(group.transactions, CountedEnds), group
        for part in group.begun.parts:
            if not isinstance(part, SmallTransactions):
                self._waiting.update((end.commit_lsn, end) for end in part)
        for part, counts in group.transactions.counted_parts():
            if isinstance(part, SmallTransactions):
                self._small.append(_Small(part, counts))
            else:
                self._ending.extend(replace(end, tables=counts.of(number)) for number, end in enumerate(part))

    def of(self, commit_lsns: Int64Array) -> Iterator[Lines]:
        """Yield the bounds up to the last of the group's next lines, whose commit LSNs are given."""
        if not len(commit_lsns):
            return
        last = int(commit_lsns[-1])
        found: list[Placed] = []
        for commit_lsn in np.intersect1d(np.array(list(self._waiting), np.int64), commit_lsns).tolist():
            begun = self._waiting.pop(commit_lsn)
            self._open.add(commit_lsn)
            found.append((commit_lsn, BEFORE_ALL, self._form.line(BEGIN, begun)))
        while self._ending and self._ending[0].commit_lsn < last:
            found += self._end()
        yield from _made(found)
        for small in self._small:
            yield from self._lines(BEGIN, small, small.begin(commit_lsns))
            yield from self._lines(END, small, small.end(last))

    def ends(self) -> Iterator[Lines]:
        """Yield the bounds after the group's last line."""
        found: list[Placed] = []
        while self._ending:
            found += self._end()
        yield from _made(found)
        for small in self._small:
            yield from self._lines(END, small, small.end(None))
        self._small = []

    def _end(self) -> list[Placed]:
        end = self._ending.popleft()
        is_new = self._waiting.pop(end.commit_lsn, None) is not None
        if end.commit_lsn not in self._open and (not end.tables or is_new):
            return []
        self._open.discard(end.commit_lsn)
        return [(end.commit_lsn, end.item_count, self._form.line(END, end))]

    def _lines(self, op: str, small: _Small, chosen: Int64Array) -> Iterator[Lines]:
        if len(chosen):
            ends = SmallEnds(small.ends, small.counts, chosen)
            ordinals = np.full(len(chosen), BEFORE_ALL, np.int64) if op == BEGIN else ends.column("row_counts")
            yield Lines(small.commit_lsns[chosen], ordinals, *self._form.pieces(op, ends))


def _made(found: Sequence[Placed]) -> Iterator[Lines]:
    if found:
        yield lines_of(found)


def json_line(value: object) -> bytes:
    """Return a JSON object as a line of UTF-8."""
    return f"{dumped(value)}\n".encode()


def dumped(value: object) -> str:
    """Return JSON."""
    return without_escapes(json.dumps(value, ensure_ascii=False, separators=(",", ":")))  # JSON is UTF-8


class JsonBounds:
    """Begins and ends as JSON lines; `databases` are the names of the databases, by OID."""

    def __init__(self, databases: Mapping[Oid, str]) -> None:
        self._databases = databases

    def line(self, op: str, end: TransactionEnd) -> bytes:
        """Return the line of one transaction."""
        fields: dict[str, object] = {
            "op": op,
            "database": self._databases.get(end.database, str(end.database)),
            "position": f"{end.timeline}:{format_lsn(end.commit_lsn)}:{0 if op == BEGIN else end.item_count}",
            "xid": end.xid,
            "full_xid": end.full_xid,
            "commit_time": (UNIX_EPOCH + timedelta(microseconds=end.commit_time_us)).isoformat().replace("+00:00", "Z"),
            "items": end.item_count,
        }
        if end.origin:
            fields["origin"] = end.origin
        if end.gid is not None:
            fields["gid"] = end.gid
        if op == END:
            fields["tables"] = [
                {"schema": table.namespace, "table": table.name, "count": table.count} for table in end.tables or ()
            ]
        return json_line(fields)

    def pieces(self, op: str, ends: SmallEnds) -> tuple[Int64Array, Mapping[int, Sequence[Piece]]]:
        """Return the lines of small transactions, which have neither an origin nor a gid."""
        usecs, items = ends.column("times_us"), int64_column(ends.column("row_counts"))
        fields: list[Piece] = [f'"position":"{ends.ends.timeline}:'.encode(), lsns(ends.column("commit_lsns")), b":"]
        fields += [b"0" if op == BEGIN else items, b'","xid":', int64_column(ends.xids())]
        fields += [b',"full_xid":', int64_column(ends.column("full_xids")), b',"commit_time":']
        moments = (instants_of(usecs, digits=0), instants_of(usecs, digits=6))
        databases, which = np.unique(ends.column("databases"), return_inverse=True)
        numbers, sets = ends.table_sets() if op == END else (np.zeros_like(usecs), {})
        codes = (numbers * len(databases) + which) * 2 + (usecs % USECS_PER_SECOND != 0)
        present, variants = np.unique(codes, return_inverse=True)
        pieces: dict[int, Sequence[Piece]] = {}
        for variant, code in enumerate(present.tolist()):
            database = int(databases[code // 2 % len(databases)])
            name = dumped(self._databases.get(Oid(database), str(database)))
            head = f'{{"op":"{op}","database":{name},'.encode()
            tables = self._tables(sets[code // 2 // len(databases)]) if op == END else ()
            pieces[variant] = [head, *fields, moments[code % 2], b',"items":', items, *tables, b"}\n"]
        return variants, pieces

    @staticmethod
    def _tables(tables: Sequence[tuple[Relation, TextColumn]]) -> Iterator[Piece]:
        yield b',"tables":['
        for number, (table, count) in enumerate(tables):
            names = f'"schema":{dumped(table.namespace)},"table":{dumped(table.name)}'
            yield f'{"," if number else ""}{{{names},"count":'.encode()
            yield count
            yield b"}"
        yield b"]"
