"""Memory for the texts of batches, which is used again: the kernel clears new memory page by page.

That costs as much as writing the text.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tidemark.decode.render.column_texts import ByteArray

SMALL_BYTES = 256 << 10  # smaller ones come from the heap and return there
KEPT_BYTES_MAX = 64 << 20  # of all unused buffers


class TextBuffers:
    """The unused buffers; from any thread, and inside the garbage collector."""

    def __init__(self) -> None:
        self._unused: list[ByteArray] = []

    def take(self, size: int) -> "ByteArray":
        """Return a buffer of at least `size` bytes."""
        if size > SMALL_BYTES:
            try:
                buffer = self._unused.pop()
            except IndexError:
                pass
            else:
                if len(buffer) >= size:
                    return buffer
        return np.empty(size, np.uint8)

    def give(self, buffer: "ByteArray") -> None:
        """Keep a buffer that nobody reads any more, if it is within the bound."""
        if len(buffer) > SMALL_BYTES and sum(map(len, self._unused)) + len(buffer) <= KEPT_BYTES_MAX:
            self._unused.append(buffer)
