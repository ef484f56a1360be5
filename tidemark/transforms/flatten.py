"""Flatten: the columns of the row beside the metadata, in place of the two sides."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.engine.pool.batch import DELETED, META_NAMES, Batch
from tidemark.model.change import AFTER, BEFORE, Op
from tidemark.transforms.key_changes import divided
from tidemark.transforms.transform import BadTransform, BoundTransform, TableShape, Transform, children

DELETES = ("mark", "drop")


class Flatten(Transform):
    """Makes each change a flat row: that of `_after`, for a delete the known part of `_before`.

    `deletes="mark"` adds the column `_deleted`; "drop" leaves deletes out. It must be the last transform. An update
    that changes the key becomes two rows with its position, a delete with the old key and an insert; "drop" leaves the
    first one out.
    """

    keeps_tables = False

    def __init__(
        self,
        *,
        tables: str | Sequence[str] = "*.*",
        deletes: str = "mark",
        has_column: str | None = None,
    ) -> None:
        super().__init__(tables=tables, has_column=has_column)
        if deletes not in DELETES:
            raise BadTransform(f"Flatten: deletes={deletes!r}: must be one of {', '.join(DELETES)}")
        self._drops = deletes == "drop"

    def bind(self, shape: TableShape) -> BoundTransform | None:
        """Return the flat table."""
        if taken := sorted({*META_NAMES, DELETED} & {*shape.names}):
            raise BadTransform(
                f"Flatten: {shape.table} has a column {taken[0]}, which is the name of a metadata column",
                hint=f'rename it first: Rename("{shape.table}.{taken[0]}", ...)',
            )

        def step(batch: Batch) -> Sequence[Batch]:
            rows = divided(batch.arrow, shape.key)
            is_delete = pc.equal(rows.column("_op"), Op.DELETE.value)
            if self._drops and pc.any(is_delete).as_py():
                rows = rows.filter(pc.invert(is_delete))
                is_delete = pa.repeat(pa.scalar(False), rows.num_rows)
            if not rows.num_rows:
                return ()
            sides = zip(children(rows.column(BEFORE)), children(rows.column(AFTER)), strict=True)
            columns = dict(
                zip(shape.names, (pc.if_else(is_delete, before, after) for before, after in sides), strict=True)
            )
            meta = {name: rows.column(name) for name in META_NAMES if name in rows.schema.names}
            deleted = {} if self._drops else {DELETED: is_delete}
            flat = pa.RecordBatch.from_pydict({**meta, **deleted, **columns})
            return (batch.with_rows(flat),)

        return BoundTransform(replace(shape, is_flat=True), step)
