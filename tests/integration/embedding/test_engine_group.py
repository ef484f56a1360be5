"""Several sources in one program: each has its own position and threads, and they end together."""

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.integration.embedding.test_engine import DEADLINE_S, QUICK, Collecting, leaves_nothing, tidemark_threads
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster, StopMode, new_cluster
from tidemark import ConfigError, Engine, EngineGroup, EngineState, NodeUnreachable

ATTEMPTS = 3
FEW_ATTEMPTS = {**QUICK, "retry": {**QUICK["retry"], "attempts_max": ATTEMPTS}}
STREAMS = "SELECT pid FROM pg_stat_replication WHERE application_name = 'tidemark'"
DATABASE = "postgres"
DROPS = 5


@pytest.fixture
def node() -> Iterator[Cluster]:
    """Another node than that of the fixture `cluster`."""
    with new_cluster(15) as cluster:
        cluster.sql("CREATE TABLE item (id int PRIMARY KEY, note text)")
        yield cluster


@pytest.fixture
def table(cluster: Cluster, database: str) -> str:
    cluster.sql("CREATE TABLE item (id int PRIMARY KEY, note text)", database)
    return "public.item"


@pytest.mark.feature("A01")
def test_an_engine_whose_source_stays_away_ends_the_group_and_the_others_stop_in_order(
    cluster: Cluster, database: str, node: Cluster, table: str, tmp_path: Path
) -> None:
    del table
    one, two, again = Collecting(), Collecting(), Collecting()
    ends: list[tuple[str, BaseException | None]] = []

    def record_end(name: str, error: BaseException | None) -> None:
        ends.append((name, error))

    threads = tidemark_threads()
    first, second = (
        Engine(
            dsn,
            state=tmp_path / name,
            handler=collected,
            settings=FEW_ATTEMPTS,
            on_end=partial(record_end, name),
        )
        for name, dsn, collected in (("one", cluster.dsn(database), one), ("two", node.dsn(DATABASE), two))
    )
    group = EngineGroup(first, second)
    group.start()
    cluster.sql("INSERT INTO item VALUES (1)", database)
    node.sql("INSERT INTO item VALUES (2)")
    wait_until(lambda: (one.ids, two.ids) == ([1], [2]))
    names = [thread.name for thread in threading.enumerate()]
    assert [names.count(name) for name in ("network", "application", "tidemark-group")] == [2, 2, 1]
    node.stop(StopMode.IMMEDIATE)
    with pytest.raises(NodeUnreachable) as raised:
        group.wait(DEADLINE_S)
    assert f"after {ATTEMPTS} attempts in a row" in raised.value.__notes__[0]
    assert ends == [("two", raised.value), ("one", None)]
    assert (first.state, second.state) == (EngineState.STOPPED, EngineState.STOPPED)
    wait_until(lambda: tidemark_threads() == threads, "the end of all threads")
    assert first.confirmed is not None
    with Engine(cluster.dsn(database), state=tmp_path / "one", handler=again, settings=QUICK):
        cluster.sql("INSERT INTO item VALUES (3)", database)
        wait_until(lambda: bool(again.ids))
    assert again.ids == [3], "the stop confirmed what was finished"


@pytest.mark.feature("A11")
def test_connections_that_are_dropped_lose_and_repeat_nothing_and_do_not_reach_the_other_engine(
    cluster: Cluster, database: str, node: Cluster, table: str, tmp_path: Path
) -> None:
    del table
    dropped, other = Collecting(), Collecting()
    with (
        leaves_nothing(cluster),
        EngineGroup(
            Engine(cluster.dsn(database), state=tmp_path / "one", handler=other, settings=QUICK),
            Engine(node.dsn(DATABASE), state=tmp_path / "two", handler=dropped, settings=FEW_ATTEMPTS),
        ),
    ):
        streams = cluster.sql(STREAMS)
        for number in range(1, DROPS + 1):
            node.sql(f"INSERT INTO item VALUES ({number})")
            cluster.sql(f"INSERT INTO item VALUES ({number})", database)
            ((before,),) = node.sql(STREAMS)
            node.sql(f"SELECT pg_terminate_backend({before})")
            wait_until(lambda before=before: node.sql(STREAMS) not in ([], [(before,)]))  # type: ignore[misc]
        node.sql("INSERT INTO item VALUES (100)")
        wait_until(lambda: 100 in dropped.ids and DROPS in other.ids)
        assert cluster.sql(STREAMS) == streams
    assert dropped.ids == [*range(1, DROPS + 1), 100]
    assert other.ids == [*range(1, DROPS + 1)]


def test_a_start_that_fails_stops_the_engines_before_it(
    cluster: Cluster, database: str, table: str, tmp_path: Path
) -> None:
    del table
    collected = Collecting()
    first = Engine(cluster.dsn(database), state=tmp_path / "one", handler=collected, settings=QUICK)
    second = Engine(cluster.dsn("missing"), state=tmp_path / "two", handler=collected, settings=QUICK)
    with leaves_nothing(cluster):
        with pytest.raises(Exception, match="missing"):
            EngineGroup(first, second).start()
        assert (first.state, second.state) == (EngineState.STOPPED, EngineState.STOPPED)


def test_the_stop_of_one_engine_by_its_handler_stops_all(
    cluster: Cluster, database: str, table: str, tmp_path: Path
) -> None:
    del table
    collected = Collecting()

    def stop(_batch: object) -> None:
        stopping.stop()

    stopping = Engine(cluster.dsn(database), state=tmp_path / "one", handler=stop, settings=QUICK)
    other = Engine(cluster.dsn(database), state=tmp_path / "two", handler=collected, settings=QUICK)
    with leaves_nothing(cluster), EngineGroup(stopping, other) as group:
        cluster.sql("INSERT INTO item VALUES (1)", database)
        assert group.wait(DEADLINE_S)
        assert (stopping.state, other.state) == (EngineState.STOPPED, EngineState.STOPPED)


def test_a_group_of_no_engine_or_of_one_twice_is_refused(tmp_path: Path) -> None:
    engine = Engine("postgresql://cdc@db/shop", state=tmp_path, handler=print)
    for engines in ((), (engine, engine)):
        with pytest.raises(ConfigError, match="each of them once"):
            EngineGroup(*engines)
