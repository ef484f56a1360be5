"""Any relation, any rows: columns equal values in either build; and the builds equal each other on any bytes."""

import struct
from array import array
from contextlib import suppress
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.forged import tuple_forms as forms
from tests.support.forged.spans import add, inserts
from tests.support.oracles.twins import interpreted
from tidemark.decode.arrow import columns, text_columns
from tidemark.decode.arrow.batches import BatchBuilder, RowSpans
from tidemark.decode.datum import deforming
from tidemark.decode.datum.tuples import Datum, TupleLayout, deform, external_pointers, replace_external
from tidemark.decode.datum.varlena import ExternalPointer
from tidemark.decode.types.codec import ArrowValue
from tidemark.decode.types.registry import column_codec
from tidemark.model.errors import CorruptWal
from tidemark.model.lsn import Oid
from tidemark.model.relation import Column, Relation, ReplicaIdentity, TypeDescription

twin_columns = interpreted("tidemark.decode.arrow.columns")
twin_deforming = interpreted("tidemark.decode.datum.deforming")
twin_texts = interpreted("tidemark.decode.arrow.text_columns")


def fixed(form: str, low: int, high: int) -> st.SearchStrategy[bytes]:
    return st.integers(low, high).map(lambda number: struct.pack(form, number))


PLAIN_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
FINITE = st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30, places=7)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | FINITE | PLAIN_TEXT,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(PLAIN_TEXT, children, max_size=4),
    max_leaves=10,
)
I4 = fixed("<i", -(2**31), 2**31 - 1)
I8 = fixed("<q", -(2**63), 2**63 - 1)
TEXTS = PLAIN_TEXT.map(str.encode) | st.binary(max_size=8)
NUMERICS = st.one_of(
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**40), max_value=10**40),
    st.sampled_from([Decimal(text) for text in ("NaN", "Infinity", "-Infinity", "0", "1e100", "-1e-50", "0.0001")]),
).map(forms.numeric_payload)
DECIMALS = st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: forms.numeric_payload(Decimal(n).scaleb(-2), 2))


def list_of(element: TypeDescription, values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    datums = values.map(forms.plain) if element.length == -1 else values
    return st.lists(st.none() | datums, max_size=6).map(
        lambda made: forms.array_payload(element, made, [len(made)] if made else [], [1] if made else [])
    )


# Type, typmod, payloads.
POOL: list[tuple[TypeDescription, int, st.SearchStrategy[bytes]]] = [
    (forms.BOOL, -1, st.sampled_from([b"\0", b"\1"])),
    (forms.INT2, -1, fixed("<h", -(2**15), 2**15 - 1)),
    (forms.INT4, -1, I4),
    (forms.INT8, -1, I8),
    (forms.OID, -1, fixed("<I", 0, 2**32 - 1)),
    (forms.FLOAT4, -1, st.binary(min_size=4, max_size=4)),
    (forms.FLOAT8, -1, st.binary(min_size=8, max_size=8)),
    (forms.DATE, -1, I4 | fixed("<i", -1000, 1000)),
    (forms.TIME, -1, fixed("<q", 0, 86_400_000_000)),
    (forms.TIMESTAMP, -1, I8 | fixed("<q", -(10**15), 10**15)),
    (forms.TIMESTAMPTZ, -1, I8),
    (forms.INTERVAL, -1, st.binary(min_size=16, max_size=16)),
    (forms.UUID, -1, st.binary(min_size=16, max_size=16)),
    (forms.NAME, -1, PLAIN_TEXT.map(lambda text: text.encode()[:63].ljust(64, b"\0"))),
    (forms.CHAR, -1, st.binary(min_size=1, max_size=1)),
    (forms.TEXT, -1, TEXTS),
    (forms.BYTEA, -1, st.binary(max_size=30)),
    (forms.UNKNOWN, -1, st.binary(max_size=30)),
    (forms.NUMERIC, -1, NUMERICS),
    (forms.NUMERIC, forms.numeric_typmod(12, 2), DECIMALS),
    (forms.NUMERIC, forms.numeric_typmod(38, 3), NUMERICS),
    (forms.JSONB, -1, JSON.map(forms.jsonb_payload)),
    (forms.MOOD, -1, st.sampled_from([50_001, 50_002]).map(lambda oid: struct.pack("<I", oid))),
    (forms.array_of(forms.INT4), -1, list_of(forms.INT4, I4)),
    (forms.array_of(forms.INT8), -1, list_of(forms.INT8, I8)),
    (forms.array_of(forms.BOOL), -1, list_of(forms.BOOL, st.sampled_from([b"\0", b"\1"]))),
    (forms.array_of(forms.TEXT), -1, list_of(forms.TEXT, TEXTS)),
    (forms.array_of(forms.JSONB), -1, list_of(forms.JSONB, JSON.map(forms.jsonb_payload))),
]


def datum_of(draw: st.DrawFn, payload: bytes) -> bytes:
    """Add one of the possible headers to a payload."""
    headers = [forms.plain, forms.compressed] if payload else [forms.plain]
    if len(payload) < 127:
        headers.append(forms.short)
    return draw(st.sampled_from(headers))(payload)


@st.composite
def tables(draw: st.DrawFn) -> tuple[Relation, list[bytes]]:
    """Draw a relation, with dropped columns, and its tuples: NULLs, missing trailing columns, unavailable values."""
    chosen = draw(st.lists(st.none() | st.sampled_from(POOL), min_size=1, max_size=12))
    described = tuple(
        forms.column(number, one[0] if one else None, typmod=one[1] if one else -1)
        for number, one in enumerate(chosen, 1)
    )
    relation = Relation(Oid(16_500), "public", "t", "r", "p", described, ReplicaIdentity.DEFAULT)
    tuples = []
    for _ in range(draw(st.integers(1, 5))):
        values: list[bytes | None] = []
        for one in chosen[: draw(st.integers(0, len(chosen)))]:
            if one is None or draw(st.integers(0, 5)) == 0:
                values.append(None if draw(st.booleans()) or one is not None else forms.short(b"dropped"))
                continue
            payload = draw(one[2])
            if one[0].length != -1:
                values.append(payload)
            else:
                values.append(forms.EXTERNAL if draw(st.integers(0, 7)) == 0 else datum_of(draw, payload))
        tuples.append(forms.form_tuple(described, values))
    return relation, tuples


def arrow_value(column: Column, value: Datum) -> ArrowValue:
    return column_codec(column).arrow_value(value) if isinstance(value, bytes) else None


@settings(max_examples=examples(300))
@given(tables())
def test_columns_equal_values(table: tuple[Relation, list[bytes]]) -> None:
    relation, tuples = table
    rows = RowSpans(bytearray())
    for at, packed in enumerate(tuples):
        add(rows, packed if at % 2 else None, None if at % 3 == 2 else packed)
    (batch,) = BatchBuilder(Oid(5), relation).build(rows)
    batch.rows.validate(full=True)
    layout = TupleLayout.of(relation)
    live = [column for column in relation.columns if not column.dropped]
    values = [deform(packed, layout) for packed in tuples]
    count = len(tuples)
    for name, present in (
        ("_before", [at % 2 == 1 for at in range(count)]),
        ("_after", [at % 3 != 2 for at in range(count)]),
    ):
        made = batch.rows.column(name)
        assert made.is_valid().to_pylist() == present
        for slot, column in enumerate(live):
            expected = [
                arrow_value(column, row[column.number - 1]) if present[at] else None for at, row in enumerate(values)
            ]
            typed = pa.array(expected, column_codec(column).arrow_type)
            assert repr(made.field(slot).to_pylist()) == repr(typed.to_pylist())
    unchanged = []
    for at, row in enumerate(values):
        marks = sum(1 << s for s, c in enumerate(live) if isinstance(row[c.number - 1], ExternalPointer))
        unchanged.append(marks.to_bytes((len(live) + 7) // 8, "little") if marks and at % 3 != 2 else None)
    assert batch.rows.column("_unchanged").to_pylist() == unchanged


@given(tables())
def test_values_that_replace_pointers_leave_the_others_unchanged(table: tuple[Relation, list[bytes]]) -> None:
    relation, tuples = table
    layout = TupleLayout.of(relation)
    for packed in tuples:
        pointers = external_pointers(packed, layout)
        put = {index: forms.plain(b"x" * (200 + index)) for index, _ in pointers}
        before = deform(packed, layout)
        after = deform(replace_external(packed, layout, put), layout)
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            assert new == (b"x" * (200 + index) if isinstance(old, ExternalPointer) else old)
        assert replace_external(packed, layout, {}) == packed


Cell = tuple[int, int]
FIXED_KERNELS = [("build_16", "H", ()), ("build_32", "I", ()), ("build_64", "Q", ()), ("build_widened", "Q", ()),
                 ("build_clamped_32", "I", (5, 2**31 + 70_000, 10_957)),
                 ("build_clamped_64", "Q", (2**62, 2**63 + 10**15, 946_684_800_000_000))]  # fmt: skip


@settings(max_examples=examples(300))
@given(
    st.binary(min_size=8, max_size=120),
    st.lists(st.tuples(st.integers(-3, 90), st.integers(0, 60)), min_size=1, max_size=12),
)
def test_both_builds_of_the_kernels_agree_on_any_bytes(data: bytes, cells: list[Cell]) -> None:
    placed = [(min(at, len(data) - 8), size) for at, size in cells]
    cells_at = array("q", [at for at, _ in placed])
    sizes = array("q", [min(size, len(data) - at) if at >= 0 else 0 for at, size in placed])
    rows = len(cells_at)
    for name, code, bounds in FIXED_KERNELS:
        outs = [array(code, [0] * rows) for _ in range(2)]
        for module, numbers in zip((columns, twin_columns), outs, strict=True):
            assert getattr(module, name)(data, cells_at, 0, rows, *bounds, numbers) == columns.DONE
        assert outs[0] == outs[1], name
    results = []
    for module, locating, texts in ((columns, deforming, text_columns), (twin_columns, twin_deforming, twin_texts)):
        offsets = array("i", bytes(4 * (rows + 1)))
        found: list[object] = [module.measure(cells_at, sizes, 0, rows, offsets), offsets.tobytes()]
        out = bytearray(max(offsets[rows], 0))
        found += [module.copy_bytes(data, cells_at, sizes, 0, rows, offsets, out), bytes(out)]
        bits = bytearray(rows + 7 >> 3)
        found += [module.build_bool(data, cells_at, 0, rows, bits), bytes(bits)]
        bits = bytearray(rows + 7 >> 3)
        found += [locating.present(cells_at, 0, rows, bits), bytes(bits)]
        wide = array("Q", bytes(16 * rows))
        found += [module.build_decimal(data, cells_at, sizes, 0, rows, 30, 5, wide, bits), wide.tobytes(), bytes(bits)]
        text = bytearray(36 * rows)
        found += [module.build_uuid(data, cells_at, sizes, 0, rows, b"0123456789abcdef", offsets, text), bytes(text)]
        total = locating.measure_arrays(data, cells_at, sizes, 0, rows, offsets)
        found += [total, offsets.tobytes()]
        if total >= 0:
            inner = [array("q", bytes(8 * total)) for _ in range(2)]
            found += [
                locating.locate_elements(data, cells_at, sizes, 0, rows, -1, 4, offsets, *inner),
                *map(bytes, inner),
            ]
        for space in (4, 400):
            offsets = array("i", bytes(4 * (rows + 1)))
            out = bytearray(space)
            stack = array("q", bytes(8 * texts.STACK_INTEGERS))
            stopped = texts.build_numeric_text(data, cells_at, sizes, 0, 0, rows, offsets, out)
            found += [stopped, bytes(out), bytes(offsets)]
            out = bytearray(space)
            found += [texts.build_jsonb_text(data, cells_at, sizes, 0, 0, rows, offsets, out, stack), bytes(out)]
        results.append(found)
    assert results[0] == results[1]


@settings(max_examples=examples(300))
@given(tables(), st.data())
def test_both_builds_locate_the_same_in_damaged_tuples(
    table: tuple[Relation, list[bytes]], data: st.DataObject
) -> None:
    relation, tuples = table
    layout = TupleLayout.of(relation)
    damaged = bytearray(b"".join(tuples))
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    arena = bytes(damaged)
    lengths = array("q", map(len, tuples))
    starts = array("q", [sum(lengths[:at]) for at in range(len(tuples))])
    width = len(relation.columns)
    results = []
    for module in (deforming, twin_deforming):
        found, sizes = (array("q", bytes(8 * width * len(tuples))) for _ in range(2))
        shape = (array("i", layout.lengths), array("i", layout.aligns), array("i", range(width)))
        absent, kinds = array("q", bytes(8 * width)), array("q", bytes(8 * deforming.KINDS))
        odd = module.locate(arena, starts, lengths, *shape, found, sizes, absent, kinds)
        results.append((odd, found, sizes, absent, kinds))
        if odd == deforming.DONE:
            rows = len(tuples)
            assert absent.tolist() == [sum(at < 0 for at in found[at : at + rows]) for at in range(0, len(found), rows)]
            assert list(kinds) == [
                sum(at >= 0 > size for at, size in zip(found, sizes, strict=True)),
                found.count(deforming.Location.MISSING),
                found.count(deforming.Location.EXTERNAL),
            ]
    assert results[0] == results[1]
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        if results[0][0] in (deforming.DONE, row):
            packed = arena[start : start + length]
            if results[0][0] == row:
                with pytest.raises(CorruptWal):
                    deform(packed, layout)


@settings(max_examples=examples(300))
@given(tables(), st.data())
def test_damaged_tuples_result_in_a_valid_batch_or_in_corrupt_wal(
    table: tuple[Relation, list[bytes]], data: st.DataObject
) -> None:
    relation, tuples = table
    damaged = [bytearray(packed) for packed in tuples]
    for packed in damaged:
        for _ in range(data.draw(st.integers(0, 3))):
            packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    try:
        batches = BatchBuilder(Oid(5), relation).build(inserts(map(bytes, damaged)))
    except CorruptWal as error:
        reported = str(error)
    else:
        reported = "public.t, record at 0/"
        for batch in batches:
            batch.rows.validate(full=True)
    assert "public.t, record at 0/" in reported


EVERY_TYPE = [*((described, typmod) for described, typmod, _ in POOL), *((other, -1) for other in forms.OTHERS)]
COUNTS_AND_LENGTHS = st.lists(st.sampled_from([0, 0, 0, 1, 2, 3, 4, 8, 12, 16, 128, 255]), max_size=80).map(bytes)


@settings(max_examples=examples(2000))
@given(st.sampled_from(EVERY_TYPE), st.binary(max_size=60) | COUNTS_AND_LENGTHS)
def test_a_codec_returns_text_for_any_bytes_or_reports_corrupt_wal(
    one: tuple[TypeDescription, int], payload: bytes
) -> None:
    codec = column_codec(forms.column(1, one[0], typmod=one[1]))
    for way in (codec.text, codec.arrow_value):
        with suppress(CorruptWal):
            way(payload)
