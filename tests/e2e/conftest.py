"""The Spark session of the whole run."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.support.processes.spark import running_spark


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark for the whole run; started by the first test that uses it."""
    with running_spark(tmp_path_factory.mktemp("spark")) as session:
        yield session
