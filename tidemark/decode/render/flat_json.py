"""Rows alone as JSON lines: the columns, then `__op` and `__deleted`, in the forms of `jsonl`.

An update that changes the primary key is a delete and an insert: the row of the old key does not exist any more.
"""

from collections.abc import Sequence

import numpy as np

from tidemark.decode.render.debezium_rows import Sides
from tidemark.decode.render.json_columns import fixed
from tidemark.decode.render.jsonl import RowObjects, column_text
from tidemark.decode.render.placed_lines import Lines, Piece
from tidemark.decode.render.row_kinds import kinds_of
from tidemark.model.change import ChangeBatch, Op

FLAT_METADATA = ("__op", "__deleted")


def flat_sides(batch: ChangeBatch) -> Sides:
    """Return the rows of a batch for its lines and their keys, which have the same forms."""
    return Sides(batch.relation, batch.rows, lambda _column, values: column_text(values))


def flat_lines(batch: ChangeBatch, sides: Sides) -> Lines | None:
    """Return a line for each row, two for one that changes its key; None if there are no rows.

    `sides`: of `flat_sides`.
    """
    rows = batch.rows
    if not len(rows):
        return None
    variants, kinds = kinds_of(rows, sides.moved)
    objects = RowObjects(batch)
    pieces: dict[int, list[Piece]] = {}
    for number, kind in kinds.items():
        if kind.moved:
            deletion = _line(objects.old_row(kind), Op.DELETE)
            pieces[number] = [*deletion, *_line(objects.row(kind), Op.INSERT)]
        else:
            pieces[number] = _line(objects.row(kind), kind.op)
    commit_lsn, ordinal = (fixed(rows.column(name), np.int64) for name in ("_commit_lsn", "_ordinal"))
    return Lines(commit_lsn, ordinal, variants, pieces)


def _line(row: Sequence[Piece], op: Op) -> list[Piece]:
    """Return the line of a row; the object of the row continues: its closing brace is left out."""
    is_deleted = "true" if op is Op.DELETE else "false"
    end = f'"__op":"{op.value}","__deleted":{is_deleted}}}\n'
    return [*row[:-1], f"{',' if len(row) > 1 else '{'}{end}".encode()]
