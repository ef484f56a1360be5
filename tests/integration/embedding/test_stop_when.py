"""An engine that stops itself: exactly what is before the cut is delivered and confirmed, the rest comes afterwards."""

from pathlib import Path

import pytest

from tests.integration.embedding.test_engine import DEADLINE_S, NO_COPY, QUICK, Collecting, leaves_nothing
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster
from tidemark import Change, Engine, Order, StopWhen, every

SERIAL, POOL = 0, 4
ROWS = 250


def is_120(table: str, change: Change) -> bool:
    return table == "public.item" and change.after is not None and change.after["id"] == 120


@pytest.fixture
def state(cluster: Cluster, database: str, tmp_path: Path) -> Path:
    cluster.sql("CREATE TABLE item (id int PRIMARY KEY, note text)", database)
    return tmp_path / "state"


@pytest.mark.feature("A37")
@pytest.mark.parametrize(
    ("threads", "condition", "count"),
    [
        ((SERIAL, Order.TOTAL), StopWhen.after_changes(100), 100),
        ((POOL, Order.NONE), StopWhen.after_changes(100), 100),
        ((POOL, Order.BY_KEY), StopWhen.before(is_120), 119),
        ((SERIAL, Order.TOTAL), StopWhen.after(is_120), 120),
    ],
)
def test_an_engine_stops_inside_a_transaction_and_continues_with_the_next_change(
    cluster: Cluster, database: str, state: Path, *, threads: tuple[int, Order], condition: StopWhen, count: int
) -> None:
    workers, order = threads
    first, rest = Collecting(), Collecting()
    dsn = cluster.dsn(database)
    with Engine(dsn, state=state, handler=first, settings=QUICK):
        pass
    cluster.sql(f"INSERT INTO item SELECT generate_series(1, {ROWS})", database)  # one transaction, one group
    stopping = Engine(
        dsn,
        state=state,
        handler=first,
        workers=workers,
        order=order,
        stop_when=condition,
        commit=every(seconds=3600),
        settings=NO_COPY,
    )
    with leaves_nothing(cluster), stopping:
        assert stopping.wait(DEADLINE_S)
    assert sorted(map(int, map(str, first.ids))) == [*range(1, count + 1)]
    assert stopping.confirmed == max(batch.position for batch in first.batches)
    until_all = StopWhen.after_changes(ROWS - count)
    with Engine(dsn, state=state, handler=rest, stop_when=until_all, settings=NO_COPY) as continued:
        assert continued.wait(DEADLINE_S)
    assert rest.ids == [*range(count + 1, ROWS + 1)]


def test_rows_of_a_first_copy_do_not_count(cluster: Cluster, database: str, state: Path) -> None:
    cluster.sql("INSERT INTO item VALUES (1), (2)", database)
    collected = Collecting()
    with Engine(cluster.dsn(database), state=state, handler=collected, stop_when=StopWhen.after_changes(1)) as engine:
        wait_until(lambda: len(collected.ids) == 2)
        cluster.sql("INSERT INTO item VALUES (3), (4)", database)
        assert engine.wait(DEADLINE_S)
    assert collected.ids == [1, 2, 3]
