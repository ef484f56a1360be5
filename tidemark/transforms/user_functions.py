"""OnBatch and OnRow: functions of the application, on the columns of a batch or on one change after the other."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from tidemark.engine.pool.batch import META_NAMES, Batch, Change
from tidemark.model.change import AFTER, BEFORE
from tidemark.transforms.transform import (
    BoundTransform,
    TableShape,
    Transform,
    TransformFailed,
    checked_operations,
)


class OnBatch(Transform):
    """Calls a function with the record batch; it returns a record batch, or None to leave out all rows.

    The metadata columns must be kept, and both sides must have the same columns. The function is called at the start
    and after each ALTER TABLE without rows: what it returns then are the columns of all batches.
    """

    def __init__(
        self,
        function: Callable[[pa.RecordBatch], pa.RecordBatch | None],
        *,
        tables: str | Sequence[str] = "*.*",
        has_column: str | None = None,
    ) -> None:
        """Keep the function, which must be safe to call from several threads."""
        super().__init__(tables=tables, has_column=has_column)
        self._function = function

    def __str__(self) -> str:
        return f"OnBatch({_name(self._function)})"

    def bind(self, shape: TableShape) -> BoundTransform | None:
        """Return the call of the function for the table; it is called once, without rows."""
        empty = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in shape.schema], schema=shape.schema)
        returned = self._function(empty)
        columns = shape.columns if returned is None else self._columns(returned, shape)
        checked: pa.Schema | None = None  # the last one that was: all batches of a function mostly have the same

        def step(batch: Batch) -> Sequence[Batch]:
            nonlocal checked
            returned = self._function(batch.arrow)
            if returned is None or (isinstance(returned, pa.RecordBatch) and not returned.num_rows):
                return ()
            if not isinstance(returned, pa.RecordBatch) or returned.schema != checked:
                if self._columns(returned, shape) != columns:
                    raise TransformFailed(f"{self}: it returned other columns for {shape.table} than for no rows")
                checked = returned.schema
            return (batch.with_rows(returned),)

        return BoundTransform(shape.with_columns(columns), step)

    def _columns(self, returned: object, shape: TableShape) -> pa.StructType:
        """Return the columns of what the function returned. Raise `TransformFailed`."""
        if not isinstance(returned, pa.RecordBatch):
            raise TransformFailed(f"{self}: it returned {type(returned).__name__}, not a RecordBatch or None")
        schema, wanted = returned.schema, shape.schema
        if lost := [name for name in wanted.names if name not in schema.names]:
            raise TransformFailed(f"{self}: it returned rows of {shape.table} without {lost[0]}")
        if changed := [name for name in META_NAMES if name in schema.names and not _is_kept(name, schema, wanted)]:
            raise TransformFailed(f"{self}: it returned {changed[0]} as {schema.field(changed[0]).type}")
        columns = schema.field(AFTER).type
        if not pa.types.is_struct(columns) or schema.field(BEFORE).type != columns:
            raise TransformFailed(f"{self}: {BEFORE} and {AFTER} must be structs of the same columns")
        return columns


class OnRow(Transform):
    """Calls a function with each change; it returns the same or another change, or None to leave it out.

    Rows are Python objects here: a hundred times slower than columns. The columns keep their types.
    """

    def __init__(
        self,
        function: Callable[[Change], Change | None],
        *,
        tables: str | Sequence[str] = "*.*",
        operations: str = "",
        has_column: str | None = None,
    ) -> None:
        """Keep the function, which must be safe to call from several threads.

        `operations`: letters of those that it is called for; others stay as they are; "" for all.
        """
        super().__init__(tables=tables, has_column=has_column)
        self._function = function
        self._operations = checked_operations(self, operations)

    def __str__(self) -> str:
        return f"OnRow({_name(self._function)})"

    def bind(self, shape: TableShape) -> BoundTransform | None:
        """Return the call of the function for the table."""

        def step(batch: Batch) -> Sequence[Batch]:
            kept: list[int] = []
            sides: dict[str, list[Mapping[str, object] | None]] = {BEFORE: [], AFTER: []}
            for at, change in enumerate(batch):
                returned = self._function(change) if change.op.value in self._operations else change
                if returned is None:
                    continue
                if not isinstance(returned, Change):
                    raise TransformFailed(f"{self}: it returned {type(returned).__name__}, not a Change or None")
                kept.append(at)
                sides[BEFORE].append(self._checked(returned.before, shape))
                sides[AFTER].append(self._checked(returned.after, shape))
            if not kept:
                return ()
            rows = batch.arrow if len(kept) == len(batch) else batch.arrow.take(pa.array(np.array(kept)))
            for name, values in sides.items():
                index = rows.schema.get_field_index(name)
                rows = rows.set_column(index, rows.schema.field(index), self._column(values, shape))
            return (batch.with_rows(rows),)

        return BoundTransform(shape, step)

    def _checked(self, side: Mapping[str, object] | None, shape: TableShape) -> Mapping[str, object] | None:
        if side is not None and (unknown := [name for name in side if name not in shape.names]):
            raise TransformFailed(
                f"{self}: it returned a column {unknown[0]}, which {shape.table} does not have",
                hint="use OnBatch to add columns",
            )
        return side

    def _column(self, values: Sequence[Mapping[str, object] | None], shape: TableShape) -> pa.Array:
        try:
            return pa.array([None if side is None else dict(side) for side in values], shape.columns)
        except (pa.ArrowInvalid, pa.ArrowTypeError):  # NB: its message has the value
            raise TransformFailed(
                f"{self}: it returned a value of another type than the column of {shape.table}"
            ) from None


def _is_kept(name: str, schema: pa.Schema, wanted: pa.Schema) -> bool:
    return name not in wanted.names or schema.field(name).type == wanted.field(name).type


def _name(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))
