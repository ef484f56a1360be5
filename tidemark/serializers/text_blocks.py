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

    def __init__(self) -> None:
        self._unused: list[ByteArray] = []

    def take(self) -> "ByteArray":
        """Return a block."""
        try:
            return self._unused.pop()
        except IndexError:
            return np.empty(BLOCK_BYTES, np.uint8)

    def give(self, block: "ByteArray") -> None:
        """Keep a block that nobody reads any more, if it is within the bound; memory of another size is freed."""
        if len(block) == BLOCK_BYTES and len(self._unused) < KEPT_BLOCKS_MAX:
            self._unused.append(block)


class LineText:
    """Lines end to end, none of them in two blocks: what is written is never copied. Places count all lines before."""

    def __init__(self, first_bytes: int, blocks: TextBlocks) -> None:
        """Small texts are in memory of `first_bytes`, which comes from the heap; further blocks come from `blocks`."""
        self.size = 0
        self._unused = blocks
        self._blocks: list[ByteArray] = [np.empty(first_bytes, np.uint8)]
        self._begins = [0]  # place of each block's first line

    def space(self) -> memoryview:
        """Return the memory behind the lines."""
        return self._blocks[-1][self.size - self._begins[-1] :].data

    def enlarge(self) -> None:
        """Begin a block, or replace an empty one that is too small for a line."""
        if self.size > self._begins[-1]:
            self._blocks.append(self._unused.take())
            self._begins.append(self.size)
        else:
            small = self._blocks[-1]
            self._blocks[-1] = np.empty(2 * len(small), np.uint8)
            self._unused.give(small)

    def take(self, size: int) -> memoryview:
        """Add the lines to those before."""
        begin = self.size - self._begins[-1]
        self.size += size
        return self._blocks[-1][begin : begin + size].data

    def read(self, begin: int, end: int) -> bytes:
        """Return a copy of the lines between two places."""
        first = bisect_right(self._begins, begin) - 1
        parts = zip(self._blocks[first:], self._begins[first:], (*self._begins[first + 1 :], end), strict=True)
        return b"".join(
            block[max(begin - place, 0) : min(next_place, end) - place].data
            for block, place, next_place in parts
            if place < end
        )

    def bytes_at(self, places: "Int64Array") -> "ByteArray":
        """Return the byte at each of some ascending places."""
        found = np.empty(len(places), np.uint8)
        bounds = [*np.searchsorted(places, self._begins).tolist(), len(places)]
        for block, place, first, last in zip(self._blocks, self._begins, bounds[:-1], bounds[1:], strict=True):
            found[first:last] = block[places[first:last] - place]
        return found

    def __del__(self) -> None:
        """Return the blocks: `read` and `bytes_at` give copies."""
        for block in self._blocks:
            self._unused.give(block)
