"""More rows than one block of the column builder, compared with the same rows in batches of few."""

import struct
from array import array
from dataclasses import replace
from decimal import Decimal

import pytest

from tests.support.forged import tuple_forms as forms
from tests.support.forged.spans import inserts
from tidemark.decode.arrow.batch_columns import ROWS_TOGETHER
from tidemark.decode.arrow.batches import BatchBuilder, RowSpans
from tidemark.decode.datum.deforming import DONE, measure_arrays
from tidemark.decode.datum.varlena import BadDatum
from tidemark.model.lsn import Oid, format_lsn
from tidemark.model.relation import Relation

ROWS = 2 * ROWS_TOGETHER + 77
FEW = 100
FIRST_LSN = 500  # of tests.support.forged.spans
TYPES = [
    forms.INT8, forms.BOOL, forms.INT2, forms.TEXT, forms.DATE, forms.NUMERIC, forms.TIMESTAMP, forms.UUID,
    forms.BYTEA, forms.TEXT, forms.OID, forms.FLOAT8, forms.INT4, forms.array_of(forms.INT4), forms.JSONB, forms.MOOD,
]  # fmt: skip
NUMERIC_SLOT, UUID_SLOT, TEXT_SLOT, ARRAY_SLOT = 5, 7, 9, 13
COLUMNS = tuple(
    forms.column(number, described, typmod=forms.numeric_typmod(14, 4) if described is forms.NUMERIC else -1)
    for number, described in enumerate(TYPES, 1)
)
RELATION: Relation = replace(forms.relation_of(), columns=COLUMNS)


def values_of(row: int) -> list[bytes | None]:
    number = struct.pack("<i", row)
    elements = [struct.pack("<i", row + index) for index in range(row % 6)]
    return [
        struct.pack("<q", row), bytes([row & 1]), number[:2], forms.short(f"text {row}".encode()), number,
        forms.short(forms.numeric_payload(Decimal(row) / 8)), struct.pack("<q", row << 20),
        row.to_bytes(16, "big"), forms.short(bytes([row & 255]) * (row % 40)), forms.plain("ä".encode() * (row % 9)),
        number, struct.pack("<d", row), number, forms.plain(forms.array_payload(forms.INT4, elements, [row % 6], [1])),
        forms.plain(forms.jsonb_payload({"n": row * 997, "name": "\n" * (row % 3) + "x" * (row % 20), "list": [row]})),
        struct.pack("<I", 50_001),
    ]  # fmt: skip


def values_of_all() -> list[list[bytes | None]]:
    return [values_of(row) for row in range(ROWS)]


def spans_of(rows: list[list[bytes | None]]) -> RowSpans:
    return inserts([forms.form_tuple(COLUMNS, values) for values in rows])


def assert_equal_to_few_at_a_time(rows: RowSpans) -> None:
    builder = BatchBuilder(Oid(9), RELATION)
    (whole,) = builder.build(rows)
    whole.rows.validate(full=True)
    few = [batch for start in range(0, ROWS, FEW) for batch in builder.build(rows.part(start, min(start + FEW, ROWS)))]
    assert whole.rows.to_pylist() == [row for batch in few for row in batch.rows.to_pylist()]


def test_many_rows_are_what_few_are() -> None:
    assert_equal_to_few_at_a_time(spans_of(values_of_all()))


@pytest.mark.parametrize("every", [7, ROWS_TOGETHER, ROWS_TOGETHER + 1])
def test_nulls_among_many_rows_stay_where_they_are(every: int) -> None:
    rows = values_of_all()
    for row in range(every, ROWS, every):
        rows[row] = [None if (row + slot) % 3 else value for slot, value in enumerate(rows[row])]
    assert_equal_to_few_at_a_time(spans_of(rows))


@pytest.mark.parametrize("row", [0, ROWS_TOGETHER - 1, ROWS_TOGETHER, ROWS - 1])
@pytest.mark.parametrize(
    ("slot", "value"),
    [
        (NUMERIC_SLOT, forms.short(struct.pack("<H", 0xC000))),  # NaN
        (TEXT_SLOT, forms.short(b"no \xff UTF-8")),
        (ARRAY_SLOT, forms.plain(forms.array_payload(forms.INT4, [None, struct.pack("<i", 7)], [2], [1]))),
    ],
)
def test_one_value_that_a_kernel_does_not_convert_changes_no_other(slot: int, value: bytes, row: int) -> None:
    rows = values_of_all()
    rows[row][slot] = value
    spans = spans_of(rows)
    assert_equal_to_few_at_a_time(spans)
    (batch,) = BatchBuilder(Oid(9), RELATION).build(spans)
    found = [after[f"c{slot + 1}"] for after in batch.rows.column("_after").to_pylist()]
    assert found[row] in (None, "no \ufffd UTF-8", [None, 7])


@pytest.mark.parametrize("row", [0, ROWS_TOGETHER, ROWS - 1])
def test_damage_among_many_rows_is_reported_with_its_own(row: int) -> None:
    rows = values_of_all()
    rows[row][NUMERIC_SLOT] = forms.short(struct.pack("<HH", 0x8000, 10_000))
    with pytest.raises(BadDatum, match=f"record at {format_lsn(FIRST_LSN + row)}: column 'c{NUMERIC_SLOT + 1}'"):
        BatchBuilder(Oid(9), RELATION).build(spans_of(rows))


def test_an_array_whose_dimensions_multiply_beyond_all_integers_is_none() -> None:
    header = struct.pack("<iiIIIii", 2, 0, 23, (1 << 32) - 1, (1 << 32) - 1, 1, 1)
    locations, sizes = array("q", [0]), array("q", [1 << 30])
    assert measure_arrays(header, locations, sizes, 0, 1, array("i", [0, 0])) == DONE
