"""A replica in memory, maintained by change groups alone, and compared with the source table.

A row is found by the old values in the change: the columns of the replica identity, or all columns. Where a change has
too few old values (REPLICA IDENTITY NOTHING, no key), no replica is possible: the table is *lost* until all of its
rows are rewritten or removed (rewrite, TRUNCATE), and is not compared.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from psycopg import sql as quoting

from tests.support.oracles.oracle import OTHER_TYPES, OurSide, emit_fence
from tests.support.servers.postgres import Cluster
from tidemark.decode.datum.tuples import missing_value
from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.decode.types.codec import ArrowValue, Dialect
from tidemark.decode.types.registry import column_codec, prints_names
from tidemark.io.node.node import REFERENCE_SETTINGS
from tidemark.model.change import (
    AFTER,
    BEFORE,
    BeforeKind,
    ChangeBatch,
    ChangeGroup,
    Op,
    RewriteBoundary,
    SchemaEffect,
    SchemaEvent,
    Truncation,
)
from tidemark.model.lsn import Oid
from tidemark.model.relation import Column, Relation, ReplicaIdentity

Row = dict[int, object]  # by column number
Key = tuple[str, ...]
ORDINARY_TABLE = "r"  # pg_class.relkind
VIRTUAL = "v"  # pg_attribute.attgenerated: not stored, so not in WAL
ROWS_SHOWN_MAX = 3  # of each side, where they differ


@dataclass
class CheckedTable:
    """Rows of one relation."""

    relation: Relation
    rows: list[Row] = field(default_factory=list)
    is_lost: bool = False
    _numbers: tuple[int, ...] = ()  # numbers of the columns that are the key of `_by_key`
    _by_key: dict[Key, list[Row]] | None = None

    def empty(self) -> None:
        """Remove all rows; afterwards the content is known."""
        self.rows = []
        self.is_lost = False
        self._by_key = None

    def forget_keys(self) -> None:
        """Drop the lookup table: rows were changed by something other than a row change."""
        self.rows = list(self._all())
        self._by_key = None

    def _all(self) -> Iterator[Row]:
        if self._by_key is None:
            yield from self.rows
        else:
            for rows in self._by_key.values():
                yield from rows

    def all_rows(self) -> list[Row]:
        """Return the rows."""
        return list(self._all())

    def add(self, row: Row) -> None:
        """Add a row."""
        if self._by_key is None:
            self.rows.append(row)
        else:
            self._by_key.setdefault(_key(row, self._numbers), []).append(row)

    def pop(self, old: Row, numbers: tuple[int, ...]) -> Row | None:
        """Remove and return the row that equals `old` in the columns `numbers`; None if there is none."""
        if self._by_key is None or numbers != self._numbers:
            rows, self._numbers, self._by_key = self.all_rows(), numbers, {}
            for row in rows:
                self.add(row)
        by_key = self._by_key
        assert by_key is not None
        key = _key(old, numbers)
        found = by_key.get(key)
        if not found:
            return None
        row = found.pop()
        if not found:
            del by_key[key]
        return row


def _key(row: Row, numbers: Iterable[int]) -> Key:
    return tuple(repr(row.get(number)) for number in numbers)


class MemoryReplica:
    """All tables of a database, by OID."""

    def __init__(self, dialects: Mapping[Oid, Dialect]) -> None:
        self._dialects = dialects
        self.tables: dict[int, CheckedTable] = {}
        self.rewriting: set[int] = set()
        self._effects: list[str] = []  # of schema events, with the table's name

    def apply(self, group: ChangeGroup) -> None:
        """Apply a group; between two barriers the batches of a table have no order, but their rows do."""
        batches: list[ChangeBatch] = []
        for item in group.items:
            if isinstance(item, ChangeBatch):
                batches.append(item)
                continue
            self._batches(batches)
            batches = []
            match item:
                case SchemaEvent():
                    self._schema(item)
                case RewriteBoundary():
                    self._boundary(item)
                case Truncation():
                    self._table(item.relation).empty()
                case _:
                    pass
        self._batches(batches)

    def pop_effects(self) -> list[str]:
        """Return the effects since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def _table(self, relation: Relation) -> CheckedTable:
        table = self.tables.setdefault(relation.oid, CheckedTable(relation))
        table.relation = relation
        return table

    def _batches(self, batches: Iterable[ChangeBatch]) -> None:
        changes = [change for batch in batches for change in _changes(batch)]
        for change in sorted(changes, key=lambda change: change.position):
            self._change(change)

    def _change(self, change: "_ReplicaChange") -> None:
        relation = change.relation
        table = self._table(relation)
        is_rewritten = change.op == Op.REWRITE.value
        assert is_rewritten == (relation.oid in self.rewriting), "rewritten rows stand in boundaries"
        previous: Row | None = None
        if change.op in (Op.UPDATE.value, Op.DELETE.value):
            identified = _identified(change)
            previous = table.pop(*identified) if identified is not None and not table.is_lost else None
            if previous is None:
                assert identified is None or table.is_lost, f"no row of {relation.qualified_name} is as {identified}"
                table.is_lost = True
                return
        if change.new is not None and not table.is_lost:
            row = dict(previous or {})
            row.update((number, value) for number, value in change.new.items() if number not in change.unchanged)
            table.add(row)

    def _schema(self, event: SchemaEvent) -> None:
        described = event.after or event.before
        assert described is not None
        self._effects.append(f"{described.name} {event.effect.value}")
        if event.after is None:
            self.tables.pop(described.oid, None)
            return
        table = self._table(event.after)
        table.forget_keys()
        if event.effect is SchemaEffect.CONSTANT:
            known = {column.number for column in event.before.columns} if event.before is not None else set()
            for column in event.after.live_columns:
                if column.number not in known:
                    value = constant(column, self._dialects[event.database])
                    for row in table.rows:
                        row[column.number] = value

    def _boundary(self, boundary: RewriteBoundary) -> None:
        if boundary.begin:
            self._table(boundary.relation).empty()
            self.rewriting.add(boundary.relation.oid)
        else:
            self.rewriting.remove(boundary.relation.oid)


@dataclass(frozen=True, slots=True)
class _ReplicaChange:
    """A row change."""

    relation: Relation
    position: tuple[int, int]
    op: str
    before_kind: BeforeKind
    old: Row
    new: Row | None
    unchanged: frozenset[int]  # columns with the previous value, which the change omits


def _changes(batch: ChangeBatch) -> Iterator[_ReplicaChange]:
    columns = batch.relation.live_columns
    numbers = [column.number for column in columns]
    sides: list[list[Row | None]] = []
    for name in (BEFORE, AFTER):
        struct = batch.rows.column(name)
        values = [plain(child) for child in struct.flatten()]
        present = struct.is_valid().to_pylist()
        sides.append(
            [
                dict(zip(numbers, (column[at] for column in values), strict=True)) if present[at] else None
                for at in range(batch.rows.num_rows)
            ]
        )
    meta = ("_commit_lsn", "_ordinal", "_op", "_before_kind", "_unchanged")
    changes = zip(*(batch.rows.column(name).to_pylist() for name in meta), *sides, strict=True)
    for commit_lsn, ordinal, op, before_kind, bitmap, old, new in changes:
        bits = int.from_bytes(bitmap or b"", "little")
        unchanged = frozenset(number for index, number in enumerate(numbers) if bits >> index & 1)
        yield _ReplicaChange(
            batch.relation, (commit_lsn, ordinal), op, BeforeKind(before_kind), old or {}, new, unchanged
        )


def _identified(change: _ReplicaChange) -> tuple[Row, tuple[int, ...]] | None:
    """Return the old values in the change, and their columns; None if they are too few to find the row."""
    relation = change.relation
    if change.before_kind is BeforeKind.FULL:
        all_columns = tuple(column.number for column in relation.live_columns if column.generated != VIRTUAL)
        return change.old, relation.primary_key or all_columns
    numbers = relation.identity_columns
    if relation.replica_identity in (ReplicaIdentity.NOTHING, ReplicaIdentity.FULL) or not numbers:
        return None
    if change.before_kind is BeforeKind.KEY:
        return change.old, numbers
    return (change.new, numbers) if change.new is not None else None  # the key has not changed


def plain(values: pa.Array) -> list[object]:
    """Return Python values, with times as numbers: Python's types do not cover all of PostgreSQL's."""
    found: list[object] = values.cast(_plain_type(values.type)).to_pylist()
    return found


def _plain_type(arrow: pa.DataType) -> pa.DataType:
    if pa.types.is_temporal(arrow):
        return pa.int32() if arrow.bit_width == 32 else pa.int64()
    if pa.types.is_list(arrow):
        return pa.list_(_plain_type(arrow.value_type))
    return arrow


def constant(column: Column, dialect: Dialect) -> object:
    """Return the value of a new column in older rows, as a batch would contain it."""
    value = missing_value(column)
    codec = column_codec(column, dialect)
    arrow: ArrowValue = None
    if isinstance(value, str):
        arrow = codec.parse_text(value)
    elif isinstance(value, bytes):
        arrow = codec.arrow_value(value)
    return plain(pa.array([arrow], codec.arrow_type))[0]


class Replicating(OurSide):
    """Tidemark's decoder of a database, with a replica fed by its output, and its lines."""

    ROWS_MAX = 50  # of a group

    def __post_init__(self) -> None:
        super().__post_init__()
        dialects = {oid: mirror.dialect for oid, mirror in self.seed.mirrors.items()}
        self.replica = MemoryReplica(dialects)
        self.builder = GroupBuilder(dialects, rows_max=self.ROWS_MAX)

    def finish(self, transaction: CommittedTransaction) -> None:
        """Apply a printed transaction."""
        for group in self.builder.add_transaction(transaction):
            self.replica.apply(group)

    def catch_up(self) -> Mapping[str, CheckedTable]:
        """Read up to now; return the replica's tables by name."""
        self.read_until(emit_fence(self.cluster, self.databases[0]))
        return self.flushed()

    def flushed(self) -> Mapping[str, CheckedTable]:
        """Return the replica's tables by name, after all WAL that was read."""
        last = self.builder.flush()
        if last is not None:
            self.replica.apply(last)
        assert not self.replica.rewriting, "a rewrite's end is in its transaction"
        return {table.relation.qualified_name: table for table in self.replica.tables.values()}


def differences(cluster: Cluster, database: str, table: CheckedTable) -> list[str]:
    """Return the differences between a table and its replica as text: a partition's or a table's own rows only."""
    columns = [column for column in table.relation.live_columns if _is_comparable(column)]
    numbers = [column.number for column in columns]
    expected = Counter(_key(row, numbers) for row in source_rows(cluster, database, table.relation, columns))
    found = Counter(_key(row, numbers) for row in table.all_rows())
    if expected == found:
        return []
    name = table.relation.qualified_name
    return [
        f"{name}: {left.total()} rows are only in {where}: {list(left)[:ROWS_SHOWN_MAX]}"
        for where, left in (("the table", expected - found), ("the replica", found - expected))
        if left
    ]


def _is_comparable(column: Column) -> bool:
    """Return whether a value exists and is equal as text and in WAL: types of the closed list are not."""
    shown = column.type.display_name if column.type is not None else ""
    is_text = OTHER_TYPES.fullmatch(shown) is None and not prints_names(column.type)
    return column.generated != VIRTUAL and is_text


def source_rows(cluster: Cluster, database: str, relation: Relation, columns: list[Column]) -> Iterator[Row]:
    """Read the rows of a table by SQL, as a batch would contain them.

    It uses COPY, which prints as output functions do; a cast to text trims the blanks of character(n).
    """
    codecs = [column_codec(column, Dialect.of("UTF8", cluster.major)) for column in columns]
    selected = quoting.SQL(", ").join(quoting.Identifier(column.name) for column in columns)
    name = quoting.Identifier(relation.namespace, relation.name)
    with cluster.connect(database) as session:
        for setting in REFERENCE_SETTINGS:
            session.execute(setting)
        with session.cursor().copy(
            quoting.SQL("COPY (SELECT {} FROM ONLY {}) TO STDOUT").format(selected, name)
        ) as copy:
            found = list(copy.rows())
    arrays = [
        plain(pa.array([None if text is None else codec.parse_text(text) for text in texts], codec.arrow_type))
        for codec, texts in zip(codecs, zip(*found, strict=True) if found else [()] * len(codecs), strict=True)
    ]
    for at in range(len(found)):
        yield {column.number: values[at] for column, values in zip(columns, arrays, strict=True)}
