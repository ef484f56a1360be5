"""Updates that change the key of a row, as a delete of the old one and an insert."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.model.change import AFTER, BEFORE, UNCHANGED, BeforeKind, Op
from tidemark.transforms.transform import children, rebuilt
from tidemark.transforms.unchanged import Bits, are_equal, bitmaps, unchanged_bits


def divided(rows: pa.RecordBatch, key: Sequence[str]) -> pa.RecordBatch:
    """Return rows in which each update that changes the key is two with one position: a delete, then an insert.

    `rows` have both sides, with the columns `key`. Both rows have both sides: which one counts follows from their op.
    The insert has unchanged values from the old row, where that is full: a consumer has no other one to keep them from.
    """
    is_changed = _changed_keys(rows, key)
    if not is_changed.any():
        return rows
    taken = rows.take(pa.array(np.repeat(np.arange(len(is_changed)), is_changed + 1)))
    inserts = np.cumsum(is_changed + 1)[is_changed] - 1
    ops = np.array(taken.column("_op").to_pylist(), dtype=np.str_)
    ops[inserts - 1], ops[inserts] = Op.DELETE.value, Op.INSERT.value
    at = taken.schema.get_field_index("_op")
    return _filled(taken.set_column(at, taken.schema.field(at), pa.array(ops, pa.string())), inserts)


def _filled(rows: pa.RecordBatch, inserts: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Return divided rows whose deletes have no unchanged columns, and whose inserts have as few as possible."""
    unchanged_at, after_at = (rows.schema.get_field_index(name) for name in (UNCHANGED, AFTER))
    if rows.column(unchanged_at).null_count == rows.num_rows:
        return rows
    before, after = children(rows.column(BEFORE)), children(rows.column(after_at))
    bits = unchanged_bits(rows, len(after))
    bits[inserts - 1] = False
    is_full = pc.equal(rows.column("_before_kind"), BeforeKind.FULL.value).to_numpy(zero_copy_only=False)
    taken = np.zeros_like(bits)
    taken[inserts] = bits[inserts] & is_full[inserts, None]
    values = [
        pc.if_else(pa.array(taken[:, at]), old, new) if taken[:, at].any() else new
        for at, (old, new) in enumerate(zip(before, after, strict=True))
    ]
    side = rows.column(after_at)
    rows = rows.set_column(after_at, rows.schema.field(after_at), rebuilt(side, list(side.type), values))
    return rows.set_column(unchanged_at, rows.schema.field(unchanged_at), bitmaps(bits & ~taken))


def _changed_keys(rows: pa.RecordBatch, key: Sequence[str]) -> Bits:
    """Return which rows are updates whose new key is known to differ from the old one."""
    has_before = pc.greater_equal(rows.column("_before_kind"), BeforeKind.KEY.value)
    is_update = pc.and_(pc.equal(rows.column("_op"), Op.UPDATE.value), has_before)
    compared: Bits = np.asarray(is_update.to_numpy(zero_copy_only=False), dtype=np.bool_)
    if not key or not compared.any():
        return np.zeros(rows.num_rows, dtype=np.bool_)
    names = [field.name for field in rows.schema.field(AFTER).type]
    before, after = children(rows.column(BEFORE)), children(rows.column(AFTER))
    equal = [are_equal(before[at], after[at]) for at in map(names.index, key)]
    changed: Bits = compared & ~np.logical_and.reduce(equal)
    return changed
