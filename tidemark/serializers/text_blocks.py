"""Lines of text in blocks of memory, which are used again: the kernel clears new memory page by page.

That costs as much as writing the text.
"""

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tidemark.decode.render.column_texts import ByteArray, Int64Array

BLOCK_BYTES = 1 << 20
KEPT_BLOCKS_MAX = 128  # four workers with batches of 50,000 rows, each of 600 bytes


class TextBlocks:
    """The unused blocks; from any thread, and inside the garbage collector."""

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        self.block_bytes = block_bytes
        self._unused: list[ByteArray] = []

    def take(self) -> "ByteArray":
        """Return a block."""
        try:
            return self._unused.pop()
        except IndexError:
            return np.empty(self.block_bytes, np.uint8)

    def give(self, block: "ByteArray") -> None:
        """Keep a block that is no longer used, up to the bound; memory of another size is freed."""
        if len(block) == self.block_bytes and len(self._unused) < KEPT_BLOCKS_MAX:
            self._unused.append(block)


class LineText:
    """Lines end to end, none of them in two blocks: what is written is never copied.

    Offsets are those in the text of all lines.
    """

    def __init__(self, first_bytes: int, blocks: TextBlocks) -> None:
        """Begin with a block of `first_bytes`. Further ones have twice the size of the last, up to that of `blocks`."""
        self.size = 0
        self._unused = blocks
        self._blocks: list[ByteArray] = []
        self._blocks.append(np.empty(first_bytes, np.uint8))
        self._begins = [0]  # offset of each block's first line

    @property
    def memory_bytes(self) -> int:
        """The size of all blocks."""
        return sum(map(len, self._blocks))

    def space(self) -> memoryview:
        """Return the memory behind the lines."""
        return self._blocks[-1][self.size - self._begins[-1] :].data

    def enlarge(self) -> None:
        """Begin a block, or reoffset an empty one that is too small for a line."""
        last = self._blocks[-1]
        size = 2 * len(last)
        if self.size > self._begins[-1]:
            self._blocks.append(self._unused.take() if size >= self._unused.block_bytes else np.empty(size, np.uint8))
            self._begins.append(self.size)
        else:
            self._blocks[-1] = np.empty(size, np.uint8)
            self._unused.give(last)

    def take(self, size: int) -> memoryview:
        """Add the lines to those before."""
        begin = self.size - self._begins[-1]
        self.size += size
        return self._blocks[-1][begin : begin + size].data

    def read(self, begin: int, end: int) -> bytes:
        """Return a copy of the text between two offsets."""
        first = bisect_right(self._begins, begin) - 1
        parts = zip(self._blocks[first:], self._begins[first:], (*self._begins[first + 1 :], end), strict=True)
        return b"".join(
            block[max(begin - offset, 0) : min(next_offset, end) - offset].data
            for block, offset, next_offset in parts
            if offset < end
        )

    def bytes_at(self, offsets: "Int64Array") -> "ByteArray":
        """Return the byte at each of some ascending offsets."""
        found = np.empty(len(offsets), np.uint8)
        bounds = [*np.searchsorted(offsets, self._begins).tolist(), len(offsets)]
        for block, offset, first, last in zip(self._blocks, self._begins, bounds[:-1], bounds[1:], strict=True):
            found[first:last] = block[offsets[first:last] - offset]
        return found

    def __del__(self) -> None:
        """Return the blocks: `read` and `bytes_at` give copies."""
        for block in self._blocks:
            self._unused.give(block)
