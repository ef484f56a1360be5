"""What a target is: it takes any bytes, and returns; whatever it raises is a bug.

An answer that a parser may give to bytes that nobody wrote is an error of ours that names what is wrong with them:
`refusals` lets those pass. An `InternalError` is none of them: it says that our own code broke its word.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from tidemark.model.errors import InternalError, TidemarkError


@dataclass(frozen=True)
class Target:
    """One parser, or a chain of them."""

    name: str
    run: Callable[[bytes], None]
    seeds: Mapping[str, bytes] = field(default_factory=dict)  # sound input, by what it is


@contextmanager
def refusals(*kinds: type[TidemarkError]) -> Iterator[None]:
    """Let errors pass that say what is wrong with the bytes; of these classes only, if some are given."""
    allowed = kinds or (TidemarkError,)
    try:
        yield
    except InternalError:
        raise
    except allowed:
        pass


class Bytes:
    """Takes an input apart: numbers first, the rest behind them; what is missing is zero."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, size: int = 1) -> int:
        """Take a little-endian integer of `size` bytes."""
        return int.from_bytes(self.take(size), "little")

    def take(self, size: int) -> bytes:
        """Take up to `size` bytes."""
        taken = self._data[self._at : self._at + size]
        self._at += len(taken)
        return taken

    def rest(self) -> bytes:
        """Take all that is left."""
        return self.take(len(self._data))

    def __bool__(self) -> bool:
        return self._at < len(self._data)
