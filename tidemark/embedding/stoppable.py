"""What an application starts, waits for and stops: an engine, and a group of engines."""

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from tidemark.embedding.hints import noted_hints


class Stoppable(ABC):
    """An object that runs in its own threads until it has stopped, once."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._error: BaseException | None = None  # that ended it

    @abstractmethod
    def start(self) -> None:
        """Start, or release everything and raise the error."""

    @abstractmethod
    def stop(self, within_s: float | None = None) -> tuple[str, ...]:
        """Stop; return the names of threads that are still in a handler."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has stopped; raise the error that ended it first. Return False after `timeout_s`."""
        if not self._stopped.wait(timeout_s):
            return False
        if self._error is not None:
            with noted_hints():
                raise self._error
        return True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        if kind is None:
            self.wait()
