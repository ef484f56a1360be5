"""The oracle's server: PostgreSQL 15, or the major in TIDEMARK_ORACLE_MAJOR."""

import os
from collections.abc import Iterator

import pytest

from tests.support.servers.postgres import Cluster, new_cluster


@pytest.fixture(scope="session")
def major() -> int:
    return int(os.environ.get("TIDEMARK_ORACLE_MAJOR", "15"))


@pytest.fixture(scope="session")
def oracle_cluster(major: int) -> Iterator[Cluster]:
    """One cluster for all scripts; autovacuum is left on."""
    with new_cluster(major, {"max_connections": "40", "autovacuum_naptime": "5s"}) as made:
        yield made
