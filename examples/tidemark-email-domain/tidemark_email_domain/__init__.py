"""Replaces e-mail addresses by their domains: rows can still be grouped by provider, and name nobody."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidemark import BadTransform, BoundTransform, TableShape, Transform


class EmailDomain(Transform):
    """Keeps the domain of the addresses in a column; a value that is no address becomes NULL."""

    def __init__(self, column: str, *, tables: str | Sequence[str] = "*.*") -> None:
        """`column`: its name, in each of the `tables` that has it."""
        super().__init__(tables=tables, has_column=column)
        self._column = column

    def bind(self, shape: TableShape) -> BoundTransform:
        """Return the step for a table that has the column."""
        if self._column in shape.key:
            raise BadTransform(f"{self}: {self._column} of {shape.table} is in the key: two rows could become one")
        at = shape.names.index(self._column)
        if not pa.types.is_string(shape.columns.field(at).type):
            raise BadTransform(f"{self}: {self._column} of {shape.table} is no text")

        def replaced(side: pa.StructArray) -> pa.StructArray:
            columns = side.flatten()
            columns[at] = pc.struct_field(pc.extract_regex(columns[at], "@(?P<domain>[^@]+)$"), "domain")
            return pa.StructArray.from_arrays(columns, fields=list(side.type), mask=side.is_null())

        return BoundTransform(shape.with_hidden([self._column]), lambda batch: [batch.with_sides(replaced)])
