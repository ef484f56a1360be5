"""A switchover and back, with a pipeline at each host: the lake's content alone determines where it continues."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conftest import NewCluster
from tests.support.lakes.lakes import rows_by_key, rows_by_key_so_far
from tests.support.processes.captures import Sidecar
from tests.support.processes.following import FollowingSidecar, Hosts, two_hosts
from tests.support.processes.spark import land
from tests.support.servers.standby import promote, standby_of, wait_until_replayed
from tidemark.model.mode import Stage

JOIN_S = 120
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("forked")]


@pytest.fixture
def hosts(new_cluster: NewCluster, tmp_path: Path) -> Iterator[Hosts]:
    primary = new_cluster(15, autovacuum="off")
    primary.sql("CREATE TABLE account (id int PRIMARY KEY)")
    with standby_of(primary) as standby, two_hosts(primary, standby, tmp_path, lake=tmp_path / "lake") as both:
        yield both


def insert(sidecar: FollowingSidecar, number: int) -> None:
    sidecar.cluster.sql(f"INSERT INTO account VALUES ({number})")


def delivers(sidecar: FollowingSidecar, number: int) -> None:
    insert(sidecar, number)
    sidecar.catch_up()


def switch_over(old: FollowingSidecar, new: FollowingSidecar) -> None:
    """Make the other host's node the primary and this one its standby, as a switchover does: nothing is lost."""
    new.wait_for_start()
    wait_until_replayed(new.cluster, old.cluster)
    old.cluster.stop()
    promote(new.cluster)
    new.wait_for_stage(Stage.REALTIME)
    new.written_to = old.written_to = new.cluster
    (old.cluster.data / "standby.signal").touch()
    old.cluster.configure(reload=False, primary_conninfo=new.cluster.dsn())
    old.cluster.start()
    old.wait_for_stage(Stage.FOLLOWER)


def test_a_pipeline_continues_after_a_switchover_and_back_with_the_checkpoint_that_it_has(
    hosts: Hosts, spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    one, two = hosts.deliverer, hosts.follower

    def bring(sidecar: Sidecar) -> None:
        land(spark, sidecar.folder, lake, sidecar.folder.root / "spark")

    delivers(one, 1)
    bring(one)
    switch_over(one, two)
    delivers(two, 2)
    bring(two)
    switch_over(two, one)
    delivers(one, 3)
    bring(one)
    assert set(rows_by_key(lake, "account")) == {1, 2, 3}


def test_a_pipeline_that_runs_through_a_switchover_and_back_needs_no_operator(
    hosts: Hosts, spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    one, two = hosts.deliverer, hosts.follower
    stop, failures = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            land(spark, one.folder, lake, one.folder.root / "spark", stop=stop)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    pipeline = threading.Thread(target=run)
    pipeline.start()
    try:
        insert(one, 1)
        one.wait_until(lambda: has(lake, {1}), "the first row in the lake")
        switch_over(one, two)
        two.catch_up()  # no pipeline writes it into the lake
        switch_over(two, one)
        insert(one, 2)
        one.wait_until(lambda: bool(failures) or has(lake, {1, 2}), "the second row in the lake")
    finally:
        stop.set()
        pipeline.join(JOIN_S)
    assert not failures, failures


def has(lake: Path, numbers: set[int]) -> bool:
    """Return whether the lake's table has exactly these rows."""
    return set(rows_by_key_so_far(lake, "account")) == numbers
