"""Signals to stop a program, also while its main thread has a lock that the stop needs."""

import signal
import threading
from collections.abc import Iterator

import pytest

from tests.support.processes.waiting import wait_until
from tidemark.io.process.stop_signals import STOP_SIGNALS, call_at_stop_signals, keeping_stop_handlers

LOCK_S = 5.0


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    with keeping_stop_handlers():
        yield


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_waits_for_no_lock_of_the_main_thread(number: signal.Signals) -> None:
    lock = threading.Lock()
    received: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        if lock.acquire(timeout=LOCK_S):  # as `Event.set` does, without a limit
            received.append(number)
            lock.release()

    call_at_stop_signals(end)
    with lock:
        signal.raise_signal(number)
    wait_until(lambda: received == [number], "the call", within_s=LOCK_S)


def test_handlers_are_kept_where_others_are_set() -> None:
    received: list[signal.Signals] = []
    call_at_stop_signals(received.append)
    with keeping_stop_handlers():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    wait_until(lambda: received == [signal.SIGINT], "the second one", within_s=LOCK_S)


def test_each_signal_is_reported() -> None:
    received: list[signal.Signals] = []
    call_at_stop_signals(received.append)
    for number in STOP_SIGNALS:
        signal.raise_signal(number)
    wait_until(lambda: received == list(STOP_SIGNALS), "both", within_s=LOCK_S)
