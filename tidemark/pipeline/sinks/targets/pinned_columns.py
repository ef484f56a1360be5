"""The columns that the lake keeps of a table whose schema policy is `ignore`, and changes reduced to these columns.

They are *pinned*: those of the version in which the table was when the policy took effect, or of its last copy since. A
new column is left out, and a renamed one keeps its name in the lake. A removed one stays, NULL in every row that is
written from then on. A type may change if all its values convert to the pinned type without loss.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from tidemark.io.process.lake_config import SchemaPolicy
from tidemark.model.change import AFTER, BEFORE, UNCHANGED, ChangeBatch, CopyBoundary, SchemaEvent
from tidemark.model.position import Position
from tidemark.model.relation import Column, Relation
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.lake.layout import Shapes, convert, key_names, lake_columns
from tidemark.pipeline.lake.positions.table_position import TableId, TablePosition, applied_of
from tidemark.pipeline.lake.row_identity import row_identity
from tidemark.pipeline.sinks.rows.logshape import loses_nothing
from tidemark.pipeline.sinks.steps import Delivered, TableItem, last_position
from tidemark.wire.items import relation_of


class PinnedColumns:
    """The columns of one version of a table, to which its later versions are reduced."""

    def __init__(self, relation: Relation, shapes: Shapes) -> None:
        self.relation = relation
        self._shapes = shapes
        self._columns = {column.number: column for column in relation.live_columns}
        self._types = self._types_of(relation)
        self._reduced: dict[Relation, Relation] = {}
        self._faults: dict[tuple[Relation, bool], str] = {}

    def after(self, item: TableItem, applied: Applied) -> "PinnedColumns":
        """Return the pinned columns after an item: those of a copy that begins after what is `applied`."""
        if not isinstance(item, CopyBoundary) or not item.begin or item.relation == self.relation:
            return self
        is_new = item.generation > applied.generation or item.position > applied.position
        return PinnedColumns(item.relation, self._shapes) if is_new else self

    def reduced(self, relation: Relation) -> Relation:
        """Return a version of the table with the pinned columns that it still has, under their pinned names."""
        if relation not in self._reduced:
            types = self._types_of(relation)
            columns = tuple(self._column(column, types.get(column.number)) for column in relation.columns)
            self._reduced[relation] = replace(relation, columns=columns)
        return self._reduced[relation]

    def reduced_item(self, item: TableItem) -> TableItem:
        """Return an item of the table with only the pinned columns."""
        if isinstance(item, SchemaEvent):
            before = item.before and self.reduced(item.before)
            return replace(item, before=before, after=item.after and self.reduced(item.after))
        if not isinstance(item, ChangeBatch):
            return replace(item, relation=self.reduced(item.relation))
        relation = self.reduced(item.relation)
        return item if relation == item.relation else ChangeBatch(item.database, relation, self._rows(item, relation))

    def fault(self, relation: Relation, *, is_replica: bool) -> str:
        """Return why a version of the table cannot be reduced to the pinned columns; "" if it can."""
        if (relation, is_replica) not in self._faults:
            self._faults[relation, is_replica] = ", ".join(self._reasons(relation, is_replica=is_replica))
        return self._faults[relation, is_replica]

    def _reasons(self, relation: Relation, *, is_replica: bool) -> Iterator[str]:
        types, names = self._types_of(relation), {column.number: column.name for column in relation.live_columns}
        for number, pinned in self._types.items():
            if number in types and types[number] != pinned and not loses_nothing(types[number], pinned):
                yield f"column {names[number]} is {types[number]} now, and {pinned} in the lake"
        reduced = self.reduced(relation)
        pinned_names = {column.number: column.name for column in lake_columns(self.relation)}
        found = {column.number: column.name for column in lake_columns(reduced)}
        if not found:
            yield "none of its columns in the lake is left"
        for number, name in found.items():
            if pinned_names.get(number) != name:
                yield f"column {pinned_names.get(number, name)} of the lake would be {name}"
        if not is_replica:
            return
        if key_names(relation) and not key_names(reduced):
            yield f"its key is {', '.join(key_names(relation))}, of which the lake does not have all columns"
        identity = row_identity(reduced)
        if identity is not None and identity.is_whole_row and len(found) < len(pinned_names):
            yield "it has no key, and rows without the dropped columns are not found in its replica"

    def _types_of(self, relation: Relation) -> dict[int, pa.DataType]:
        shape = self._shapes(relation)
        return {column.number: shape.field(column.index).type for column in lake_columns(relation)}

    def _column(self, column: Column, kind: pa.DataType | None) -> Column:
        pinned = self._columns.get(column.number)
        if column.dropped or pinned is None:
            return replace(column, dropped=True)
        if kind == self._types.get(column.number):
            return replace(column, name=pinned.name)
        # Its values are converted. A constant of older rows is in the old type, and no older row lacks the column.
        return replace(column, name=pinned.name, type=pinned.type, typmod=pinned.typmod, missing=None)

    def _rows(self, item: ChangeBatch, relation: Relation) -> pa.RecordBatch:
        rows, shape = item.rows, self._shapes(relation)
        was = {column.number: index for index, column in enumerate(item.relation.live_columns)}
        indexes = [was[column.number] for column in relation.live_columns]
        columns = {name: rows.column(name) for name in rows.schema.names}
        for name in (BEFORE, AFTER):
            parts = columns[name].flatten()
            kept = [convert(parts[index], field) for index, field in zip(indexes, shape, strict=True)]
            columns[name] = pa.StructArray.from_arrays(kept, fields=list(shape), mask=columns[name].is_null())
        columns[UNCHANGED] = _moved_bits(columns[UNCHANGED], indexes)
        fields = [field.with_type(columns[field.name].type) for field in rows.schema]
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=pa.schema(fields))


def _moved_bits(bitmaps: pa.Array, indexes: list[int]) -> pa.Array:
    """Return bitmaps over columns as bitmaps over those of them that have the given `indexes`; NULL if empty."""
    if bitmaps.null_count == len(bitmaps):
        return bitmaps
    length = -(-len(indexes) // 8)

    def moved(bitmap: bytes | None) -> bytes | None:
        was = int.from_bytes(bitmap or b"", "little")
        now = sum(1 << new for new, old in enumerate(indexes) if was >> old & 1)
        return now.to_bytes(length, "little") if now else None

    return pa.array(map(moved, bitmaps.to_pylist()), bitmaps.type)


class Pins:
    """The pinned columns of the tables of a lake, which `_positions` records."""

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._found: dict[TableId, PinnedColumns] = {}

    def columns(
        self, of: TableId, known: TablePosition | None, items: Sequence[Delivered], policy: SchemaPolicy
    ) -> PinnedColumns | None:
        """Return the pinned columns of a table before `items`; None with another policy, or without a new item."""
        if policy is not SchemaPolicy.IGNORE:
            return None
        relation = known.pinned if known is not None else None
        if relation is None:
            relation = _first_version(items, applied_of(known).position)
        if relation is None:
            return None
        found = self._found.get(of)
        if found is None or found.relation != relation:
            found = self._found[of] = PinnedColumns(relation, self._shapes)
        return found

    def recorded(
        self, of: TableId, known: TablePosition | None, items: Sequence[Delivered], policy: SchemaPolicy
    ) -> Relation | None:
        """Return the pinned version to record after `items` were applied."""
        columns = self.columns(of, known, items, policy)
        for delivered in items:
            columns = columns.after(delivered.item, applied_of(known)) if columns is not None else None
        return columns.relation if columns is not None else None

    def forget(self, of: TableId) -> None:
        """Forget the columns of a dropped table."""
        self._found.pop(of, None)


def _first_version(items: Sequence[Delivered], applied: Position) -> Relation | None:
    """Return the version of a table before the first of its items after `applied`; None without such an item."""
    first = next((delivered.item for delivered in items if last_position(delivered.item) > applied), None)
    if isinstance(first, SchemaEvent):
        return first.before or first.after
    return relation_of(first) if first is not None else None
