"""A thread other than the blocked one detects a consumer that died or hangs; a slow one is accepted."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.processes.clocks import HandClock
from tidemark.model.errors import ConsumerFailed, Disposition
from tidemark.runtime.delivery import liveness as liveness_module
from tidemark.runtime.delivery.consumers import NullConsumer
from tidemark.runtime.delivery.liveness import ConsumerRaised, Liveness

ALIVE_S, HANG_S = 5.0, 300.0
DEADLINE_S = 120.0


class Patient(NullConsumer):
    """Gives a set answer, when it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = True
        self.raises: BaseException | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.was_asked = threading.Semaphore(0)

    def alive(self) -> bool:
        self.was_asked.release()
        assert self.may_answer.wait(DEADLINE_S)
        if self.raises is not None:
            raise self.raises
        return self.answer


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Patient:
    monkeypatch.setattr(liveness_module, "POLL_S", 0.001)
    return Patient()


@contextmanager
def watching(consumer: Patient, clock: HandClock) -> Iterator[Liveness]:
    liveness = Liveness(consumer, alive_s=ALIVE_S, hang_s=HANG_S, clock=clock)
    liveness.start()
    yield liveness
    consumer.may_answer.set()
    liveness.stop()


def asked_again(consumer: Patient, times: int = 2) -> None:
    """Wait until a request that begins after now has been answered; one time: until it is made."""
    while times > 1 and consumer.was_asked.acquire(blocking=False):
        pass
    for _ in range(times):
        assert consumer.was_asked.acquire(timeout=DEADLINE_S)


def found(liveness: Liveness) -> ConsumerFailed:
    ended = threading.Event()
    for _ in range(int(DEADLINE_S / 0.01)):
        error = liveness.error()
        if error is not None:
            return error
        ended.wait(0.01)
    raise AssertionError("nothing was found out")


@pytest.mark.feature("I36")
def test_a_consumer_that_reports_that_it_is_dead_counts_as_dead(consumer: Patient, clock: HandClock) -> None:
    with watching(consumer, clock) as liveness:
        asked_again(consumer)
        assert liveness.error() is None
        consumer.answer = False
        error = found(liveness)
    assert str(error) == "the consumer Patient reports that it is not alive"
    assert error.disposition is Disposition.FAIL_OVER


@pytest.mark.feature("I36")
def test_a_consumer_that_raises_in_alive_is_dead_and_its_text_is_not_reported(
    consumer: Patient, clock: HandClock
) -> None:
    consumer.raises = ValueError("a row's secret value")
    with watching(consumer, clock) as liveness:
        error = found(liveness)
    assert str(error) == "the consumer Patient raised ValueError in alive"


def test_a_consumers_own_exception_is_kept(consumer: Patient, clock: HandClock) -> None:
    consumer.raises = ConsumerFailed("the disk is away", hint="mount it")
    with watching(consumer, clock) as liveness:
        assert found(liveness) is consumer.raises


def test_a_consumer_that_calls_exit_has_failed_and_is_named_as_messages_should(
    consumer: Patient, clock: HandClock
) -> None:
    consumer.raises = SystemExit(0)
    with watching(consumer, clock) as liveness:
        assert str(found(liveness)) == "the consumer Patient raised SystemExit in alive"
    named = Liveness(consumer, alive_s=ALIVE_S, hang_s=HANG_S, name="Lines")
    expected = "the consumer Lines raised SystemExit in on_events"
    with pytest.raises(ConsumerRaised, match=expected), named.calling("on_events"):
        raise consumer.raises
    with pytest.raises(KeyboardInterrupt), named.calling("on_events"):
        raise KeyboardInterrupt


@pytest.mark.feature("I36")
def test_a_consumer_that_does_not_answer_is_dead_after_its_time(consumer: Patient, clock: HandClock) -> None:
    consumer.may_answer.clear()
    with watching(consumer, clock) as liveness:
        asked_again(consumer, 1)
        clock.now_s += ALIVE_S
        assert liveness.error() is None, "it still has this moment"
        clock.now_s += 0.1
        error = found(liveness)
        consumer.may_answer.set()
        assert liveness.error() is error, "a late answer does not clear the error"
    assert str(error) == "the consumer Patient has not answered alive() within 5 s"


@pytest.mark.feature("I36")
def test_a_call_that_takes_too_long_is_detected_by_its_duration(consumer: Patient, clock: HandClock) -> None:
    liveness = Liveness(consumer, alive_s=ALIVE_S, hang_s=HANG_S, clock=clock)
    with liveness.calling("on_events"):
        clock.now_s += HANG_S
        assert liveness.error() is None
        clock.now_s += 0.1
        assert str(found(liveness)) == "the consumer Patient has been in on_events for over 300 s"


@pytest.mark.feature("I36")
def test_a_consumer_that_is_slow_but_alive_is_no_error(consumer: Patient, clock: HandClock) -> None:
    with watching(consumer, clock) as liveness, liveness.calling("on_events"):
        for _ in range(10):
            clock.now_s += ALIVE_S - 1
            asked_again(consumer)
            assert liveness.error() is None


def test_time_between_calls_is_no_hang(consumer: Patient, clock: HandClock) -> None:
    liveness = Liveness(consumer, alive_s=ALIVE_S, hang_s=HANG_S, clock=clock)
    for _ in range(3):
        with liveness.calling("on_events"):
            clock.now_s += 1
        clock.now_s += 10 * HANG_S
        assert liveness.error() is None


def test_a_consumer_is_not_polled_after_the_watch_has_stopped(consumer: Patient, clock: HandClock) -> None:
    with watching(consumer, clock) as liveness:
        asked_again(consumer)
    consumer.was_asked = threading.Semaphore(0)
    assert not consumer.was_asked.acquire(timeout=0.05)
    liveness.stop()


def test_a_stop_does_not_wait_for_a_consumer_that_hangs(consumer: Patient) -> None:
    consumer.may_answer.clear()
    liveness = Liveness(consumer, alive_s=0.05, hang_s=HANG_S)
    liveness.start()
    asked_again(consumer, 1)
    liveness.stop()
    assert isinstance(found(liveness), ConsumerFailed)
    consumer.may_answer.set()
