"""The fixture of the tests of rewinding: a primary with small segments."""

from collections.abc import Iterator

import pytest

from tests.support.servers.postgres import Cluster, new_cluster


@pytest.fixture
def primary() -> Iterator[Cluster]:
    with new_cluster(15, initdb=["--wal-segsize=1"]) as made:
        yield made
