"""Rows of a first copy: lines of COPY ... TO STDOUT, in text format and UTF-8, to batches that equal the stream's.

The one place that knows COPY's escaping (`CopyAttributeOutText`, PG 16): a backslash before b, f, n, r, t, v, another
backslash, and the N of a NULL. The settings of the copying session must be the reference session's (`codecs.codec`).
"""

import re
from importlib import import_module

import numpy as np
import pyarrow as pa

from tidemark.decode.codecs.codec import Codec, ColumnKind, Dialect, TextCodec
from tidemark.decode.codecs.registry import UTF8, arrow_struct, column_codec
from tidemark.decode.varlena import BadDatum
from tidemark.model.change import BeforeKind, ChangeBatch, Op, batch_schema
from tidemark.model.lsn import Oid
from tidemark.model.position import Position
from tidemark.model.relation import Relation

DELIMITER = "\t"
NULL_FIELD = "\\N"
ESCAPE = b"\\"
ESCAPED_BYTES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
TRUE = "t"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ESCAPED_BYTE = re.compile(rb"\\(.)", re.DOTALL)
# What Arrow reads from PostgreSQL's text as we would; what it refuses (infinity, BC, NaN) takes the codec's way.
CAST_BY_ARROW = frozenset(
    {ColumnKind.DATE, ColumnKind.FIXED, ColumnKind.NUMERIC, ColumnKind.TIMESTAMP, ColumnKind.UNSIGNED4}
)


def column_texts(lines: bytes, columns: int) -> list[pa.Array]:
    """Return the fields of lines of COPY's text format, column by column: text, NULL where a field is.

    Raises `pa.ArrowInvalid` for a line of another number of fields. Bytes that are no UTF-8 stay as they are.
    """
    names = [str(number) for number in range(columns)]
    csv = import_module("pyarrow.csv")  # NB: there is a first copy once; every other start does without
    table = csv.read_csv(
        pa.py_buffer(BYTE_ORDER_MARK + lines),  # one is skipped; a value may begin with another
        read_options=csv.ReadOptions(column_names=names, block_size=len(lines) + len(BYTE_ORDER_MARK) + 1),
        parse_options=csv.ParseOptions(
            delimiter=DELIMITER, quote_char=False, double_quote=False, escape_char=False, ignore_empty_lines=False
        ),
        convert_options=csv.ConvertOptions(
            check_utf8=False,
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[NULL_FIELD],
            strings_can_be_null=True,
        ),
    )
    return [_unescaped(column.combine_chunks()) for column in table.columns]


def _unescaped(texts: pa.Array) -> pa.Array:
    """Return the fields without escapes; most have none."""
    buffer = texts.buffers()[2]
    if buffer is None or ESCAPE not in bytes(buffer):
        return texts
    pc = import_module("pyarrow.compute")
    escaped = pc.fill_null(pc.greater_equal(pc.find_substring(texts.view(pa.binary()), ESCAPE), 0), fill_value=False)
    plain = [_plain(field) for field in texts.view(pa.binary()).filter(escaped).to_pylist()]
    return pc.replace_with_mask(texts.view(pa.binary()), escaped, pa.array(plain, pa.binary())).view(pa.string())


def _plain(field: bytes) -> bytes:
    return _ESCAPED_BYTE.sub(lambda found: ESCAPED_BYTES.get(found[1], found[1]), field)


def parse_column(codec: Codec, texts: pa.Array) -> pa.Array:
    """Return the Arrow column of values that are given by their texts."""
    try:
        texts.validate(full=True)
        made = _parse_whole(codec, texts)
    except pa.ArrowInvalid:
        made = None  # what Arrow reads otherwise than PostgreSQL, or text that is no UTF-8
    if made is not None:
        return made
    fields = texts.view(pa.binary()).to_pylist()
    values = [None if field is None else codec.parse_text(field.decode("utf-8", "surrogateescape")) for field in fields]
    return pa.array(values, codec.arrow_type)


def _parse_whole(codec: Codec, texts: pa.Array) -> pa.Array | None:
    """Return the column without an object a value; None where that cannot be."""
    if codec.kind in CAST_BY_ARROW:
        return texts.cast(codec.arrow_type)
    if codec.kind is ColumnKind.BOOL:
        return import_module("pyarrow.compute").equal(texts, TRUE)
    if isinstance(codec, TextCodec) and type(codec).parse_text is TextCodec.parse_text:
        return texts  # it is sound UTF-8: there is nothing to replace
    return None


class CopyBatchBuilder:
    """Builds the batches of one relation's first copy."""

    def __init__(self, database: Oid, relation: Relation, dialect: Dialect = UTF8) -> None:
        self._database = database
        self._relation = relation
        self._codecs = [column_codec(column, dialect) for column in relation.live_columns]
        self._struct_type: pa.StructType = arrow_struct(relation.live_columns, dialect)
        self._schema: pa.Schema = batch_schema(self._struct_type)

    def build(self, lines: bytes, first: Position, time_us: int) -> ChangeBatch:
        """Return the rows of `lines`, which hold the live columns in order, at positions from `first` on."""
        if self._codecs and lines:
            texts = self._texts(lines, first)
            count = len(texts[0])
        else:
            texts, count = [pa.array([], pa.string())] * len(self._codecs), lines.count(b"\n")
        children = [parse_column(codec, column) for codec, column in zip(self._codecs, texts, strict=True)]
        meta = [
            pa.repeat(pa.scalar(Op.COPY.value, pa.string()), count),
            _constant(first.timeline, count, pa.int32()),
            _constant(first.commit_lsn, count, pa.int64()),
            pa.array(np.arange(first.ordinal, first.ordinal + count, dtype=np.int64)),
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

    def _texts(self, lines: bytes, first: Position) -> list[pa.Array]:
        """Return the fields, column by column; name the row that has too many or too few."""
        try:
            return column_texts(lines, len(self._codecs))
        except pa.ArrowInvalid:
            for number, line in enumerate(lines.splitlines(), first.ordinal):
                fields = line.count(DELIMITER.encode()) + 1
                if fields != len(self._codecs):
                    raise BadDatum(
                        f"{self._relation.qualified_name}: copied row {number} has {fields} fields, "
                        f"not {len(self._codecs)}",
                        hint="the table changed while it was copied: copy it again",
                    ) from None
            raise


def _constant(value: int, count: int, arrow_type: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(int(value), arrow_type), count)
