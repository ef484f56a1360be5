"""Fixtures that several test folders use: real PostgreSQL servers."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Protocol

import pytest

from tests.support.postgres import Cluster
from tests.support.postgres import new_cluster as make_cluster


class NewCluster(Protocol):
    """Makes a started cluster that lives as long as the test."""

    def __call__(self, major: int = 15, /, **settings: str | int) -> Cluster:
        """Make a cluster of `major` with settings of postgresql.conf."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One PostgreSQL 15 for tests that leave it usable: they make databases of their own."""
    with make_cluster(15) as made:
        yield made


@pytest.fixture
def database(cluster: Cluster) -> Iterator[str]:
    """Name a new database of the test's own."""
    name = f"own_{uuid.uuid4().hex[:8]}"
    cluster.sql(f"CREATE DATABASE {name}")
    yield name
    cluster.sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def new_cluster() -> Iterator[NewCluster]:
    """Make clusters for one test: of any major, with any setting, to be stopped and killed at will."""
    with ExitStack() as stack:

        def make(major: int = 15, /, **settings: str | int) -> Cluster:
            return stack.enter_context(make_cluster(major, settings))

        yield make
