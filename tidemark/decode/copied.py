"""Rows of a first copy: lines of COPY ... TO STDOUT, in text format and UTF-8, to batches that equal the stream's.

The one place that knows COPY's escaping (`CopyAttributeOutText`, PG 16): a backslash before b, f, n, r, t, v, another
backslash, and the N of a NULL. The settings of the copying session must be the reference session's (`codecs.codec`).
"""

import re
from array import array
from collections.abc import Sequence
from itertools import repeat

import pyarrow as pa

from tidemark.decode.codecs.codec import Codec, ColumnKind, Dialect
from tidemark.decode.codecs.registry import UTF8, arrow_struct, column_codec
from tidemark.decode.varlena import BadDatum
from tidemark.model.change import BeforeKind, ChangeBatch, Op, batch_schema
from tidemark.model.lsn import Oid
from tidemark.model.position import Position
from tidemark.model.relation import Relation

DELIMITER = "\t"
NULL_FIELD = "\\N"
ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
# What Arrow reads from PostgreSQL's text as we would; what it refuses (infinity, BC, NaN) takes the codec's way.
CAST_BY_ARROW = frozenset(
    {ColumnKind.DATE, ColumnKind.FIXED, ColumnKind.NUMERIC, ColumnKind.TIMESTAMP, ColumnKind.UNSIGNED4}
)


def copy_fields(line: bytes) -> list[str | None]:
    """Return the fields of one line of COPY's text format; its newline is optional."""
    fields: list[str | None] = []
    for field in line.decode("utf-8", "surrogateescape").removesuffix("\n").split(DELIMITER):
        if "\\" not in field:
            fields.append(field)
        elif field == NULL_FIELD:
            fields.append(None)
        else:
            fields.append(_ESCAPE.sub(lambda found: ESCAPES.get(found[1], found[1]), field))
    return fields


def parse_column(codec: Codec, texts: Sequence[str | None]) -> pa.Array:
    """Return the Arrow column of values that are given by their texts."""
    if codec.kind in CAST_BY_ARROW:
        try:
            return pa.array(texts, pa.string()).cast(codec.arrow_type)
        except pa.ArrowInvalid:
            pass
    return pa.array([None if text is None else codec.parse_text(text) for text in texts], codec.arrow_type)


class CopyBatchBuilder:
    """Builds the batches of one relation's first copy."""

    def __init__(self, database: Oid, relation: Relation, dialect: Dialect = UTF8) -> None:
        self._database = database
        self._relation = relation
        self._codecs = [column_codec(column, dialect) for column in relation.live_columns]
        self._struct_type: pa.StructType = arrow_struct(relation, dialect)
        self._schema: pa.Schema = batch_schema(self._struct_type)

    def build(self, lines: Sequence[bytes], first: Position, time_us: int) -> ChangeBatch:
        """Return the rows of `lines`, which hold the live columns in order, at positions from `first` on."""
        rows = [copy_fields(line) for line in lines]
        count = len(rows)
        fields = max(1, len(self._codecs))  # NB: a row without columns is an empty line, which splits to one field
        for number, row in enumerate(rows, first.ordinal):
            if len(row) != fields:
                raise BadDatum(
                    f"{self._relation.qualified_name}: copied row {number} has {len(row)} fields, not {fields}",
                    hint="the table changed while it was copied: copy it again",
                )
        children = [parse_column(codec, [row[at] for row in rows]) for at, codec in enumerate(self._codecs)]
        ordinals = array("q", range(first.ordinal, first.ordinal + count))
        meta = [
            pa.array(repeat(Op.COPY.value, count), pa.string()),
            _constant(first.timeline, count, pa.int32()),
            _constant(first.commit_lsn, count, pa.int64()),
            pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(ordinals)]),
            _constant(first.commit_lsn, count, pa.int64()),
            _constant(0, count, pa.int64()),
            _constant(time_us, count, pa.timestamp("us", tz="UTC")),
            _constant(0, count, pa.int32()),
            _constant(BeforeKind.NONE, count, pa.int8()),
            pa.nulls(count, pa.binary()),
            pa.nulls(count, self._struct_type),
            pa.Array.from_buffers(self._struct_type, count, [None], null_count=0, children=children),
        ]
        return ChangeBatch(self._database, self._relation, pa.RecordBatch.from_arrays(meta, schema=self._schema))


def _constant(value: int, count: int, arrow_type: pa.DataType) -> pa.Array:
    return pa.array(repeat(int(value), count), arrow_type)
