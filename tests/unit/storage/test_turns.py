"""Turns of threads: one computes at a time, and a thread that waits stops no other."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidemark.pipeline.storage.turns import Turns, waited_s, waiting

WAIT_S = 30.0


def test_a_thread_that_waits_lets_another_one_compute() -> None:
    turns, both_wait = Turns(1), threading.Barrier(2)

    def write() -> None:
        with turns.held(), waiting():
            both_wait.wait(WAIT_S)  # passes only if both threads wait at the same time

    with ThreadPoolExecutor(2) as pool:
        for writing in [pool.submit(write) for _ in range(2)]:
            writing.result()


@pytest.mark.parametrize("at_once", [1, 2])
def test_no_more_threads_compute_than_there_are_turns(at_once: int) -> None:
    turns, lock = Turns(at_once), threading.Lock()
    computing: list[int] = []
    most = 0

    def compute() -> None:
        nonlocal most
        with lock:
            computing.append(1)
            most = max(most, len(computing))
        with lock:
            computing.pop()

    def write() -> None:
        for _ in range(50):
            with turns.held():
                compute()
                with waiting():
                    pass
                compute()

    with ThreadPoolExecutor(8) as pool:
        for writing in [pool.submit(write) for _ in range(8)]:
            writing.result()
    assert 0 < most <= at_once


def test_a_wait_inside_a_wait_gives_back_nothing_more() -> None:
    turns = Turns(1)
    with turns.held():
        with waiting(), waiting():
            pass
        with waiting():
            pass


def test_a_thread_without_turns_waits_for_none() -> None:
    with Turns(1).held():
        pass
    with waiting():
        assert waited_s() == 0.0


def test_a_turn_ends_with_an_error_too() -> None:
    turns = Turns(1)
    for _ in range(2):
        with pytest.raises(OSError, match="full"), turns.held(), waiting():
            raise OSError("full")
    with turns.held():
        pass
