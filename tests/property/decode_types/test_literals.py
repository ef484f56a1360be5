"""Lines of test_decoding that kernels write for any rows, compared with those made value by value; compiled or not."""

import math
import struct
from array import array
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.decode_types.test_columns_equal_values import I4, I8, NUMERICS, POOL, TEXTS, tables
from tests.support.examples import examples
from tests.support.forged import tuple_forms as forms
from tests.support.oracles.plugin_lines import PluginLines
from tests.support.oracles.twins import interpreted
from tests.support.oracles.value_lines import MAJOR, ChangedRow, value_line
from tidemark.decode.render import column_texts, datum_text, literals, value_text
from tidemark.decode.render import test_decoding as renderer
from tidemark.decode.render.json_columns import powers
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.decode.transactions.reorder_buffer.itemlog import ItemLog
from tidemark.decode.transactions.reorder_buffer.rowlog import RelationVersions, RowLog
from tidemark.decode.types.codec import Dialect
from tidemark.model.change import TransactionEnd
from tidemark.model.errors import CorruptWal, InternalError
from tidemark.model.lsn import FullXid, Lsn, Oid, TimelineId, Xid
from tidemark.model.relation import Relation, TypeDescription, TypeKind

DATABASE = Oid(16384)
XID = 701
slow_text_columns = interpreted("tidemark.decode.arrow.text_columns")
slow_value_text = interpreted(
    "tidemark.decode.render.value_text", stand_in={"tidemark.decode.arrow.text_columns": slow_text_columns}
)
slow_line_text = interpreted(
    "tidemark.decode.render.line_text", stand_in={"tidemark.decode.render.value_text": slow_value_text}
)
slow_datum_text = interpreted(
    "tidemark.decode.render.datum_text",
    stand_in={
        "tidemark.decode.arrow.text_columns": slow_text_columns,
        "tidemark.decode.render.value_text": slow_value_text,
        "tidemark.decode.render.line_text": slow_line_text,
    },
)
DOUBLES = [0.0, 1.0, 0.1, 1e15, 1e14, 123456789012345.0, 1e-4, 1e-5, 5e-324, 1.7976931348623157e308, 9007199254740993.0]
SINGLES = [0.0, 1.0, 0.1, 1e6, 99999.9, 123456.7, 1e-4, 1e-5, 1e-45, 3.4028234e38, 16777216.0]
# Edge cases of each kind of value that a kernel writes.
EDGES = {
    "int2": [struct.pack("<h", number) for number in (0, -1, 32767, -32768)],
    "int4": [struct.pack("<i", number) for number in (0, -1, 2**31 - 1, -(2**31))],
    "int8": [struct.pack("<q", number) for number in (0, -1, 10**18, 2**63 - 1, -(2**63))],
    "oid": [struct.pack("<I", number) for number in (0, 2**31, 2**32 - 1)],
    "date": [struct.pack("<i", days) for days in (0, -730_119, -730_120, 2_921_939, 2_921_940, 2**31 - 1, -(2**31))],
    "timestamp": [
        struct.pack("<q", usecs)
        for usecs in (0, -1, 1, 10, 500_000, 999_999, -63_082_281_600_000_000, -63_082_281_600_000_001, 2**63 - 1)
    ],
    "timestamptz": [struct.pack("<q", usecs) for usecs in (-(2**63), -(2**63) + 1, 2**63 - 2, 86_399_999_999)],
    "float8": [struct.pack("<d", sign * number) for number in (*DOUBLES, math.inf, math.nan) for sign in (1, -1)],
    "float4": [struct.pack("<f", sign * number) for number in (*SINGLES, math.inf, math.nan) for sign in (1, -1)],
    "time": [struct.pack("<q", usecs) for usecs in (0, 1, 100_000, 86_399_999_999, 86_400_000_000)],
    "text": [b"", b"'", b"it''s", b"cut\0off", b"\xff\xfe", "é€😀".encode(), b"\\"],
    "numeric": [
        *map(forms.numeric_payload, map(Decimal, ("0", "-0.001", "10000", "1e131", "-1e-130", "0.00010000"))),
        *(bytes.fromhex(digits) for digits in ("00c0", "00d0", "00f0", "00e0")),
        struct.pack("<HhH", 0x4000 | 16383, -4096, 1),
        struct.pack("<Hh", 5, 32767),
    ],
}


@pytest.fixture(params=["as built", "interpreted"], autouse=True)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with the kernels as they are built, and interpreted, into a buffer that is full at once."""
    monkeypatch.setattr(column_texts, "TEXT_BYTES", 8)
    if request.param == "interpreted":
        if not datum_text.COMPILED:
            pytest.skip("they are interpreted anyway")
        monkeypatch.setattr(literals, "datum_text", slow_datum_text)


def committed(relation: Relation, rows: Sequence[ChangedRow]) -> CommittedTransaction:
    """Return a transaction of these rows."""
    versions = RelationVersions()
    number, log = versions.number(DATABASE, relation), RowLog(versions)
    for at, row in enumerate(rows):
        log.append(ord(row.op), number, 500 + at, XID, new=row.new, old=row.old, before_kind=0)
    end = TransactionEnd(
        Xid(XID), FullXid(XID), TimelineId(1), Lsn(400), Lsn(1000), Lsn(1040), 0, DATABASE, item_count=len(rows)
    )
    return CommittedTransaction(end, Lsn(1040), Lsn(400), log, ItemLog(), None)


def printed(relation: Relation, rows: Sequence[ChangedRow]) -> list[str]:
    begin, *lines, commit = PluginLines(MAJOR, {DATABASE: Dialect()}).of(committed(relation, rows))
    assert (begin, commit) == (f"BEGIN {XID}", f"COMMIT {XID}")
    return lines


def changed(tuples: Sequence[bytes]) -> list[ChangedRow]:
    """Return row changes of all kinds, those without tuples included."""
    rows = []
    for at, packed in enumerate(tuples):
        other = tuples[at - 1]
        kinds = [("i", None, packed), ("u", None, packed), ("u", packed, other), ("d", packed, None)]
        kinds += [("i", None, None), ("d", None, None), ("u", None, None), ("u", packed, None)]
        rows += [ChangedRow(*kind) for kind in kinds]
    return rows


@settings(max_examples=examples(150))
@given(tables())
def test_lines_are_those_that_are_made_value_by_value(table: tuple[Relation, list[bytes]]) -> None:
    relation, tuples = table
    rows = changed(tuples)
    assert printed(relation, rows) == [value_line(relation, row) for row in rows]


@pytest.mark.parametrize("name", EDGES)
def test_values_at_the_edges_of_their_types_are_printed_as_by_their_codecs(name: str) -> None:
    described = next(known for known, typmod, _ in POOL if known.name == name and typmod == -1)
    payloads = EDGES[name]
    relation = forms.relation_of(described)
    values = payloads if described.length != -1 else list(map(forms.plain, payloads))
    rows = [ChangedRow("i", None, forms.form_tuple(relation.columns, [value])) for value in values]
    assert printed(relation, rows) == [value_line(relation, row) for row in rows]


def domain(over: TypeDescription) -> TypeDescription:
    return TypeDescription(
        Oid(50_100), "public", "d", "d", TypeKind.DOMAIN, over.length, over.by_value, over.align, base=over
    )


def test_a_domain_is_quoted_whatever_it_is_over() -> None:
    relation = forms.relation_of(domain(forms.INT4), domain(forms.BOOL), domain(forms.NUMERIC))
    values = [struct.pack("<i", -7), b"\1", forms.short(forms.numeric_payload(Decimal("1.50")))]
    (line,) = printed(relation, [ChangedRow("i", None, forms.form_tuple(relation.columns, values))])
    assert line == "table public.t: INSERT: c1[d]:'-7' c2[d]:'t' c3[d]:'1.50'"


def test_columns_that_are_younger_than_a_tuple_have_their_missing_value() -> None:
    known = forms.plain(forms.array_payload(forms.INT4, [struct.pack("<i", 42)], [1], [1]))
    as_text = forms.plain(forms.array_payload(forms.TEXT, [forms.plain(b"it's")], [1], [1]))
    number_as_text = forms.plain(forms.array_payload(forms.TEXT, [forms.plain(b"9")], [1], [1]))
    columns = (
        forms.column(1, forms.INT4),
        forms.column(2, forms.INT4, missing=known),
        forms.column(3, forms.JSONB, missing=as_text),
        forms.column(4, forms.INT8, missing=number_as_text),
        forms.column(5, forms.INT4),
    )
    relation = Relation(Oid(16_500), "public", "t", "r", "p", columns, forms.relation_of().replica_identity)
    old = forms.form_tuple(columns[:1], [struct.pack("<i", 1)])
    whole = [struct.pack("<i", 2), None, None, struct.pack("<q", 3), None]
    rows = [ChangedRow("i", None, old), ChangedRow("i", None, forms.form_tuple(columns, whole))]
    lines = printed(relation, rows)
    assert lines == [value_line(relation, row) for row in rows]
    assert lines[0].endswith("c2[int4]:42 c3[jsonb]:'it''s' c4[int8]:9 c5[int4]:null")


def test_rows_that_expand_too_far_are_printed_fewer_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    relation = forms.relation_of(forms.INT4, forms.TEXT)
    rows = [
        ChangedRow("i", None, forms.form_tuple(relation.columns, [struct.pack("<i", at), forms.compressed(b"x" * 500)]))
        for at in range(20)
    ]
    expected = [value_line(relation, row) for row in rows]
    for name, most in (("EXPANDED_BYTES_MAX", 1200), ("CELLS_MAX", 7), ("EXPANDED_BYTES_MAX", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(renderer, name, most)
            assert printed(relation, rows) == expected


def test_damage_in_a_dropped_column_is_not_read() -> None:
    live, dropped = forms.relation_of(forms.INT4, forms.TEXT), forms.relation_of(forms.INT4, None)
    damaged = bytearray(forms.form_tuple(live.columns, [struct.pack("<i", 42), forms.compressed(b"x" * 500)]))
    damaged[-8:] = b"\xff" * 8
    rows = [ChangedRow("i", None, bytes(damaged))]
    with pytest.raises(CorruptWal):
        printed(live, rows)
    assert printed(dropped, rows) == [value_line(dropped, row) for row in rows]


@settings(max_examples=examples(150))
@given(tables(), st.data())
def test_damaged_tuples_result_in_lines_or_in_corrupt_wal(
    table: tuple[Relation, list[bytes]], data: st.DataObject
) -> None:
    relation, tuples = table
    damaged = [bytearray(packed) for packed in tuples]
    for packed in damaged:
        for _ in range(data.draw(st.integers(0, 3))):
            packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    rows = [ChangedRow("i", None, bytes(packed)) for packed in damaged]
    try:
        expected = [value_line(relation, row) for row in rows]
    except CorruptWal:
        with pytest.raises(CorruptWal, match=r"public\.t, record at 0/"):
            printed(relation, rows)
    else:
        assert printed(relation, rows) == expected


# Doubles half way between decimals of 17 digits, and those with many zeros.
BOUNDARIES = st.builds(
    lambda n, power: struct.pack("<d", math.ldexp(n, power)), st.integers(1, 1 << 53), st.integers(-60, 60)
)
WAYS = {
    datum_text.TextForm.SIGNED: (I4, 4),
    datum_text.TextForm.TIMESTAMP: (I8, 8),
    datum_text.TextForm.SINGLE: (st.binary(min_size=4, max_size=4), 4),
    datum_text.TextForm.DOUBLE: (st.binary(min_size=8, max_size=8) | BOUNDARIES, 8),
    datum_text.TextForm.NUMERIC: (NUMERICS | st.binary(max_size=12), 0),
    datum_text.TextForm.TEXT: (TEXTS, 0),
}


@settings(max_examples=examples(200))
@given(st.sampled_from(list(WAYS)), st.data(), st.integers(0, 200))
def test_both_builds_write_the_same_and_stop_at_the_same_row(
    form: datum_text.TextForm, data: st.DataObject, space: int
) -> None:
    values, width = WAYS[form]
    payloads = data.draw(st.lists(values, min_size=1, max_size=6))
    arena = b"".join(payloads) + bytes(8)
    sizes = array("q", map(len, payloads))
    locations = array("q", [sum(sizes[:at]) for at in range(len(sizes))])
    found = []
    for module in (datum_text, slow_datum_text):
        out, offsets = np.zeros(space, np.uint8), np.zeros(len(sizes) + 1, np.int64)
        reported = (
            arena,
            locations,
            sizes,
            0,
            width,
            form,
            1,
            1,
            b" a[b]:",
            powers(),
            0,
            len(sizes),
            out.data,
            offsets.data,
            0,
        )
        stopped = module.write_datums(*reported)
        found.append((stopped, offsets.tolist(), out[: offsets.max()].tobytes()))
    assert found[0] == found[1]


@settings(max_examples=examples(300))
@given(st.lists(BOUNDARIES | st.binary(min_size=8, max_size=8), min_size=1, max_size=20))
def test_floats_are_printed_as_by_their_codecs(payloads: list[bytes]) -> None:
    relation = forms.relation_of(forms.FLOAT8, forms.FLOAT4)
    values = [[payload, payload[4:]] for payload in payloads]
    rows = [ChangedRow("i", None, forms.form_tuple(relation.columns, value)) for value in values]
    assert printed(relation, rows) == [value_line(relation, row) for row in rows]


class RefusingKernel:
    """A kernel that accepts no value."""

    @staticmethod
    def write_datums(*_: object) -> int:
        return datum_text.ODD


def test_bytes_that_the_kernel_refuses_and_the_codec_accepts_are_an_internal_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    relation = forms.relation_of(forms.INT4)
    rows = [ChangedRow("i", None, forms.form_tuple(relation.columns, [bytes(4)]))]
    monkeypatch.setattr(literals, "datum_text", RefusingKernel)
    with pytest.raises(InternalError, match="disagree"):
        printed(relation, rows)


@pytest.mark.skipif(not value_text.COMPILED, reason="the kernels are not compiled here")
def test_one_of_the_kernels_is_compiled_and_one_is_not() -> None:
    assert datum_text.COMPILED
    assert not slow_datum_text.COMPILED
