"""What an application starts, waits for and stops: an engine, and a group of engines."""

import os
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from tidemark.embedding.hints import noted_hints
from tidemark.model.arguments import checked_arguments, number
from tidemark.model.errors import ConfigError

_TIMEOUT_S = number(lambda given: 0 <= given <= threading.TIMEOUT_MAX, "of seconds, not below 0")


class Stoppable(ABC):
    """An object that runs in its own threads until it has stopped, once."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._error: BaseException | None = None  # that ended it
        self._pid = 0  # of the process that started it; 0: none has

    @abstractmethod
    def start(self) -> None:
        """Start, or release everything and raise the error."""

    @abstractmethod
    def stop(self, within_s: float | None = None) -> tuple[str, ...]:
        """Stop; return the names of threads that are still in a handler."""

    @checked_arguments("tidemark.Engine.wait", {"timeout_s": _TIMEOUT_S})
    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has stopped; raise the error that ended it first. Return False after `timeout_s`."""
        self._check_process()
        if not self._stopped.wait(timeout_s):
            return False
        if self._error is not None:
            with noted_hints():
                raise self._error
        return True

    def _check_process(self) -> None:
        """Raise `ConfigError` in a fork of the process that started it: a fork has none of its threads."""
        if self._pid not in (0, os.getpid()):
            raise ConfigError(
                f"the engine runs in process {self._pid}, of which this one is a fork",
                hint="use it there; in a worker process of the pool, use stop_when, or pool=PoolKind.THREADS",
            )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        if kind is None:
            self.wait()
