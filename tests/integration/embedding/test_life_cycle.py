"""The limits of a start, the order of a stop, the callbacks of each stage, and what ends an engine."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import tidemark
from tests.integration.embedding.test_engine import DEADLINE_S, NO_COPY, QUICK, Collecting, leaves_nothing
from tests.support.processes.waiting import let_pass, wait_until
from tests.support.servers.postgres import Cluster
from tidemark import Batch, Engine, EngineState, Mask, StopStep, every
from tidemark.embedding.start_deadline import StartDeadline
from tidemark.engine.batching import BURST
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.runtime.capture.capture import Capture

SOURCE_THREADS = {"network", "application", "decode"}
BETWEEN_S = 0.5  # longer than the default poll of the target
PROMPT_S = 20.0  # far below the linger time of a minute, on any machine
NODE_AWAY = "postgresql://cdc@127.0.0.1:1/shop"


@pytest.fixture
def state(cluster: Cluster, database: str, tmp_path: Path) -> Path:
    cluster.sql("CREATE TABLE item (id int PRIMARY KEY, note text)", database)
    return tmp_path / "state"


def running_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


@pytest.mark.feature("A27")
def test_a_start_that_waits_for_transactions_ends_at_its_limit_and_leaves_nothing(
    cluster: Cluster, database: str, state: Path
) -> None:
    ends: list[BaseException | None] = []
    with leaves_nothing(cluster), cluster.connect(database) as session:
        session.execute("BEGIN")
        session.execute("SELECT pg_current_xact_id()")
        cluster.sql("CHECKPOINT")  # the seed waits for transactions that are older than it
        engine = Engine(
            cluster.dsn(database), state=state, handler=Collecting(), start_within_s=1.0, on_end=ends.append
        )
        with pytest.raises(tidemark.StartTimedOut, match=r"the start took longer than 1 s: it has") as raised:
            engine.start()
        assert (ends, engine.state) == ([raised.value], EngineState.STOPPED)
        session.execute("ROLLBACK")
    with Engine(cluster.dsn(database), state=state, handler=Collecting()):
        pass


def test_a_handler_that_stops_the_engine_before_its_start_has_returned_is_heard(
    cluster: Cluster, database: str, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine(cluster.dsn(database), state=state, handler=Collecting()):
        pass
    cluster.sql("INSERT INTO item VALUES (1, 'a')", database)
    has_stopped = threading.Event()

    def stop(_batch: Batch) -> None:
        engine.stop()
        has_stopped.set()

    check = StartDeadline.check

    def check_after_the_stop(deadline: StartDeadline, reached: str) -> None:
        if reached == "its threads are started":
            assert has_stopped.wait(DEADLINE_S)
        check(deadline, reached)

    monkeypatch.setattr(StartDeadline, "check", check_after_the_stop)
    engine = Engine(cluster.dsn(database), state=state, handler=stop)
    engine.start()
    assert engine.wait(DEADLINE_S)
    assert engine.state is EngineState.STOPPED


@pytest.mark.feature("A31")
def test_a_stop_ends_the_pool_then_stores_the_position_then_ends_the_source_and_closes_the_state(
    cluster: Cluster, database: str, state: Path
) -> None:
    collected = Collecting()
    seen: list[StopStep] = []

    def on_stop_step(step: StopStep) -> None:
        seen.append(step)
        names = running_threads()
        assert not any(name.startswith("tidemark-handler") for name in names)
        is_stored = engine.confirmed is not None and engine.confirmed >= collected.batches[-1].position
        if step is StopStep.POOL:
            assert not is_stored, "the policy would not confirm yet"
        else:
            assert is_stored
        assert (names >= SOURCE_THREADS) is (step in (StopStep.POOL, StopStep.POSITIONS))
        assert RoleLock.status(StateFolder(state), "sidecar").is_locked is (step is not StopStep.STATE)
        checked.append(step)
        raise OSError("of the application")

    checked: list[StopStep] = []
    engine = Engine(
        cluster.dsn(database),
        state=state,
        handler=collected,
        on_stop_step=on_stop_step,
        commit=every(seconds=3600),
        settings=NO_COPY,
    )
    with leaves_nothing(cluster), engine:
        wait_until(lambda: running_threads() >= SOURCE_THREADS)
        cluster.sql("INSERT INTO item VALUES (1)", database)
        wait_until(lambda: bool(collected.batches))
    assert checked == seen == list(StopStep)


@pytest.mark.feature("A31")
def test_a_start_that_fails_stops_in_the_same_order_what_it_opened(
    cluster: Cluster, database: str, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_capture: Capture) -> None:
        raise RuntimeError("can't start new thread")

    seen: list[StopStep] = []
    with leaves_nothing(cluster):
        away = Engine(NODE_AWAY, state=state, handler=Collecting(), on_stop_step=seen.append)
        with pytest.raises(tidemark.NodeUnreachable):
            away.start()
        assert seen == [StopStep.STATE]
        seen.clear()
        mask = Mask("public.item.mail", constant="-")
        unfit = Engine(
            cluster.dsn(database), state=state, handler=Collecting(), transforms=[mask], on_stop_step=seen.append
        )
        with pytest.raises(tidemark.BadTransform):
            unfit.start()
        assert seen == [StopStep.STATE]
        seen.clear()
        monkeypatch.setattr(Capture, "start", refuse)
        crowded = Engine(cluster.dsn(database), state=state, handler=Collecting(), on_stop_step=seen.append)
        with pytest.raises(RuntimeError, match="new thread"):
            crowded.start()
        assert seen == list(StopStep)


@pytest.mark.feature("A34")
def test_each_stage_has_its_callback_and_errors_of_callbacks_stop_nothing(
    cluster: Cluster, database: str, state: Path
) -> None:
    seen: list[object] = []

    def failing(stage: object) -> None:
        seen.append(stage)
        raise OSError("of the application")

    engine = Engine(
        cluster.dsn(database),
        state=state,
        handler=Collecting(),
        on_state=failing,
        on_stop_step=failing,
        on_end=failing,
        settings=NO_COPY,
    )
    with leaves_nothing(cluster), engine:
        pass
    assert engine.wait(DEADLINE_S)
    assert seen == [
        EngineState.PREPARING,
        EngineState.STARTING,
        EngineState.RUNNING,
        EngineState.DRAINING,
        StopStep.POOL,
        EngineState.CLOSING,
        StopStep.POSITIONS,
        StopStep.SOURCE,
        StopStep.STATE,
        EngineState.STOPPED,
        None,
    ]


@pytest.mark.feature("A29")
@pytest.mark.parametrize("cause", ["stop", "handler", "capture"])
def test_a_stop_an_error_of_the_handler_and_an_error_of_the_capture_end_the_engine_after_the_current_batch(
    cluster: Cluster, database: str, state: Path, cause: str
) -> None:
    inside, leave = threading.Event(), threading.Event()
    seen: list[Batch] = []

    def handle(batch: Batch) -> None:
        seen.append(batch)
        inside.set()
        assert leave.wait(DEADLINE_S)
        if cause == "handler":
            raise tidemark.ConsumerFailed("the target is gone")

    engine = Engine(cluster.dsn(database), state=state, handler=handle, settings=QUICK)
    with leaves_nothing(cluster):
        engine.start()
        cluster.sql("INSERT INTO item VALUES (1)", database)
        assert inside.wait(DEADLINE_S)
        ending = ENDINGS[cause](engine, state)
        leave.set()
        if ending is None:
            assert engine.wait(DEADLINE_S)
        else:
            with pytest.raises(ending):
                engine.wait(DEADLINE_S)
        assert engine.state is EngineState.STOPPED
    cluster.sql("INSERT INTO item VALUES (2)", database)
    assert len(seen) == 1


def request_stop(engine: Engine, state: Path) -> None:
    """Stop it while the handler is busy: another thread waits for that."""
    del state
    threading.Thread(target=engine.stop).start()
    wait_until(lambda: engine.state is EngineState.DRAINING)


def take_epoch(engine: Engine, state: Path) -> type[Exception]:
    """Fence the engine: its next transaction fails."""
    del engine
    owner = RoleLock.status(StateFolder(state), "sidecar").owner
    assert owner is not None
    with StateStore.open(StateFolder(state)) as store:
        store.begin_epoch(owner)
    return tidemark.Fenced


ENDINGS: dict[str, Callable[[Engine, Path], type[Exception] | None]] = {
    "stop": request_stop,
    "handler": lambda _engine, _state: tidemark.ConsumerFailed,
    "capture": take_epoch,
}


def test_an_engine_that_waits_for_further_commits_stops_at_once(cluster: Cluster, database: str, state: Path) -> None:
    collected = Collecting()
    slowest = {**NO_COPY, "deliver": {"rate_max": 0.01, "linger_ms": 60_000}}
    with Engine(cluster.dsn(database), state=state, handler=collected, settings=slowest) as engine:
        for number in range(BURST + 2):  # the last one at the latest waits
            cluster.sql(f"INSERT INTO item VALUES ({number}, 'a')", database)
            let_pass(BETWEEN_S, "commits that come together are delivered together")
        began_s = time.monotonic()
        engine.stop()
        assert time.monotonic() - began_s < PROMPT_S
    assert 0 < sum(len(batch) for batch in collected.batches) <= BURST + 1
