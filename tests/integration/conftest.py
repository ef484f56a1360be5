"""A node that archives, with a table, and both processes over it: what failover is tried on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.archiving import Archiving
from tests.support.failover import Pair, archiving_node, paired


@pytest.fixture(scope="module")
def archive() -> Iterator[Archiving]:
    with archiving_node() as node:
        yield node


@pytest.fixture
def node(archive: Archiving) -> Iterator[Archiving]:
    """A node that archives, with a table and its own archive_command."""
    archive.node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
    ((kept,),) = archive.node.sql("SHOW archive_command")
    yield archive
    archive.node.configure(archive_command=str(kept))
    archive.node.sql("DROP TABLE account")


@pytest.fixture
def pair(node: Archiving, tmp_path: Path) -> Iterator[Pair]:
    with paired(node, tmp_path) as both:
        yield both
