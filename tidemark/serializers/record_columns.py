"""The records of a batch as two texts of lines, keys and values: a record is an object only when it is asked for."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

import numpy as np

from tidemark.decode.render.placed_lines import Lines, LineWriter, Pieces
from tidemark.serializers.serializer import SerializedRecord
from tidemark.serializers.text_blocks import LineText, TextBlocks

if TYPE_CHECKING:
    from tidemark.decode.render.column_texts import Int64Array
    from tidemark.decode.render.row_kinds import RowFlags

    RowRange = slice[int | None, int | None, int | None]

CHUNK_RECORDS = 1024  # made at once while a batch is iterated
NO_KEY = b"null"
FIRST_ROWS = 256  # for whose lines memory comes from the heap
FIRST_ROW_BYTES = 1024
_NEWLINE = ord("\n")


class RecordTexts:
    """One side of the records: lines, and what stands before each of them when it is asked for."""

    def __init__(self, writer: LineWriter, lines: Lines, head: bytes, blocks: TextBlocks) -> None:
        """`head`: begins a JSON object that the line is the last value of; empty: the line is all.

        The memory of many lines comes from `blocks`, and returns there.
        """
        self._head = head
        self._text = LineText(min(len(lines.variants), FIRST_ROWS) * FIRST_ROW_BYTES, blocks)
        is_plain = all(line_count(pieces) == 1 for pieces in lines.pieces.values())
        bounds = [np.zeros(1, np.int64)]
        for text, ends in writer.line_blocks([lines], self._text):
            bounds.append((ends if is_plain else _newlines(text) + 1) + (self._text.size - len(text)))
        self._bounds: Int64Array = np.concatenate(bounds)  # where each line begins, and where the last one ends

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def has_key(self) -> "RowFlags":
        """Return which lines are a key: each begins as an object, and `null` does not."""
        flags: RowFlags = self._text.bytes_at(self._bounds[:-1]) != NO_KEY[0]
        return flags

    def of(self, lines: "Int64Array") -> list[bytes]:
        """Return the texts of some lines, one or more, without their newlines: JSON has none inside."""
        begins, ends = self._bounds[lines], self._bounds[lines + 1]
        base = int(begins.min())
        text = self._text.read(base, int(ends.max()))
        bounds = zip((begins - base).tolist(), (ends - base - 1).tolist(), strict=True)
        if not self._head:
            return [text[begin:end] for begin, end in bounds]
        return [b"%b%b}" % (self._head, text[begin:end]) for begin, end in bounds]


class RecordColumns(Sequence[SerializedRecord]):
    """Records in the order of the stream. With `deletes`, a tombstone follows the first line of each of these rows."""

    def __init__(
        self, keys: RecordTexts, values: RecordTexts, lines_of_rows: "Int64Array", deletes: "RowFlags | None"
    ) -> None:
        """`lines_of_rows`: how many lines each row of the batch has."""
        self._keys = keys
        self._values = values
        self._has_key = keys.has_key()
        self._lines: Int64Array = np.arange(len(values))
        self._rows: Int64Array = np.repeat(np.arange(len(lines_of_rows)), lines_of_rows)
        self._has_value: RowFlags = np.ones(len(values), np.bool_)
        if deletes is not None and deletes.any():
            self._add_tombstones(lines_of_rows, deletes)

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, index: int) -> SerializedRecord: ...
    @overload
    def __getitem__(self, index: "RowRange") -> list[SerializedRecord]: ...
    def __getitem__(self, index: "int | RowRange") -> SerializedRecord | list[SerializedRecord]:
        """Return one record, or those of a slice."""
        if isinstance(index, slice):
            return self._made(index)
        at = range(len(self))[index]  # raises IndexError
        (record,) = self._made(slice(at, at + 1))
        return record

    def __iter__(self) -> Iterator[SerializedRecord]:
        """Iterate over the records, some at a time."""
        for first in range(0, len(self), CHUNK_RECORDS):
            yield from self._made(slice(first, first + CHUNK_RECORDS))

    def _made(self, chosen: "RowRange") -> list[SerializedRecord]:
        lines = self._lines[chosen]
        if not len(lines):
            return []
        keys = _where(self._keys.of(lines), self._has_key[lines])
        values = _where(self._values.of(lines), self._has_value[chosen])
        return list(map(SerializedRecord, keys, values, self._rows[chosen].tolist()))

    def _add_tombstones(self, lines_of_rows: "Int64Array", deletes: "RowFlags") -> None:
        firsts = (np.cumsum(lines_of_rows) - lines_of_rows)[deletes & (lines_of_rows > 0)]
        firsts = firsts[self._has_key[firsts]]
        self._lines = np.insert(self._lines, firsts + 1, firsts)
        self._rows = np.insert(self._rows, firsts + 1, self._rows[firsts])
        self._has_value = np.insert(self._has_value, firsts + 1, np.zeros(len(firsts), np.bool_))


def line_count(pieces: Pieces) -> int:
    """Return how many lines the pieces of a row have: a newline ends the constant text that it is in."""
    return sum(1 for piece in pieces if isinstance(piece, bytes) and piece.endswith(b"\n"))


def _newlines(text: memoryview) -> "Int64Array":
    return np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE)


def _where(texts: list[bytes], wanted: "RowFlags") -> "Sequence[bytes | None]":
    if wanted.all():
        return texts
    return [text if kept else None for text, kept in zip(texts, wanted.tolist(), strict=True)]
