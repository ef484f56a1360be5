"""Waiting for a service that does not answer or refuses this process: with bounded back-off, and one clear line.

Nothing is lost: the outbox keeps the changes, and the lake its positions. The service is asked at intervals whether it
answers; then the work is tried again. If the work fails again soon, the intervals grow, as for a store that answers
but refuses writes. One line is logged when the waiting begins, again every `AGAIN_S`, and one when it ends.
"""

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from tidemark.io.host.logs import Log, describe_error
from tidemark.io.host.systemd import ALIVE, READY, notify
from tidemark.io.process.disk_space import Gauge
from tidemark.model.errors import TidemarkError

FIRST_S, MAX_S = 0.5, 30.0  # between two attempts
AGAIN_S = 60.0  # between two reports
LASTS_S = 60.0  # work that runs for so long has found the store in order
POLL_S = 0.2
CONTINUES = "the pipeline continues automatically, and the outbox keeps the changes"
AnswerT = TypeVar("AnswerT")


class StopRequest(Protocol):
    """A request to stop."""

    def is_set(self) -> bool:
        """Return whether it was made."""

    def wait(self, timeout: float) -> bool:
        """Wait for it."""


class OutageWait:
    """Whether a service answers, as far as the work has shown; used by one thread.

    `check` raises one of the errors `outage` if the service, which `service` names in the log, does not answer.
    """

    def __init__(
        self,
        service: str,
        check: Callable[[], object],
        outage: tuple[type[TidemarkError], ...],
        log: Log,
        *,
        seconds: Gauge | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.outage = outage
        self._service = service
        self._check = check
        self._seconds = seconds
        self._log = log
        self._clock = clock
        self.reason = ""  # why it waits; empty: it does not wait
        self._since_s = self._wait_s = self._not_before_s = self._reported_s = 0.0
        self._worked_s = float("-inf")

    @property
    def is_waiting(self) -> bool:
        """Return whether work has to wait."""
        return bool(self.reason)

    def record(self, error: TidemarkError) -> None:
        """Begin to wait, or continue."""
        now_s = self._clock()
        if now_s - self._worked_s >= LASTS_S:
            self._wait_s = 0.0
            if not self.is_waiting:
                self._since_s = now_s
        if not self.is_waiting or now_s - self._reported_s >= AGAIN_S:
            self._reported_s = now_s
            fields = describe_error(error)
            hint = "; ".join(filter(None, (fields.get("hint"), CONTINUES)))
            self._log.warning(f"the {self._service} is not available: waiting", **{**fields, "hint": hint})
        self.reason = str(error)
        self._wait_s = min(MAX_S, 2 * self._wait_s or FIRST_S)
        self._not_before_s = now_s + self._wait_s
        self._show(now_s)

    def has_come(self) -> bool:
        """Return whether work may continue: it need not wait, or the service answers again."""
        if not self.is_waiting:
            return True
        now_s = self._clock()
        self._show(now_s)
        if now_s < self._not_before_s:
            return False
        try:
            self._check()
        except self.outage as error:
            self._worked_s = now_s
            self.record(error)
            return False
        self.reason, self._worked_s = "", now_s
        self._show(now_s)
        self._log.info(f"the {self._service} answers again", waited_s=round(now_s - self._since_s, 1))
        return True

    def _show(self, now_s: float) -> None:
        # NB: never 0 while it waits: an alert checks for more than 0.
        if self._seconds is not None:
            self._seconds.set(max(0.001, now_s - self._since_s) if self.is_waiting else 0.0)


def when_available(
    attempt: Callable[[], AnswerT], wait: OutageWait, stop: StopRequest, *, once: bool
) -> AnswerT | None:
    """Repeat `attempt` until the service answers; return its result, or None if `stop` is set first.

    With `once` raise the error of the outage immediately.
    """
    while not stop.is_set():
        if wait.has_come():
            try:
                return attempt()
            except wait.outage as error:
                if once:
                    raise
                wait.record(error)
        notify(READY)  # otherwise the service manager considers the process hung
        notify(ALIVE)
        stop.wait(POLL_S)
    return None
