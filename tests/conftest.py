"""Fixtures that several test folders use: real PostgreSQL servers."""

import gc
import os
import signal
import uuid
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from typing import Protocol

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support.processes.forking import ForkServer, forked_programs
from tests.support.processes.hang_limit import HangLimit
from tests.support.processes.jvm import jvm_options
from tests.support.servers.postgres import Cluster, database_in
from tests.support.servers.postgres import new_cluster as make_cluster

# No test fails by the clock: Hypothesis has a deadline for each example, but machines pause. Each run has the same
# examples, so that a failure belongs to a change; `--hypothesis-profile random` looks for new ones.
# `fewer` is the profile of the interpreted run: the suites have run all examples, with the kernels compiled.
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("random"), derandomize=True)
settings.register_profile("fewer", settings.get_profile("repeatable"), max_examples=30)
settings.load_profile("repeatable")

# The slowest modules: workers, each of which runs whole modules, begin with these, and so end together.
LONGEST = (
    "test_chaos",
    "test_kill_spark",
    "test_spark_cluster",
    "test_packages",
    "test_kills",
    "test_sidecar_kills",
    "test_served_pipeline",
    "test_bad_input_spark",
    "test_spark_pipeline",
    "test_source_to_lake",
    "test_guide_spark",
    "test_switchover",
    "test_executor_merges",
    "test_recipes",
    "test_changed_iceberg_log",
    "test_paused_spark",
    "test_damaged_archive",
    "test_never_holds_back",
    "test_kills_behind_open",
    "test_consumer_kills",
    "test_rounds",
    "test_standby",
    "test_spark_start",
    "test_resumed_from_archive",
    "test_archive_into_store",
    "test_lake_durability",
    "test_catalog_mirror",
    "test_lake_changes",
    "test_failover",
    "test_copied_again",
    "test_recopy",
    "test_paused_tables",
    "test_rewind",
    "test_changes_before_a_copy",
    "test_follower_moves",
    "test_backup_copy",
    "test_catalog_history",
    "test_left_tables",
    "test_iceberg_commands",
    "test_log_cleanup",
    "test_cdcctl_realtime",
    "test_decode_ranges",
    "test_failover_folder",
    "test_lake_in_store",
    "test_rewind_copies",
    "test_follower",
    "test_earlier_changes",
    "test_stuck_writer",
    "test_replay_refusals",
    "test_merge_interval",
    "test_contract",
    "test_alerts",
    "test_iceberg_lake",
    "test_idle_positions",
    "test_log_breaks",
    "test_copy_cut_off",
    "test_cdcctl_check",
    "test_wal_records",
)


def pytest_configure(config: pytest.Config) -> None:
    """Limit hanging tests, and set what child processes inherit.

    These are the JVM's options, and that SIGINT ends them in a background shell too.
    """
    config.pluginmanager.register(HangLimit())
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


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """One process that has imported Tidemark's programs, for all modules of a worker that fork them."""
    with closing(ForkServer()) as made:
        yield made


@pytest.fixture(scope="module")
def forked(fork_server: ForkServer) -> Iterator[None]:
    """Start Tidemark's programs by forks: for modules that start many, or check what a program reports."""
    with forked_programs(fork_server):
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
