"""Tuples and their values: a whole batch by both builds, and each codec separately."""

from decimal import Decimal
from struct import pack
from types import ModuleType

import pyarrow as pa

from tests.support.forged import tuple_forms as forms
from tests.support.forged.byte_targets.target import Bytes, ByteTarget, refusals
from tests.support.forged.spans import inserts
from tests.support.oracles import slow_batches
from tidemark.decode.arrow import batches
from tidemark.decode.datum.tuples import TupleLayout, deform, external_pointers
from tidemark.decode.types.registry import column_codec
from tidemark.model.errors import CorruptWal
from tidemark.model.lsn import Oid
from tidemark.model.relation import Column, Relation, ReplicaIdentity, TypeDescription

TYPES: tuple[tuple[TypeDescription, int], ...] = (
    *((described, -1) for described in (forms.BOOL, forms.INT2, forms.INT4, forms.INT8, forms.OID, forms.FLOAT4)),
    *((described, -1) for described in (forms.FLOAT8, forms.DATE, forms.TIME, forms.TIMESTAMP, forms.TIMESTAMPTZ)),
    *(
        (described, -1)
        for described in (forms.INTERVAL, forms.UUID, forms.NAME, forms.CHAR, forms.TEXT, forms.BYTEA, forms.INET)
    ),
    *((described, -1) for described in (forms.UNKNOWN, forms.NUMERIC, forms.JSONB, forms.MOOD, forms.TIMETZ)),
    (forms.NUMERIC, forms.numeric_typmod(12, 2)),
    (forms.NUMERIC, forms.numeric_typmod(38, 3)),
    *((forms.array_of(element), -1) for element in (forms.INT4, forms.INT8, forms.BOOL, forms.TEXT, forms.JSONB)),
)
COLUMNS_MAX = 6


def _column(number: int, which: int) -> Column:
    """Return a column of one of the types, or a dropped one."""
    if which % (len(TYPES) + 1) == len(TYPES):
        return forms.column(number, None)
    described, typmod = TYPES[which % (len(TYPES) + 1)]
    return forms.column(number, described, typmod=typmod)


def _built(module: ModuleType, relation: Relation, packed: bytes) -> tuple[list[pa.RecordBatch], str]:
    """Return the batches of one row, or the error text."""
    try:
        made = module.BatchBuilder(Oid(5), relation).build(inserts([packed]))
    except CorruptWal as error:
        return [], str(error)
    return [batch.rows for batch in made], ""


def run_row(data: bytes) -> None:
    """Build the batch of a tuple whose columns the first bytes select, by both builds, and compare the values."""
    given = Bytes(data)
    count = 1 + given.number() % COLUMNS_MAX
    columns = tuple(_column(number, given.number()) for number in range(1, count + 1))
    relation = Relation(Oid(16_500), "public", "t", "r", "p", columns, ReplicaIdentity.DEFAULT)
    packed = given.rest()
    made, said = _built(batches, relation, packed)
    slowly, said_slowly = _built(slow_batches.batches, relation, packed)
    assert (said, len(made)) == (said_slowly, len(slowly))
    layout = TupleLayout.of(relation)
    with refusals(CorruptWal):
        external_pointers(packed, layout)
    for rows, twin in zip(made, slowly, strict=True):
        rows.validate(full=True)
        assert repr(rows.to_pylist()) == repr(twin.to_pylist())
        try:
            values = deform(packed, layout)
        except CorruptWal:  # in a dropped column, which batches skip
            assert any(column.dropped for column in columns)
            continue
        after = rows.column("_after")
        for slot, column in enumerate(relation.live_columns):
            value = values[column.number - 1]
            codec = column_codec(column)
            expected = codec.arrow_value(value) if isinstance(value, bytes) else None
            typed = pa.array([expected], codec.arrow_type)
            assert repr(after.field(slot).to_pylist()) == repr(typed.to_pylist())


def run_codec(data: bytes) -> None:
    """Decode a payload by one type's codec, both ways."""
    given = Bytes(data)
    described, typmod = TYPES[given.number() % len(TYPES)]
    codec = column_codec(forms.column(1, described, typmod=typmod))
    payload = given.rest()
    with refusals(CorruptWal):
        codec.text(payload).encode("utf-8", "surrogateescape")
    with refusals(CorruptWal):
        pa.array([codec.arrow_value(payload)], codec.arrow_type).validate(full=True)


def _which(wanted: TypeDescription) -> int:
    return next(at for at, (described, _) in enumerate(TYPES) if described == wanted)


def _row_seed(types: list[TypeDescription | None], values: list[bytes | None]) -> bytes:
    chosen = [len(TYPES) if described is None else _which(described) for described in types]
    columns = [forms.column(number, described) for number, described in enumerate(types, 1)]
    return bytes([len(types) - 1, *chosen]) + forms.form_tuple(columns, values)


def _decimal_seed(which: int) -> bytes:
    value = forms.plain(forms.numeric_payload(Decimal("-12345.67")))
    return bytes([0, which]) + forms.form_tuple([_column(1, which)], [value])


ARRAY = forms.array_payload(forms.TEXT, [forms.plain(b"one"), None, forms.short(b"two")], [3], [1])
JSON = forms.jsonb_payload({"a": [1, Decimal("-2.50"), None, True], "b": {"c": "text"}})
PAYLOADS: tuple[tuple[TypeDescription, bytes], ...] = (
    (forms.BOOL, b"\1"),
    (forms.INT4, pack("<i", -5)),
    (forms.FLOAT8, pack("<d", 1e16)),
    (forms.DATE, pack("<i", 9000)),
    (forms.TIMESTAMPTZ, pack("<q", 1 << 50)),
    (forms.INTERVAL, pack("<qii", -1, 2, -3)),
    (forms.UUID, bytes(range(16))),
    (forms.NAME, b"name".ljust(64, b"\0")),
    (forms.TEXT, "täxt".encode()),
    (forms.NUMERIC, forms.numeric_payload(Decimal("-12345.678900"))),
    (forms.JSONB, JSON),
    (forms.MOOD, pack("<I", 50_001)),
    (forms.array_of(forms.TEXT), ARRAY),
)

TARGETS = (
    ByteTarget(
        "row",
        run_row,
        {
            "fixed_and_null": _row_seed([forms.INT4, forms.INT8, forms.BOOL], [pack("<i", 7), None, b"\1"]),
            "varlenas": _row_seed(
                [forms.TEXT, None, forms.JSONB, forms.array_of(forms.TEXT)],
                [forms.short(b"a"), None, forms.compressed(JSON), forms.plain(ARRAY)],
            ),
            "external": _row_seed([forms.BYTEA, forms.NUMERIC], [forms.EXTERNAL, forms.plain(b"\0\x80\1\0")]),
            **{
                described.name: _row_seed([described], [payload if described.length > 0 else forms.plain(payload)])
                for described, payload in PAYLOADS
            },
            **{f"numeric_{at}": _decimal_seed(at) for at, (_, typmod) in enumerate(TYPES) if typmod >= 0},
        },
    ),
    ByteTarget(
        "codec",
        run_codec,
        {
            described.name.replace("[]", "_array"): bytes([_which(described)]) + payload
            for described, payload in PAYLOADS
        },
    ),
)
