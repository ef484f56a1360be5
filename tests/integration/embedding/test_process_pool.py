"""An engine with a pool of processes over a real server: a killed worker, a stop, a mask, and the resume."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.integration.embedding.test_engine import DEADLINE_S, QUICK, leaves_nothing
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster
from tidemark import Batch, ConfigError, Engine, Mask, Order, PoolKind, every

WORKERS = 2


def test_a_killed_worker_loses_nothing_and_a_stop_confirms_what_the_workers_finished(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    cluster.sql("CREATE TABLE item (id int PRIMARY KEY, note text)", database)
    seen, entered, leave = tmp_path / "seen", tmp_path / "entered", tmp_path / "leave"
    dsn = cluster.dsn(database)

    def handle(batch: Batch) -> None:
        with entered.open("a") as file:
            file.write(f"{os.getpid()}\n")
        wait_until(leave.exists)
        for change in batch:
            assert change.after is not None
            with seen.open("a") as file:
                file.write(f"{change.after['id']} {change.after['note']} {os.getpid()}\n")

    def engine() -> Engine:
        return Engine(
            dsn,
            state=tmp_path / "state",
            handler=handle,
            transforms=[Mask("public.item.note", constant="hidden")],
            workers=WORKERS,
            pool=PoolKind.PROCESSES,
            order=Order.BY_KEY,
            commit=every(seconds=3600),
            settings=QUICK,
        )

    def rows() -> list[list[str]]:
        return [line.split() for line in seen.read_text().splitlines()] if seen.exists() else []

    with leaves_nothing(cluster), engine() as first:
        assert len(set(first.worker_pids)) == WORKERS
        cluster.sql("INSERT INTO item SELECT n, 'canary' FROM generate_series(1, 40) n", database)
        wait_until(lambda: entered.exists() and len(set(entered.read_text().split())) == WORKERS)
        killed = first.worker_pids[0]
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: killed not in first.worker_pids and len(first.worker_pids) == WORKERS)
        leave.touch()
        wait_until(lambda: len(rows()) >= 40)
        assert len(first.worker_cpu_s) == WORKERS
        wait_until(lambda: min(first.worker_cpu_s) > 0)  # it comes with the answer of the worker, after the rows
    assert sorted(int(row[0]) for row in rows()) == list(range(1, 41))
    assert {row[1] for row in rows()} == {"hidden"}
    assert os.getpid() not in {int(row[2]) for row in rows()}
    with leaves_nothing(cluster), engine():
        cluster.sql("INSERT INTO item VALUES (41, 'canary')", database)
        wait_until(lambda: len(rows()) > 40)
    assert [row[0] for row in rows()[40:]] == ["41"]


def test_a_handler_that_stops_the_engine_from_a_worker_is_refused(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    cluster.sql("CREATE TABLE item (id int PRIMARY KEY, note text)", database)

    def handle(_batch: Batch) -> None:
        engine.stop()

    engine = Engine(
        cluster.dsn(database),
        state=tmp_path / "state",
        handler=handle,
        pool=PoolKind.PROCESSES,
        settings=QUICK,
    )
    with leaves_nothing(cluster):
        engine.start()
        cluster.sql("INSERT INTO item VALUES (1)", database)
        with pytest.raises(ConfigError, match=r"the engine runs in process \d+, of which this one is a fork"):
            engine.wait(DEADLINE_S)


def test_a_fork_of_the_application_is_refused_what_it_has_no_threads_for(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    engine = Engine(cluster.dsn(database), state=tmp_path / "state", handler=lambda _batch: None, settings=QUICK)
    refused = tmp_path / "refused"
    with leaves_nothing(cluster), engine:
        child = os.fork()
        if not child:
            for use in (engine.stop, partial(engine.wait, DEADLINE_S)):
                try:
                    use()
                except ConfigError as error:
                    with refused.open("a") as file:
                        file.write(f"{error}\n")
            os._exit(0)
        os.waitpid(child, 0)
    expected = f"the engine runs in process {os.getpid()}, of which this one is a fork"
    assert refused.read_text().splitlines() == [expected] * 2
