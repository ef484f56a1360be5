"""The keys of changes as JSON objects: for each line of `debezium` or `flat_json` one, in the same order."""

from collections.abc import Container

import numpy as np

from tidemark.decode.render.debezium_rows import LETTERS, Sides
from tidemark.decode.render.json_columns import fixed
from tidemark.decode.render.placed_lines import Lines, Piece
from tidemark.decode.render.row_kinds import RowFlags, kinds_of
from tidemark.model.change import ChangeBatch, Op

NO_KEY: list[Piece] = [b"null\n"]


def key_lines(batch: ChangeBatch, sides: Sides, ops: Container[Op] = LETTERS) -> tuple[Lines, RowFlags]:
    """Return the keys of a batch's lines, `null` without a primary key, and which rows begin with a delete.

    `sides`: of the batch. A row that changes its key has two keys, and one of an op that is not in `ops` none.
    """
    rows = batch.rows
    variants, kinds = kinds_of(rows, sides.moved)
    commit_lsn, ordinal = (fixed(rows.column(name), np.int64) for name in ("_commit_lsn", "_ordinal"))
    pieces: dict[int, list[Piece]] = {}
    for number, kind in kinds.items():
        if kind.op not in ops:
            pieces[number] = []
        elif kind.moved:
            pieces[number] = [*_line(sides.key(old=True)), *_line(sides.key(old=False))]
        else:
            pieces[number] = _line(sides.key(old=kind.op is Op.DELETE))
    deletes = np.array([kind.op is Op.DELETE or kind.moved for kind in kinds.values()])
    numbers = np.array(list(kinds))
    flags: RowFlags = np.isin(variants, numbers[deletes])
    return Lines(commit_lsn, ordinal, variants, pieces), flags


def _line(key: list[Piece]) -> list[Piece]:
    return [*key, b"\n"] if key else NO_KEY
