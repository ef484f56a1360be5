"""The JVM of the whole run's Spark."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.support.processes.spark import SparkJvm, spark_jvm


@pytest.fixture(scope="session")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkJvm]:
    """One JVM for all tests of a worker; started by the first test that uses it."""
    with spark_jvm(tmp_path_factory.mktemp("spark")) as made:
        yield made


@pytest.fixture(scope="module")
def spark(jvm: SparkJvm) -> SparkSession:
    """One Spark for the tests of a module, and of the next one, unless the JVM was lent between them."""
    return jvm.session()
