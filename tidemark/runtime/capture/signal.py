"""A signal between two threads: one thread sets it, the other waits for it and clears it."""

import threading


class Signal:
    """Like an event that clears itself; it is only one lock, since a waiting thread is woken at every commit."""

    def __init__(self) -> None:
        self._is_set = False
        self._unset = threading.Lock()
        self._unset.acquire()

    def set(self) -> None:
        """Wake the waiter, now or when it comes."""
        if not self._is_set:
            self._is_set = True
            try:
                self._unset.release()
            except RuntimeError:  # another thread has just set it
                return

    def wait(self, timeout_s: float) -> bool:
        """Wait until set, or for `timeout_s`; the caller checks for work afterwards in any case."""
        was_set = self._unset.acquire(timeout=timeout_s)
        if was_set:
            self._is_set = False
        return was_set
