"""The columns of a relation in the lake: names, types, and the steps from one layout to the next.

Each column of a replica has its number (`pg_attribute.attnum`) in the metadata of the Delta field. The table therefore
records which source column has which name: a rename, a drop and a new column with an old name are distinguished
without history. Types are those of the decoder's codecs (`tidemark.decode.types`); the metadata also has the declared
type and the comment of the source's column.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.decode.datum.tuples import missing_value
from tidemark.decode.types.codec import Dialect, without_escapes
from tidemark.decode.types.declared import declared_type
from tidemark.decode.types.registry import UTF8, arrow_struct, column_codec, fits_key
from tidemark.model.change import UNCHANGED, BeforeKind, Op, Truncation
from tidemark.model.errors import TidemarkError
from tidemark.model.lsn import Lsn, Oid, TimelineId
from tidemark.model.mapping import DEFAULT_MAPPING, TypeMapping
from tidemark.model.position import Position
from tidemark.model.relation import Column, Relation, ReplicaIdentity, TypeDescription

VERSIONS_KEPT = 4096  # versions of relations whose properties are kept between batches
NUMBER = b"tidemark.number"
TYPE = b"tidemark.type"  # as the source declares it, for example numeric(10,2)
COMMENT = b"comment"  # a key of Delta
Shapes = Callable[[Relation], pa.StructType]
"""Returns a relation's live columns in Arrow, for events without rows."""
Constants = Callable[[Relation, Dialect], Mapping[int, pa.Scalar]]
"""Returns the values of columns in rows that are older than the column (attmissingval), by number."""
Labels = Mapping[int, Mapping[str, str]]
"""By column: the renamed labels of an enum."""
Comments = tuple[tuple[int, str], ...]
"""The comments of a table and its columns by pg_description.objsubid: 0 for the table, else the column's number."""
RowMask = npt.NDArray[np.bool_]

POSITION_COLUMNS = tuple(
    pa.field(name, kind)
    for name, kind in (
        ("_seq", pa.int64()),
        ("_tli", pa.int32()),
        ("_commit_lsn", pa.int64()),
        ("_ordinal", pa.int64()),
        ("_lsn", pa.int64()),
        ("_xid", pa.int64()),
    )
)
"""The columns of every log in the lake that identify the origin of a row."""
META = pa.schema(
    [
        pa.field("_op", pa.string()),
        *POSITION_COLUMNS,
        pa.field("_commit_time", pa.timestamp("us", tz="UTC")),
        pa.field("_origin", pa.int32()),
        pa.field("_before_kind", pa.int8()),
        pa.field(UNCHANGED, pa.list_(pa.string())),
    ]
)
"""The columns of a change beside those of its table."""

# Names that the change log and the merges use. A column with such a name gets another underscore at its end.
RESERVED = re.compile(
    r"(_op|_seq|_tli|_commit_lsn|_ordinal|_lsn|_xid|_commit_time|_origin|_before_kind|_unchanged|_old|__tidemark.*)_*",
    re.IGNORECASE,
)


class UnfitRows(TidemarkError):
    """Existing rows of the lake do not fit a new column type."""

    hint = "copy the table again: its replica is then recreated from the source"


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """A column of a relation in the lake; `index` is its number among the relation's live columns."""

    number: int
    index: int
    name: str


@lru_cache(VERSIONS_KEPT)
def lake_columns(relation: Relation) -> tuple[LakeColumn, ...]:
    """Return the columns that the lake stores, in order: all live columns except virtual generated ones."""
    used: set[str] = set()
    columns = []
    for index, column in enumerate(relation.live_columns):
        if column.is_virtual:
            continue
        name = column.name + "_" if RESERVED.fullmatch(column.name) else column.name
        while name.lower() in used:  # Delta's column names are case-insensitive, unlike PostgreSQL's
            name = f"{name}_{column.number}"
        used.add(name.lower())
        columns.append(LakeColumn(column.number, index, name))
    return tuple(columns)


def key_names(relation: Relation) -> tuple[str, ...]:
    """Return the names of the columns that identify a row in the replica; () for a table that has only a log.

    These are the columns that the server writes for an old row: the columns of the identity's index, or with FULL the
    primary key. With NOTHING the old row is unknown, so there is no key. A list cannot be a key in the lake: neither
    Arrow nor delta-rs groups or joins by lists. Nor can a type without a codec: a first copy and the stream contain
    different bytes for the same value.
    """
    numbers = relation.identity_columns
    if relation.replica_identity is ReplicaIdentity.FULL:
        numbers = relation.primary_key
    elif relation.replica_identity is ReplicaIdentity.NOTHING:
        numbers = ()
    names = {column.number: column.name for column in lake_columns(relation)}
    unfit = {column.number for column in relation.live_columns if not fits_key(column)}
    if any(number in unfit or number not in names for number in numbers):
        return ()
    return tuple(names[number] for number in numbers)


def shape_of(relation: Relation, types: TypeMapping = DEFAULT_MAPPING) -> pa.StructType:
    """Return the live columns of `relation` as Arrow types."""
    return arrow_struct(relation.live_columns, UTF8.mapped(types))


def constants_of(relation: Relation, dialect: Dialect = UTF8) -> dict[int, pa.Scalar]:
    """Return the values of columns in rows that are older than the column (attmissingval), by number."""
    found = {}
    for column in relation.live_columns:
        missing = missing_value(column)
        codec = column_codec(column, dialect)
        # Bytes if the catalog's own row was decoded, text if it was read by SQL.
        if isinstance(missing, bytes):
            found[column.number] = pa.array([codec.arrow_value(missing)], codec.arrow_type)[0]
        elif isinstance(missing, str):
            found[column.number] = pa.array([codec.parse_text(missing)], codec.arrow_type)[0]
    return found


def replica_schema(relation: Relation, columns: pa.StructType, comments: Comments = ()) -> pa.Schema:
    """Return the schema of the replica of `relation`, whose live columns are `columns` in Arrow."""
    fields = source_fields(relation, columns, comments)
    numbers = [{NUMBER: str(column.number).encode()} for column in lake_columns(relation)]
    return pa.schema(
        [field.with_metadata({**field.metadata, **number}) for field, number in zip(fields, numbers, strict=True)]
    )


def source_fields(relation: Relation, columns: pa.StructType, comments: Comments = ()) -> list[pa.Field]:
    """Return the columns of `relation` in the lake, with their declared types and comments."""
    texts, declared, fields = dict(comments), relation.live_columns, []
    for column in lake_columns(relation):
        metadata = {TYPE: _encoded(declared_type(declared[column.index]))}
        if texts.get(column.number):
            metadata[COMMENT] = _encoded(texts[column.number])
        fields.append(pa.field(column.name, columns.field(column.index).type, metadata=metadata))
    return fields


def table_comment(comments: Comments | None) -> str:
    """Return the comment of the table itself; "" if there is none."""
    return without_escapes(dict(comments or ()).get(0, ""))


def with_comments(wanted: pa.Schema, applied: pa.Schema) -> pa.Schema:
    """Return the layout `wanted` of a replica with the comments of the columns that the layout `applied` has."""
    old = numbered(applied)
    fields = []
    for number, field in numbered(wanted).items():
        comment = old[number].metadata.get(COMMENT) if number in old else None
        fields.append(field.with_metadata({**field.metadata, COMMENT: comment}) if comment else field)
    return pa.schema(fields)


def redeclared(before: Relation, after: Relation, applied: pa.Schema, wanted: pa.Schema) -> list[pa.Field]:
    """Return the columns of `wanted` of which only the declared type changed, as by varchar(10) to varchar(20)."""
    was = {column.number: declared_type(column) for column in before.live_columns}
    old = numbered(applied)
    changed = {column.number for column in after.live_columns if declared_type(column) != was.get(column.number)}
    return [
        field
        for number, field in numbered(wanted).items()
        if number in changed and number in old and _same(old[number], field)
    ]


def _encoded(text: str) -> bytes:
    return without_escapes(text).encode()


def numbered(schema: pa.Schema) -> dict[int, pa.Field]:
    """Return the fields of a replica by their column number at the source."""
    return {int(field.metadata[NUMBER]): field for field in schema if field.metadata and NUMBER in field.metadata}


@dataclass(frozen=True, slots=True)
class Reshape:
    """The steps from a replica's present layout to the wanted one: new columns only, or a rewrite of all rows."""

    added: tuple[pa.Field, ...]
    rewrites: bool


def plan_reshape(applied: pa.Schema, wanted: pa.Schema, constants: Mapping[int, pa.Scalar]) -> Reshape | None:
    """Compare two layouts; `constants` are the values of new columns in existing rows. None: the layouts are equal."""
    old, new = numbered(applied), numbered(wanted)
    same = {number for number in old.keys() & new.keys() if _same(old[number], new[number])}
    if len(same) == len(old):
        added = tuple(field for number, field in new.items() if number not in old)
        if not added:
            return None
        if not any(number in constants for number in new.keys() - old.keys()):
            return Reshape(added, rewrites=False)
    return Reshape((), rewrites=True)


def reshaper(
    applied: pa.Schema,
    wanted: pa.Schema,
    constants: Mapping[int, pa.Scalar],
    conversions: Mapping[int, Callable[[pa.Array], pa.Array]],
    *,
    lenient: bool = False,
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return the function that converts rows of `applied` into `wanted`, with values rerendered by `conversions`.

    `lenient`: a value that does not fit makes its column NULL.
    """
    old = numbered(applied)

    def reshape(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for number, field in numbered(wanted).items():
            if number in old:
                values = batch.column(old[number].name)
                named = conversions[number](values) if number in conversions else values
                columns.append(_convert_or_null(named, field) if lenient else convert(named, field))
            elif number in constants:
                columns.append(pa.repeat(constants[number].cast(field.type), batch.num_rows))
            else:
                columns.append(pa.nulls(batch.num_rows, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=wanted)

    return reshape


def renamed_labels(before: Relation | None, after: Relation) -> Labels:
    """Return the labels that were renamed between two versions of a relation; a rename does not write rows."""
    was = {column.number: labels_of(column) for column in before.live_columns} if before is not None else {}
    renamed: dict[int, Mapping[str, str]] = {}
    for column in after.live_columns:
        names = _changed(was.get(column.number, {}), labels_of(column))
        if names:
            renamed[column.number] = names
    return renamed


def labels_of(column: Column) -> Mapping[Oid, str]:
    """Return the labels, by OID, of a column of an enum type or of an array of enums."""
    kind = column.type.ultimate() if column.type is not None else None
    if kind is not None and kind.element is not None:
        kind = kind.element.ultimate()
    return _labels(kind) if kind is not None else {}


def label_names(old: TypeDescription, new: TypeDescription) -> Mapping[str, str]:
    """Return the labels of an enum that were renamed between two versions of it."""
    return _changed(_labels(old), _labels(new))


def _labels(kind: TypeDescription) -> Mapping[Oid, str]:
    return {label.oid: without_escapes(label.label) for label in kind.labels}


def _changed(old: Mapping[Oid, str], new: Mapping[Oid, str]) -> dict[str, str]:
    return {old[oid]: label for oid, label in new.items() if oid in old and old[oid] != label}


def relabelled(column: pa.Array, names: Mapping[str, str]) -> pa.Array:
    """Return the values of a column, or of its lists, with the new labels."""
    if pa.types.is_list(column.type):
        lists = column.to_pylist()
        return pa.array([old and [names.get(label, label) for label in old] for old in lists], column.type)
    found = pc.index_in(column, value_set=pa.array(names.keys(), pa.string()))
    return pc.coalesce(pa.array(names.values(), pa.string()).take(found), column)


def convert(column: pa.Array, field: pa.Field) -> pa.Array:
    """Convert rows of the lake to the type of `field`, as the server did; raise `UnfitRows` if a value does not fit."""
    if column.type == field.type:
        return column
    if column.null_count == len(column):
        return pa.nulls(len(column), field.type)  # an empty table can be given any type
    if pa.types.is_decimal(column.type) and pa.types.is_string(field.type):
        # Arrow prints small decimals with an exponent; PostgreSQL never does.
        return pa.array([None if value is None else f"{value:f}" for value in column.to_pylist()], field.type)
    # oid to integer is binary coercible: the server rewrites no rows, and 2^31 and more become negative.
    wraps = pa.types.is_int64(column.type) and pa.types.is_int32(field.type)
    try:
        return pc.cast(column, field.type, safe=not wraps)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UnfitRows(f"column {field.name}: {column.type} does not become {field.type}") from error


def _convert_or_null(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return convert(column, field)
    except UnfitRows:
        return pa.nulls(len(column), field.type)


def _same(left: pa.Field, right: pa.Field) -> bool:
    return bool(left.name == right.name and left.type == right.type)


def unchanged_masks(changes: pa.Table, columns: Sequence[LakeColumn]) -> dict[str, RowMask]:
    """Return which changes left which columns unchanged, unpacked from little-endian bitmaps over the live columns."""
    bitmaps = changes.column("_unchanged")
    if bitmaps.null_count == len(bitmaps):
        return {}
    numbers = [int.from_bytes(bitmap, "little") if bitmap else 0 for bitmap in bitmaps.to_pylist()]
    masks = {c.name: np.array([number >> c.index & 1 for number in numbers], np.bool_) for c in columns}
    return {name: mask for name, mask in masks.items() if mask.any()}


def unchanged_names(changes: pa.Table, columns: Sequence[LakeColumn]) -> pa.Array:
    """Return for each change the names of the columns that it left unchanged; NULL for none."""
    kind = pa.list_(pa.string())
    masks = unchanged_masks(changes, columns)
    if not masks:
        return pa.nulls(changes.num_rows, kind)
    return pa.array(
        [[name for name, mask in masks.items() if mask[at]] or None for at in range(changes.num_rows)], kind
    )


def truncation_meta(event: Truncation, sequence: int) -> dict[str, str | int | None]:
    """Return the values of `META` for a TRUNCATE; `sequence` is its number in the outbox."""
    return {
        "_op": Op.TRUNCATE.value,
        "_seq": sequence,
        "_tli": event.position.timeline,
        "_commit_lsn": event.position.commit_lsn,
        "_ordinal": event.position.ordinal,
        "_lsn": event.lsn,
        "_xid": event.xid,
        "_commit_time": event.commit_time_us or None,  # NULL: stored by a version that did not record it
        "_origin": event.origin,
        "_before_kind": BeforeKind.NONE.value,
    }


def position_of(rows: pa.RecordBatch | pa.Table, index: int) -> Position:
    """Return the position of one change."""
    timeline, lsn, ordinal = rows.column("_tli"), rows.column("_commit_lsn"), rows.column("_ordinal")
    return Position(TimelineId(timeline[index].as_py()), Lsn(lsn[index].as_py()), ordinal[index].as_py())
