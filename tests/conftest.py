"""Fixtures that several test folders use: real PostgreSQL servers."""

import gc
import os
import signal
import uuid
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import Protocol

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support.processes.forking import forked_programs
from tests.support.processes.jvm import jvm_options
from tests.support.servers.postgres import Cluster, database_in
from tests.support.servers.postgres import new_cluster as make_cluster

# No test fails by the clock: Hypothesis has a deadline for each example, but machines pause. Each run has the same
# examples, so that a failure belongs to a change; `--hypothesis-profile random` looks for new ones.
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("random"), derandomize=True)
settings.load_profile("repeatable")

# The slowest modules: workers, each of which runs whole modules, begin with these, and so end together.
LONGEST = (
    "test_chaos",
    "test_kill_spark",
    "test_spark_cluster",
    "test_paused_spark",
    "test_packages",
    "test_kills",
    "test_sidecar_kills",
    "test_served_pipeline",
    "test_bad_input_spark",
    "test_earlier_changes",
    "test_failover",
    "test_catalog_mirror",
    "test_sinks",
    "test_cdcctl_realtime",
    "test_failover_folder",
    "test_stuck_writer",
    "test_failover_timelines",
    "test_rewind",
    "test_standby_source",
    "test_history_copy",
    "test_idle_positions",
    "test_failover_lost_state",
    "test_unselected",
    "test_replay_recovery",
    "test_replay_backup",
    "test_merge_interval",
    "test_replay",
    "test_no_workers",
    "test_guide_spark",
    "test_source_to_lake",
    "test_spark_pipeline",
    "test_copy_selection",
    "test_capture",
    "test_seed",
    "test_cdcctl_decode",
    "test_cdcctl_tail",
    "test_databases",
    "test_archive_repair",
    "test_partition_copy",
    "test_archive_setup",
    "test_first_copy",
    "test_damaged_archive",
    "test_never_holds_back",
    "test_kills_behind_open",
    "test_consumer_kills",
    "test_rounds",
    "test_standby",
    "test_spark_start",
)


def pytest_configure() -> None:
    """Set what child processes inherit: the JVM's options, and that SIGINT ends them in a background shell too."""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", jvm_options())
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Search for no garbage while modules are imported, which takes a third of the time, nor in them later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the slowest modules first."""
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))


def pytest_runtest_teardown() -> None:
    """Drop the stream of the logs: it may be one that pytest created for this test, and closes."""
    structlog.reset_defaults()


class NewCluster(Protocol):
    """Creates a started cluster for the duration of the test."""

    def __call__(self, major: int = 15, /, **settings: str | int) -> Cluster:
        """Create a cluster of `major` with settings of postgresql.conf."""


@pytest.fixture(scope="module")
def forked() -> Iterator[None]:
    """Start Tidemark's programs by forks: for modules that start many, or check what a program reports."""
    with forked_programs():
        yield


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One PostgreSQL 15 for tests that leave it usable: they create their own databases."""
    with make_cluster(15) as made:
        yield made


@pytest.fixture
def database(cluster: Cluster) -> Iterator[str]:
    """Return the name of the test's new database."""
    with database_in(cluster, f"own_{uuid.uuid4().hex[:8]}") as name:
        yield name


@pytest.fixture
def new_cluster() -> Iterator[NewCluster]:
    """Create clusters for one test: of any major, with any setting, which the test may stop and kill."""
    with ExitStack() as stack:

        def make(major: int = 15, /, **settings: str | int) -> Cluster:
            return stack.enter_context(make_cluster(major, settings))

        yield make


@pytest.fixture(scope="module")
def new_module_cluster() -> Iterator[NewCluster]:
    """Make clusters for all tests of a module."""
    with ExitStack() as stack:

        def make(major: int = 15, /, **settings: str | int) -> Cluster:
            return stack.enter_context(make_cluster(major, settings))

        yield make
