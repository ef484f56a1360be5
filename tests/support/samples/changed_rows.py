"""Hand-made batches of a table with columns of several types, for transforms."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from tests.support.forged.groups import INT8, TEXT, TIMELINE, relation
from tidemark.engine.pool.batch import Batch
from tidemark.model.change import BeforeKind, batch_schema
from tidemark.model.lsn import INVALID_OID, TimelineId
from tidemark.model.position import Epoch
from tidemark.model.relation import Align, Column, Relation, ReplicaIdentity
from tidemark.transforms.plan import TransformPlan, TransformPlans
from tidemark.transforms.transform import Transform

CUSTOMER_COLUMNS = pa.struct(
    [
        pa.field("id", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("email", pa.string()),
        pa.field("total", pa.decimal128(10, 2)),
        pa.field("born", pa.date32()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("score", pa.float64()),
        pa.field("since", pa.timestamp("us", tz="UTC")),
        pa.field("vip", pa.bool_()),
    ]
)
EPOCH = Epoch(TIMELINE, 1)
Side = Mapping[str, object] | None
SampleRow = tuple[str, Side, Side]


def customers(*names: str, numbers: Sequence[int] = ()) -> Relation:
    """Return `public.customers` with these columns, by default all; the first is the key."""
    names = names or tuple(field.name for field in CUSTOMER_COLUMNS)
    numbers = numbers or range(1, len(names) + 1)
    columns = tuple(
        Column(number, name, INT8 if name == "id" else TEXT, -1, -1, False, Align.INT)
        for number, name in zip(numbers, names, strict=True)
    )
    return replace(relation("customers"), columns=columns)


def with_full_identity(of: Relation) -> Relation:
    """Return the relation with REPLICA IDENTITY FULL, as if it had a primary key."""
    return replace(of, replica_identity=ReplicaIdentity.FULL, identity_columns=())


def batch_of(*rows: SampleRow, of: Relation | None = None, unchanged: Sequence[bytes | None] = ()) -> Batch:
    """Return a batch of (operation, before, after)."""
    of = of or customers()
    count = len(rows)
    full = of.replica_identity is ReplicaIdentity.FULL
    columns = columns_of(of)
    befores = pa.array([_complete(before, columns) for _, before, _ in rows], columns)
    afters = pa.array([_complete(after, columns) for _, _, after in rows], columns)
    known = BeforeKind.FULL if full else BeforeKind.KEY
    kinds = [BeforeKind.NONE if before is None else known for _, before, _ in rows]
    arrays = [
        pa.array([op for op, _, _ in rows], pa.string()),
        pa.array([int(TimelineId(1))] * count, pa.int32()),
        pa.array([4096] * count, pa.int64()),
        pa.array(range(1, count + 1), pa.int64()),
        pa.array([4000] * count, pa.int64()),
        pa.array([700] * count, pa.int64()),
        pa.array([4096] * count, pa.timestamp("us", tz="UTC")),
        pa.array([int(INVALID_OID)] * count, pa.int32()),
        pa.array(kinds, pa.int8()),
        pa.array(list(unchanged) or [None] * count, pa.binary()),
        befores,
        afters,
    ]
    return Batch.of("shop", of, EPOCH, pa.RecordBatch.from_arrays(arrays, schema=batch_schema(columns)))


def columns_of(of: Relation) -> pa.StructType:
    """Return the Arrow types: those above by name, text for others."""
    known = {field.name: field.type for field in CUSTOMER_COLUMNS}
    return pa.struct([pa.field(column.name, known.get(column.name, pa.string())) for column in of.live_columns])


def bound(*transforms: Transform, to: Relation | None = None) -> TransformPlan:
    """Return the plan of transforms for a relation."""
    return TransformPlans(transforms, columns_of).plan("shop", to or customers())


def rows_of(batch: Batch) -> list[SampleRow]:
    """Return (operation, before, after) of each change, without absent columns."""
    return [(change.op.value, _present(change.before), _present(change.after)) for change in batch]


def _complete(side: Side, columns: pa.StructType) -> Side:
    return None if side is None else {field.name: side.get(field.name) for field in columns}


def _present(side: Side) -> Side:
    return None if side is None else {name: value for name, value in side.items() if value is not None}
