"""An engine over a real server: what handlers receive, order, retries, kills, stops and failed starts."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

import tidemark
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster
from tidemark import ALWAYS, Batch, Engine, EngineState, Op, Order, every
from tidemark.io.state.locking.heartbeat import Slot
from tidemark.io.state.locking.locks import AlreadyRunning, RoleLock
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.runtime.first_copy.capture_notices import NONE_SELECTED

Settings = Mapping[str, Mapping[str, object]]
NO_COPY: Settings = {"copy": {"enabled": False}}
QUICK: Settings = {**NO_COPY, "retry": {"first_s": 0.01, "max_s": 0.02}}
DEADLINE_S = 60.0


class Collecting:
    """Keeps the changes of all batches, as (table, op, id)."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, str, object]] = []
        self.batches: list[Batch] = []
        self._lock = threading.Lock()

    def __call__(self, batch: Batch) -> None:
        with self._lock:
            self.batches.append(batch)
            for change in batch:
                row = change.after or change.before or {}
                self.changes.append((batch.table, change.op.value, row["id"]))

    @property
    def ids(self) -> list[object]:
        return [number for _, _, number in self.changes]


class BusyHandler:
    """A handler that does not return until it is released."""

    def __init__(self) -> None:
        self.inside, self.leave = threading.Event(), threading.Event()

    def __call__(self, batch: Batch) -> None:
        del batch
        self.inside.set()
        assert self.leave.wait(DEADLINE_S)


def tidemark_threads() -> set[str]:
    names = ("tidemark-", "application", "network", "decode", "heartbeat", "confirm", "liveness", "node", "write-guard")
    return {thread.name for thread in threading.enumerate() if thread.name.startswith(names)}


@contextmanager
def leaves_nothing(cluster: Cluster) -> Iterator[None]:
    """Fail if threads, files or sessions remain."""
    threads, files = tidemark_threads(), open_files()
    yield
    wait_until(lambda: tidemark_threads() == threads, "the end of all threads")
    assert open_files() == files
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tidemark'"
    wait_until(lambda: cluster.sql(sessions) == [(0,)], "the end of all sessions")


def open_files() -> set[str]:
    return {file.path for file in psutil.Process().open_files()}


@pytest.fixture
def table(cluster: Cluster, database: str) -> str:
    cluster.sql("CREATE TABLE item (id int PRIMARY KEY, note text)", database)
    return "public.item"


@pytest.mark.feature("A08")
def test_the_first_start_copies_existing_rows_and_a_later_one_resumes_behind_the_last_change(
    cluster: Cluster, database: str, table: str, tmp_path: Path
) -> None:
    cluster.sql("INSERT INTO item SELECT n, 'old' FROM generate_series(1, 3) n", database)
    first, second = Collecting(), Collecting()
    dsn, state = cluster.dsn(database), tmp_path / "state"
    with leaves_nothing(cluster):
        with Engine(dsn, state=state, tables=["public.*"], handler=first) as engine:
            wait_until(lambda: len(first.changes) == 3)
            cluster.sql("INSERT INTO item VALUES (4, 'new')", database)
            cluster.sql("UPDATE item SET note = 'newer' WHERE id = 4", database)
            cluster.sql("DELETE FROM item WHERE id = 4", database)
            wait_until(lambda: len(first.changes) == 6)
        assert engine.state is EngineState.STOPPED
        assert engine.confirmed is not None
        assert engine.confirmed >= first.batches[-1].position
        cluster.sql("INSERT INTO item VALUES (5, 'while it was stopped')", database)
        with Engine(dsn, state=state, tables=["public.*"], handler=second):
            wait_until(lambda: len(second.changes) >= 1)
    assert first.changes[:3] == [(table, "c", 1), (table, "c", 2), (table, "c", 3)]
    assert first.changes[3:] == [(table, "i", 4), (table, "u", 4), (table, "d", 4)]
    assert second.changes == [(table, "i", 5)]
    assert second.batches[0].epoch > first.batches[0].epoch
    assert (second.batches[0].database, second.batches[0].relation.name) == (database, "item")
    (change,) = second.batches[0]
    assert (change.op, change.before, change.after) == (Op.INSERT, None, {"id": 5, "note": "while it was stopped"})
    assert change.position == second.batches[0].position == second.batches[0].first
    assert change.commit_time == second.batches[0].commit_time


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("settings", [{}, NO_COPY], ids=["with copies", "without"])
def test_a_start_without_a_matching_table_warns_and_a_later_table_is_captured(
    cluster: Cluster, database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: Settings
) -> None:
    collected, dsn = Collecting(), cluster.dsn(database)
    with Engine(dsn, state=tmp_path / "other", tables=["public.*"], handler=collected, settings=settings) as matching:
        assert matching.state is EngineState.RUNNING
    assert NONE_SELECTED not in caplog.text
    with Engine(dsn, state=tmp_path / "state", tables=["public.later"], handler=collected, settings=settings):
        assert f"{NONE_SELECTED} tables=public.later" in caplog.text
        cluster.sql("CREATE TABLE later (id int PRIMARY KEY); INSERT INTO later VALUES (6)", database)
        wait_until(lambda: collected.ids == [6])


@pytest.mark.feature("A23")
@pytest.mark.feature("A25")
def test_each_state_is_observed_once_and_in_order_and_stopped_is_final(
    cluster: Cluster, database: str, table: str, tmp_path: Path
) -> None:
    del table
    seen: list[EngineState] = []

    def on_state(state: EngineState) -> None:
        seen.append(state)
        raise OSError("of the application")

    engine = Engine(
        cluster.dsn(database), state=tmp_path / "state", handler=Collecting(), on_state=on_state, settings=NO_COPY
    )
    with engine:
        pass
    assert seen == list(EngineState)[1:]
    with pytest.raises(tidemark.IllegalTransition, match="is stopped"):
        engine.start()
    assert engine.stop() == ()
    assert engine.wait()


@pytest.mark.feature("A10")
def test_as_many_threads_as_requested_are_in_the_handler_under_load(
    cluster: Cluster, database: str, table: str, tmp_path: Path
) -> None:
    del table
    workers = 4
    together = threading.Barrier(workers)  # passes only with this many threads in the handler
    passed: list[int] = []

    def handle(batch: Batch) -> None:
        with suppress(threading.BrokenBarrierError):
            passed.append(together.wait(DEADLINE_S) + len(batch))

    with Engine(
        cluster.dsn(database),
        state=tmp_path / "state",
        handler=handle,
        settings=NO_COPY,
        workers=workers,
        order=Order.NONE,
    ) as engine:

        def has_passed() -> bool:
            cluster.sql("INSERT INTO item SELECT count(*) FROM item", database)
            return len(passed) >= 2 * workers or engine.wait(0)

        wait_until(has_passed)
        own = [thread for thread in threading.enumerate() if thread.name.startswith("tidemark-handler")]
        assert len(own) == workers
        together.abort()
    assert len(passed) >= 2 * workers


@pytest.mark.feature("A05")
@pytest.mark.feature("A03")
@pytest.mark.parametrize("order", [Order.BY_KEY, Order.TOTAL])
def test_changes_of_one_key_keep_their_order_also_where_a_key_changes(
    cluster: Cluster, database: str, table: str, tmp_path: Path, order: Order
) -> None:
    del table
    applied: dict[object, object] = {}
    history: dict[object, list[object]] = defaultdict(list)
    workers = 4
    together = threading.Barrier(workers)  # one transaction has rows for all of them
    lock = threading.Lock()

    def handle(batch: Batch) -> None:
        if order is Order.BY_KEY and batch.arrow.column("_op")[0].as_py() == "i":
            together.wait(DEADLINE_S)
        for change in batch:
            with lock:
                if change.before is not None:
                    assert change.before["id"] in applied
                    del applied[change.before["id"]]
                if change.after is not None:
                    applied[change.after["id"]] = change.after["note"]
                    history[change.after["id"]].append(change.after["note"])

    with Engine(
        cluster.dsn(database), state=tmp_path / "state", handler=handle, settings=NO_COPY, workers=workers, order=order
    ) as engine:
        cluster.sql("INSERT INTO item SELECT n, '0' FROM generate_series(1, 40) n", database)
        for number in range(1, 11):
            cluster.sql(f"UPDATE item SET note = '{number}' WHERE id <= 100", database)
        cluster.sql("UPDATE item SET id = id + 1000 WHERE id <= 5", database)
        cluster.sql("UPDATE item SET id = id - 1000, note = 'back' WHERE id > 1000", database)
        cluster.sql("DELETE FROM item WHERE id = 40", database)
        expected: dict[object, object] = dict(cluster.sql("SELECT id, note FROM item", database))
        wait_until(lambda: applied == expected or engine.wait(0))
    assert applied == expected
    assert history[20] == [str(number) for number in range(11)]
    assert history[1] == [*(str(number) for number in range(11)), "back"]


@pytest.mark.feature("A28")
def test_the_same_batch_is_handled_again_within_the_limit_and_then_the_cause_is_raised(
    cluster: Cluster, database: str, table: str, tmp_path: Path
) -> None:
    del table
    seen: list[Batch] = []
    failing: list[Exception] = [OSError("one"), OSError("two")]

    def handle(batch: Batch) -> None:
        seen.append(batch)
        if failing:
            raise failing.pop(0)

    state = tmp_path / "state"
    with leaves_nothing(cluster):
        with Engine(cluster.dsn(database), state=state, handler=handle, settings=QUICK, retries=2) as engine:
            cluster.sql("INSERT INTO item VALUES (1)", database)
            wait_until(lambda: len(seen) == 3 and engine.confirmed is not None)
        assert seen[0] is seen[1] is seen[2]
        failing += [cause := ValueError("not retriable often enough")] * 3
        cluster.sql("INSERT INTO item VALUES (2)", database)
        engine = Engine(cluster.dsn(database), state=state, handler=handle, settings=QUICK, retries=2)
        with pytest.raises(ValueError, match="often enough") as raised, engine:
            engine.wait(DEADLINE_S)
        assert raised.value is cause
        assert any("after 2 retries" in note for note in cause.__notes__)
        assert (engine.state, len(seen)) == (EngineState.STOPPED, 6)
        with Engine(cluster.dsn(database), state=state, handler=handle, settings=QUICK, retries=0):
            wait_until(lambda: len(seen) == 7)
    assert [change.after for change in seen[-1]] == [{"id": 2, "note": None}]


@pytest.mark.feature("A28")
def test_an_error_that_cannot_pass_is_not_retried(cluster: Cluster, database: str, table: str, tmp_path: Path) -> None:
    del table
    seen: list[Batch] = []

    def handle(batch: Batch) -> None:
        seen.append(batch)
        raise tidemark.ConsumerFailed("the target has another schema")

    engine = Engine(cluster.dsn(database), state=tmp_path / "state", handler=handle, settings=QUICK)
    engine.start()
    cluster.sql("INSERT INTO item VALUES (1)", database)
    with pytest.raises(tidemark.ConsumerFailed, match="another schema"):
        engine.wait(DEADLINE_S)
    assert len(seen) == 1


@pytest.mark.feature("A36")
def test_what_is_finished_is_confirmed_by_the_policy_in_idle_time_and_at_the_stop(
    cluster: Cluster, database: str, table: str, tmp_path: Path
) -> None:
    del table
    collected = Collecting()
    dsn, state = cluster.dsn(database), tmp_path / "state"

    def is_confirmed(engine: Engine, number: int) -> bool:
        return engine.confirmed is not None and engine.confirmed >= collected.batches[number].position

    never = every(changes=1000)
    with Engine(dsn, state=state, handler=collected, settings=NO_COPY, commit=never) as engine:
        cluster.sql("INSERT INTO item VALUES (1)", database)
        wait_until(lambda: len(collected.batches) == 1)
        assert not engine.wait(1.0)  # five times the interval at which the policy is asked
        assert not is_confirmed(engine, 0)
    assert is_confirmed(engine, 0)
    with Engine(dsn, state=state, handler=collected, settings=NO_COPY, commit=never | every(seconds=0.5)) as engine:
        cluster.sql("INSERT INTO item VALUES (2)", database)
        wait_until(lambda: len(collected.batches) == 2)
        wait_until(lambda: is_confirmed(engine, 1))
    with Engine(dsn, state=state, handler=collected, settings=NO_COPY, commit=ALWAYS) as engine:
        cluster.sql("INSERT INTO item VALUES (3)", database)
        wait_until(lambda: len(collected.batches) == 3)
        wait_until(lambda: is_confirmed(engine, 2))
    assert collected.ids == [1, 2, 3]


@pytest.mark.feature("A30")
@pytest.mark.feature("X22")
def test_a_stop_without_time_is_prompt_names_the_busy_thread_and_what_it_finishes_later_moves_nothing(
    cluster: Cluster, database: str, table: str, tmp_path: Path
) -> None:
    del table
    busy = BusyHandler()

    state = tmp_path / "state"
    with leaves_nothing(cluster):
        engine = Engine(cluster.dsn(database), state=state, handler=busy, settings=NO_COPY)
        engine.start()
        cluster.sql("INSERT INTO item VALUES (1)", database)
        assert busy.inside.wait(DEADLINE_S)
        before = engine.confirmed
        assert engine.stop(within_s=0) == ("tidemark-handler-1",)
        assert engine.state is EngineState.STOPPED
        busy.leave.set()
        wait_until(lambda: not any(each.name.startswith("tidemark-handler") for each in threading.enumerate()))
        assert engine.confirmed == before
    again = Collecting()
    with Engine(cluster.dsn(database), state=state, handler=again, settings=NO_COPY):
        wait_until(lambda: again.ids == [1])


@pytest.mark.feature("A30")
@pytest.mark.feature("A32")
def test_a_stop_with_time_delivers_and_confirms_everything_that_was_submitted(
    cluster: Cluster, database: str, table: str, tmp_path: Path
) -> None:
    del table
    inside = threading.Event()
    pause = threading.Event()
    collected = Collecting()

    def handle(batch: Batch) -> None:
        inside.set()
        pause.wait(0.3)
        collected(batch)

    dsn, state = cluster.dsn(database), tmp_path / "state"
    with Engine(dsn, state=state, handler=handle, settings=NO_COPY, commit=every(seconds=3600)):
        for number in range(4):
            cluster.sql(f"INSERT INTO item VALUES ({number})", database)
        assert inside.wait(DEADLINE_S)
    handled = list(collected.ids)
    assert handled == list(range(len(handled)))
    with Engine(dsn, state=state, handler=collected, settings=NO_COPY):
        wait_until(lambda: 3 in collected.ids)
    assert collected.ids == [0, 1, 2, 3]


def test_the_last_position_is_stored_after_the_pool_has_ended(
    cluster: Cluster, database: str, table: str, tmp_path: Path
) -> None:
    del table
    collected = Collecting()
    seen: dict[EngineState, tuple[bool, bool]] = {}

    def on_state(state: EngineState) -> None:
        names = {thread.name for thread in threading.enumerate()}
        moved = bool(collected.batches) and engine.confirmed == begun
        seen[state] = (any(name.startswith("tidemark-handler") for name in names), not moved)

    engine = Engine(
        cluster.dsn(database),
        state=tmp_path / "state",
        handler=collected,
        on_state=on_state,
        commit=every(seconds=3600),
        settings=NO_COPY,
    )
    with engine:
        begun = engine.confirmed
        cluster.sql("INSERT INTO item VALUES (1)", database)
        wait_until(lambda: len(collected.batches) == 1)
    assert seen[EngineState.DRAINING] == (True, False)
    assert seen[EngineState.CLOSING] == (False, False)
    assert seen[EngineState.STOPPED] == (False, True)


@pytest.mark.parametrize("callback", ["handler", "on_state"])
def test_a_callback_may_request_the_stop_of_its_own_engine(
    cluster: Cluster, database: str, table: str, tmp_path: Path, callback: str
) -> None:
    del table
    engines: list[Engine] = []

    def handle(batch: Batch) -> None:
        del batch
        engines[0].stop()

    def on_state(state: EngineState) -> None:
        if callback == "on_state" and state is EngineState.RUNNING:
            engines[0].stop()

    engines.append(
        Engine(cluster.dsn(database), state=tmp_path / "state", handler=handle, on_state=on_state, settings=NO_COPY)
    )
    with engines[0] as engine:
        cluster.sql("INSERT INTO item VALUES (1)", database)
        assert engine.wait(DEADLINE_S)
    assert engine.confirmed is not None


@pytest.mark.feature("I38")
def test_an_engine_beats_for_the_sidecars_role_also_while_its_handler_is_busy(
    cluster: Cluster, database: str, table: str, tmp_path: Path
) -> None:
    del table
    busy = BusyHandler()

    folder = StateFolder(tmp_path / "state")
    settings: Settings = {**NO_COPY, "watchdog": {"watchdog_s": 3.0}}
    with Engine(cluster.dsn(database), state=folder.root, handler=busy, settings=settings):
        cluster.sql("INSERT INTO item VALUES (1)", database)
        assert busy.inside.wait(DEADLINE_S)
        assert RoleLock.status(folder, "sidecar").is_locked
        with StateStore.open(folder) as store:
            beat = store.environment.heartbeat
            before = beat.count(Slot.SIDECAR)
            wait_until(lambda: beat.count(Slot.SIDECAR) > before + 3)
            age_s = beat.age_s(Slot.SIDECAR)
            assert age_s is not None
            assert age_s < 3.0
        busy.leave.set()
    with StateStore.open(folder) as store:
        assert store.environment.heartbeat.read(Slot.SIDECAR) is None
    assert not RoleLock.status(folder, "sidecar").is_locked


@pytest.mark.feature("A26")
def test_a_start_that_fails_releases_everything_it_opened(
    cluster: Cluster, database: str, table: str, tmp_path: Path
) -> None:
    del table
    state = tmp_path / "state"
    with leaves_nothing(cluster):
        away = Engine("postgresql://cdc@127.0.0.1:1/shop", state=state, handler=Collecting())
        with pytest.raises(tidemark.NodeUnreachable):
            away.start()
        assert away.state is EngineState.STOPPED
        with pytest.raises(tidemark.NodeUnreachable):
            away.wait()
        nothing = Engine(cluster.dsn(database), databases=["no_such_*"], state=state, handler=Collecting())
        with pytest.raises(tidemark.ConfigError, match="no_such_"):
            nothing.start()
        with Engine(cluster.dsn(database), state=state, handler=Collecting()) as running:
            second = Engine(cluster.dsn(database), state=state, handler=Collecting())
            with pytest.raises(AlreadyRunning, match=f"^this process already has an engine on {state}\n") as raised:
                second.start()
            assert raised.value.hint == "stop that engine first, or give each engine its own state"
            assert running.state is EngineState.RUNNING
        refused = Engine(
            cluster.dsn(database), state=state, handler=Collecting(), settings={"types": {"decimals": "string"}}
        )
        with pytest.raises(tidemark.ConfigError, match=r"types\.decimals"):
            refused.start()
        with RoleLock.acquire(StateFolder(state), "sidecar"):  # it is free
            pass


@pytest.mark.feature("A26")
def test_a_stop_during_the_start_is_refused(cluster: Cluster, database: str, table: str, tmp_path: Path) -> None:
    del table
    refusals: list[tidemark.IllegalTransition] = []
    engines: list[Engine] = []

    def on_state(state: EngineState) -> None:
        if state in (EngineState.PREPARING, EngineState.STARTING):
            try:
                engines[0].stop()
            except tidemark.IllegalTransition as error:
                refusals.append(error)

    engines.append(Engine(cluster.dsn(database), state=tmp_path / "state", handler=Collecting(), on_state=on_state))
    with engines[0]:
        assert len(refusals) == 2


@pytest.mark.feature("A08")
def test_two_engines_run_in_one_process(cluster: Cluster, database: str, table: str, tmp_path: Path) -> None:
    del table
    cluster.sql("CREATE TABLE other (id int PRIMARY KEY)", database)
    one, two = Collecting(), Collecting()
    dsn = cluster.dsn(database)
    with (
        Engine(dsn, state=tmp_path / "one", tables=["item"], handler=one, settings=NO_COPY),
        Engine(dsn, state=tmp_path / "two", tables=["other"], handler=two, settings=NO_COPY),
    ):
        cluster.sql("INSERT INTO item VALUES (1)", database)
        cluster.sql("INSERT INTO other VALUES (2)", database)
        wait_until(lambda: bool(one.changes) and bool(two.changes))
    assert one.changes == [("public.item", "i", 1)]
    assert two.changes == [("public.other", "i", 2)]


@pytest.mark.feature("A13")
def test_truncations_come_to_on_event_with_everything_before_them_finished(
    cluster: Cluster, database: str, table: str, tmp_path: Path
) -> None:
    del table
    collected = Collecting()
    seen: list[tuple[str, int]] = []

    def on_event(event: tidemark.EngineEvent) -> None:
        seen.append((type(event).__name__, len(collected.changes)))

    with Engine(
        cluster.dsn(database),
        state=tmp_path / "state",
        handler=collected,
        on_event=on_event,
        workers=3,
        order=Order.NONE,
        settings=NO_COPY,
    ):
        cluster.sql("INSERT INTO item SELECT generate_series(1, 10)", database)
        cluster.sql("TRUNCATE item", database)
        cluster.sql("INSERT INTO item VALUES (11)", database)
        wait_until(lambda: 11 in collected.ids)
    assert ("Truncation", 10) in seen


def test_more_than_the_buffer_is_delivered_with_the_buffer_as_its_bound(
    cluster: Cluster, database: str, table: str, tmp_path: Path
) -> None:
    """The commit policy would wait: at the bound it is overruled, and nothing stops."""
    del table
    collected = Collecting()
    with Engine(
        cluster.dsn(database),
        state=tmp_path / "state",
        handler=collected,
        workers=2,
        order=Order.BY_KEY,
        commit=every(seconds=3600),
        buffer_bytes=1 << 16,
        settings={**NO_COPY, "deliver": {"group_bytes_max": 1 << 16}},
    ) as engine:
        begun = engine.confirmed
        for _ in range(4):
            cluster.sql("INSERT INTO item SELECT n, repeat('x', 200) FROM generate_series(1, 2000) n", database)
            cluster.sql("DELETE FROM item", database)
        wait_until(lambda: len(collected.changes) == 16_000 or engine.wait(0))
        wait_until(lambda: engine.confirmed != begun)
    assert len(collected.changes) == 16_000


@pytest.mark.feature("A35")
def test_the_end_is_called_back_once_and_last_with_the_cause(
    cluster: Cluster, database: str, table: str, tmp_path: Path
) -> None:
    del table
    seen: list[object] = []
    cause = tidemark.ConsumerFailed("the target has another schema")

    def on_end(error: BaseException | None) -> None:
        seen.append(error)
        engine.stop()  # a callback that stops the engine does not wait for itself
        raise OSError("of the application")

    def fail(batch: Batch) -> None:
        del batch
        raise cause

    def run(handler: Callable[[Batch], None], name: str = database) -> Engine:
        return Engine(
            cluster.dsn(name),
            state=tmp_path / f"state-{name}",
            handler=handler,
            on_state=seen.append,
            on_end=on_end,
            settings=NO_COPY,
        )

    engine = run(Collecting())
    with engine:
        pass
    assert seen == [*list(EngineState)[1:], None]
    seen.clear()
    engine = run(fail)
    engine.start()
    cluster.sql("INSERT INTO item VALUES (1)", database)
    with pytest.raises(tidemark.ConsumerFailed):
        engine.wait(DEADLINE_S)
    assert seen == [*list(EngineState)[1:], cause]
    seen.clear()
    engine = run(Collecting(), "no_such_database")
    with pytest.raises(tidemark.TidemarkError) as raised:
        engine.start()
    assert seen == [EngineState.PREPARING, EngineState.CLOSING, EngineState.STOPPED, raised.value]
