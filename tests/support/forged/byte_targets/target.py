"""A fuzz target: it accepts any bytes, and returns; every exception is a bug.

A parser may refuse bytes with a Tidemark error that describes their fault: `refusals` suppresses these. It does not
suppress an `InternalError`, which means that our code violated an invariant.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from tidemark.model.errors import InternalError, TidemarkError


@dataclass(frozen=True)
class ByteTarget:
    """One parser, or a chain of them."""

    name: str
    run: Callable[[bytes], None]
    seeds: Mapping[str, bytes] = field(default_factory=dict)  # valid input, by its name


@contextmanager
def refusals(*kinds: type[TidemarkError]) -> Iterator[None]:
    """Suppress errors that describe a fault of the bytes; of these classes only, if some are given."""
    allowed = kinds or (TidemarkError,)
    try:
        yield
    except InternalError:
        raise
    except allowed:
        pass


class Bytes:
    """Reads numbers from the front of an input, and the rest after them; missing bytes are zero."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, size: int = 1) -> int:
        """Read a little-endian integer of `size` bytes."""
        return int.from_bytes(self.read(size), "little")

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes."""
        content = self._data[self._at : self._at + size]
        self._at += len(content)
        return content

    def rest(self) -> bytes:
        """Read all remaining bytes."""
        return self.read(len(self._data))

    def __bool__(self) -> bool:
        return self._at < len(self._data)
