"""ChangedFieldsOnly: an update without the values that it left as they were."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.engine.pool.batch import Batch
from tidemark.model.change import AFTER, BEFORE, BeforeKind, Op
from tidemark.transforms.transform import BoundTransform, TableShape, Transform, children, rebuilt
from tidemark.transforms.unchanged import Bits, are_equal, unchanged_bits, with_unchanged


class ChangedFieldsOnly(Transform):
    """Sets columns of `_after` that an update did not change to NULL, and names them in `unchanged`; the key remains.

    The table needs REPLICA IDENTITY FULL: without the old row, an update stays as it is.
    """

    def __init__(
        self, *, tables: str | Sequence[str] = "*.*", leave_out_equal: bool = False, has_column: str | None = None
    ) -> None:
        """`leave_out_equal`: updates that changed no column are left out."""
        super().__init__(tables=tables, has_column=has_column)
        self._leave_out_equal = leave_out_equal

    def bind(self, shape: TableShape) -> BoundTransform | None:
        """Return the comparison of the columns of the table."""
        is_key = np.array([name in shape.key for name in shape.names], dtype=np.bool_)

        def step(batch: Batch) -> Sequence[Batch]:
            rows = batch.arrow
            is_update = pc.equal(rows.column("_op"), Op.UPDATE.value)
            is_full = pc.equal(rows.column("_before_kind"), BeforeKind.FULL.value)
            compared = pc.and_(is_update, is_full).to_numpy(zero_copy_only=False)
            if not compared.any():
                return (batch,)
            absent = unchanged_bits(rows, len(shape.names))
            equal = _equal_bits(rows) | absent
            equal[~compared] = False
            kept = ~(compared & equal.all(axis=1)) if self._leave_out_equal else np.ones(len(batch), dtype=np.bool_)
            if not kept.any():
                return ()
            bits = absent | (equal & ~is_key)
            changed = with_unchanged(_without(batch, shape, bits), bits)
            return (changed if kept.all() else changed.with_rows(changed.arrow.filter(pa.array(kept))),)

        return BoundTransform(shape, step)


def _equal_bits(rows: pa.RecordBatch) -> Bits:
    before, after = children(rows.column(BEFORE)), children(rows.column(AFTER))
    bits: Bits = np.column_stack([are_equal(old, new) for old, new in zip(before, after, strict=True)])
    return bits


def _without(batch: Batch, shape: TableShape, bits: Bits) -> Batch:
    after = batch.arrow.column(AFTER)
    columns = [
        pc.if_else(pa.array(~bits[:, at]), values, pa.scalar(None, values.type))
        for at, values in enumerate(children(after))
    ]
    at = batch.arrow.schema.get_field_index(AFTER)
    changed = rebuilt(after, list(shape.columns), columns)
    return batch.with_rows(batch.arrow.set_column(at, batch.arrow.schema.field(at), changed))
