"""One contract for engines: the serial one, and pools of threads and of processes with each order."""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

import tidemark
from tests.integration.embedding.test_engine import DEADLINE_S, QUICK, Collecting, leaves_nothing
from tests.support.processes.waiting import wait_until
from tests.support.processes.written_lines import complete_lines
from tests.support.servers.postgres import Cluster
from tidemark import (
    Batch,
    Change,
    Engine,
    EngineState,
    FlatJson,
    Order,
    Partition,
    PoolKind,
    Position,
    SerializedChange,
    every,
)
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import Lsn, Oid, SystemIdentifier, TimelineId

SERIAL, POOL = 0, 4


@pytest.fixture
def state(cluster: Cluster, database: str, tmp_path: Path) -> Path:
    cluster.sql("CREATE TABLE item (id int PRIMARY KEY, note text)", database)
    return tmp_path / "state"


@dataclass(frozen=True)
class EngineForm:
    """How an engine calls its handler."""

    workers: int
    pool: PoolKind
    order: Order

    def __str__(self) -> str:
        return f"{self.workers} {self.pool.value}, {self.order.value}"


FORMS = [
    EngineForm(SERIAL, PoolKind.THREADS, Order.TOTAL),
    *(EngineForm(POOL, pool, order) for pool in PoolKind for order in Order),
]


class RecordingHandler:
    """Records each call in files, because it may run in a worker process; it fails for a change as often as asked."""

    def __init__(self, folder: Path, failures: int = 0, cause: Exception | None = None) -> None:
        folder.mkdir()
        self._calls, self._handled = folder / "calls", folder / "handled"
        self._failures = failures  # of a batch with the row 1
        self._cause = cause or OSError("away for a moment")

    def __call__(self, batch: Batch) -> None:
        ids = batch.arrow.column("_after").field("id").to_pylist()
        with self._calls.open("a") as file:
            file.write(json.dumps([ids, id(batch), threading.current_thread().name]) + "\n")
        if 1 in ids and len([call for call in self.calls if 1 in call.ids]) <= self._failures:
            raise self._cause
        at = batch.position
        with self._handled.open("a") as file:
            file.write(json.dumps([ids, [at.timeline, at.commit_lsn, at.ordinal]]) + "\n")

    @property
    def calls(self) -> Sequence["HandlerCall"]:
        return [HandlerCall(*json.loads(line)) for line in complete_lines(self._calls)]

    @property
    def ids(self) -> Sequence[int]:
        return [number for line in complete_lines(self._handled) for number in json.loads(line)[0]]

    @property
    def last(self) -> Position:
        """The position of the batch that was handled last."""
        timeline, commit_lsn, ordinal = json.loads(complete_lines(self._handled)[-1])[1]
        return Position(TimelineId(timeline), Lsn(commit_lsn), ordinal)


class HandlerCall(NamedTuple):
    ids: Sequence[int]
    batch: int  # the identity of the object
    thread: str


@pytest.mark.parametrize("form", FORMS, ids=str)
class TestEngineContract:
    @pytest.mark.feature("A09")
    def test_order_retries_events_and_the_resume_behind_a_stop(
        self, cluster: Cluster, database: str, state: Path, form: EngineForm
    ) -> None:
        handler, again = RecordingHandler(state.parent / "first", failures=2), RecordingHandler(state.parent / "again")
        events: list[tuple[str, int]] = []
        dsn = cluster.dsn(database)
        with (
            leaves_nothing(cluster),
            Engine(
                dsn,
                state=state,
                handler=handler,
                on_event=lambda event: events.append((type(event).__name__, len(handler.ids))),
                workers=form.workers,
                pool=form.pool,
                order=form.order,
                commit=every(seconds=3600),
                settings=QUICK,
            ),
        ):
            cluster.sql("INSERT INTO item SELECT generate_series(1, 3)", database)
            cluster.sql("TRUNCATE item", database)
            cluster.sql("INSERT INTO item VALUES (4)", database)
            wait_until(lambda: 4 in handler.ids)
        first, *repeated = [call for call in handler.calls if 1 in call.ids]
        assert [call.ids for call in repeated] == [first.ids] * 2
        if form.pool is PoolKind.THREADS:
            assert {call.batch for call in repeated} == {first.batch}, "the same object"
        assert sorted(handler.ids) == [1, 2, 3, 4]
        assert handler.ids[-1] == 4, "an event waits for everything before it, and everything behind it waits"
        if form.order is Order.TOTAL:
            assert handler.ids == [1, 2, 3, 4]
        assert ("Truncation", 3) in events
        if form.workers == SERIAL:
            assert {call.thread for call in handler.calls} == {"application"}
        with Engine(
            dsn, state=state, handler=again, workers=form.workers, pool=form.pool, order=form.order, settings=QUICK
        ):
            cluster.sql("INSERT INTO item VALUES (5)", database)
            wait_until(lambda: 5 in again.ids)
        assert again.ids == [5], "a stop confirms what is finished"

    @pytest.mark.feature("A09")
    def test_the_error_of_the_handler_its_repetition_and_a_stop(
        self, cluster: Cluster, database: str, state: Path, form: EngineForm
    ) -> None:
        cause = ValueError("of the handler")
        failing, handler = RecordingHandler(state.parent / "first", 9, cause), RecordingHandler(state.parent / "again")
        dsn = cluster.dsn(database)
        engine = Engine(
            dsn, state=state, handler=failing, workers=form.workers, pool=form.pool, order=form.order, retries=1,
            settings=QUICK,
        )  # fmt: skip
        with leaves_nothing(cluster):
            engine.start()
            cluster.sql("INSERT INTO item VALUES (1)", database)
            with pytest.raises((ValueError, tidemark.ConsumerFailed)) as raised:
                engine.wait(DEADLINE_S)
        if form.pool is PoolKind.THREADS:
            assert raised.value is cause
        else:
            assert str(raised.value) == "ValueError raised in a worker process"
        assert ([call.ids for call in failing.calls], engine.state) == ([[1], [1]], EngineState.STOPPED)

        def stop(batch: Batch) -> None:
            handler(batch)
            if form.pool is PoolKind.THREADS:
                stopping.stop()

        stopping = Engine(
            dsn, state=state, handler=stop, workers=form.workers, pool=form.pool, order=form.order, settings=QUICK
        )
        with leaves_nothing(cluster), stopping:
            if form.pool is PoolKind.PROCESSES:  # whose handler cannot stop the engine
                wait_until(lambda: handler.ids == [1])
                stopping.stop()
            assert stopping.wait(DEADLINE_S)
        assert handler.ids == [1]
        assert stopping.confirmed is not None
        with pytest.raises(tidemark.IllegalTransition):
            stopping.start()

    @pytest.mark.feature("U04")
    @pytest.mark.feature("U16")
    def test_the_hook_of_commit_rounds_sees_what_is_stored_and_what_it_added_with_a_role_that_cannot_write(
        self, cluster: Cluster, database: str, state: Path, form: EngineForm
    ) -> None:
        role = f"reader_{database}"
        cluster.sql(f"CREATE ROLE {role} LOGIN REPLICATION")
        cluster.sql(f"ALTER ROLE {role} SET default_transaction_read_only = on")
        other = Partition(SystemIdentifier(9), Oid(5))
        added = Position(TimelineId(1), Lsn(7), 0)
        handler = RecordingHandler(state.parent / "handler")
        seen: list[Mapping[Partition, Position]] = []

        def hook(positions: Mapping[Partition, Position]) -> Mapping[Partition, Position]:
            assert threading.current_thread().name == "application"
            seen.append(positions)
            return {**positions, other: added}

        for number in (1, 2):
            engine = Engine(
                cluster.dsn(database, role),
                state=state,
                handler=handler,
                workers=form.workers,
                pool=form.pool,
                order=form.order,
                update_offsets=hook,
                settings=QUICK,
            )
            with leaves_nothing(cluster), engine:
                cluster.sql(f"INSERT INTO item VALUES ({number})", database)
                wait_until(partial(is_last, handler, number))
            (own,) = seen[-1].keys() - {other}
            assert (engine.confirmed, own.database) == (seen[-1][own], 0)
            assert handler.last <= seen[-1][own]
        assert other not in seen[0]
        assert seen[-1][other] == added
        tables = cluster.sql("SELECT relname FROM pg_class WHERE relkind = 'r' AND oid >= 16384", database)
        assert tables == [("item",)], "the hook has no table of its own"


@pytest.mark.feature("U08")
def test_an_error_of_the_hook_and_a_refused_position_end_the_engine_and_store_nothing(
    cluster: Cluster, database: str, state: Path
) -> None:
    def raising(_positions: Mapping[Partition, Position]) -> None:
        raise ValueError("of the hook")

    def too_far(positions: Mapping[Partition, Position]) -> Mapping[Partition, Position]:
        return {each: replace(at, commit_lsn=Lsn(at.commit_lsn + (1 << 30))) for each, at in positions.items()}

    dsn = cluster.dsn(database)
    with Engine(dsn, state=state, handler=Collecting(), settings=QUICK):
        pass
    before = started_at(state)
    cluster.sql("INSERT INTO item VALUES (1)", database)
    for hook, error in ((raising, tidemark.ConsumerFailed), (too_far, tidemark.OffsetsRefused)):
        again = Collecting()
        engine = Engine(dsn, state=state, handler=again, workers=POOL, update_offsets=hook, settings=QUICK)
        with leaves_nothing(cluster):
            engine.start()
            with pytest.raises(error):
                engine.wait(DEADLINE_S)
        assert started_at(state) == before


def is_last(collected: RecordingHandler, number: int) -> bool:
    return list(collected.ids[-1:]) == [number]


def started_at(state: Path) -> Position:
    with StateStore.open(StateFolder(state)) as store:
        start = store.view().start
    assert start is not None
    return start.position


@pytest.mark.feature("A15")
@pytest.mark.feature("A16")
@pytest.mark.parametrize("serializer", [None, FlatJson()])
def test_with_groups_of_one_row_each_change_is_confirmed_before_the_next_one(
    cluster: Cluster, database: str, state: Path, serializer: FlatJson | None
) -> None:
    """Also inside one transaction: the handler of the next change sees the position of the one before."""
    seen: list[tuple[int, Position]] = []

    def handle(change: Change | SerializedChange) -> None:
        row = (change.after or {}) if isinstance(change, Change) else json.loads(change.value or b"{}")
        if seen:
            wait_until(lambda: engine.confirmed == seen[-1][1])
        seen.append((int(str(row["id"])), change.position))

    engine = Engine(
        cluster.dsn(database),
        state=state,
        change_handler=handle,
        serializer=serializer,
        settings={**QUICK, "deliver": {"group_rows_max": 1}},
    )
    with engine:
        cluster.sql("INSERT INTO item SELECT generate_series(1, 4)", database)
        wait_until(lambda: len(seen) == 4 or engine.wait(0))
    assert [number for number, _ in seen] == [1, 2, 3, 4]
    assert len({position.commit_lsn for _, position in seen}) == 1, "one transaction"
