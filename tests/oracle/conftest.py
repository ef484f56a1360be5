"""The oracle's server: PostgreSQL 15, or the major in TIDEMARK_ORACLE_MAJOR."""

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.conftest import NewCluster
from tests.support.servers.postgres import Cluster, new_cluster


@pytest.fixture(scope="session")
def major() -> int:
    return int(os.environ.get("TIDEMARK_ORACLE_MAJOR", "15"))


@pytest.fixture(scope="session")
def oracle_cluster(major: int) -> Iterator[Cluster]:
    """One cluster for all scripts; autovacuum is left on."""
    with new_cluster(major, {"max_connections": "40", "autovacuum_naptime": "5s"}) as made:
        yield made


@pytest.fixture(scope="module")
def new_module_cluster() -> Iterator[NewCluster]:
    """Make clusters for all tests of a module."""
    with ExitStack() as stack:

        def make(major: int = 15, /, **settings: str | int) -> Cluster:
            return stack.enter_context(new_cluster(major, settings))

        yield make
