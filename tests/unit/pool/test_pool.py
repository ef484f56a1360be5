"""The pool of handlers, with real threads."""

import threading

import pytest

from tests.support.processes.waiting import wait_until
from tidemark import Batch
from tidemark.embedding.library_log import LibraryLog
from tidemark.model.change import TransactionBoundary
from tidemark.runtime.pool.handler_pool import HandlerPool
from tidemark.runtime.pool.pending_batch import RetriedChange
from tidemark.runtime.pool.pool_parts import PoolPart, name_of

DEADLINE_S = 60.0


def pool_of(handle: "Gate", workers: int = 2, retries: int = 0) -> HandlerPool[int]:
    made = HandlerPool(handle, workers=workers, retries=retries, backoff=(0.001, 0.002), log=LibraryLog())
    made.start()
    return made


class Gate:
    """Keeps each call until it is released; fails where that is wanted."""

    def __init__(self) -> None:
        self.entered: list[int] = []
        self.left: list[int] = []
        self.fails: dict[int, int] = {}
        self._leave: dict[int, threading.Event] = {number: threading.Event() for number in range(10)}

    def __call__(self, part: int) -> None:
        self.entered.append(part)
        assert self._leave[part].wait(DEADLINE_S)
        if self.fails.get(part, 0):
            self.fails[part] -= 1
            raise OSError("a value")
        self.left.append(part)

    def release(self, *parts: int) -> None:
        for part in parts:
            self._leave[part].set()


@pytest.mark.feature("A22")
def test_a_unit_behind_an_unfinished_one_is_not_settled() -> None:
    gate = Gate()
    pool = pool_of(gate)
    for part in (0, 1, 2):
        pool.submit([(part, part)], 10)
    wait_until(lambda: sorted(gate.entered) == [0, 1])
    gate.release(1, 2)
    wait_until(lambda: sorted(gate.left) == [1, 2])
    assert pool.settled_units == 0
    gate.release(0)
    wait_until(lambda: pool.settled_units == 3)
    assert pool.drain(DEADLINE_S) == ()


def test_back_pressure_waits_for_unfinished_bytes() -> None:
    gate = Gate()
    pool = pool_of(gate)
    pool.submit([(0, 0)], 100)
    waiting = threading.Thread(target=pool.wait_below, args=(50,))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    gate.release(0)
    waiting.join(DEADLINE_S)
    assert not waiting.is_alive()
    pool.drain(DEADLINE_S)


def test_an_error_of_the_handler_is_logged_as_its_own_and_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    def handle(part: PoolPart) -> None:
        raise OSError(f"a value of {part}")

    pool = HandlerPool(handle, workers=1, retries=1, backoff=(0.001, 0.002), log=LibraryLog(), name_of=name_of)
    pool.start()
    pool.submit([(RetriedChange.__new__(RetriedChange), 0)], 10)
    wait_until(lambda: pool.error is not None)
    [line] = [record.getMessage() for record in caplog.records]
    assert "error=raised by the handler kind=OSError" in line
    assert "internal" not in line
    assert "a value" not in line


def test_a_call_of_the_pool_is_named_by_its_function() -> None:
    boundary = TransactionBoundary.__new__(TransactionBoundary)
    assert (name_of(boundary), name_of(Batch.__new__(Batch))) == ("on_event", "the handler")


@pytest.mark.feature("A28")
@pytest.mark.parametrize(("failures", "retries", "calls"), [(3, 3, 4), (1, 0, 1), (9, 3, 4)])
def test_a_part_is_called_as_often_as_its_retries_permit(failures: int, retries: int, calls: int) -> None:
    gate = Gate()
    gate.fails[0] = failures
    gate.release(0)
    pool = pool_of(gate, retries=retries)
    pool.submit([(0, 0)], 10)
    wait_until(lambda: pool.settled_units == 1 or pool.error is not None)
    assert (gate.entered, isinstance(pool.error, OSError)) == ([0] * calls, failures > retries)
    pool.drain(DEADLINE_S)


def test_after_an_error_nothing_is_started_and_running_calls_are_awaited() -> None:
    gate = Gate()
    gate.fails[1] = 1
    pool = pool_of(gate)
    for part in (0, 1, 2):
        pool.submit([(part, part)], 10)
    wait_until(lambda: sorted(gate.entered) == [0, 1])
    gate.release(1, 2)
    wait_until(lambda: pool.error is not None)
    assert not pool.submit([(3, 3)], 10)
    pool.wait_below(0)
    gate.release(0)
    assert pool.drain(DEADLINE_S) == ()
    assert (pool.settled_units, sorted(gate.entered)) == (1, [0, 1])


def test_an_error_of_a_preparation_is_left_to_the_call_which_is_retried() -> None:
    tried: list[str] = []

    def work(part: str) -> None:
        tried.append(part)
        if tried.count(part) == 1:
            raise OSError("a value")

    gate = threading.Event()

    def handle(part: str) -> None:
        if part == "first":
            assert gate.wait(DEADLINE_S)
        else:
            work(part)

    pool = HandlerPool(handle, prepare=work, workers=2, retries=0, backoff=(0.001, 0.002), log=LibraryLog())
    pool.start()
    pool.submit([("first", 0), ("second", 0)], 10)
    wait_until(lambda: tried == ["second"])
    gate.set()
    wait_until(lambda: pool.settled_units == 1 or pool.error is not None)
    assert (pool.error, tried) == (None, ["second", "second"])
    assert pool.drain(DEADLINE_S) == ()


def test_a_preparation_that_does_not_return_is_named_by_a_drain() -> None:
    entered, leave = threading.Event(), threading.Event()

    def prepare(_part: int) -> None:
        entered.set()
        assert leave.wait(DEADLINE_S)

    gate = Gate()
    pool = HandlerPool(gate, prepare=prepare, workers=2, retries=0, backoff=(0.001, 0.002), log=LibraryLog())
    pool.start()
    pool.submit([(0, 0), (1, 0)], 10)
    assert entered.wait(DEADLINE_S)
    gate.release(0)
    wait_until(lambda: gate.left == [0])
    (name,) = pool.drain(0)
    assert name.startswith("tidemark-handler-")
    leave.set()
    wait_until(lambda: not any(pool.is_own(thread) for thread in threading.enumerate()))
    assert (gate.entered, pool.settled_units) == ([0], 0)


def test_a_drain_without_time_names_the_threads_and_later_ends_have_no_effect() -> None:
    gate = Gate()
    pool = pool_of(gate)
    pool.submit([(0, 0)], 10)
    wait_until(lambda: gate.entered == [0])
    (name,) = pool.drain(0)
    assert name.startswith("tidemark-handler-")
    gate.release(0)
    wait_until(lambda: not any(pool.is_own(thread) for thread in threading.enumerate()))
    assert (gate.left, pool.settled_units, pool.error) == ([0], 0, None)
