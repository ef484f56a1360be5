"""Drop, Rename and Cast: the columns of a table, their names and their types. The key keeps its columns."""

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from tidemark.transforms.column_names import ColumnName
from tidemark.transforms.transform import (
    BadTransform,
    BoundTransform,
    TableShape,
    Transform,
    TransformFailed,
    children,
    rebuilt,
)


class Drop(Transform):
    """Drops columns."""

    def __init__(self, *columns: str, has_column: str | None = None) -> None:
        """`columns`: patterns `schema.table.column`."""
        super().__init__(has_column=has_column)
        self._columns = tuple(ColumnName.parse(column) for column in columns)
        if not columns:
            raise BadTransform("Drop() needs columns", hint='for example Drop("public.customers.notes")')

    def __str__(self) -> str:
        return f"Drop({', '.join(repr(column.text) for column in self._columns)})"

    def named(self, shape: TableShape) -> Mapping[str, bool]:
        """Return the patterns for columns, and whether the table has a matching one."""
        return {column.text: column.is_in(shape) for column in self._columns}

    def bind(self, shape: TableShape) -> BoundTransform | None:
        """Return the table without the columns; raise `BadTransform` for one of the key."""
        dropped = {name for column in self._columns for name in column.find(shape, self)}
        if not dropped:
            return None
        if keys := [name for name in shape.key if name in dropped]:
            raise BadTransform(
                f"{self}: {', '.join(keys)} of {shape.table} is in the key: without it, rows could not be matched",
                hint="drop other columns, or give the table another key (REPLICA IDENTITY USING INDEX)",
            )
        kept = [at for at, name in enumerate(shape.names) if name not in dropped]
        fields = [shape.columns.field(at) for at in kept]

        def change(side: pa.StructArray) -> pa.StructArray:
            columns = children(side)
            return rebuilt(side, fields, [columns[at] for at in kept])

        return BoundTransform(shape.with_columns(fields), lambda batch: (batch.with_sides(change),))


class Rename(Transform):
    """Renames a column; also one of the key."""

    def __init__(self, column: str, to: str, *, has_column: str | None = None) -> None:
        """`column`: a pattern `schema.table.column`. `to`: the new name."""
        super().__init__(has_column=has_column)
        self._column = ColumnName.parse(column)
        self._to = to
        if not to:
            raise BadTransform(f"{self}: the new name is empty")

    def __str__(self) -> str:
        return f"Rename({self._column.text!r}, {self._to!r})"

    def named(self, shape: TableShape) -> Mapping[str, bool]:
        """Return the patterns for columns, and whether the table has a matching one."""
        return {self._column.text: self._column.is_in(shape)}

    def bind(self, shape: TableShape) -> BoundTransform | None:
        """Return the table with the new name."""
        found = self._column.find(shape, self)
        if not found or found == (self._to,):
            return None
        if len(found) > 1:
            raise BadTransform(f"{self}: {', '.join(found)} of {shape.table} would have one name")
        if self._to in shape.names:
            raise BadTransform(f"{self}: {shape.table} has a column {self._to} already")
        names = {found[0]: self._to}
        fields = [field.with_name(names.get(field.name, field.name)) for field in shape.columns]
        numbers = {names.get(name, name): number for name, number in shape.numbers.items()}
        renamed = replace(shape.with_columns(fields, numbers), key=tuple(names.get(name, name) for name in shape.key))

        def change(side: pa.StructArray) -> pa.StructArray:
            return rebuilt(side, fields, children(side))

        return BoundTransform(renamed, lambda batch: (batch.with_sides(change),))


class Cast(Transform):
    """Casts columns to another Arrow type; a value that does not fit ends the engine."""

    def __init__(self, column: str, to: str | pa.DataType, *, has_column: str | None = None) -> None:
        """`column`: a pattern `schema.table.column`. `to`: a type of pyarrow, or its name, such as "float64"."""
        super().__init__(has_column=has_column)
        self._column = ColumnName.parse(column)
        try:
            self._to = pa.type_for_alias(to) if isinstance(to, str) else to
        except ValueError:
            raise BadTransform(
                f"Cast({column!r}, {to!r}): no such type", hint='for example "string", "int64", "float64", "date32"'
            ) from None

    def __str__(self) -> str:
        return f"Cast({self._column.text!r}, {str(self._to)!r})"

    def named(self, shape: TableShape) -> Mapping[str, bool]:
        """Return the patterns for columns, and whether the table has a matching one."""
        return {self._column.text: self._column.is_in(shape)}

    def bind(self, shape: TableShape) -> BoundTransform | None:
        """Return the table with the new type; raise `BadTransform` if a column cannot be cast."""
        found = self._column.find(shape, self)
        if not found:
            return None
        fields = [field.with_type(self._to) if field.name in found else field for field in shape.columns]
        for field in shape.columns:
            if field.name in found:
                self._check(field, shape)

        def change(side: pa.StructArray) -> pa.StructArray:
            columns = children(side)
            for at, field in enumerate(fields):
                if field.name in found:
                    columns[at] = self._cast(columns[at], field.name, shape)
            return rebuilt(side, fields, columns)

        return BoundTransform(shape.with_columns(fields), lambda batch: (batch.with_sides(change),))

    def _check(self, field: pa.Field, shape: TableShape) -> None:
        try:
            pa.nulls(0, field.type).cast(self._to)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise BadTransform(
                f"{self}: {field.name} of {shape.table} has the type {field.type}, which cannot be cast to {self._to}"
            ) from None
        if field.name in shape.key and not _keeps_values_distinct(field.type, self._to):
            raise BadTransform(
                f"{self}: {field.name} of {shape.table} is in the key: two values could become one",
                hint="a column of the key can be cast to string or to a wider integer",
            )

    def _cast(self, values: pa.Array, name: str, shape: TableShape) -> pa.Array:
        try:
            return values.cast(self._to)
        except pa.ArrowInvalid:  # NB: its message has the value
            raise TransformFailed(
                f"{self}: {shape.table} has a value in {name} that is not a valid {self._to}"
            ) from None


def _keeps_values_distinct(old: pa.DataType, new: pa.DataType) -> bool:
    is_wider = pa.types.is_integer(old) and pa.types.is_integer(new) and new.bit_width >= old.bit_width
    return is_wider or (pa.types.is_string(new) and not pa.types.is_floating(old))
