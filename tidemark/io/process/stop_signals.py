"""The signals that request the end of a program."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType
from typing import NoReturn

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def call_at_stop_signals(end: Callable[[signal.Signals], None]) -> None:
    """Call `end`, which must not raise, at each SIGTERM and SIGINT, in a separate thread. For the main thread.

    NB: a handler runs in the main thread between any two of its instructions, also while that thread has the lock of an
    event: `Event.set` in a handler would then wait forever. `SimpleQueue.put` has no such lock.
    """
    received: SimpleQueue[signal.Signals] = SimpleQueue()

    def pass_on() -> NoReturn:
        while True:
            end(received.get())

    def on_signal(number: int, _frame: FrameType | None) -> None:
        received.put(signal.Signals(number))

    for number in STOP_SIGNALS:
        signal.signal(number, on_signal)
    threading.Thread(target=pass_on, name="stop-signals", daemon=True).start()


@contextmanager
def keeping_stop_handlers() -> Iterator[None]:
    """Restore the handlers after the body, which may replace them. For the main thread."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
