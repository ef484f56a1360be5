r"""Rows of COPY's text format to a batch: the first copy of a table (P22).

A row is a line of fields with tabs between; `\N` is NULL; backslash, tab, newline and carriage return inside a value
are escaped (`CopyAttributeOutText`, copyto.c, PG 15). Values are text of the reference session, as codecs read it.
"""

import re
from collections.abc import Sequence

import pyarrow as pa

from tidemark.decode.codecs.codec import Codec, Dialect
from tidemark.decode.codecs.registry import arrow_struct, column_codec
from tidemark.model.change import BeforeKind, ChangeBatch, Op, batch_schema
from tidemark.model.errors import InternalError
from tidemark.model.lsn import Oid
from tidemark.model.position import Position
from tidemark.model.relation import Relation

_NULL = b"\\N"
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_ESCAPED = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


class CopyBatchBuilder:
    """Builds batches of op `c` of one relation version."""

    def __init__(self, database: Oid, relation: Relation, dialect: Dialect) -> None:
        self._database = database
        self._relation = relation
        self._codecs = [column_codec(column, dialect) for column in relation.live_columns]
        self._struct: pa.StructType = arrow_struct(relation, dialect)
        self._schema: pa.Schema = batch_schema(self._struct)

    def build(self, lines: Sequence[bytes], first: Position, time_us: int) -> ChangeBatch:
        """Return the rows of `lines`, numbered from `first` on."""
        count = len(lines)
        fields = [_split(line, len(self._codecs)) for line in lines]
        columns = zip(*fields, strict=True) if self._codecs else ()
        arrays = [self._column(codec, column) for codec, column in zip(self._codecs, columns, strict=True)]
        names = [self._struct.field(index).name for index in range(self._struct.num_fields)]
        meta = [
            [Op.COPY.value] * count,
            [first.timeline] * count,
            [first.commit_lsn] * count,
            range(first.ordinal, first.ordinal + count),
            [first.commit_lsn] * count,
            [0] * count,
            [time_us] * count,
            [BeforeKind.NONE.value] * count,
            [None] * count,
            [None] * count,
        ]
        made = [pa.array(values, self._schema.field(index).type) for index, values in enumerate(meta)]
        after = pa.StructArray.from_arrays(arrays, names) if names else pa.array([{}] * count, self._struct)
        rows = pa.RecordBatch.from_arrays([*made, after.cast(self._struct)], schema=self._schema)
        return ChangeBatch(self._database, self._relation, rows)

    @staticmethod
    def _column(codec: Codec, fields: Sequence[bytes]) -> pa.Array:
        texts = [None if field == _NULL else _unescape(field).decode("utf-8", "surrogateescape") for field in fields]
        if pa.types.is_integer(codec.arrow_type) and not _is_reformed(codec, texts):
            return pa.array(texts, pa.string()).cast(codec.arrow_type)
        return pa.array([None if text is None else codec.parse_text(text) for text in texts], codec.arrow_type)


def _is_reformed(codec: Codec, texts: Sequence[str | None]) -> bool:
    """Tell if an integer column's text is something else than the integer (`time`): the first value shows it."""
    first = next((text for text in texts if text is not None), "0")
    return not first.lstrip("-").isdigit() or codec.parse_text(first) != int(first)


def _split(line: bytes, count: int) -> list[bytes]:
    fields = line.rstrip(b"\n").split(b"\t") if count else []
    if len(fields) != count:
        raise InternalError(f"a row of COPY has {len(fields)} fields, the table {count} columns")
    return fields


def _unescape(field: bytes) -> bytes:
    if b"\\" not in field:
        return field
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), field)
