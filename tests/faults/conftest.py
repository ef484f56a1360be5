"""A node with a table, and a sidecar that has delivered one row of it, which the tests then damage, fill or remove."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.captures import Sidecar
from tests.support.servers.postgres import Cluster, new_cluster
from tidemark.model.errors import ExitCode


@pytest.fixture(scope="module")
def node() -> Iterator[Cluster]:
    """A node with a table, for a module whose tests leave it usable."""
    with new_cluster() as made:
        made.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        yield made


@pytest.fixture
def sidecar(node: Cluster, tmp_path: Path) -> Iterator[Sidecar]:
    """A state with one delivered row, its sidecar stopped."""
    node.sql("TRUNCATE account")
    made = Sidecar(node, "postgres", tmp_path)
    made.init()
    try:
        made.start()
        node.sql("INSERT INTO account VALUES (1, 'delivered')")
        made.catch_up()
        assert made.stop() == ExitCode.SUCCESS
        yield made
    finally:
        made.close()
