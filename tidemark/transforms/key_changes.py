"""Updates that change the key of a row, as a delete of the old one and an insert."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.model.change import AFTER, BEFORE, UNCHANGED, BeforeKind, Op
from tidemark.transforms.transform import children
from tidemark.transforms.unchanged import Bits, are_equal


def divided(rows: pa.RecordBatch, key: Sequence[str]) -> pa.RecordBatch:
    """Return rows in which each update that changes the key is two with one position: a delete, then an insert.

    `rows` have both sides, with the columns `key`. Both rows have both sides: which one counts follows from their op.
    """
    is_changed = _changed_keys(rows, key)
    if not is_changed.any():
        return rows
    taken = rows.take(pa.array(np.repeat(np.arange(len(is_changed)), is_changed + 1)))
    inserts = np.cumsum(is_changed + 1)[is_changed] - 1
    ops = np.array(taken.column("_op").to_pylist(), dtype=np.str_)
    ops[inserts - 1], ops[inserts] = Op.DELETE.value, Op.INSERT.value
    is_delete = np.zeros(len(ops), dtype=np.bool_)
    is_delete[inserts - 1] = True
    unchanged = pc.if_else(pa.array(is_delete), pa.scalar(None, pa.binary()), taken.column(UNCHANGED))
    for name, values in (("_op", pa.array(ops, pa.string())), (UNCHANGED, unchanged)):
        at = taken.schema.get_field_index(name)
        taken = taken.set_column(at, taken.schema.field(at), values)
    return taken


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
