"""One contract for engines: the serial one, which calls the handler from the thread that delivers, and the pool."""

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import tidemark
from tests.integration.embedding.test_engine import DEADLINE_S, QUICK, Collecting, leaves_nothing
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster
from tidemark import Batch, Change, Engine, EngineState, FlatJson, Partition, Position, SerializedChange, every
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import Lsn, Oid, SystemIdentifier, TimelineId

SERIAL, POOL = 0, 4


@pytest.fixture
def state(cluster: Cluster, database: str, tmp_path: Path) -> Path:
    cluster.sql("CREATE TABLE item (id int PRIMARY KEY, note text)", database)
    return tmp_path / "state"


@pytest.mark.parametrize("workers", [SERIAL, POOL])
class TestEngineContract:
    @pytest.mark.feature("A09")
    def test_order_retries_events_and_the_resume_behind_a_stop(
        self, cluster: Cluster, database: str, state: Path, workers: int
    ) -> None:
        collected, again = Collecting(), Collecting()
        seen: list[Batch] = []
        events: list[tuple[str, int]] = []
        threads: set[str] = set()

        def handle(batch: Batch) -> None:
            seen.append(batch)
            threads.add(threading.current_thread().name)
            if len(seen) <= 2:
                raise OSError("away for a moment")
            collected(batch)

        dsn = cluster.dsn(database)
        with (
            leaves_nothing(cluster),
            Engine(
                dsn,
                state=state,
                handler=handle,
                on_event=lambda event: events.append((type(event).__name__, len(collected.ids))),
                workers=workers,
                commit=every(seconds=3600),
                settings=QUICK,
            ),
        ):
            cluster.sql("INSERT INTO item SELECT generate_series(1, 3)", database)
            cluster.sql("TRUNCATE item", database)
            cluster.sql("INSERT INTO item VALUES (4)", database)
            wait_until(lambda: 4 in collected.ids)
        assert seen[0] is seen[1] is seen[2]
        assert collected.ids == [1, 2, 3, 4]
        assert ("Truncation", 3) in events
        if workers == SERIAL:
            assert threads == {"application"}
        with Engine(dsn, state=state, handler=again, workers=workers, settings=QUICK):
            cluster.sql("INSERT INTO item VALUES (5)", database)
            wait_until(lambda: 5 in again.ids)
        assert again.ids == [5], "a stop confirms what is finished"

    @pytest.mark.feature("A09")
    def test_the_error_of_the_handler_its_repetition_and_a_stop_by_the_handler(
        self, cluster: Cluster, database: str, state: Path, workers: int
    ) -> None:
        cause = ValueError("of the handler")
        seen: list[object] = []
        dsn = cluster.dsn(database)

        def fail(batch: Batch) -> None:
            seen.extend(batch.arrow.column("_after").field("id").to_pylist())
            raise cause

        failing = Engine(dsn, state=state, handler=fail, workers=workers, retries=1, settings=QUICK)
        with leaves_nothing(cluster):
            failing.start()
            cluster.sql("INSERT INTO item VALUES (1)", database)
            with pytest.raises(ValueError, match="of the handler") as raised:
                failing.wait(DEADLINE_S)
        assert (raised.value, seen, failing.state) == (cause, [1, 1], EngineState.STOPPED)

        def stop(batch: Batch) -> None:
            seen.extend(batch.arrow.column("_after").field("id").to_pylist())
            stopping.stop()

        stopping = Engine(dsn, state=state, handler=stop, workers=workers, settings=QUICK)
        with leaves_nothing(cluster), stopping:
            assert stopping.wait(DEADLINE_S)
        assert seen == [1, 1, 1]
        assert stopping.confirmed is not None
        with pytest.raises(tidemark.IllegalTransition):
            stopping.start()

    @pytest.mark.feature("U04")
    @pytest.mark.feature("U16")
    def test_the_hook_of_commit_rounds_sees_what_is_stored_and_what_it_added_with_a_role_that_cannot_write(
        self, cluster: Cluster, database: str, state: Path, workers: int
    ) -> None:
        role = f"reader_{database}"
        cluster.sql(f"CREATE ROLE {role} LOGIN REPLICATION")
        cluster.sql(f"ALTER ROLE {role} SET default_transaction_read_only = on")
        other = Partition(SystemIdentifier(9), Oid(5))
        added = Position(TimelineId(1), Lsn(7), 0)
        collected = Collecting()
        seen: list[Mapping[Partition, Position]] = []

        def hook(positions: Mapping[Partition, Position]) -> Mapping[Partition, Position]:
            assert threading.current_thread().name == "application"
            seen.append(positions)
            return {**positions, other: added}

        for number in (1, 2):
            engine = Engine(
                cluster.dsn(database, role),
                state=state,
                handler=collected,
                workers=workers,
                update_offsets=hook,
                settings=QUICK,
            )
            with leaves_nothing(cluster), engine:
                cluster.sql(f"INSERT INTO item VALUES ({number})", database)
                wait_until(partial(is_last, collected, number))
            (own,) = seen[-1].keys() - {other}
            assert (engine.confirmed, own.database) == (seen[-1][own], 0)
            assert collected.batches[-1].position <= seen[-1][own]
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


def is_last(collected: Collecting, number: int) -> bool:
    return collected.ids[-1:] == [number]


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
