"""Waits for the effects of another thread or process: by a condition, with a time limit."""

import time
from collections.abc import Callable

DEADLINE_S = 120.0
POLL_S = 0.02


def let_pass(seconds: float, why: str) -> None:
    """Let time pass, where the time itself is what a test needs: a measured interval, or a random moment for a kill."""
    assert why
    time.sleep(seconds)


def wait_until(
    condition: Callable[[], bool],
    what: str = "what the test waits for",
    *,
    within_s: float = DEADLINE_S,
    reported: Callable[[], str] = str,
) -> None:
    """Return once `condition` holds, which may raise to end the wait; fail with `what` and `reported()`."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {within_s} s\n{reported()}"
        time.sleep(POLL_S)
