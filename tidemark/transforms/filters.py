"""Filter and Route: which changes are handled, and under which name of a table. Conditions are expressions of SQL."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.engine.pool.batch import Batch
from tidemark.transforms.expressions.sql_expression import BoundExpression, SqlExpression
from tidemark.transforms.transform import BadTransform, BoundTransform, TableShape, Transform, checked_operations

PLACEHOLDER = re.compile(r"\{(\w*)\}")
PLACEHOLDERS = frozenset({"database", "schema", "table", "value"})


class Filter(Transform):
    """Keeps the changes for which a condition is true; others, also those for which it is NULL, are left out.

    A consumer that keeps rows must remove a row that ceases to fulfil it: `operations` excludes deletes from the test.
    """

    def __init__(
        self,
        condition: str,
        *,
        tables: str | Sequence[str] = "*.*",
        operations: str = "",
        has_column: str | None = None,
    ) -> None:
        """`condition`: SQL. `operations`: letters of those that are tested; others are kept; "" for all."""
        super().__init__(tables=tables, has_column=has_column)
        self._condition = SqlExpression(condition, str(self))
        self._operations = checked_operations(self, operations)

    def bind(self, shape: TableShape) -> BoundTransform | None:
        """Return the condition for the columns of the table."""
        condition = self._condition.bind_condition(shape)

        def step(batch: Batch) -> Sequence[Batch]:
            kept = pc.coalesce(condition.values(batch.arrow), pa.scalar(False))
            kept = pc.or_(kept, pc.invert(is_operation(batch, self._operations)))
            count = pc.sum(kept).as_py() or 0
            if count == len(batch):
                return (batch,)
            return (batch.with_rows(batch.arrow.filter(kept)),) if count else ()

        return BoundTransform(shape, step)


class Route(Transform):
    """Gives batches the name of another table; the key, the relation and the position remain those of the source.

    Rows of one batch that get different names are delivered as several batches. Rows of several tables under one name
    have no common order: compare the position of each with those of its own source.
    """

    keeps_tables = False

    def __init__(
        self,
        to: str,
        *,
        tables: str | Sequence[str] = "*.*",
        by: str | None = None,
        where: str | None = None,
        operations: str = "",
        has_column: str | None = None,
    ) -> None:
        """`to`: the name, with {database}, {schema}, {table} of the source and {value}, the text of `by`.

        `where`: a condition; changes for which it is not true, or `by` is NULL, or the name is empty, keep their name.
        """
        super().__init__(tables=tables, has_column=has_column)
        found = set(PLACEHOLDER.findall(to))
        if not to or not found <= PLACEHOLDERS:
            raise BadTransform(f"Route({to!r}): it may have {{{'}, {'.join(sorted(PLACEHOLDERS))}}}, and no others")
        if ("value" in found) != (by is not None):
            raise BadTransform(f"Route({to!r}): {{value}} and by=... require each other")
        self._to = to
        self._by = SqlExpression(by, f"{self}: by") if by is not None else None
        self._where = SqlExpression(where, f"{self}: where") if where is not None else None
        self._operations = checked_operations(self, operations)

    def bind(self, shape: TableShape) -> BoundTransform | None:
        """Return the names for the columns of the table."""
        by = self._by.bind_text(shape) if self._by is not None else None
        where = self._where.bind_condition(shape) if self._where is not None else None
        source = shape.relation
        known = {"database": shape.database, "schema": source.namespace, "table": source.name}

        def step(batch: Batch) -> Sequence[Batch]:
            chosen = is_operation(batch, self._operations)
            if where is not None:
                chosen = pc.and_(chosen, pc.coalesce(where.values(batch.arrow), pa.scalar(False)))
            return tuple(_renamed(batch, self._names(batch, by, known, chosen)))

        return BoundTransform(shape, step)

    def _names(self, batch: Batch, by: BoundExpression | None, known: dict[str, str], chosen: pa.Array) -> pa.Array:
        """Return the name of each row; NULL for the present one."""
        if by is None:
            return pc.if_else(chosen, pa.scalar(self._to.format(**known)), pa.scalar(None, pa.string()))
        encoded = by.values(batch.arrow).dictionary_encode()
        names = [self._to.format(value=value, **known) or None for value in encoded.dictionary.to_pylist()]
        return pc.if_else(chosen, pa.array(names, pa.string()).take(encoded.indices), pa.scalar(None, pa.string()))


def is_operation(batch: Batch, operations: frozenset[str]) -> pa.Array:
    """Return which rows have one of these operations."""
    return pc.is_in(batch.arrow.column("_op"), value_set=pa.array(sorted(operations), pa.string()))


def _renamed(batch: Batch, names: pa.Array) -> Sequence[Batch]:
    encoded = pc.coalesce(names, pa.scalar(batch.table)).dictionary_encode()
    if len(encoded.dictionary) == 1:
        return [replace(batch, table=encoded.dictionary[0].as_py())]
    numbers = encoded.indices.to_numpy(zero_copy_only=False)
    return [
        replace(batch, table=name, arrow=batch.arrow.take(pa.array(np.flatnonzero(numbers == number))))
        for number, name in enumerate(encoded.dictionary.to_pylist())
    ]
