"""The confirm thread: confirmations during one transaction are stored by the next, and none is left."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest

from tidemark.runtime.delivery.confirming import Confirming

DEADLINE_S = 30.0


class GatedStore:
    """Stores its arguments, once it is allowed to."""

    def __init__(self) -> None:
        self.stored: list[list[int]] = []
        self.may_store = threading.Event()
        self.is_asked = threading.Semaphore(0)
        self.may_store.set()
        self.errors: list[Exception] = []

    def store(self, confirmed: Sequence[int]) -> None:
        self.is_asked.release()
        assert self.may_store.wait(DEADLINE_S)
        if self.errors:
            raise self.errors.pop()
        self.stored.append(list(confirmed))


@pytest.fixture
def disk() -> GatedStore:
    return GatedStore()


@pytest.fixture
def made(disk: GatedStore) -> Iterator[Confirming[int]]:
    yield from opened(disk, 0.05)


@pytest.fixture
def slow(disk: GatedStore) -> Iterator[Confirming[int]]:
    """One with a very long pause between two transactions."""
    yield from opened(disk, 2 * DEADLINE_S)


def opened(disk: GatedStore, pause_s: float) -> Iterator[Confirming[int]]:
    made = Confirming(disk.store, pause_s)
    yield made
    disk.may_store.set()
    with suppress(ZeroDivisionError):
        made.close()


def confirm_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "confirm"}


@pytest.fixture
def others() -> set[threading.Thread]:
    """Confirm threads of other tests in this process."""
    return confirm_threads()


def within(seconds: float, made: Confirming[int], bytes_max: int = -1) -> bool:
    """Return whether a wait ends in time."""
    waiter = threading.Thread(target=made.wait, args=(bytes_max,), daemon=True)
    waiter.start()
    waiter.join(seconds)
    return not waiter.is_alive()


def test_confirmations_during_a_transaction_are_stored_together_by_the_next(
    disk: GatedStore, made: Confirming[int]
) -> None:
    disk.may_store.clear()
    made.confirm([1], 10)
    assert disk.is_asked.acquire(timeout=DEADLINE_S)
    assert made.byte_count == 10
    made.confirm([2], 20)
    made.confirm([3, 4], 30)
    assert made.byte_count == 60
    disk.may_store.set()
    made.wait()
    assert disk.stored == [[1], [2, 3, 4]]
    assert made.byte_count == 0
    made.confirm([5], 5)
    made.wait()
    assert disk.stored[2:] == [[5]]
    made.close()


def test_a_wait_ends_when_at_most_so_many_bytes_are_not_durable(disk: GatedStore, made: Confirming[int]) -> None:
    made.wait()  # nothing was ever confirmed
    disk.may_store.clear()
    made.confirm([1], 10)
    assert disk.is_asked.acquire(timeout=DEADLINE_S)
    made.confirm([2], 20)
    assert within(DEADLINE_S, made, 30)
    assert not within(0.05, made, 29)
    assert not within(0.05, made)
    disk.may_store.set()
    assert within(DEADLINE_S, made)
    assert disk.stored == [[1], [2]]


def test_confirmations_without_bytes_are_awaited_as_well(disk: GatedStore, made: Confirming[int]) -> None:
    disk.may_store.clear()
    made.confirm([1], 0)
    assert disk.is_asked.acquire(timeout=DEADLINE_S)
    assert not within(0.05, made), "it is being stored"
    made.confirm([2], 0)
    disk.may_store.set()
    assert within(DEADLINE_S, made)
    assert disk.stored == [[1], [2]]


def test_there_is_a_pause_between_two_transactions_unless_a_thread_waits(
    disk: GatedStore, slow: Confirming[int]
) -> None:
    made = slow
    made.confirm([1], 10)
    assert disk.is_asked.acquire(timeout=DEADLINE_S)
    made.confirm([2], 10)
    made.confirm([3], 10)
    assert not disk.is_asked.acquire(timeout=0.2), "the pause is not over"
    assert within(DEADLINE_S, made)
    assert disk.stored == [[1], [2, 3]]
    made.confirm([4], 10)
    made.close()
    assert disk.stored == [[1], [2, 3], [4]]


def test_closing_stores_all_and_ends_the_thread(
    disk: GatedStore, made: Confirming[int], others: set[threading.Thread]
) -> None:
    disk.may_store.clear()
    made.confirm([1], 10)
    made.confirm([2], 10)
    closing = threading.Thread(target=made.close, daemon=True)
    closing.start()
    disk.may_store.set()
    closing.join(DEADLINE_S)
    assert not closing.is_alive()
    assert [number for stored in disk.stored for number in stored] == [1, 2]
    assert confirm_threads() <= others


def test_closing_what_never_confirmed_anything_ends_at_once(disk: GatedStore, made: Confirming[int]) -> None:
    made.close()
    assert disk.stored == []


def test_a_failure_to_store_is_raised_by_every_call_that_confirms_waits_or_polls(
    disk: GatedStore, made: Confirming[int], others: set[threading.Thread]
) -> None:
    made.check()
    disk.errors = [ZeroDivisionError("the disk")]
    made.confirm([1], 10)
    for asking in (made.wait, made.check, lambda: made.confirm([2], 10), lambda: made.wait(1 << 30), made.close):
        with pytest.raises(ZeroDivisionError, match="the disk"):
            asking()
    assert disk.stored == []
    assert confirm_threads() <= others


def test_a_wait_ends_with_the_error_that_occurred_while_more_was_confirmed(
    disk: GatedStore, made: Confirming[int]
) -> None:
    disk.may_store.clear()
    made.confirm([1], 10)
    assert disk.is_asked.acquire(timeout=DEADLINE_S)
    made.confirm([2], 10)
    disk.errors = [ZeroDivisionError("the disk")]
    disk.may_store.set()
    for asking in (made.wait, made.close):
        with pytest.raises(ZeroDivisionError, match="the disk"):
            asking()
    assert disk.stored == [], "what comes behind a failure is not stored either"


def test_closing_ends_a_pause(disk: GatedStore, slow: Confirming[int]) -> None:
    made = slow
    made.confirm([1], 10)
    assert disk.is_asked.acquire(timeout=DEADLINE_S)
    while made.byte_count:
        pass
    made.confirm([], 0)  # waits for the lock, which the thread releases before it pauses
    closing = threading.Thread(target=made.close, daemon=True)
    closing.start()
    closing.join(DEADLINE_S)
    assert not closing.is_alive()


def test_abandoned_confirmations_are_not_stored_and_a_running_transaction_is_awaited(
    disk: GatedStore, made: Confirming[int]
) -> None:
    disk.may_store.clear()
    made.confirm([1], 10)
    assert disk.is_asked.acquire(timeout=DEADLINE_S)
    made.confirm([2], 20)
    abandoning = threading.Thread(target=made.abandon, args=(ZeroDivisionError("given up"), DEADLINE_S), daemon=True)
    abandoning.start()
    abandoning.join(0.05)
    assert abandoning.is_alive(), "a transaction is under way"
    disk.may_store.set()
    abandoning.join(DEADLINE_S)
    assert not abandoning.is_alive()
    assert disk.stored == [[1]]
    assert made.byte_count == 0
    with pytest.raises(ZeroDivisionError, match="given up"):
        made.confirm([3], 10)
    with pytest.raises(ZeroDivisionError, match="given up"):
        made.close()
    assert disk.stored == [[1]]


def test_the_first_error_stays_when_more_is_abandoned(made: Confirming[int]) -> None:
    made.confirm([], 0)  # the thread waits for something to store
    made.abandon(ZeroDivisionError("first"), DEADLINE_S)
    made.abandon(ZeroDivisionError("second"), DEADLINE_S)
    with pytest.raises(ZeroDivisionError, match="first"):
        made.check()
    thread = next((thread for thread in threading.enumerate() if thread.name == "confirm"), None)
    if thread is not None:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "it has nothing left to wait for"
