"""Rows alone as JSON lines: the columns, then `__op` and `__deleted`, in the forms of `jsonl`."""

import numpy as np

from tidemark.decode.render.json_columns import fixed
from tidemark.decode.render.jsonl import RowObjects
from tidemark.decode.render.placed_lines import Lines, Piece
from tidemark.decode.render.row_kinds import kinds_of
from tidemark.model.change import ChangeBatch, Op


def flat_lines(batch: ChangeBatch) -> Lines | None:
    """Return a line for each row; None if there are no rows."""
    rows = batch.rows
    if not len(rows):
        return None
    variants, kinds = kinds_of(rows, None)
    objects = RowObjects(batch)
    pieces: dict[int, list[Piece]] = {}
    for number, kind in kinds.items():
        row, is_delete = objects.row(kind), kind.op is Op.DELETE
        end = f'"__op":"{kind.op.value}","__deleted":{"true" if is_delete else "false"}}}\n'
        # The object of the row continues: its closing brace is left out.
        pieces[number] = [*row[:-1], f"{',' if len(row) > 1 else '{'}{end}".encode()]
    commit_lsn, ordinal = (fixed(rows.column(name), np.int64) for name in ("_commit_lsn", "_ordinal"))
    return Lines(commit_lsn, ordinal, variants, pieces)
