"""The rows of a batch as events of Debezium's form: which of them, which op, `before` and `after`."""

from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.decode.codecs.codec import without_escapes
from tidemark.decode.render.debezium_values import form_of, unavailable
from tidemark.decode.render.json_text import NULL, TEXT, Pieces, chosen, joined, text
from tidemark.model.change import AFTER, BEFORE, TABLE_ORDINAL, BeforeKind, ChangeBatch, Op
from tidemark.model.relation import TABLEOID_NUMBER, Column, Relation

OPS = {Op.INSERT: "c", Op.UPDATE: "u", Op.DELETE: "d", Op.COPY: "r"}  # of rows; those of other ops have no line


class Changes(NamedTuple):
    """The rows of a batch, of which each is one event, and what there is of each."""

    rows: pa.RecordBatch
    ops: Pieces
    has_before: pa.Array
    has_after: pa.Array
    columns: tuple[tuple[int, Column], ...]  # by their places in the structs

    @classmethod
    def of(cls, batch: ChangeBatch) -> "Changes | None":
        """Return the rows that have a line; updates that change the key are two of them."""
        rows = batch.rows
        letters = rows.column("_op")
        known = pa.array([op.value for op in OPS], letters.type)
        shown = pc.is_in(letters, known)
        if shown.false_count:
            rows = rows.filter(shown)
        if not len(rows):
            return None
        columns = tuple(
            (place, column)
            for place, column in enumerate(batch.relation.live_columns)
            if column.number != TABLEOID_NUMBER  # of a partitioned table: the connector has none
        )
        has_before, has_after = (rows.column(name).is_valid() for name in (BEFORE, AFTER))
        number = pc.index_in(rows.column("_op"), known)
        moved = _key_changed(batch.relation, rows, columns)
        if moved is not None:
            place = np.repeat(np.arange(len(rows)), np.where(moved, 2, 1))
            second = np.diff(place, prepend=-1) == 0
            first = np.append(second[1:], [False])
            deletion, creation = (list(OPS).index(op) for op in (Op.DELETE, Op.INSERT))
            rows = rows.take(pa.array(place))
            numbers = np.where(first, deletion, np.where(second, creation, number.to_numpy()[place]))
            number = pa.array(numbers, pa.int32())
            has_before = pa.array(has_before.to_numpy(zero_copy_only=False)[place] & ~second)
            has_after = pa.array(has_after.to_numpy(zero_copy_only=False)[place] & ~first)
        return cls(rows, _letters(number), has_before, has_after, columns)


def _letters(number: pa.Array) -> Pieces:
    names = list(OPS.values())
    bounds = pc.min_max(number)
    least, most = bounds["min"].as_py(), bounds["max"].as_py()
    return [names[least]] if least == most else [pa.array(names, TEXT).take(number)]


def _key_changed(
    relation: Relation, rows: pa.RecordBatch, columns: Sequence[tuple[int, Column]]
) -> npt.NDArray[np.bool_] | None:
    """Tell which updates have another primary key than before; None if there is none such."""
    before = rows.column(BEFORE)
    key = [(place, column) for place, column in columns if column.number in relation.primary_key]
    if before.null_count == len(rows) or not key:
        return None
    kind = rows.column("_before_kind").to_numpy()
    is_told = set(relation.primary_key) <= set(relation.identity_columns or relation.primary_key)
    compared = (kind == BeforeKind.FULL) | (is_told & (kind == BeforeKind.KEY))
    compared &= pc.equal(rows.column("_op"), Op.UPDATE.value).to_numpy(zero_copy_only=False)
    if not compared.any():
        return None
    changed = np.zeros(len(rows), np.bool_)
    for place, column in key:
        form = form_of(column)
        old, new = (joined(form(rows.column(side).field(place)), len(rows)) for side in (BEFORE, AFTER))
        changed |= pc.not_equal(old, new).to_numpy(zero_copy_only=False)
    changed &= compared
    return changed if changed.any() else None


def sides(changes: Changes) -> tuple[Pieces, Pieces]:
    """Return the old and the new rows."""
    rows, count = changes.rows, len(changes.rows)
    unchanged = _unchanged(rows, len(rows.schema.field(AFTER).type))
    olds: Pieces = []
    news: Pieces = []
    whole = pc.and_(pc.equal(rows.column("_before_kind"), int(BeforeKind.FULL)), changes.has_before)
    for position, (place, column) in enumerate(changes.columns):
        head = f"{',' if position else '{'}{json_string(column.name)}:"
        form = form_of(column)
        old = form(rows.column(BEFORE).field(place)) if changes.has_before.true_count else [NULL]
        new = form(rows.column(AFTER).field(place)) if changes.has_after.true_count else [NULL]
        if unchanged is not None and unchanged[place].any():
            known = chosen(whole, old, unavailable(column))
            kept = pa.array(~unchanged[place])
            new = chosen(kept, new, joined(known, count))
        olds += [head, *old]
        news += [head, *new]
    end = "}" if changes.columns else "{}"
    return chosen(changes.has_before, [*olds, end], NULL), chosen(changes.has_after, [*news, end], NULL)


def _unchanged(rows: pa.RecordBatch, columns: int) -> npt.NDArray[np.bool_] | None:
    """Return for each column which rows have no value of it, because it did not change; None if there are none."""
    bitmaps = rows.column("_unchanged")
    if bitmaps.null_count == len(rows):
        return None
    width = columns + 7 >> 3
    packed = np.zeros((len(rows), width), np.uint8)
    there = bitmaps.is_valid().to_numpy(zero_copy_only=False)
    packed[there] = np.frombuffer(b"".join(bitmaps.drop_null().to_pylist()), np.uint8).reshape(-1, width)
    return np.unpackbits(packed, axis=1, bitorder="little")[:, :columns].T.astype(np.bool_)


def seldom_new(column: pa.Array) -> Pieces:
    """Return integers of which there is one a transaction: one transaction's are constant text."""
    bounds = pc.min_max(column)
    least = bounds["min"].as_py()
    return [str(least)] if least == bounds["max"].as_py() else [text(column)]


def transaction_place(rows: pa.RecordBatch) -> Pieces:
    """Return where the rows stand in their transactions, if that was counted."""
    if TABLE_ORDINAL not in rows.schema.names:
        return [NULL]
    return [
        '{"id":"',
        text(rows.column("_xid")),
        ":",
        text(rows.column("_commit_lsn")),
        '","total_order":',
        text(pc.add(rows.column("_ordinal"), 1)),
        ',"data_collection_order":',
        text(pc.add(rows.column(TABLE_ORDINAL), 1)),
        "}",
    ]


def json_string(name: str) -> str:
    """Return a name as a JSON string."""
    return encode_basestring(without_escapes(name))
