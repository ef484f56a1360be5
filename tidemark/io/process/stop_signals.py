"""The signals that request the end of a program."""

import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType
from typing import NoReturn

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def call_at_stop_signals(end: Callable[[signal.Signals], None]) -> None:
    """Call `end` at SIGTERM and SIGINT, each time, in a thread of its own. To be called by the main thread.

    NB: a handler runs in the main thread between any two of its instructions, also while that thread has the lock of an
    event: `Event.set` in a handler would then wait for ever. `SimpleQueue.put` has no such lock.
    """
    received: SimpleQueue[signal.Signals] = SimpleQueue()

    def pass_on() -> NoReturn:
        while True:
            end(received.get())

    def on_signal(number: int, _frame: FrameType | None) -> None:
        received.put(signal.Signals(number))

    threading.Thread(target=pass_on, name="stop-signals", daemon=True).start()
    for number in STOP_SIGNALS:
        signal.signal(number, on_signal)
