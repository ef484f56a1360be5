"""COPY's text format: fields, escapes, and rows that do not fit."""

from dataclasses import astuple

import pytest

from tests.support.forged import tuple_forms as forms
from tidemark.decode.copy.copied import CopyBatchBuilder
from tidemark.decode.copy.copied_lines import CopiedLines
from tidemark.decode.datum.varlena import BadDatum
from tidemark.model.change import RowsMessage
from tidemark.model.lsn import Lsn, Oid, TimelineId
from tidemark.model.position import Position
from tidemark.model.relation import Relation


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        (b"1\ttwo\t3\n", ["1", "two", "3"]),
        (b"\t\n", ["", ""]),
        (b"\\N\tN\t\\\\N\n", [None, "N", "\\N"]),
        (b"a\\tb\\nc\\rd\\be\\ff\\vg\\\\h\n", ["a\tb\nc\rd\be\ff\vg\\h"]),
        (b"\\\\\\\\t\n", ["\\\\t"]),
        ("ä€😀\n".encode(), ["ä€😀"]),
        (b"x\n", ["x"]),
        (b"\xef\xbb\xbf\n", ["\ufeff"]),
        (b'"a","b"\t\'\n', ['"a","b"', "'"]),
    ],
)
def test_a_line_splits_into_its_fields(line: bytes, fields: list[str | None]) -> None:
    lines = CopiedLines(line, 1, len(fields))
    assert [lines.texts(column).to_pylist() for column in range(len(fields))] == [[field] for field in fields]


def build(relation: Relation, lines: list[bytes]) -> list[object]:
    builder = CopyBatchBuilder(Oid(1), relation)
    batch = builder.build(b"".join(lines), len(lines), Position(TimelineId(1), Lsn(8), 1), 0)
    batch.rows.validate(full=True)
    rows: list[object] = batch.rows.column("_after").to_pylist()
    return rows


def test_no_rows_make_an_empty_batch() -> None:
    assert build(forms.relation_of(forms.INT4, forms.TEXT), []) == []


def test_rows_without_columns_are_counted() -> None:
    assert build(forms.relation_of(None), [b"\n", b"\n"]) == [{}, {}]


def test_invalid_bytes_become_replacement_characters() -> None:
    assert build(forms.relation_of(forms.TEXT), [b"a\xffb\n"]) == [{"c1": "a\ufffdb"}]


def test_a_row_of_another_shape_names_table_and_row() -> None:
    with pytest.raises(BadDatum, match=r"public\.t: copied row 2 has 1 fields, not 2"):
        build(forms.relation_of(forms.INT4, forms.TEXT), [b"1\tx\n", b"2\n"])


def test_a_side_that_no_row_has_needs_no_space_for_each_column() -> None:
    relation, rows = forms.relation_of(*[forms.INT4] * 20), 1000
    lines = b"\t".join([b"7"] * 20) + b"\n"
    given = CopyBatchBuilder(Oid(1), relation).build(lines * rows, rows, Position(TimelineId(1), Lsn(8), 1), 0).given
    assert isinstance(given, RowsMessage)
    assert len(given.message) < rows * (20 * 4 + 60)


def test_a_message_states_how_many_rows_it_has_and_where_they_begin_and_end() -> None:
    relation, first = forms.relation_of(forms.INT4), Position(TimelineId(3), Lsn(8), 5)
    given = CopyBatchBuilder(Oid(1), relation).build(b"7\n" * 3, 3, first, 0).given
    assert isinstance(given, RowsMessage)
    stated = [given.first, given.last]
    assert [[*astuple(position)] for position in stated] == [
        [given.unpacked().column(name)[row].as_py() for name in ("_tli", "_commit_lsn", "_ordinal")] for row in (0, 2)
    ]
    assert given.row_count == given.unpacked().num_rows
