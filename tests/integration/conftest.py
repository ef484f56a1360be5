"""Fixtures of several modules: an archiving node with both processes over it, a standby, all types."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import TupleRow

from tests.support.processes.failover import Pair, archiving_node, paired
from tests.support.processes.forking import ForkServer, forked_programs
from tests.support.samples.made_samples import TYPES_DDL
from tests.support.servers.archiving import ArchivingServer
from tests.support.servers.forked_archiving import forked_archiving
from tests.support.servers.postgres import Cluster, database_in
from tests.support.servers.standby import standby_of


@pytest.fixture(scope="session", autouse=True)
def programs(fork_server: ForkServer) -> Iterator[None]:
    """Start Tidemark's programs, also the servers' archive command, by forks; `e2e` and most kills execute them."""
    with forked_programs(fork_server), forked_archiving():
        yield


@pytest.fixture(scope="module")
def archive() -> Iterator[ArchivingServer]:
    with archiving_node() as node:
        yield node


@pytest.fixture
def node(archive: ArchivingServer) -> Iterator[ArchivingServer]:
    """A node that archives, with a table; its archive_command is restored at the end."""
    archive.node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
    ((kept,),) = archive.node.sql("SHOW archive_command")
    yield archive
    archive.node.configure(archive_command=str(kept))
    archive.node.sql("DROP TABLE account")


@pytest.fixture
def pair(node: ArchivingServer, tmp_path: Path) -> Iterator[Pair]:
    with paired(node, tmp_path) as both:
        yield both


@pytest.fixture
def standby(primary: Cluster) -> Iterator[Cluster]:
    """A hot standby of the module's primary."""
    with standby_of(primary) as made:
        yield made


@pytest.fixture(scope="module")
def session(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[psycopg.Connection[TupleRow]]:
    """A session in the module's own database, with the types that the samples use."""
    with (
        database_in(cluster, request.module.__name__.rpartition(".")[2]) as database,
        cluster.connect(database) as opened,
    ):
        opened.prepare_threshold = None  # tables change their types under equal statements
        for statement in TYPES_DDL:
            opened.execute(statement)
        yield opened
