"""One object store for all tests of a worker, and a lake in it for each test."""

import itertools
from collections.abc import Iterator

import pytest

from tests.support.lakes.stored_lake import StoredLake
from tests.support.servers.object_store import FaultyStore, forwarded, object_store

NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[FaultyStore]:
    with object_store() as made:
        yield made


@pytest.fixture
def stored(server: FaultyStore) -> Iterator[StoredLake]:
    """A lake that does not exist yet."""
    server.fault, bucket = forwarded, f"bucket-{next(NUMBERS)}"  # moto lists all objects of a bucket
    server.create_bucket(bucket)
    lake = StoredLake(server, f"s3://{bucket}/lake")
    yield lake
    server.fault = forwarded
    lake.running.close()
