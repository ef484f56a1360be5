"""Puts lines into stream order by their positions, many at once.

A line is a sequence of *pieces*: constant text, or the text of a column at the line's row. Rows with the same pieces
have the same *variant*. Parts of the stream can overlap, as batches of several relations do: each has its rows in
stream order, and all of them together are written in the order of (commit LSN, ordinal). Rows are processed in
stretches: for each part with rows in the stretch, the columns are written once, and a kernel assembles the lines.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from tidemark.decode.render import line_text
from tidemark.decode.render.column_texts import KEPT_BYTES, ByteArray, ColumnTexts, Int64Array, TextColumn
from tidemark.decode.render.json_columns import int64_column

STRETCH_ROWS = 2048
BLOCK_BYTES = 1 << 20  # of lines that are yielded at once
KEY_MAX = (1 << 63) - 1

Piece: TypeAlias = bytes | TextColumn
Pieces: TypeAlias = Sequence[Piece]
Placed = tuple[int, int, bytes]  # commit LSN, ordinal, line


class Lines(NamedTuple):
    """The rows of a batch as lines, in stream order."""

    commit_lsn: Int64Array
    ordinal: Int64Array
    variants: Int64Array  # for each row, the number of its variant
    pieces: Mapping[int, Pieces]  # by variant; no pieces: no line

    def shown_commit_lsns(self) -> Int64Array:
        """Return the commit LSN of each row that has a line."""
        empty = [variant for variant, line in self.pieces.items() if not line]
        return self.commit_lsn[~np.isin(self.variants, empty)] if empty else self.commit_lsn


class TransactionColumn(NamedTuple):
    """Int64Array with one value for each transaction: constant text in a stretch of one transaction."""

    values: Int64Array

    def put(self, texts: ColumnTexts, first: int, rows: int) -> int:
        """Write the texts of some rows; return the index of their first offset."""
        return int64_column(self.values).put(texts, first, rows)

    def constant(self, first: int, rows: int) -> bytes | None:
        """Return the text of some rows if they all have the same."""
        values = self.values[first : first + rows]
        is_constant = values[0] == values[-1] and (values == values[0]).all()
        return b"%d" % values[0] if is_constant else None


class LineMemory(Protocol):
    """The memory that lines are written to."""

    def space(self) -> memoryview:
        """Return the memory for the next lines; the same one until `take` or `enlarge` is called."""

    def enlarge(self) -> None:
        """Allocate more: the next line needs more than `space` has."""

    def take(self, size: int) -> memoryview:
        """Return the lines that were written: the first `size` bytes of `space`."""


class ReusedBlock:
    """Memory for one block of lines: the next block is written over it."""

    def __init__(self) -> None:
        self._block: ByteArray = np.empty(BLOCK_BYTES, np.uint8)

    def space(self) -> memoryview:
        """Return the whole block."""
        return self._block.data

    def enlarge(self) -> None:
        """Double the memory."""
        self._block = np.empty(2 * len(self._block), np.uint8)

    def take(self, size: int) -> memoryview:
        """Return the lines; a block that a long line needed is not used again."""
        block = self._block
        if len(block) > KEPT_BYTES:
            self._block = np.empty(BLOCK_BYTES, np.uint8)
        return block.data[:size]


class LineBlock(NamedTuple):
    """Some lines, and where the lines of each row end in them; the ends are in memory that is reused."""

    text: memoryview
    ends: Int64Array


class LineWriter:
    """Sorts parts, and assembles their lines; a line's last piece must end with its newline."""

    def __init__(self, stretch_rows: int = STRETCH_ROWS) -> None:
        self._stretch_rows = stretch_rows
        self._texts = ColumnTexts()
        self._reused = ReusedBlock()
        self._ends = np.empty(stretch_rows, np.int64)

    def blocks(self, parts: Sequence[Lines]) -> Iterator[memoryview]:
        """Yield the lines of all parts in stream order, many at once; the memory is reused."""
        return (block.text for block in self.line_blocks(parts, self._reused))

    def line_blocks(self, parts: Sequence[Lines], memory: LineMemory) -> Iterator[LineBlock]:
        """Yield the same as `blocks`, with the ends of the lines; they are written to `memory`."""
        parts = [_merged_part(part) for part in parts if len(part.variants)]
        if not parts:
            return
        if len(parts) == 1:
            (part,) = parts
            for first in range(0, len(part.variants), self._stretch_rows):
                count = min(self._stretch_rows, len(part.variants) - first)
                yield from self._stretch([(part, first, count)], np.arange(count), memory)
            return
        order = _order(parts)
        begins = np.cumsum([0, *(len(part.variants) for part in parts)])
        owner = np.repeat(np.arange(len(parts)), np.diff(begins))[order]
        taken = np.zeros(len(parts), np.int64)
        for first in range(0, len(order), self._stretch_rows):
            owners = owner[first : first + self._stretch_rows]
            counts = np.bincount(owners, minlength=len(parts))
            # For each part, the index of its rows in this stretch minus their index among all rows.
            shift = np.cumsum(counts) - counts - taken - begins[:-1]
            present = np.flatnonzero(counts).tolist()
            stretch = [(parts[number], int(taken[number]), int(counts[number])) for number in present]
            yield from self._stretch(stretch, order[first : first + self._stretch_rows] + shift[owners], memory)
            taken += counts

    def _stretch(
        self, stretch: Sequence[tuple[Lines, int, int]], order: Int64Array, memory: LineMemory
    ) -> Iterator[LineBlock]:
        """Yield the lines of some rows (part, first, count); `order` has their indexes in the stretch."""
        self._texts.clear()
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
                memory.space(),
                used.data,
                self._ends.data,
            )
            if line == begun:
                memory.enlarge()
            elif used[0]:
                end = len(order) if line == line_text.DONE else line
                yield LineBlock(memory.take(int(used[0])), self._ends[begun:end])


class _Program:
    """The pieces of each variant of a stretch, as the kernel reads them."""

    def __init__(self, texts: ColumnTexts) -> None:
        self._texts = texts
        self.pieces: list[int] = []
        self.begins = [0]

    def add(self, part: Lines, first: int, count: int) -> Int64Array:
        """Add the variants of some rows of a part; return the variant of each row."""
        own = part.variants[first : first + count]
        present = np.flatnonzero(np.bincount(own)) if len(part.pieces) > 1 else own[:1]
        bases: dict[int, int] = {}
        numbers = np.empty(int(present[-1]) + 1, np.int64)
        for variant in present.tolist():
            numbers[variant] = len(self.begins) - 1
            self._add_line(part.pieces[variant], bases, first, count)
        return numbers[own]

    def _add_line(self, line: Pieces, bases: dict[int, int], first: int, count: int) -> None:
        for piece in _merged(line, first, count):
            if isinstance(piece, bytes):
                self.pieces += (len(piece), self._texts.constant(piece))
                continue
            base = bases.get(id(piece))
            if base is None:
                base = bases[id(piece)] = piece.put(self._texts, first, count)
            self.pieces += (line_text.COLUMN, base)
        self.begins.append(len(self.pieces) // 2)


def _merged_part(part: Lines) -> Lines:
    """Return a part with the pieces merged that are constant in all of its rows: once, not for each stretch."""
    rows = len(part.variants)
    return part._replace(pieces={variant: _merged(line, 0, rows) for variant, line in part.pieces.items()})


def _merged(line: Pieces, first: int, count: int) -> Pieces:
    """Return the pieces of some rows of a variant, with constant texts that follow each other as one."""
    merged: list[Piece] = []
    waiting: list[bytes] = []
    for piece in line:
        constant = piece.constant(first, count) if isinstance(piece, TransactionColumn) else piece
        if isinstance(constant, bytes):
            waiting.append(constant)
            continue
        if waiting:
            merged.append(b"".join(waiting))
            waiting = []
        merged.append(piece)
    if waiting:
        merged.append(b"".join(waiting))
    return merged


def lines_of(items: Sequence[Placed]) -> Lines:
    """Return finished lines as a part."""
    ordered = sorted(items, key=lambda placed: placed[:2])
    commit_lsn, ordinal = (np.array([placed[at] for placed in ordered], np.int64) for at in (0, 1))
    pieces = {number: (placed[2],) for number, placed in enumerate(ordered)}
    return Lines(commit_lsn, ordinal, np.arange(len(ordered)), pieces)


def _order(parts: Sequence[Lines]) -> Int64Array:
    """Return the indexes of all rows, parts concatenated, in stream order."""
    commit_lsn = np.concatenate([part.commit_lsn for part in parts])
    ordinal = np.concatenate([part.ordinal for part in parts])
    least = int(commit_lsn.min()), int(ordinal.min())
    span = int(ordinal.max()) - least[1] + 1
    if (int(commit_lsn.max()) - least[0] + 1) * span > KEY_MAX:
        return np.lexsort((ordinal, commit_lsn))
    return np.argsort((commit_lsn - least[0]) * span + (ordinal - least[1]), kind="stable")
