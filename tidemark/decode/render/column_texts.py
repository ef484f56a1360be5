"""Where the texts of columns stand, end to end in one buffer, until lines are put together from them.

It is made anew for each stretch of rows, few enough to stay in the CPU's caches; the memory is used again.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tidemark.decode.render import line_text

TEXT_BYTES = 1 << 20  # at first; it grows to what a stretch needs
OFFSETS = 1 << 15
KEPT_BYTES = 16 << 20  # more than that is given back

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Write = Callable[[int, int, "memoryview[int]", "memoryview[int]", int], int]
"""Writes rows from one on to text and offsets, of which those of row 0 begin at a base: a loop of a kernel."""


class TextColumn(Protocol):
    """Values that have a text each."""

    def put(self, texts: "ColumnTexts", first: int, rows: int) -> int:
        """Write the texts of some rows; return where their offsets begin."""


class ColumnTexts:
    """Texts and their offsets: row n of a column stands from offset `base + n` to the next."""

    def __init__(self) -> None:
        self._text = np.empty(TEXT_BYTES, np.uint8)
        self._offsets = np.empty(OFFSETS, np.int64)
        self._text_used = 0
        self._offsets_used = 0

    def clear(self) -> None:
        """Forget all."""
        self._text_used = self._offsets_used = 0
        if len(self._text) > KEPT_BYTES:
            self._text = np.empty(TEXT_BYTES, np.uint8)

    @property
    def text(self) -> "memoryview[int]":
        """All texts."""
        return self._text.data

    @property
    def offsets(self) -> "memoryview[int]":
        """All offsets."""
        return self._offsets.data

    def constant(self, content: bytes) -> int:
        """Write a text of no column; return where it stands."""
        at, end = self._text_used, self._text_used + len(content)
        self._room(end)
        self.text[at:end] = content
        self._text_used = end
        return at

    def add(self, rows: int, write: Write) -> int:
        """Let a kernel write so many rows; return where their offsets begin."""
        base = self._begin(rows)
        row = 0
        while (row := write(row, rows, self.text, self.offsets, base)) != line_text.DONE:
            self._room(2 * len(self._text), int(self._offsets[base + row]))
        self._text_used = int(self._offsets[base + rows])
        return base

    def add_made(self, made: Sequence[bytes]) -> int:
        """Write texts; return where their offsets begin."""
        base = self._begin(len(made))
        at = self.constant(b"".join(made))
        np.cumsum([len(each) for each in made], out=self._offsets[base + 1 : base + 1 + len(made)])
        self._offsets[base + 1 : base + 1 + len(made)] += at
        return base

    def _begin(self, rows: int) -> int:
        base = self._offsets_used
        self._offsets_used = base + rows + 1
        if self._offsets_used > len(self._offsets):
            grown = np.empty(2 * self._offsets_used, np.int64)
            grown[:base] = self._offsets[:base]
            self._offsets = grown
        self._offsets[base] = self._text_used
        return base

    def _room(self, size: int, used: int = -1) -> None:
        """Have room for so many bytes of text, of which the first are `used`."""
        used = self._text_used if used < 0 else used
        if size > len(self._text):
            grown = np.empty(max(size, 2 * len(self._text)), np.uint8)
            grown[:used] = self._text[:used]
            self._text = grown
