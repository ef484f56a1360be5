"""The rows of a batch as Debezium events: which rows, with which op, `before` and `after`."""

from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidemark.decode.render import line_text
from tidemark.decode.render.column_texts import ColumnTexts, TextColumn
from tidemark.decode.render.debezium_values import form_of, unavailable
from tidemark.decode.render.json_columns import NULL, fixed
from tidemark.decode.render.placed_lines import Piece
from tidemark.decode.render.row_kinds import OPS, RowFlags, RowKind, json_string, letters
from tidemark.model.change import AFTER, BEFORE, BeforeKind, Op
from tidemark.model.relation import TABLEOID_NUMBER, Column, Relation

LETTERS = {Op.INSERT: "c", Op.UPDATE: "u", Op.DELETE: "d", Op.COPY: "r"}  # rows of other ops have no line

NumberedColumns = Mapping[int, TextColumn]  # by their index in the structs


ValueForm = Callable[[Column, pa.Array], TextColumn]  # of the values of a column


def debezium_form(column: Column, values: pa.Array) -> TextColumn:
    """Return the values of a column in Debezium's forms."""
    return form_of(column)(values)


class Sides:
    """The old and the new rows of a batch."""

    def __init__(self, relation: Relation, rows: pa.RecordBatch, form: ValueForm = debezium_form) -> None:
        self._relation = relation
        self._rows = rows
        self._named = tuple(
            (index, column)
            for index, column in enumerate(relation.live_columns)
            if column.number != TABLEOID_NUMBER  # of a partitioned table: the connector has no such column
        )
        self._form = form
        self._old = self._columns(BEFORE)
        self._new = self._columns(AFTER)

    def _columns(self, side: str) -> NumberedColumns:
        struct = self._rows.column(side)
        if struct.null_count == len(struct):
            return {}
        return {index: self._form(column, struct.field(index)) for index, column in self._named}

    @cached_property
    def moved(self) -> RowFlags | None:
        """Return which updates change the primary key; None if none does."""
        relation, rows = self._relation, self._rows
        key = [index for index, column in self._named if column.number in relation.primary_key]
        if not self._old or not self._new or not key:
            return None
        kind = fixed(rows.column("_before_kind"), np.int8)
        is_reported = set(relation.primary_key) <= set(relation.identity_columns or relation.primary_key)
        compared = (kind == BeforeKind.FULL) | (is_reported & (kind == BeforeKind.KEY))
        compared &= letters(rows) == OPS.index(Op.UPDATE)
        if not compared.any():
            return None
        changed = np.zeros(len(rows), np.uint8)
        texts = ColumnTexts()
        for index in key:
            old, new = (side[index].put(texts, 0, len(rows)) for side in (self._old, self._new))
            line_text.mark_different(texts.text, texts.offsets, old, new, len(rows), changed.data)
            texts.clear()
        moved = changed.astype(np.bool_) & compared
        return moved if moved.any() else None

    def key(self, *, old: bool) -> list[Piece]:
        """Return the primary key in the old or the new row; [] if the table has none."""
        columns = self._old if old else self._new
        key = [index for index, column in self._named if column.number in self._relation.primary_key]
        values = [(name, columns.get(index, NULL)) for index, name in self._names() if index in key]
        return self._object(values) if values else []

    def before(self, kind: RowKind) -> list[Piece]:
        """Return the old row of a kind of rows."""
        if not kind.has_before:
            return [NULL]
        return self._object([(name, self._old.get(index, NULL)) for index, name in self._names()])

    def after(self, kind: RowKind) -> list[Piece]:
        """Return the new row of a kind of rows."""
        if not kind.has_after:
            return [NULL]
        whole = kind.has_before and kind.before_kind is BeforeKind.FULL
        values: list[tuple[str, Piece]] = []
        for (index, name), (_, column) in zip(self._names(), self._named, strict=True):
            value: Piece = self._new.get(index, NULL)
            if kind.is_unchanged(index):
                value = self._old[index] if whole else unavailable(column).encode()
            values.append((name, value))
        return self._object(values)

    def _names(self) -> list[tuple[int, str]]:
        return [(index, json_string(column.name)) for index, column in self._named]

    @staticmethod
    def _object(values: list[tuple[str, Piece]]) -> list[Piece]:
        pieces: list[Piece] = []
        for number, (name, value) in enumerate(values):
            pieces += [f"{',' if number else '{'}{name}:".encode(), value]
        return [*pieces, b"}" if values else b"{}"]
