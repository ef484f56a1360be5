"""A table with scripted changes: its rows as a dict, and the changes that a decoder would emit for it.

The rows are the oracle. Changes are items of the stream, in commit order, in batches that end where the test requests.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from tidemark.model.change import (
    BeforeKind,
    ChangeBatch,
    CopyBoundary,
    RewriteBoundary,
    SchemaChange,
    SchemaEffect,
    SchemaEvent,
    Truncation,
    batch_schema,
)
from tidemark.model.lsn import Lsn, Oid, TimelineId, Xid
from tidemark.model.position import Position, Sequence
from tidemark.model.relation import Align, Column, Relation, ReplicaIdentity, TypeDescription, TypeKind
from tidemark.pipeline.lake.layout import shape_of
from tidemark.pipeline.sinks.steps import Delivered, TableItem

DATABASE = Oid(16384)
RELATION = Oid(20000)
TEST_TIMELINE = TimelineId(1)
TYPES = {  # OID, length, alignment
    "int4": (23, 4, Align.INT),
    "int8": (20, 8, Align.DOUBLE),
    "float8": (701, 8, Align.DOUBLE),
    "numeric": (1700, -1, Align.INT),
    "text": (25, -1, Align.INT),
}
TEXT_OID = 25
Value = int | str | float | None
Row = dict[int, Value]  # by column number


def column(number: int, name: str, type_name: str) -> Column:
    """Return a column of one of `TYPES`."""
    oid, length, align = TYPES[type_name]
    by_value = length > 0
    kind = TypeDescription(Oid(oid), "pg_catalog", type_name, type_name, TypeKind.BASE, length, by_value, align)
    return Column(number, name, kind, -1, length, by_value, align)


def missing_text(text: str, encoding: str = "utf-8") -> bytes:
    """Return the attmissingval of a text column: an array of one value, in its on-disk form."""
    value = text.encode(encoding)
    array = struct.pack("<iiIii", 1, 0, TEXT_OID, 1, 1) + struct.pack("<I", len(value) + 4 << 2) + value
    return struct.pack("<I", len(array) + 4 << 2) + array


@dataclass
class ScriptedTable:
    """One table: `rows` is its content, `items` its stream so far."""

    key: tuple[int, ...] = (1,)
    identity: ReplicaIdentity = ReplicaIdentity.DEFAULT
    oid: Oid = RELATION
    rows: dict[tuple[Value, ...], Row] = field(default_factory=dict)
    items: list[TableItem] = field(default_factory=list)
    changes: int = 0  # number of rows that the log must contain
    name: str = "Orders"
    _pending: list[dict[str, object]] = field(default_factory=list)
    lsn: int = 1000
    ordinal: int = 0
    timeline: TimelineId = TEST_TIMELINE
    is_dated: bool = False  # whether transactions have a commit time: as many microseconds as their LSN

    def __post_init__(self) -> None:
        self.relation = Relation(
            self.oid,
            "public",
            self.name,
            "r",
            "p",
            (column(1, "id", "int4"), column(2, "note", "text"), column(3, "big", "text")),
            self.identity,
            identity_columns=self.key if self.identity in (ReplicaIdentity.DEFAULT, ReplicaIdentity.INDEX) else (),
            primary_key=self.key,
        )

    # Row changes

    def insert(self, row: Row, op: str = "i") -> None:
        self.rows[self._key(row)] = row
        self._change(op, row, None, BeforeKind.NONE)

    def update(self, key: tuple[Value, ...], changes: Row, unchanged: tuple[int, ...] = ()) -> None:
        """Change a row; the columns `unchanged` are TOASTed and keep their values, which WAL does not repeat."""
        old = self.rows.pop(key)
        row = {**old, **changes}
        self.rows[self._key(row)] = row
        full = self.identity is ReplicaIdentity.FULL
        kind = BeforeKind.FULL if full else BeforeKind.KEY if self._key(row) != key else BeforeKind.NONE
        self._change("u", row, old, kind, unchanged)

    def delete(self, key: tuple[Value, ...]) -> None:
        old = self.rows.pop(key)
        full = self.identity is ReplicaIdentity.FULL
        self._change("d", None, old, BeforeKind.FULL if full else BeforeKind.KEY)

    def truncate(self) -> None:
        self.rows.clear()
        self.changes += 1
        at, lsn, relation = self.next_position(), Lsn(self.lsn), self.relation
        self.add_event(Truncation(at, lsn, DATABASE, Xid(7), relation, False, False, commit_time_us=self.time_us))

    # Column changes

    def alter(self, columns: tuple[Column, ...], effect: SchemaEffect = SchemaEffect.METADATA) -> None:
        self.cut()
        before, self.relation = self.relation, replace(self.relation, columns=columns)
        self.schema_event(SchemaChange.ALTER, effect, before, self.relation)

    def schema_event(
        self, change: SchemaChange, effect: SchemaEffect, before: Relation | None, after: Relation | None
    ) -> None:
        """Add an event of DDL; the relation stays as it is."""
        at, lsn = self.next_position(), Lsn(self.lsn)
        self.add_event(
            SchemaEvent(at, lsn, DATABASE, Xid(7), change, effect, before, after, commit_time_us=self.time_us)
        )

    def add_column(self, name: str, constant: str | None = None) -> None:
        number = len(self.relation.columns) + 1
        added = column(number, name, "text")
        effect = SchemaEffect.METADATA
        if constant is not None:
            added, effect = replace(added, missing=missing_text(constant)), SchemaEffect.CONSTANT
        for row in self.rows.values():
            row[number] = constant
        self.alter((*self.relation.columns, added), effect)

    def drop_column(self, number: int) -> None:
        for row in self.rows.values():
            row.pop(number)
        self.alter(tuple(replace(c, dropped=c.dropped or c.number == number) for c in self.relation.columns))

    def rename_column(self, number: int, name: str) -> None:
        self.alter(tuple(replace(c, name=name) if c.number == number else c for c in self.relation.columns))

    def rewrite(self, number: int, type_name: str, values: Mapping[tuple[Value, ...], Value]) -> None:
        """ALTER COLUMN TYPE: every row is repeated, between two boundaries."""
        described = column(number, self.relation.columns[number - 1].name, type_name)
        self.alter(tuple(described if c.number == number else c for c in self.relation.columns), SchemaEffect.REWRITE)
        self.repeat([{**row, number: values[key]} for key, row in self.rows.items()])

    def repeat(self, rows: list[Row]) -> None:
        """Replace all rows by a rewrite, between two boundaries."""
        self._boundary(begin=True)
        self.rows = {}
        for row in rows:
            self.insert(row, "r")
            self.cut()
        self._boundary(begin=False)

    def copy(self, generation: int, rows: Iterable[Row], *, complete: bool = True) -> None:
        """Make the first copy, complete or not."""
        self.rows.clear()
        at, seen_lsn, seen_us = self.next_position(), Lsn(self.lsn + 1), self.time_us + 1 if self.is_dated else 0
        begin = CopyBoundary(
            at, DATABASE, self.relation, generation, True, "1:1:", seen_lsn=seen_lsn, seen_time_us=seen_us
        )
        self.add_event(begin)
        for row in rows:
            self.insert(row, "c")
        if complete:
            self.add_event(replace(begin, position=self.next_position(), begin=False))
        else:
            self.cut()

    # Output

    @property
    def time_us(self) -> int:
        """The commit time of the present transaction; 0: none."""
        return self.lsn if self.is_dated else 0

    def commit(self, lsn: int = 0) -> None:
        """End the transaction: the next change has another commit LSN, or the given one."""
        self.lsn = lsn or self.lsn + 100
        self.ordinal = 0

    def cut(self) -> None:
        """End the batch: the next change is in another one."""
        if not self._pending:
            return
        struct = shape_of(self.relation)
        self.items.append(
            ChangeBatch(DATABASE, self.relation, pa.RecordBatch.from_pylist(self._pending, schema=batch_schema(struct)))
        )
        self._pending = []

    def delivered(self, start: int = 1) -> list[Delivered]:
        """Return the stream so far, with sequences from `start` as in an outbox."""
        self.cut()
        return [Delivered(Sequence(start + i), item) for i, item in enumerate(self.items)]

    def expected(self) -> list[dict[str, Value]]:
        """Return the rows by column name, in key order."""
        names = {c.number: c.name for c in self.relation.live_columns}
        rows = [{names[number]: value for number, value in row.items()} for row in self.rows.values()]
        return sorted(rows, key=repr)

    def _key(self, row: Row) -> tuple[Value, ...]:
        return tuple(row[number] for number in self.key)

    def next_position(self) -> Position:
        self.ordinal += 1
        return Position(self.timeline, Lsn(self.lsn), self.ordinal)

    def _boundary(self, *, begin: bool) -> None:
        at, lsn = self.next_position(), Lsn(self.lsn)
        self.add_event(RewriteBoundary(at, lsn, DATABASE, Xid(7), self.relation, begin, commit_time_us=self.time_us))

    def add_event(self, event: TableItem) -> None:
        self.cut()
        self.items.append(event)

    def _change(
        self, op: str, new: Row | None, old: Row | None, kind: BeforeKind, unchanged: tuple[int, ...] = ()
    ) -> None:
        live = self.relation.live_columns
        position = self.next_position()
        after = None if new is None else {c.name: new[c.number] for c in live if c.number not in unchanged}
        before = None
        if kind is not BeforeKind.NONE and old is not None:
            numbers = self.key if kind is BeforeKind.KEY else tuple(old)
            before = {c.name: old[c.number] for c in live if c.number in numbers}
        bits = sum(1 << index for index, c in enumerate(live) if c.number in unchanged)
        self._pending.append(
            {
                "_op": op,
                "_tli": position.timeline,
                "_commit_lsn": position.commit_lsn,
                "_ordinal": position.ordinal,
                "_lsn": position.commit_lsn - 50,
                "_xid": 7,
                "_commit_time": self.time_us,
                "_origin": 0,
                "_before_kind": kind.value,
                "_unchanged": bits.to_bytes(2, "little") if bits else None,
                "_before": before,
                "_after": after,
            }
        )
        self.changes += 1


def act(table: ScriptedTable, action: str, key: int, step: int) -> None:
    """Apply one random action to the table, if it is possible."""
    text = key_is_text(table)
    present = str(key) if text else key
    moved = str(key + 7) if text else key + 7
    live = [c.number for c in table.relation.live_columns]
    if (present,) in table.rows:
        act_on_row(table, action, (present, moved), step)
    elif action == "insert":
        table.insert({n: present if n == 1 else f"{n} at {step}" for n in live})
    if action == "truncate":
        table.truncate()
    elif action in ("cut", "commit"):
        table.cut() if action == "cut" else table.commit()
    elif action in ("add", "add constant") and len(table.relation.columns) < 6:
        table.add_column(f"c{step}", f"constant {step}" if action == "add constant" else None)
    elif action == "drop" and live[-1] > 3:
        table.drop_column(live[-1])
    elif action == "rename":
        table.rename_column(2, f"Note {step}")
    else:
        retype(table, action)


def retype(table: ScriptedTable, action: str) -> None:
    """Change the type of the key, if the action is one of those."""
    if key_is_text(table):
        if action == "retype back":
            table.rewrite(1, "int8", {k: int(str(k[0])) for k in table.rows})
    elif action == "retype":
        table.rewrite(1, "text", {k: str(k[0]) for k in table.rows})
    elif action == "widen":
        table.rewrite(1, "int8", {k: k[0] for k in table.rows})


def act_on_row(table: ScriptedTable, action: str, keys: tuple[Value, Value], step: int) -> None:
    key, moved = keys
    numbers = [c.number for c in table.relation.live_columns if c.number > 1]
    kept = (3,) if action.endswith("keep") else ()
    if action == "delete":
        table.delete((key,))
    elif action in ("update", "keep"):
        table.update((key,), {n: f"{n} at {step}" for n in numbers if n not in kept}, kept)
    elif action in ("move", "move and keep") and (moved,) not in table.rows:
        table.update((key,), {1: moved}, kept)


def key_is_text(table: ScriptedTable) -> bool:
    kind = table.relation.columns[0].type
    return kind is not None and kind.name == "text"
