"""Counts the calls of functions, Python's and those of extensions, in a block: a measure that no other load changes."""

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from types import FrameType


@dataclass(slots=True)
class CountedCalls:
    """The calls of a block, once it has ended."""

    total: int = 0


@contextmanager
def counted_calls() -> Iterator[CountedCalls]:
    """Count the calls of the body in this thread, and in threads that begin meanwhile."""
    found, numbers = CountedCalls(), count()  # `next` of it is atomic

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        if event in ("call", "c_call"):
            next(numbers)

    with without_collection():
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            yield found
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            found.total = next(numbers)


@contextmanager
def without_collection() -> Iterator[None]:
    """Run the body without the garbage collector.

    When it runs depends on all that the process did before, and its callbacks (hypothesis has one) would be counted.
    """
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()
