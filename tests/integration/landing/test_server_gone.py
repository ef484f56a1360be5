"""An outbox server that vanishes while a pipeline judges why its query ended is waited for."""

import threading
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceRegistration

from tests.support.processes.spark import land
from tests.support.servers.outbox_server import outbox_server, token_file
from tests.support.workloads.feeder import make_state
from tidemark.io.state.state_folder import StateFolder
from tidemark.pipeline.driver.capture_place import ServerPlace

RENUMBERED = "tidemark.pipeline.source.offsets.OutboxReplaced: the outbox was renumbered"


class RestartedServer(threading.Event):
    """The server of a state, and the pipeline's request to stop: a pipeline that waits finds the server again."""

    def __init__(self, state: Path) -> None:
        super().__init__()
        self._state, self._port, self._running = state, 0, ExitStack()
        self.is_gone = True
        self.url = self._start()

    def _start(self) -> str:
        server, url = self._running.enter_context(outbox_server(self._state, port=self._port))
        self._port, self.is_gone = server.port, False
        return url

    def end(self) -> None:
        self._running.close()
        self.is_gone = True

    def wait(self, timeout: float | None = None) -> bool:
        if self.is_gone:
            self._start()
        return super().wait(timeout)


class RenumberedSpark(SparkSession):
    """A session whose first query finds a renumbered outbox just before the server ends; the second one stops."""

    def __init__(self, server: RestartedServer) -> None:  # starts no JVM
        self._server = server
        self.queries = 0

    @property
    def sparkContext(self) -> SparkContext:  # noqa: N802 - the name in PySpark
        jvm = SimpleNamespace(isStopped=lambda: False)
        found = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: jvm), getConf=dict[str, str])
        return cast("SparkContext", found)

    @property
    def dataSource(self) -> DataSourceRegistration:  # noqa: N802
        self.queries += 1
        if self.queries > 1:
            self._server.set()
        else:
            self._server.end()
        raise Py4JNetworkError(RENUMBERED)


def test_a_server_that_vanishes_while_a_renumbered_outbox_is_checked_is_waited_for(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state")
    make_state(folder.root)
    server = RestartedServer(folder.root)
    spark = RenumberedSpark(server)
    place = ServerPlace(server.url, token_file(tmp_path), None, tmp_path / "runner", "pipeline-spark")
    try:
        land(spark, folder, tmp_path / "lake", tmp_path / "checkpoint", stop=server, place=place)
    finally:
        server.end()
    assert spark.queries == 2
