"""Signals that an application sends to its running engine; each is handled once, in the order in which it was sent.

The thread of the engine handles them, at most `POLL_S` after they were sent. Those that were sent before the engine
runs wait for that; those that a stop finds are dropped, with a warning.
"""

import threading
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

from tidemark.engine.progress import Progress
from tidemark.io.host.logs import Log
from tidemark.model.errors import ConfigError


class EngineSignal(Enum):
    """The action that a signal requests."""

    LOG = "log"  # a line with the text, and with the positions
    PAUSE = "pause"  # no further batch for the handler; its current batches are finished and confirmed
    RESUME = "resume"  # continue after a pause
    CUSTOM = "custom"  # a call of `on_signal` with the text


class _SentSignal(NamedTuple):
    signal: EngineSignal
    text: str


class Pausable(Protocol):
    """What a pause holds."""

    is_paused: bool


class Signals:
    """The signals of one engine. From any thread."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._sent: deque[_SentSignal] = deque()
        self._is_over = False
        self._lock = threading.Lock()

    def send(self, signal: EngineSignal, text: str) -> None:
        """Queue a signal; raise if the engine handles no more."""
        if not isinstance(signal, EngineSignal):
            raise ConfigError(f"signal {signal!r}: must be one of {', '.join(map(str, EngineSignal))}")
        with self._lock:
            if self._is_over:
                raise ConfigError(f"the engine has stopped: it handles no signal {signal.value!r}")
            self._sent.append(_SentSignal(signal, text))

    def handle(self, pausable: Pausable, on_custom: Callable[[str], None], progress: Progress) -> None:
        """Handle those that are waiting, each once, by the thread of the engine."""
        while self._sent:
            signal, text = self._sent.popleft()
            if signal in (EngineSignal.PAUSE, EngineSignal.RESUME):
                pausable.is_paused = signal is EngineSignal.PAUSE
            elif signal is EngineSignal.CUSTOM:
                on_custom(text)
            confirmed = progress.confirmed
            self._log.info(
                "signal",
                signal=signal.value,
                text=text,
                confirmed=str(confirmed.position) if confirmed is not None else None,
                decoded_lsn=progress.decoded_lsn,
                received_lsn=progress.received_lsn,
            )

    def end(self) -> None:
        """Accept no more; log those that were not handled."""
        with self._lock:
            self._is_over = True
        for signal, _ in self._sent:
            self._log.warning("a signal was not handled: the engine has stopped", signal=signal.value)
