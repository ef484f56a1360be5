"""Handlers that sleep while a node is captured: the engine continues to read and to decode."""

import logging
import re
import threading
from pathlib import Path

import pytest

from tests.integration.embedding.test_engine import QUICK
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster
from tidemark import Batch, Engine, EngineSignal, Order
from tidemark.model.lsn import Lsn, parse_lsn

WORKERS = 4
DEADLINE_S = 60.0


@pytest.mark.feature("A02")
def test_the_node_is_read_and_decoded_while_all_workers_sleep(
    cluster: Cluster, database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.sql("CREATE TABLE item (id int PRIMARY KEY)", database)
    asleep, woken = threading.Semaphore(0), threading.Event()
    handled: list[object] = []
    threads: set[str] = set()

    def handle(batch: Batch) -> None:
        threads.add(threading.current_thread().name)
        asleep.release()
        assert woken.wait(DEADLINE_S)
        handled.extend((change.after or {})["id"] for change in batch)

    def decoded() -> Lsn:
        engine.signal(EngineSignal.LOG)
        return max(map(parse_lsn, re.findall(r"decoded_lsn=(\w+/\w+)", caplog.text)), default=Lsn(0))

    with (
        caplog.at_level(logging.INFO),
        Engine(
            cluster.dsn(database),
            state=tmp_path / "state",
            handler=handle,
            workers=WORKERS,
            order=Order.NONE,
            settings=QUICK,
        ) as engine,
    ):
        for number in range(WORKERS):
            cluster.sql(f"INSERT INTO item VALUES ({number})", database)
            assert asleep.acquire(timeout=DEADLINE_S)
        cluster.sql(f"INSERT INTO item VALUES ({WORKERS})", database)
        flushed = parse_lsn(cluster.flush_lsn())
        wait_until(lambda: decoded() >= flushed)
        assert handled == []
        woken.set()
        wait_until(lambda: sorted(map(str, handled)) == sorted(map(str, range(WORKERS + 1))))
    assert threads == {f"tidemark-handler-{number}" for number in range(1, WORKERS + 1)}
