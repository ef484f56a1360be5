"""The lines that PostgreSQL's own test_decoding plugin prints (`test_decoding.c` of each major): the oracle's language.

With include-xids on, skip-empty-xacts on, include-timestamp off and two-phase decoding off. A line is what the plugin
writes at once; a value in it may contain newlines. Rows rewritten by DDL and schema events have no line there. Tables
that are not selected, which the plugin does not know of, are as if nothing had happened to them.
"""

from collections.abc import Callable, Collection, Iterator, Mapping

from tidemark.decode.codecs.codec import Codec, Dialect
from tidemark.decode.codecs.registry import column_codec
from tidemark.decode.committed_transaction import CommittedTransaction, RowRun
from tidemark.decode.keywords import quote_identifier
from tidemark.decode.object_names import NamesThen
from tidemark.decode.rowlog import Row
from tidemark.decode.tuples import Datum, TupleLayout, deform
from tidemark.decode.varlena import ExternalPointer
from tidemark.model.change import LogicalMessage, Op, Truncation
from tidemark.model.lsn import Lsn, Oid
from tidemark.model.relation import Relation

MESSAGES_WRAPPED_SINCE = 17  # before, a transactional message neither begins a transaction nor counts as its change
TABLES_MAX = 65536  # relation versions whose names and codecs are remembered

_UNQUOTED_TYPES = frozenset({20, 21, 23, 26, 700, 701, 1700})  # int8, int2, int4, oid, float4, float8, numeric
_BIT_TYPES = frozenset({1560, 1562})  # bit, varbit
_BOOL = 16
_INSERT = ord(Op.INSERT.value)
_UPDATE = ord(Op.UPDATE.value)
_DELETE = ord(Op.DELETE.value)
_REWRITE = ord(Op.REWRITE.value)


class _Column:
    """A live column: how its name, its type and its values are printed."""

    __slots__ = ("_codec", "_type_oid", "index", "label")

    def __init__(self, index: int, label: str, type_oid: int, codec: Codec) -> None:
        self.index = index
        self.label = label  # name and type, with the spaces and colons around
        self._type_oid = type_oid
        self._codec = codec

    def print(self, value: Datum) -> str:
        """Return the value as a literal; the rules go by the column's own type: a domain over int4 is quoted."""
        if value is None:
            return "null"
        if isinstance(value, ExternalPointer):
            return "unchanged-toast-datum"
        text = value if isinstance(value, str) else self._codec.text(value)
        if self._type_oid in _UNQUOTED_TYPES:
            return text
        if self._type_oid == _BOOL:
            return "true" if text == "t" else "false"
        if self._type_oid in _BIT_TYPES:
            return f"B'{text}'"
        return "'" + text.replace("'", "''") + "'"


def _every_relation(_relation: Relation) -> bool:
    """Select as the plugin does: materialized views, too."""
    return True


class _Table:
    """A relation version: the head of its lines, and its columns."""

    __slots__ = ("_columns", "_layout", "head", "is_selected", "name")

    def __init__(self, relation: Relation, major: int, dialect: Dialect, *, is_selected: bool) -> None:
        self.is_selected = is_selected
        self.name = f"{quote_identifier(relation.namespace, major)}.{quote_identifier(relation.name, major)}"
        self.head = f"table {self.name}:"
        self._layout = TupleLayout.of(relation)
        self._columns = [
            _Column(
                index,
                f" {quote_identifier(column.name, major)}[{column.type.display_name}]:",
                column.type.oid,
                column_codec(column, dialect),
            )
            for index, column in enumerate(relation.columns)
            if not column.dropped and column.type is not None
        ]

    def new(self, packed: bytes | None) -> str:
        """Return a new tuple's columns."""
        if packed is None:
            return " (no-tuple-data)"
        values = deform(packed, self._layout)
        return "".join(column.label + column.print(values[column.index]) for column in self._columns)

    def old(self, packed: bytes) -> str:
        """Return an old tuple's columns, those that are NULL left out."""
        values = deform(packed, self._layout)
        return "".join(
            column.label + column.print(values[column.index])
            for column in self._columns
            if values[column.index] is not None
        )

    def line(self, row: Row) -> str:
        """Return the line of a row change."""
        if row.op == _INSERT:
            return f"{self.head} INSERT:{self.new(row.new)}"
        if row.op == _DELETE:
            return f"{self.head} DELETE:{self.old(row.old) if row.old is not None else ' (no-tuple-data)'}"
        assert row.op == _UPDATE, row.op
        key = f" old-key:{self.old(row.old)} new-tuple:" if row.old is not None else ""
        return f"{self.head} UPDATE:{key}{self.new(row.new)}"


class TestDecodingRenderer:
    """Prints the changes of one major's databases; `hidden_prefixes` are those of messages that are our own."""

    __test__ = False  # for pytest

    def __init__(
        self,
        major: int,
        dialects: Mapping[Oid, Dialect],
        hidden_prefixes: Collection[str] = (),
        selected: Callable[[Relation], bool] = _every_relation,
    ) -> None:
        self._major = major
        self._selected = selected
        self._dialects = dialects
        self._hidden_prefixes = frozenset(hidden_prefixes)
        self._tables: dict[tuple[str, Relation], _Table] = {}
        self._names = NamesThen()

    def transaction(self, transaction: CommittedTransaction) -> Iterator[str]:
        """Give out the lines of a transaction; none if the plugin would call it empty."""
        xid = transaction.end.xid
        begun = False
        for is_change, line in self._lines(transaction):
            if is_change and not begun:
                begun = True
                yield f"BEGIN {xid}"
            yield line
        if begun:
            yield f"COMMIT {xid}"

    def _lines(self, transaction: CommittedTransaction) -> Iterator[tuple[bool, str]]:
        """Give out what stands between BEGIN and COMMIT, and if it counts as a change, which needs them."""
        statement: list[Truncation] = []  # its tables, which make one line
        for item in transaction.items():
            if statement and not (isinstance(item, Truncation) and item.lsn == statement[0].lsn):
                yield True, self._truncate(statement)
                statement = []
            if isinstance(item, Truncation):
                if self._table(item.relation, item.database).is_selected:
                    statement.append(item)
            elif isinstance(item, RowRun):
                for line in self._rows(item, transaction):
                    yield True, line
            elif isinstance(item, LogicalMessage) and self.shows(item):
                yield self._major >= MESSAGES_WRAPPED_SINCE, self.message(item)
        if statement:
            yield True, self._truncate(statement)

    def message(self, message: LogicalMessage) -> str:
        """Return the line of a message, transactional or not."""
        content = self._dialects[message.database].decode(message.content)
        head = f"message: transactional: {message.transactional:d} prefix: {message.prefix}"
        return f"{head}, sz: {len(message.content)} content:{content}"

    def shows(self, message: LogicalMessage) -> bool:
        """Tell if the message is not one of ours."""
        return message.prefix not in self._hidden_prefixes

    def _rows(self, run: RowRun, transaction: CommittedTransaction) -> Iterator[str]:
        self._names.noted = transaction.names
        for row in run.rows():
            table = self._table(run.versions.relations[row.relation], transaction.end.database)
            self._names.lsn = Lsn(row.lsn)
            if row.op != _REWRITE and table.is_selected:
                yield table.line(row)

    def _truncate(self, truncations: list[Truncation]) -> str:
        names = ", ".join(self._table(item.relation, item.database).name for item in truncations)
        flags = " restart_seqs" * truncations[0].restart_identity + " cascade" * truncations[0].cascade
        return f"table {names}: TRUNCATE:{flags or ' (no-flags)'}"

    def _table(self, relation: Relation, database: Oid) -> _Table:
        dialect = self._dialects[database]
        key = (dialect.encoding, relation)
        table = self._tables.get(key)
        if table is None:
            if len(self._tables) >= TABLES_MAX:
                self._tables.clear()
            selected = self._selected(relation)
            table = _Table(relation, self._major, dialect.naming(self._names), is_selected=selected)
            self._tables[key] = table
        return table
