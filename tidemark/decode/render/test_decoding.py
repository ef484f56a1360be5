"""The lines that PostgreSQL's test_decoding plugin prints (`test_decoding.c` of each major), for comparison with it.

Its options: include-xids on, skip-empty-xacts on, include-timestamp off, two-phase decoding off. A line is what the
plugin writes at once; a value in it may contain newlines. Rows rewritten by DDL and schema events have no line there.
Changes of tables that are not selected are left out as if they had not happened; the plugin has no selection.

Many rows are printed together, of one transaction or of many: whole columns are converted to text, and lines are
assembled from them in the order of the changes.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tidemark.decode.arrow.batch_shapes import batch_shape
from tidemark.decode.arrow.batches import CELLS_MAX, RowSpans
from tidemark.decode.arrow.column_values import TooLong
from tidemark.decode.arrow.located_tuples import TupleLocator
from tidemark.decode.groups.group_rows import Arenas, GroupRows
from tidemark.decode.render.bounds import BEFORE_ALL
from tidemark.decode.render.column_texts import Int64Array
from tidemark.decode.render.json_columns import int64_column
from tidemark.decode.render.literals import Literals
from tidemark.decode.render.placed_lines import Lines, LineWriter, Piece
from tidemark.decode.transactions.object_names import NO_NAMES, NamesThen
from tidemark.decode.transactions.reorder_buffer.committed_run import CommittedRun, SmallTransactions
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction, RowRun
from tidemark.decode.transactions.reorder_buffer.rowlog import RelationVersions
from tidemark.decode.transactions.version_cache import VersionCache
from tidemark.decode.types.codec import Dialect
from tidemark.decode.types.identifiers import quote_identifier
from tidemark.model.change import LogicalMessage, Op, Truncation
from tidemark.model.lsn import XID_MASK, Oid
from tidemark.model.relation import Relation

if TYPE_CHECKING:
    from array import array

MESSAGES_WRAPPED_SINCE = 17  # before 17, a transactional message neither begins a transaction nor counts as its change
EXPANDED_BYTES_MAX = 32 << 20  # decompressed at once, for one side of one table's rows; a single row may be larger
NEVER_COUNTED = 1 << 62  # printed batches are not counted: they are not kept

Block = bytes | memoryview
"""One line or many."""
_INSERT = ord(Op.INSERT.value)
_UPDATE = ord(Op.UPDATE.value)
_DELETE = ord(Op.DELETE.value)
_REWRITE = ord(Op.REWRITE.value)
_NO_TUPLE = b" (no-tuple-data)"


def _every_relation(_relation: Relation) -> bool:
    """Select as the plugin does: also materialized views."""
    return True


class _RowShape(NamedTuple):
    """The properties that rows with the same pieces share."""

    op: int
    has_old: bool
    has_new: bool


class _TableLines:
    """A relation version: the head of its lines, and its columns."""

    __slots__ = ("_columns", "_end", "_head", "_locator", "name")

    def __init__(self, relation: Relation, major: int, dialect: Dialect, names: NamesThen, end: bytes) -> None:
        self.name = f"{quote_identifier(relation.namespace, major)}.{quote_identifier(relation.name, major)}"
        self._head = f"table {self.name}: ".encode("utf-8", "surrogateescape")
        self._end = end
        self._locator = TupleLocator(relation, batch_shape(relation, dialect), EXPANDED_BYTES_MAX)
        self._columns = [
            Literals(column, slot, major, dialect, names, self._locator)
            for slot, column in enumerate(relation.live_columns)
            if column.type is not None
        ]

    def lines(self, rows: RowSpans) -> Lines:
        """Return the lines of row changes."""
        old = self._locator.side(rows.data, rows.lsn, rows.old_at, rows.old_length)
        new = self._locator.side(rows.data, rows.lsn, rows.new_at, rows.new_length)
        has_old, has_new = (np.frombuffer(side.at, np.int64) >= 0 for side in (old, new))
        op = np.frombuffer(rows.op, np.uint8).astype(np.int64)
        codes = op << 2 | has_old.astype(np.int64) << 1 | has_new
        shown = (
            [column.of(old, shows_nulls=False) for column in self._columns],
            [column.of(new, shows_nulls=True) for column in self._columns],
        )
        pieces = {
            code: self._line(_RowShape(code >> 2, bool(code & 2), bool(code & 1)), *shown)
            for code in np.flatnonzero(np.bincount(codes)).tolist()
        }
        return Lines(_integers(rows.commit_lsn), _integers(rows.ordinal), codes, pieces)

    def _line(self, kind: _RowShape, old: Sequence[Piece], new: Sequence[Piece]) -> Sequence[Piece]:
        """Return the pieces of the lines of a kind of rows."""
        after = new if kind.has_new else [_NO_TUPLE]
        if kind.op == _REWRITE:
            return []
        if kind.op == _INSERT:
            return [self._head, b"INSERT:", *after, self._end]
        if kind.op == _DELETE:
            return [self._head, b"DELETE:", *(old if kind.has_old else [_NO_TUPLE]), self._end]
        assert kind.op == _UPDATE, kind
        before = [b" old-key:", *old, b" new-tuple:"] if kind.has_old else []
        return [self._head, b"UPDATE:", *before, *after, self._end]


class TestDecodingRenderer:
    """Prints the changes of one major's databases; `hidden_prefixes` are those of Tidemark's own messages."""

    __test__ = False  # not a pytest class

    def __init__(
        self,
        major: int,
        dialects: Mapping[Oid, Dialect],
        hidden_prefixes: Collection[str] = (),
        selected: Callable[[Relation], bool] = _every_relation,
        *,
        end: bytes = b"\n",
    ) -> None:
        """`end` is appended to each line."""
        self._major = major
        self._selected = selected
        self._dialects = dialects
        self._hidden_prefixes = frozenset(hidden_prefixes)
        self._end = end
        self._tables: VersionCache[tuple[str, Relation], _TableLines] = VersionCache()
        self._selection: VersionCache[Relation, bool] = VersionCache()
        self._names = NamesThen()
        self._arenas = Arenas()
        self._writer = LineWriter()
        self._widest_of: tuple[RelationVersions | None, int, int] = None, 0, 0  # how many, and the most columns of one

    def run(self, run: CommittedRun) -> Iterator[Block]:
        """Yield the lines of small transactions, many at once.

        NB: the memory of a block is reused for the next one.
        """
        self._names.recorded = NO_NAMES
        pending = [(0, len(run))]
        while pending:
            start, stop = pending.pop()
            first, last = run.rows_before(start), run.rows_before(stop)
            try:
                self._check_cells(run.versions, last - first)
                collected = self._collected(run.versions)
                collected.append_transactions(run, start, stop)
                parts = self._parts(collected)
            except TooLong:
                if stop - start == 1:
                    yield from self.transaction(run.transaction(start))
                else:
                    middle = (start + stop) // 2
                    pending += [(middle, stop), (start, middle)]
            else:
                yield from self._writer.blocks([*self._bounds(run.ends.part(start, stop), parts), *parts])

    def transaction(self, transaction: CommittedTransaction) -> Iterator[Block]:
        """Yield the lines of a transaction, many at once; none if it is empty for the plugin."""
        xid = transaction.end.xid
        begun = False
        for is_change, lines in self._blocks(transaction):
            if is_change and not begun:
                begun = True
                yield b"BEGIN %d%b" % (xid, self._end)
            yield lines
        if begun:
            yield b"COMMIT %d%b" % (xid, self._end)

    def message(self, message: LogicalMessage) -> Block:
        """Return the line of a message, transactional or not."""
        content = self._dialects[message.database].decode(message.content)
        head = f"message: transactional: {message.transactional:d} prefix: {message.prefix}"
        return self._line(f"{head}, sz: {len(message.content)} content:{content}")

    def shows(self, message: LogicalMessage) -> bool:
        """Return whether the message is not one of Tidemark's."""
        return message.prefix not in self._hidden_prefixes

    def _line(self, text: str) -> bytes:
        return text.encode("utf-8", "surrogateescape") + self._end

    def _blocks(self, transaction: CommittedTransaction) -> Iterator[tuple[bool, Block]]:
        """Yield the blocks between BEGIN and COMMIT, each with whether it counts as a change and so requires both."""
        statement: list[Truncation] = []  # its tables, which share one line
        for item in transaction.items():
            if statement and not (isinstance(item, Truncation) and item.lsn == statement[0].lsn):
                yield True, self._truncate(statement)
                statement = []
            if isinstance(item, Truncation):
                if self._is_selected(item.relation):
                    statement.append(item)
            elif isinstance(item, RowRun):
                for lines in self._rows(item, transaction):
                    yield True, lines
            elif isinstance(item, LogicalMessage) and self.shows(item):
                yield self._major >= MESSAGES_WRAPPED_SINCE, self.message(item)
        if statement:
            yield True, self._truncate(statement)

    def _rows(self, run: RowRun, transaction: CommittedTransaction) -> Iterator[Block]:
        pending = [(run.start, run.stop)]
        while pending:
            start, stop = pending.pop()
            self._names.recorded = transaction.names
            try:
                if stop - start > 1:
                    self._check_cells(run.versions, stop - start)
                collected = self._collected(run.versions)
                collected.append(run, start, stop, transaction.end)
                parts = self._parts(collected)
            except TooLong:
                middle = (start + stop) // 2
                pending += [(middle, stop), (start, middle)]
            else:
                yield from self._writer.blocks(parts)

    def _collected(self, versions: RelationVersions) -> GroupRows:
        return GroupRows(versions, self._arenas, NEVER_COUNTED)

    def _parts(self, collected: GroupRows) -> list[Lines]:
        """Return the collected rows, one part for each table."""
        databases, relations = collected.versions.databases, collected.versions.relations
        rows, ranges = collected.by_version(self._is_selected)
        return [
            self._table(relations[number], databases[number]).lines(rows.part(start, stop))
            for number, start, stop in ranges
        ]

    def _bounds(self, ends: SmallTransactions, parts: Sequence[Lines]) -> Iterator[Lines]:
        """Yield BEGIN and COMMIT of the transactions that have a line."""
        commit_lsns = _integers(ends.commit_lsns)
        shown = np.zeros(len(commit_lsns), np.bool_)
        for part in parts:
            shown[np.searchsorted(commit_lsns, part.shown_commit_lsns())] = True
        lsns, xids = commit_lsns[shown], int64_column((_integers(ends.full_xids) & XID_MASK)[shown])
        if not len(lsns):
            return
        behind_all = int(_integers(ends.row_counts).max())
        for ordinal, word in ((BEFORE_ALL, b"BEGIN "), (behind_all, b"COMMIT ")):
            same = np.zeros_like(lsns)
            yield Lines(lsns, same + ordinal, same, {0: (word, xids, self._end)})

    def _check_cells(self, versions: RelationVersions, rows: int) -> None:
        """Reject more rows than can be located at once, assuming that all are of the widest table."""
        if versions is not self._widest_of[0] or len(versions) != self._widest_of[1]:
            self._widest_of = versions, len(versions), max(len(relation.columns) for relation in versions.relations)
        if rows * self._widest_of[2] > CELLS_MAX:
            raise TooLong

    def _truncate(self, truncations: Sequence[Truncation]) -> Block:
        names = ", ".join(self._table(item.relation, item.database).name for item in truncations)
        flags = " restart_seqs" * truncations[0].restart_identity + " cascade" * truncations[0].cascade
        return self._line(f"table {names}: TRUNCATE:{flags or ' (no-flags)'}")

    def _is_selected(self, relation: Relation) -> bool:
        selected = self._selection.get(relation)
        if selected is None:
            selected = self._selection.keep(relation, self._selected(relation))
        return selected

    def _table(self, relation: Relation, database: Oid) -> _TableLines:
        dialect = self._dialects[database]
        key = (dialect.encoding, relation)
        table = self._tables.get(key)
        if table is None:
            table = self._tables.keep(key, _TableLines(relation, self._major, dialect, self._names, self._end))
        return table


def _integers(values: "array[int]") -> Int64Array:
    return np.frombuffer(values, np.int64)
