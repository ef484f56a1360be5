"""The items of groups as lines, in stream order: what both JSON renderings share.

A line is a few *pieces* side by side: constant text, or the text of a column at the line's row. Rows of a batch that
have the same pieces have the same *variant*. Batches of several relations overlap; their rows come in stream order by
(commit LSN, ordinal), in which each batch has its own. Rows are taken by stretches: of each batch that has some there,
the columns are written once, and a kernel puts the lines together, whole transactions or not.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from tidemark.decode.render import line_text
from tidemark.decode.render.bounds import Placed, TransactionBounds, is_counted
from tidemark.decode.render.column_texts import KEPT_BYTES, Column, ColumnTexts, Integers
from tidemark.decode.render.json_columns import whole_numbers
from tidemark.model.change import ChangeBatch, ChangeGroup, GroupItem, LogicalMessage, TransactionEnd, Truncation

STRETCH_ROWS = 2048
BLOCK_BYTES = 1 << 20  # of lines that are given out at once
KEY_MAX = (1 << 63) - 1

Piece: TypeAlias = bytes | Column
Pieces: TypeAlias = Sequence[Piece]


class Lines(NamedTuple):
    """The rows of a batch as lines, in stream order."""

    commit_lsn: Integers
    ordinal: Integers
    variants: Integers  # of each row: number of the pieces that it has
    pieces: Mapping[int, Pieces]  # by variant; none: no line


class SeldomNew(NamedTuple):
    """Integers of which there is one a transaction: a stretch of one transaction has them as constant text."""

    values: Integers

    def put(self, texts: ColumnTexts, first: int, rows: int) -> int:
        """Write the texts of some rows; return where their offsets begin."""
        return whole_numbers(self.values).put(texts, first, rows)

    def constant(self, first: int, rows: int) -> bytes | None:
        """Return the text of some rows if it is the same."""
        values = self.values[first : first + rows]
        return b"%d" % values[0] if (values == values[0]).all() else None


class StreamLines:
    """Turns groups to lines, as `of_batch`, `of_item` and `bound` write them; each ends with a newline."""

    def __init__(
        self,
        of_batch: Callable[[ChangeBatch], Lines | None],
        of_item: Callable[[GroupItem, ChangeGroup], bytes],
        bound: Callable[[str, TransactionEnd], bytes],
    ) -> None:
        """`of_item` gives no text to what has no line; `bound` is told which of the two it is, begin or end."""
        self._of_batch = of_batch
        self._of_item = of_item
        self._bounds = TransactionBounds(bound)
        self._texts = ColumnTexts()
        self._out = np.empty(BLOCK_BYTES, np.uint8)

    def blocks(self, group: ChangeGroup) -> Iterator[memoryview]:
        """Give out the lines of a group in stream order, many at once: each time in the same place."""
        counted = is_counted(group)
        if counted:
            self._bounds.begin(group)
        rows: list[Lines] = []  # since the last barrier
        items: list[Placed] = []
        for item in group.items:
            if isinstance(item, ChangeBatch):
                lines = self._of_batch(item)
                rows += [lines] if lines is not None else []
                continue
            line = self._of_item(item, group)
            if isinstance(item, LogicalMessage | Truncation):
                items += [(item.position.commit_lsn, item.position.ordinal, line)] if line else []
                continue
            yield from self._in_order(rows, items, counted=counted)
            rows, items = [], [(item.position.commit_lsn, item.position.ordinal, line)] if line else []
            yield from self._in_order(rows, items, counted=counted)
            items = []
        yield from self._in_order(rows, items, counted=counted)
        if counted:
            yield from self._in_order([], self._bounds.ends(), counted=False)

    def _in_order(self, rows: Sequence[Lines], items: Sequence[Placed], *, counted: bool) -> Iterator[memoryview]:
        """Give out what stands between two barriers."""
        if counted:
            items = [*items, *self._bounds.of(_commit_lsns(rows, items))]
        parts = [*rows, _of_items(items)] if items else rows
        if not parts:
            return
        if len(parts) == 1:
            (part,) = parts
            for first in range(0, len(part.variants), STRETCH_ROWS):
                count = min(STRETCH_ROWS, len(part.variants) - first)
                yield from self._stretch([(part, first, count)], np.arange(count))
            return
        order = _order(parts)
        begins = np.cumsum([0, *(len(part.variants) for part in parts)])
        owner = np.repeat(np.arange(len(parts)), np.diff(begins))[order]
        taken = np.zeros(len(parts), np.int64)
        for first in range(0, len(order), STRETCH_ROWS):
            owners = owner[first : first + STRETCH_ROWS]
            counts = np.bincount(owners, minlength=len(parts))
            # Where a part's rows of this stretch stand behind one another, less where they stand among all.
            shift = np.cumsum(counts) - counts - taken - begins[:-1]
            present = np.flatnonzero(counts).tolist()
            stretch = [(parts[number], int(taken[number]), int(counts[number])) for number in present]
            yield from self._stretch(stretch, order[first : first + STRETCH_ROWS] + shift[owners])
            taken += counts

    def _stretch(self, stretch: Sequence[tuple[Lines, int, int]], order: Integers) -> Iterator[memoryview]:
        """Give out the lines of some rows (part, first, count); `order` has their numbers in this."""
        self._texts.clear()
        if len(self._out) > KEPT_BYTES:
            self._out = np.empty(BLOCK_BYTES, np.uint8)
        program = _Program(self._texts)
        variants = [program.add(part, first, count) for part, first, count in stretch]
        rows = [np.arange(count) for _, _, count in stretch]
        used = np.zeros(1, np.int64)
        line = 0
        while line != line_text.DONE:
            begun = line
            line = line_text.write_lines(
                self._texts.text,
                self._texts.offsets,
                np.array(program.pieces, np.int64).data,
                np.array(program.begins, np.int64).data,
                np.concatenate(variants).data,
                np.concatenate(rows).data,
                order.data,
                line,
                len(order),
                self._out.data,
                used.data,
            )
            if line == begun:
                self._out = np.empty(2 * len(self._out), np.uint8)
            elif used[0]:
                yield self._out.data[: used[0]]


class _Program:
    """What each variant of a stretch has side by side, as the kernel reads it."""

    def __init__(self, texts: ColumnTexts) -> None:
        self._texts = texts
        self.pieces: list[int] = []
        self.begins = [0]

    def add(self, part: Lines, first: int, count: int) -> Integers:
        """Take the variants of some rows of a part; return that of each row."""
        own = part.variants[first : first + count]
        present = np.flatnonzero(np.bincount(own)) if len(part.pieces) > 1 else own[:1]
        bases: dict[int, int] = {}
        numbers = np.empty(int(present[-1]) + 1, np.int64)
        for variant in present.tolist():
            numbers[variant] = len(self.begins) - 1
            self._add_line(part.pieces[variant], bases, first, count)
        return numbers[own]

    def _add_line(self, line: Pieces, bases: dict[int, int], first: int, count: int) -> None:
        waiting: list[bytes] = []
        for piece in line:
            constant = piece.constant(first, count) if isinstance(piece, SeldomNew) else piece
            if isinstance(constant, bytes):
                waiting.append(constant)
                continue
            assert not isinstance(piece, bytes), piece
            self._add_constant(waiting)
            waiting = []
            base = bases.get(id(piece))
            if base is None:
                base = bases[id(piece)] = piece.put(self._texts, first, count)
            self.pieces += (line_text.COLUMN, base)
        self._add_constant(waiting)
        self.begins.append(len(self.pieces) // 2)

    def _add_constant(self, waiting: Sequence[bytes]) -> None:
        content = b"".join(waiting)
        if content:
            self.pieces += (len(content), self._texts.constant(content))


def _of_items(items: Sequence[Placed]) -> Lines:
    ordered = sorted(items, key=lambda placed: placed[:2])
    commit_lsn, ordinal = (np.array([placed[at] for placed in ordered], np.int64) for at in (0, 1))
    pieces = {number: (placed[2],) for number, placed in enumerate(ordered)}
    return Lines(commit_lsn, ordinal, np.arange(len(ordered)), pieces)


def _commit_lsns(rows: Sequence[Lines], items: Sequence[Placed]) -> list[int]:
    """Return the commit LSNs of all lines, in order."""
    found = [np.array([commit_lsn for commit_lsn, _, _ in items], np.int64)]
    for part in rows:
        empty = [variant for variant, line in part.pieces.items() if not line]
        shown = part.commit_lsn[~np.isin(part.variants, empty)] if empty else part.commit_lsn
        found.append(shown)
    lsns: list[int] = np.unique(np.concatenate(found)).tolist()
    return lsns


def _order(parts: Sequence[Lines]) -> Integers:
    """Return the numbers of all rows, one part's behind the other's, in stream order."""
    commit_lsn = np.concatenate([part.commit_lsn for part in parts])
    ordinal = np.concatenate([part.ordinal for part in parts])
    least = int(commit_lsn.min()), int(ordinal.min())
    span = int(ordinal.max()) - least[1] + 1
    if (int(commit_lsn.max()) - least[0] + 1) * span > KEY_MAX:
        return np.lexsort((ordinal, commit_lsn))
    return np.argsort((commit_lsn - least[0]) * span + (ordinal - least[1]), kind="stable")
