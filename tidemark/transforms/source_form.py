"""A version of a table as transforms leave it, described like one of the source: for targets that know tables only.

The outbox and the lake derive the Arrow types of a table from its columns. A column whose values a transform made gets
the PostgreSQL type that has this Arrow type.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pyarrow as pa

from tidemark.model.change import EngineEvent, LogicalMessage, PartitionEvent, SchemaEvent, TransactionBoundary
from tidemark.model.lsn import Oid
from tidemark.model.relation import TABLEOID_NUMBER, Align, Column, Relation, TypeDescription, TypeKind
from tidemark.transforms.plan import TransformPlan
from tidemark.transforms.transform import BadTransform

ColumnTypes = Callable[[Iterable[Column]], pa.StructType]
_NAMESPACE = "pg_catalog"


def _base_type(oid: int, name: str, display_name: str, length: int, align: Align) -> TypeDescription:
    is_by_value = length > 0
    return TypeDescription(Oid(oid), _NAMESPACE, name, display_name, TypeKind.BASE, length, is_by_value, align)


# `pg_type.dat`; lengths in bytes, -1 varlena.
TYPES = {
    pa.bool_(): _base_type(16, "bool", "boolean", 1, Align.CHAR),
    pa.int16(): _base_type(21, "int2", "smallint", 2, Align.SHORT),
    pa.int32(): _base_type(23, "int4", "integer", 4, Align.INT),
    pa.int64(): _base_type(20, "int8", "bigint", 8, Align.DOUBLE),
    pa.float32(): _base_type(700, "float4", "real", 4, Align.INT),
    pa.float64(): _base_type(701, "float8", "double precision", 8, Align.DOUBLE),
    pa.string(): _base_type(25, "text", "text", -1, Align.INT),
    pa.date32(): _base_type(1082, "date", "date", 4, Align.INT),
    pa.timestamp("us"): _base_type(1114, "timestamp", "timestamp without time zone", 8, Align.DOUBLE),
    pa.timestamp("us", "UTC"): _base_type(1184, "timestamptz", "timestamp with time zone", 8, Align.DOUBLE),
}


def transformed_relation(plan: TransformPlan, columns_of: ColumnTypes) -> Relation:
    """Return the version of a table with the columns that the transforms made; raise `BadTransform`."""
    relation = plan.shape.relation
    if not plan.steps:
        return relation
    sources = {column.number: column for column in relation.live_columns}
    types = dict(zip(sources, (field.type for field in columns_of(relation.live_columns)), strict=True))
    columns = tuple(
        _typed(column, field, sources.get(column.number), types.get(column.number))
        for column, field in zip(plan.columns, plan.shape.columns, strict=True)
    )
    for column, field, found in zip(columns, plan.shape.columns, columns_of(columns), strict=True):
        if found.type != field.type or found.name != field.name:
            raise BadTransform(
                f"{field.name} of {relation.qualified_name} becomes {field.type}, a type that no column can have",
                hint=f"cast it, for example to {found.type}; a custom consumer accepts all types"
                if column.type is not None
                else 'cast it, for example to "string"',
            )
    if relation.has_partition_rows and columns[-1].number != TABLEOID_NUMBER:
        raise BadTransform(
            f"the last column of {relation.qualified_name} is no longer tableoid, which names the partition",
            hint="add columns before it",
        )
    return replace(relation, columns=columns)


def without_constants(relation: Relation) -> Relation:
    """Return a version without the values that older rows have in columns which were added (attmissingval)."""
    if all(column.missing is None for column in relation.columns):
        return relation
    columns = tuple(replace(column, missing=None) for column in relation.columns)
    return replace(relation, columns=columns)


def event_without_constants(event: EngineEvent) -> EngineEvent:
    """Return an event with each version of a table as `without_constants` returns it.

    NB: also versions that no transform matches: rows of a partition are masked under the name of its table.
    """
    if isinstance(event, LogicalMessage | TransactionBoundary):
        return event
    if isinstance(event, SchemaEvent):
        before, after = (None if each is None else without_constants(each) for each in (event.before, event.after))
        return replace(event, before=before, after=after)
    if isinstance(event, PartitionEvent):
        relation, partition = without_constants(event.relation), without_constants(event.partition)
        return replace(event, relation=relation, partition=partition)
    return replace(event, relation=without_constants(event.relation))


def _typed(column: Column, field: pa.Field, source: Column | None, source_type: pa.DataType | None) -> Column:
    """Return a column with the type of its values."""
    if column.type is not None:
        return column
    changed = replace(column, missing=None, not_null=False, generated="", typmod=-1)
    if source is not None and source_type == field.type:
        return replace(changed, type=source.type, typmod=source.typmod)
    description = TYPES.get(field.type)
    if description is None:
        return changed
    return replace(
        changed,
        type=description,
        length=description.length,
        by_value=description.by_value,
        align=description.align,
    )
