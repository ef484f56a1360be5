"""The shape of the batches of a relation version, computed once and shared by all versions with the same columns.

With thousands of tables, most have one of a few shapes, for example one table for each tenant or month.
"""

from array import array
from collections.abc import Sequence
from functools import lru_cache

from tidemark.decode.arrow.batch_body import META_BUFFERS, META_NODES
from tidemark.decode.arrow.batch_columns import ColumnKernel
from tidemark.decode.arrow.batch_message import message_form
from tidemark.decode.arrow.column_plans import ColumnPlan
from tidemark.decode.arrow.small_batch import SmallShape
from tidemark.decode.datum.tuples import TupleLayout
from tidemark.decode.types.codec import Dialect
from tidemark.decode.types.registry import arrow_struct, column_codec
from tidemark.model.change import batch_schema
from tidemark.model.relation import Column, Relation

SHAPES_KEPT = 1024  # of 6 to 12 kB with 2 to 20 columns; building one takes 0.1 to 0.4 ms


class BatchShape:
    """The columns of a relation version in the form that the kernels and Arrow require."""

    __slots__ = (
        "aligns",
        "form",
        "layout",
        "lengths",
        "missing",
        "plan",
        "schema",
        "slots",
        "small",
        "struct_type",
        "texts",
    )

    def __init__(self, columns: Sequence[Column], dialect: Dialect) -> None:
        live = [index for index, column in enumerate(columns) if not column.dropped]
        self.layout = TupleLayout.of_columns(columns)
        self.lengths = array("i", self.layout.lengths)
        self.aligns = array("i", self.layout.aligns)
        self.slots = array("i", [-1] * len(columns))
        for slot, index in enumerate(live):
            self.slots[index] = slot
        self.missing = [self.layout.missing[index] for index in live]
        self.texts = {slot: missing for slot, missing in enumerate(self.missing) if isinstance(missing, str)}
        self.plan = ColumnPlan([column_codec(columns[index], dialect) for index in live])
        self.struct_type = arrow_struct([columns[index] for index in live], dialect)
        self.schema = batch_schema(self.struct_type)
        nodes, buffers = len(self.plan.levels), len(self.plan.units)
        self.form = message_form(META_NODES + 2 * nodes, META_BUFFERS + 2 * buffers)
        self.small = self._small() if ColumnKernel.OTHER not in self.plan.kernels else None  # else one has no kernel

    def _small(self) -> SmallShape:
        plan, form = self.plan, self.form
        return SmallShape(
            self.lengths,
            self.aligns,
            self.slots,
            plan.numbers,
            plan.labels,
            plan.levels,
            plan.units,
            len(self.missing),
            plan.row_bytes,
            form.head,
            form.length,
            form.body_length,
            form.nodes,
            form.buffers,
        )


class _Columns:
    """The key by which a shape is found. Hashing all parts of the types would take longer than comparing them."""

    __slots__ = ("_hash", "columns")

    def __init__(self, columns: tuple[Column, ...]) -> None:
        self.columns = columns
        self._hash = hash(tuple(column.name for column in columns))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Columns) and self.columns == other.columns


def batch_shape(relation: Relation, dialect: Dialect) -> BatchShape:
    """Return the shape of the batches of a relation version."""
    return _shape(_Columns(relation.columns), dialect, id(dialect.names))


@lru_cache(maxsize=SHAPES_KEPT)
def _shape(columns: _Columns, dialect: Dialect, _names: int) -> BatchShape:
    # NB: dialects are equal whatever their names are, so the key has their id; a cached shape keeps them alive.
    return BatchShape(columns.columns, dialect)
