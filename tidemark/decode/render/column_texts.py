"""The texts of columns, end to end in one buffer, from which lines are assembled.

It is filled for each stretch of rows, which is small enough to stay in the CPU's caches; the memory is reused.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tidemark.decode.render import line_text

TEXT_BYTES = 1 << 20  # initial size; it grows as a stretch needs
OFFSETS = 1 << 15
KEPT_BYTES = 16 << 20  # a larger buffer is freed

ByteArray = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]
Write = Callable[[int, int, "memoryview[int]", "memoryview[int]", int], int]
"""A kernel's loop: writes the text and offsets of rows, starting at a given row; row 0's offset is at a base."""


class TextColumn(Protocol):
    """Values with a text for each row."""

    def put(self, texts: "ColumnTexts", first: int, rows: int) -> int:
        """Write the texts of some rows; return the index of their first offset."""


class ColumnTexts:
    """Texts and their offsets: the text of row n of a column is between offset `base + n` and the next one."""

    def __init__(self) -> None:
        self._text = np.empty(TEXT_BYTES, np.uint8)
        self._offsets = np.empty(OFFSETS, np.int64)
        self._text_used = 0
        self._offsets_used = 0

    def clear(self) -> None:
        """Remove all texts."""
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
        """Write a text that belongs to no column; return its offset."""
        at, end = self._text_used, self._text_used + len(content)
        self._ensure_space(end)
        self.text[at:end] = content
        self._text_used = end
        return at

    def add(self, rows: int, write: Write) -> int:
        """Call a kernel to write `rows` rows; return the index of their first offset."""
        base = self._begin(rows)
        row = 0
        while (row := write(row, rows, self.text, self.offsets, base)) != line_text.DONE:
            self._ensure_space(2 * len(self._text), int(self._offsets[base + row]))
        self._text_used = int(self._offsets[base + rows])
        return base

    def add_texts(self, texts: Sequence[bytes]) -> int:
        """Write texts; return the index of their first offset."""
        base = self._begin(len(texts))
        at = self.constant(b"".join(texts))
        np.cumsum([len(each) for each in texts], out=self._offsets[base + 1 : base + 1 + len(texts)])
        self._offsets[base + 1 : base + 1 + len(texts)] += at
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

    def _ensure_space(self, size: int, used: int = -1) -> None:
        """Ensure space for the given bytes of text, of which the first are `used`."""
        used = self._text_used if used < 0 else used
        if size > len(self._text):
            grown = np.empty(max(size, 2 * len(self._text)), np.uint8)
            grown[:used] = self._text[:used]
            self._text = grown
