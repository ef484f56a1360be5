"""A dead JVM is the reason for a query's end, whatever the query's error looks like."""

import threading
from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceRegistration

from tests.support.processes.spark import land
from tests.support.workloads.feeder import make_state
from tidemark.io.state.state_folder import StateFolder
from tidemark.pipeline.driver.session import SparkGone


class DeadSpark(SparkSession):
    """A session whose JVM died while it passed on a permanent error of ours."""

    def __init__(self) -> None:  # starts no JVM
        pass

    @property
    def sparkContext(self) -> SparkContext:  # noqa: N802 - the name in PySpark
        raise ConnectionRefusedError

    @property
    def dataSource(self) -> DataSourceRegistration:  # noqa: N802
        raise Py4JNetworkError(
            "java.io.EOFException\ntidemark.io.readers.outbox.OutboxTrimmed: outbox 0a0b contains 5 to 9"
        )


def test_a_dead_jvm_is_reported_instead_of_the_failure_that_it_caused(tmp_path: Path) -> None:
    make_state(tmp_path / "state")
    with pytest.raises(SparkGone):
        land(
            DeadSpark(), StateFolder(tmp_path / "state"), tmp_path / "lake", tmp_path / "spark", stop=threading.Event()
        )
