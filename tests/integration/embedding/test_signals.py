"""Signals to a running engine: each is handled once, in order; a pause holds back batches and confirms what is done."""

import logging
import threading
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.embedding.test_engine import QUICK, Collecting, leaves_nothing
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster
from tidemark import ConfigError, Engine, EngineSignal, EngineState, every
from tidemark.model.lsn import parse_lsn

SERIAL, POOL = 0, 4
SENDERS, EACH = 4, 25


@pytest.fixture
def state(cluster: Cluster, database: str, tmp_path: Path) -> Path:
    cluster.sql("CREATE TABLE item (id int PRIMARY KEY, note text)", database)
    return tmp_path / "state"


@pytest.mark.feature("A38")
def test_each_signal_of_several_threads_is_handled_once_and_those_of_a_thread_in_order(
    cluster: Cluster, database: str, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def handle(text: str) -> None:
        seen.append(text)
        if text == "early":
            raise OSError("of the application")

    engine = Engine(cluster.dsn(database), state=state, handler=Collecting(), on_signal=handle, settings=QUICK)
    engine.signal(EngineSignal.CUSTOM, "early")

    def send(sender: int) -> None:
        for number in range(EACH):
            engine.signal(EngineSignal.CUSTOM, f"{sender} {number}")

    senders = [threading.Thread(target=send, args=(number,)) for number in range(SENDERS)]
    with caplog.at_level(logging.INFO), leaves_nothing(cluster), engine:
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        engine.signal(EngineSignal.LOG, "a line of the application")
        wait_until(lambda: "a line of the application" in caplog.text)
    assert seen[0] == "early"
    assert Counter(seen[1:]) == Counter(f"{sender} {number}" for sender in range(SENDERS) for number in range(EACH))
    for name in range(SENDERS):
        own = [text for text in seen if text.startswith(f"{name} ")]
        assert own == [f"{name} {number}" for number in range(EACH)]
    assert engine.state is EngineState.STOPPED
    with pytest.raises(ConfigError, match="the engine has stopped: it handles no signal 'log'"):
        engine.signal(EngineSignal.LOG)
    with pytest.raises(ConfigError, match="must be one of"):
        engine.signal("log")  # type: ignore[arg-type]


@pytest.mark.feature("A38")
@pytest.mark.parametrize("workers", [SERIAL, POOL])
def test_a_paused_engine_hands_over_nothing_confirms_what_is_finished_and_continues_after_resume(
    cluster: Cluster, database: str, state: Path, workers: int
) -> None:
    collected = Collecting()
    passed: list[str] = []
    engine = Engine(
        cluster.dsn(database),
        state=state,
        handler=collected,
        workers=workers,
        on_signal=passed.append,
        commit=every(seconds=3600),
        settings=QUICK,
    )

    def pass_through(text: str) -> None:
        engine.signal(EngineSignal.CUSTOM, text)
        wait_until(lambda: text in passed)

    with leaves_nothing(cluster), engine:
        cluster.sql("INSERT INTO item VALUES (1)", database)
        wait_until(lambda: collected.ids == [1])
        engine.signal(EngineSignal.PAUSE)
        pass_through("paused")
        wait_until(lambda: engine.confirmed is not None and engine.confirmed >= collected.batches[0].position)
        cluster.sql("INSERT INTO item VALUES (2)", database)
        written = parse_lsn(cluster.flush_lsn())
        wait_until(lambda: engine._progress.decoded_lsn >= written)  # noqa: SLF001 - it has the change
        pass_through("decoded")
        assert collected.ids == [1]
        engine.signal(EngineSignal.RESUME)
        wait_until(lambda: collected.ids == [1, 2])
        engine.signal(EngineSignal.PAUSE)
        pass_through("paused again")
        cluster.sql("INSERT INTO item VALUES (3)", database)
    assert collected.ids == [1, 2], "a stop ends a pause, without the change"
    with Engine(cluster.dsn(database), state=state, handler=collected, settings=QUICK):
        wait_until(lambda: 3 in collected.ids)
    assert collected.ids == [1, 2, 3]
