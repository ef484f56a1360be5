"""Turns of threads that write tables beside each other: few of them compute, while the others wait for disk or store.

A small write is half Python and half waiting. Python runs one thread at a time in any case, and threads that compete
for the interpreter cost a third more CPU. A thread therefore computes only in its turn, and gives it back whenever it
waits. A thread without turns, as that of maintenance, never waits for one.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager


class _Held(threading.local):
    turns: "Turns | None" = None
    waited_s = 0.0


_HELD = _Held()


class Turns:
    """The turns of one group of threads."""

    def __init__(self, at_once: int) -> None:
        """`at_once`: how many threads compute at the same time."""
        self._free = threading.Lock() if at_once == 1 else threading.Semaphore(at_once)  # a lock costs a tenth

    @contextmanager
    def held(self) -> Iterator[None]:
        """Run the body in a turn of this thread, which has none yet."""
        self._free.acquire()
        _HELD.turns, _HELD.waited_s = self, 0.0
        try:
            yield
        finally:
            _HELD.turns = None
            self._free.release()

    def lend(self) -> None:
        """Give the turn of this thread to another one."""
        self._free.release()

    def take_back(self) -> None:
        """Wait for a turn of this thread, which lent its own."""
        begun_s = time.monotonic()
        self._free.acquire()
        _HELD.waited_s += time.monotonic() - begun_s


class _LentTurn:
    """A context manager without a generator, which would cost as much as the locks: a changed table has twenty."""

    __slots__ = ("_turns",)

    def __enter__(self) -> None:
        self._turns = _HELD.turns
        if self._turns is not None:
            _HELD.turns = None  # the body may wait again
            self._turns.lend()

    def __exit__(self, *_: object) -> None:
        if self._turns is not None:
            self._turns.take_back()
            _HELD.turns = self._turns


def waiting() -> AbstractContextManager[None]:
    """Let another thread have the turn of this one, if it has one, while the body waits."""
    return _LentTurn()


def waited_s() -> float:
    """Return how long this thread has waited to get its present turn back."""
    return _HELD.waited_s
