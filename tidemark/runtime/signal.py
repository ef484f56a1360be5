"""A signal between two threads: set by one, waited for by the other, forgotten when it was seen."""

import threading


class Signal:
    """Like an event that clears itself."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Wake the waiter, now or when it comes."""
        # NB: is_set first: setting takes a lock, and a busy stream sets thousands of times a second.
        if not self._event.is_set():
            self._event.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until set, or for `timeout_s`; the caller looks for work afterwards in any case."""
        was_set = self._event.wait(timeout_s)
        self._event.clear()
        return was_set
