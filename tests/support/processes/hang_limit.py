"""The end of a test run's process whose test hangs where no signal handler of Python runs, or hangs in its teardown.

pytest-timeout fails a test by a signal: not while the main thread waits inside a library written in C, and not after
a first failure, so that a fixture that waits for a process would wait for ever. This limit is beyond that one, needs
no interpreter, and covers the whole test with its fixtures: the traceback of each thread is printed, and the process
exits. pytest-xdist names the test, and starts another worker for the tests that are left.
"""

import faulthandler
import os
import time
from collections.abc import Generator

import pytest

AFTER_TIMEOUT_S = 240.0  # for the teardown of a test that failed at its own limit


class HangLimit:
    """The plugin; `after_s` are added to the limit that each test has by pytest-timeout."""

    def __init__(self, after_s: float = AFTER_TIMEOUT_S) -> None:
        """Keep the standard error of the run: the one of a test is a file that pytest reads at its end."""
        self._after_s = after_s
        self._output = os.dup(2)
        self._ends_at_s: float | None = None  # of the test that runs

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Limit a test with its setup and teardown."""
        self._ends_at_s = time.monotonic() + _timeout_s(item) + self._after_s
        self._arm()
        try:
            return (yield)
        finally:
            self._ends_at_s = None
            faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_exception_interact(self) -> Generator[None, object, object]:
        """Set the limit again: pytest cancels it when a test has failed, for a debugger."""
        try:
            return (yield)
        finally:
            self._arm()

    def _arm(self) -> None:
        if self._ends_at_s is not None:
            left_s = max(self._ends_at_s - time.monotonic(), self._after_s / 2)
            faulthandler.dump_traceback_later(left_s, exit=True, file=self._output)


def _timeout_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0] if marker is not None else item.config.getini("timeout"))
