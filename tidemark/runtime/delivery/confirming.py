"""The confirm thread: makes the confirmations durable while the consumer receives the next changes.

A transaction takes as long as the disk, and no change waits for it: confirmations that arrive meanwhile go into the
next transaction. After a crash of the host everything not yet durable is delivered again (at least once): the
confirmations that arrived during one transaction and the pause after it. The amount is bounded in bytes. After a stop
nothing is delivered again, and after a kill nothing that `tidemark.io.state.confirmed_file` has.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

CONFIRMED = TypeVar("CONFIRMED")


class Confirming(Generic[CONFIRMED]):
    """One transaction after the other, each with all confirmations since the last."""

    def __init__(self, store: Callable[[Sequence[CONFIRMED]], None], pause_s: float) -> None:
        """`store` runs the transaction, in the confirm thread.

        `pause_s`: between two transactions, of which each costs as much processor time as several small commits.
        """
        self._store = store
        self._pause_s = pause_s
        self._error: BaseException | None = None
        self._waiting: list[CONFIRMED] = []
        self._waiting_bytes = 0
        self._storing_bytes = 0
        self._is_storing = False
        self._is_started = False
        self._is_idle = False  # the thread waits for something to store, not for the end of its pause
        self._is_hurried = False
        self._is_over = False
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._hurried = threading.Condition(self._lock)  # a confirmation during a pause does not end the pause
        self._thread = threading.Thread(target=self._run, name="confirm", daemon=True)

    def confirm(self, confirmed: Sequence[CONFIRMED], byte_count: int) -> None:
        """Queue a confirmation for storing; raise the error that kept earlier ones from being stored."""
        if not self._is_started:
            self._is_started = True
            self._thread.start()
        with self._lock:  # the condition's lock, without its calls: each commit comes here
            if self._error is not None:
                raise self._error
            self._waiting += confirmed
            self._waiting_bytes += byte_count
            if self._is_idle:
                self._changed.notify_all()

    @property
    def byte_count(self) -> int:
        """Bytes that are confirmed and not yet durable."""
        return self._waiting_bytes + self._storing_bytes

    @property
    def is_durable(self) -> bool:
        """Return whether all confirmations are durable."""
        return not (self._waiting or self._is_storing)

    def check(self) -> None:
        """Raise the error that keeps confirmations from being stored."""
        if self._error is not None:
            raise self._error

    def wait(self, bytes_max: int = -1) -> None:
        """Wait until at most `bytes_max` are not durable, by default until all are durable."""
        with self._changed:
            self._is_hurried = True
            self._hurried.notify_all()
            self._changed.wait_for(lambda: self._error is not None or self._is_below(bytes_max))
            self._is_hurried = False
        self.check()

    def close(self) -> None:
        """Store all confirmations, and end."""
        try:
            self.wait()
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()
                self._hurried.notify_all()
            if self._thread.ident is not None:
                self._thread.join()

    def abandon(self, error: BaseException, wait_s: float) -> None:
        """Store nothing more, and raise `error` at later confirmations; wait for a running transaction."""
        with self._changed:
            self._error = self._error or error
            self._waiting.clear()
            self._waiting_bytes = 0
            self._changed.notify_all()
            self._hurried.notify_all()
            self._changed.wait_for(lambda: not self._is_storing, wait_s)

    def _is_below(self, bytes_max: int) -> bool:
        return not (self._waiting or self._is_storing) or self.byte_count <= bytes_max

    def _run(self) -> None:
        while (confirmed := self._next()) is not None:
            try:
                self._store(confirmed)
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that confirms
                self._error = error
            with self._changed:
                self._is_storing = False
                self._storing_bytes = 0
                self._changed.notify_all()
                if self._error is not None:
                    return
                self._hurried.wait_for(lambda: self._is_over or self._is_hurried, self._pause_s)

    def _next(self) -> Sequence[CONFIRMED] | None:
        with self._changed:
            self._is_idle = True
            self._changed.wait_for(lambda: self._is_over or self._error is not None or bool(self._waiting))
            self._is_idle = False
            if not self._waiting:
                return None
            confirmed, self._waiting = self._waiting, []
            self._storing_bytes, self._waiting_bytes = self._waiting_bytes, 0
            self._is_storing = True
            return confirmed
