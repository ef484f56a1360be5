"""Batches of incomplete rows: before images, values by text, splits, damage with its location."""

import struct
from dataclasses import replace
from functools import partial

import pytest

from tests.support.forged import tuple_forms as forms
from tests.support.forged.spans import add, inserts
from tests.unit.decoder.test_small_transactions import calls_outside_kernels
from tidemark.decode.arrow.batches import BatchBuilder, RowSpans
from tidemark.decode.datum.varlena import BadDatum
from tidemark.decode.types.codec import Dialect
from tidemark.model.change import META_FIELDS
from tidemark.model.lsn import Oid
from tidemark.model.relation import Relation


def i4(number: int) -> bytes:
    return struct.pack("<i", number)


def missing_text(text: str) -> bytes:
    """Return attmissingval as a seed by SQL has it: an array of text."""
    return forms.plain(forms.array_payload(forms.TEXT, [forms.plain(text.encode())], [1], [1]))


def test_a_batch_carries_the_positions_and_both_images() -> None:
    relation = forms.relation_of(forms.INT4, forms.TEXT)
    rows = RowSpans(bytearray())
    old = forms.form_tuple(relation.columns, [i4(1), forms.short(b"old")])
    key = forms.form_tuple(relation.columns, [i4(1), None])
    new = forms.form_tuple(relation.columns, [i4(2), forms.short(b"new")])
    add(rows, None, new, "i", 0)
    add(rows, old, new, "u", 2)
    add(rows, key, None, "d", 1)
    add(rows, None, None, "d", 0)
    (batch,) = BatchBuilder(Oid(9), relation).build(rows)
    assert (batch.database, batch.relation) == (9, relation)
    assert batch.rows.column("_op").to_pylist() == ["i", "u", "d", "d"]
    assert batch.rows.column("_before_kind").to_pylist() == [0, 2, 1, 0]
    assert batch.rows.column("_origin").to_pylist() == [0, 1, 2, 0]
    assert batch.rows.column("_commit_lsn").to_pylist() == [1000, 1001, 1002, 1003]
    assert batch.rows.column("_ordinal").to_pylist() == [0, 1, 2, 3]
    assert batch.rows.column("_lsn").to_pylist() == [500, 501, 502, 503]
    assert batch.rows.column("_before").to_pylist() == [None, {"c1": 1, "c2": "old"}, {"c1": 1, "c2": None}, None]
    assert batch.rows.column("_after").to_pylist() == [{"c1": 2, "c2": "new"}, {"c1": 2, "c2": "new"}, None, None]
    assert [field.name for field in batch.rows.schema][: len(META_FIELDS)] == [field.name for field in META_FIELDS]


def test_a_missing_value_known_by_its_text_reaches_every_kind_of_column() -> None:
    texts = {
        forms.INT4: ("42", 42),
        forms.TEXT: ("missing", "missing"),
        forms.NUMERIC: ("1.50", "1.50"),
        forms.JSONB: ('{"a": 1}', '{"a": 1}'),
        forms.MOOD: ("sad", "sad"),
        forms.array_of(forms.INT4): ("{1,NULL}", [1, None]),
        forms.UNKNOWN: ("POINT", b"POINT"),
    }
    columns = [forms.column(1, forms.INT4)]
    columns += [
        forms.column(number, described, missing=missing_text(text))
        for number, (described, (text, _)) in enumerate(texts.items(), 2)
    ]
    relation = replace(forms.relation_of(), columns=tuple(columns))
    (batch,) = BatchBuilder(Oid(9), relation).build(inserts([forms.form_tuple(columns, [i4(1)])]))
    (row,) = batch.rows.column("_after").to_pylist()
    assert list(row.values()) == [1, *(value for _, value in texts.values())]


def test_a_table_without_live_columns_keeps_its_rows() -> None:
    relation = forms.relation_of(None)
    (batch,) = BatchBuilder(Oid(9), relation).build(inserts([forms.form_tuple(relation.columns, [None])] * 2))
    assert batch.rows.column("_after").to_pylist() == [{}, {}]


def test_a_column_costs_no_call_of_python() -> None:
    types = [forms.INT4, forms.BOOL, forms.DATE, forms.TIMESTAMP, forms.UUID, forms.BYTEA, forms.TEXT, forms.MOOD]
    values = [i4(1), b"\1", i4(2), bytes(8), bytes(16), forms.short(b"b"), forms.short(b"t"), struct.pack("<I", 50_001)]
    calls = []
    for columns in (1, len(types)):
        relation = forms.relation_of(*types[:columns])
        builder, rows = BatchBuilder(Oid(9), relation), inserts([forms.form_tuple(relation.columns, values[:columns])])
        # NB: the least of three: a garbage collection in between may run callbacks
        calls.append(min(calls_outside_kernels(partial(builder.build, rows)) for _ in range(3)))
    assert calls[0] == calls[1]


def test_no_rows_make_no_batch() -> None:
    assert BatchBuilder(Oid(9), forms.relation_of(forms.INT4)).build(RowSpans(bytearray())) == []


def test_rows_beyond_the_bound_of_cells_or_bytes_go_into_further_batches() -> None:
    relation = forms.relation_of(forms.INT4, forms.TEXT)
    value = forms.compressed(b"x" * 1000)
    packed = [forms.form_tuple(relation.columns, [i4(number), value]) for number in range(7)]
    four_rows = BatchBuilder(Oid(9), relation, cells_max=8).build(inserts(packed))
    assert [batch.rows.num_rows for batch in four_rows] == [4, 3]
    one_row = BatchBuilder(Oid(9), relation, expanded_bytes_max=1500)
    made = one_row.build(inserts(packed))
    assert [batch.rows.num_rows for batch in made] == [1, 1, 1, 1, 1, 1, 1]
    found = [row for batch in made for row in batch.rows.column("_after").to_pylist()]
    assert found == [{"c1": number, "c2": "x" * 1000} for number in range(7)]


def test_text_that_is_no_utf8_becomes_replacement_characters() -> None:
    relation = forms.relation_of(forms.TEXT)
    packed = forms.form_tuple(relation.columns, [forms.short(b"a\xffb")])
    (batch,) = BatchBuilder(Oid(9), relation).build(inserts([packed]))
    assert batch.rows.column("_after").to_pylist() == [{"c1": "a\ufffdb"}]


def test_text_of_another_encoding_is_transcoded() -> None:
    relation = forms.relation_of(forms.TEXT, forms.JSONB, forms.array_of(forms.TEXT))
    elements = forms.array_payload(forms.TEXT, [forms.plain(b"\xe9")], [1], [1])
    jsonb = forms.jsonb_payload("e").replace(b"e", b"\xe9")
    values = [forms.short(b"\xe9"), forms.short(jsonb), forms.plain(elements)]
    packed = forms.form_tuple(relation.columns, values)
    builder = BatchBuilder(Oid(9), relation, Dialect.of("LATIN1", 15))
    (batch,) = builder.build(inserts([packed]))
    assert batch.rows.column("_after").to_pylist() == [{"c1": "é", "c2": '"é"', "c3": ["é"]}]


@pytest.mark.parametrize(
    ("relation", "values", "reported"),
    [
        (forms.relation_of(forms.INT4, forms.TEXT), [i4(1), b"\xf0\0\0\0"], "column 2: value at byte"),
        (forms.relation_of(forms.MOOD), [struct.pack("<I", 7)], "column 'c1': enum mood has no label with OID 7"),
        (
            forms.relation_of(forms.JSONB),
            [forms.short(b"\x05\0\0\x40")],
            "column 'c1': jsonb container of 5 in 4 bytes",
        ),
        (forms.relation_of(forms.BYTEA), [struct.pack("<IIB", 9 << 2 | 2, 7 | 1 << 30, 255)], "column 'c1': lz4 data"),
    ],
)
def test_damage_is_reported_with_table_record_and_column(
    relation: Relation, values: list[bytes], reported: str
) -> None:
    packed = forms.form_tuple(relation.columns, values)
    with pytest.raises(BadDatum, match=r"^public\.t, record at 0/1F4: ") as caught:
        BatchBuilder(Oid(9), relation).build(inserts([packed]))
    assert reported in str(caught.value)
