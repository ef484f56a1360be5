"""A second sidecar that follows on a standby, and takes over when the primary's host is lost."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.conftest import NewCluster
from tests.support.faults.chaos.outbox_consumer import OutboxConsumer
from tests.support.lakes.lakes import feed_by_hand, log_rows, rows_by_key
from tests.support.plugins.daemons import use_config
from tests.support.processes.captures import Sidecar, change_log, replayed
from tests.support.processes.following import FollowingSidecar, two_hosts
from tests.support.servers.postgres import Cluster, sql
from tests.support.servers.standby import wait_until_replayed
from tidemark.io.host.failpoints import VARIABLE
from tidemark.io.readers.outbox import OutboxReader
from tidemark.model.change import ChangeBatch, GroupItem, SchemaEffect, SchemaEvent
from tidemark.model.lsn import INVALID_LSN, Lsn, parse_lsn
from tidemark.model.mode import Stage
from tidemark.model.position import Sequence
from tidemark.runtime.daemon.stage_transition import HandoverPoint

JOIN_S = 60
READER = "lake"
MASK = "[[transforms]]\nuse = 'tidemark:Mask'\ncolumns = ['public.account.note']\nconstant = '{}'\n"


@pytest.fixture
def primary(new_cluster: NewCluster) -> Cluster:
    made = new_cluster(15, autovacuum="off", max_prepared_transactions=5)
    made.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
    return made


@contextmanager
def load(cluster: Cluster, first: int) -> Iterator[list[int]]:
    """Insert rows, one transaction each, until stopped or until the server is gone; yield the committed rows."""
    stop, committed = threading.Event(), [first]

    def run() -> None:
        with ExitStack() as stack, cluster.connect() as session:
            stack.callback(stop.set)
            number = first
            while not stop.is_set():
                number += 1
                try:
                    sql(session, f"INSERT INTO account VALUES ({number}, 'n{number}')")
                except Exception:  # noqa: BLE001 - the server is gone, which is what is waited for
                    return
                committed.append(number)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield committed
    finally:
        stop.set()
        thread.join(JOIN_S)


def ids(items: list[GroupItem]) -> list[object]:
    return [row["_after"]["id"] for row in change_log(items, "account")]  # type: ignore[index]


def survived(cluster: Cluster) -> set[object]:
    return {number for (number,) in cluster.sql("SELECT id FROM account")}


@pytest.mark.feature("I12")
def test_nothing_is_lost_with_the_primarys_host_and_only_changes_after_the_last_marker_are_repeated(
    primary: Cluster, standby: Cluster, tmp_path: Path
) -> None:
    with two_hosts(primary, standby, tmp_path) as hosts:
        consumer = OutboxConsumer(hosts.deliverer.folder, seed=1)
        consumer.start()
        with load(primary, 0) as committed:
            hosts.follower.wait_for_start()
            so_far = len(committed)
            hosts.follower.wait_until(lambda: len(committed) > so_far + 200, "more rows")
            ((text,),) = primary.sql("SELECT pg_current_wal_insert_lsn()::text")
            hosts.follower.wait_until(
                lambda: _start_of(hosts.follower) > parse_lsn(text), "a marker that confirms rows"
            )
            hosts.primary_dies()
            consumer.close()
            hosts.first_state_is_lost()
        consumer.check()
        assert hosts.follower.view.ledger.head == 0
        hosts.promote()
        hosts.follower.wait_for_stage(Stage.REALTIME)
        with load(standby, 1_000_000) as later:
            hosts.follower.wait_until(lambda: len(later) > 50, "rows on the new timeline")
        items = hosts.follower.catch_up()
        view = hosts.follower.view
    confirmed = {
        row["id"] for one in consumer.accepted if isinstance(one.item, ChangeBatch) for row in _after(one.item)
    }
    again = ids(items)
    assert len(again) == len(set(again))
    assert confirmed | set(again) == survived(standby) | confirmed
    assert confirmed <= survived(standby)
    assert confirmed & set(again) < confirmed, "a follower that begins at the beginning has found no start"
    assert view.term is not None
    assert view.term.epoch.timeline == 2
    assert view.switches.kept[-1].after is Stage.REALTIME


def _start_of(follower: FollowingSidecar) -> Lsn:
    """Return the commit LSN after which the follower would begin to deliver."""
    delivered = follower.view.delivered
    return delivered.pointer.position.commit_lsn if delivered is not None else INVALID_LSN


def _after(batch: ChangeBatch) -> list[dict[str, object]]:
    return [row["_after"] for row in batch.rows.to_pylist()]


@pytest.mark.feature("I12")
def test_with_the_lake_each_change_is_there_once_and_incomplete_tables_are_copied(
    primary: Cluster, standby: Cluster, tmp_path: Path
) -> None:
    primary.sql("INSERT INTO account SELECT n, 'old' FROM generate_series(-100, -1) n")
    primary.sql("CREATE TABLE left_out (id int PRIMARY KEY)")
    primary.sql("INSERT INTO left_out VALUES (1)")
    lake = tmp_path / "lake"
    with two_hosts(primary, standby, tmp_path, lake=lake, copy=True, start=False) as hosts:
        hosts.deliverer.options["TIDEMARK_SELECT__EXCLUDE_TABLES"] = "public.left_out"
        hosts.start()
        hosts.deliverer.wait_for_event("first copy done")
        copied = head_of(hosts.deliverer)
        with load(primary, 0) as committed:
            # NB: its stream may begin after thousands of commits; a marker confirms only what was delivered.
            hosts.deliverer.wait_until(lambda: head_of(hosts.deliverer) > copied, "the stream")
            for _ in range(5):
                so_far = len(committed)
                feed_by_hand(hosts.deliverer.folder, lake, READER)
                hosts.follower.wait_until(lambda: len(committed) > so_far + 50, "more rows")  # noqa: B023 - at once
            hosts.follower.wait_for_start()
            feed_by_hand(hosts.deliverer.folder, lake, READER)  # no marker confirms it
            hosts.primary_dies()
            hosts.first_state_is_lost()
        hosts.promote()
        standby.sql("CREATE TABLE later (id int PRIMARY KEY)")
        standby.sql("INSERT INTO later VALUES (1)")
        hosts.follower.wait_for_stage(Stage.REALTIME)
        standby.sql("UPDATE account SET note = 'new' WHERE id < 0")
        hosts.follower.catch_up()
        feed_by_hand(hosts.follower.folder, lake, READER)
        hosts.follower.stop()
        hosts.follower.start()
        standby.sql("INSERT INTO account VALUES (-1000, 'behind the restart')")
        hosts.follower.catch_up()
        feed_by_hand(hosts.follower.folder, lake, READER)
        (folder,) = lake.glob("*/public/account")
        places = [
            (row["_tli"], row["_commit_lsn"], row["_ordinal"]) for row in log_rows(lake, str(folder.relative_to(lake)))
        ]
        assert len(places) == len(set(places))
        assert {key: row[0] for key, row in rows_by_key(lake, "account").items()} == dict(
            standby.sql("SELECT id, note FROM account")
        )
        assert set(rows_by_key(lake, "later")) == {1}
        assert set(rows_by_key(lake, "left_out")) == {1}


def test_transactions_open_across_the_promotion_are_emitted_complete(
    primary: Cluster, standby: Cluster, tmp_path: Path
) -> None:
    with two_hosts(primary, standby, tmp_path) as hosts, ExitStack() as stack:
        with primary.connect(autocommit=False) as preparing:
            sql(preparing, "INSERT INTO account VALUES (1, 'prepared before the marker')")
            sql(preparing, "PREPARE TRANSACTION 'across'")
        lost = primary.connect(autocommit=False)
        stack.callback(lost.close)
        sql(lost, "INSERT INTO account VALUES (2, 'never committed')")
        primary.sql("INSERT INTO account VALUES (3, 'confirmed')")
        hosts.deliverer.catch_up()
        hosts.follower.wait_for_start()
        hosts.deliverer.kill()  # it does not deliver later changes
        primary.sql("CREATE TABLE other (id int PRIMARY KEY, note text)")
        with primary.connect(autocommit=False) as altering:
            sql(altering, "INSERT INTO other VALUES (1, 'before')")
            sql(altering, "ALTER TABLE other ADD COLUMN size int DEFAULT 7")
            sql(altering, "INSERT INTO other VALUES (2, 'behind', 8)")
            altering.commit()
        with primary.connect(autocommit=False) as preparing:
            sql(preparing, "ALTER TABLE other RENAME COLUMN note TO told")
            sql(preparing, "INSERT INTO other VALUES (3, 'renamed', 9)")
            sql(preparing, "SAVEPOINT inside")
            sql(preparing, "INSERT INTO other VALUES (4, 'rolled back', 9)")
            sql(preparing, "ROLLBACK TO inside")
            sql(preparing, "PREPARE TRANSACTION 'schema'")
        wait_until_replayed(standby, primary)
        hosts.lose_primary()
        hosts.promote()
        standby.sql("COMMIT PREPARED 'across'")
        standby.sql("COMMIT PREPARED 'schema'")
        standby.sql("UPDATE other SET told = 'changed' WHERE id = 1")
        hosts.follower.wait_for_stage(Stage.REALTIME)
        items = hosts.follower.catch_up()
        assert [number for number in ids(items) if number != 3] == [1]
        assert list(replayed(change_log(items, "other")).values()) == [
            {"id": 2, "note": "behind", "size": 8},
            {"id": 3, "told": "renamed", "size": 9},
            {"id": 1, "told": "changed", "size": 7},
        ]


def test_a_follower_that_is_killed_continues_before_and_behind_the_promotion(
    primary: Cluster, standby: Cluster, tmp_path: Path
) -> None:
    with two_hosts(primary, standby, tmp_path) as hosts:
        follower = hosts.follower
        with load(primary, 0) as committed:
            for _ in range(3):
                so_far = len(committed)
                follower.wait_until(lambda: len(committed) > so_far + 50, "more rows")  # noqa: B023 - at once
                follower.kill()
                follower.start()
            follower.wait_for_start()
            hosts.deliverer.kill()
            before = hosts.delivered()
            so_far = len(committed)
            follower.wait_until(lambda: len(committed) > so_far + 50, "rows that nobody delivers")
            wait_until_replayed(standby, primary)
            follower.kill()
            hosts.lose_primary()
        hosts.promote()
        standby.sql("INSERT INTO account VALUES (-1, 'nobody is there')")
        follower.start()
        follower.wait_for_stage(Stage.REALTIME)
        standby.sql("INSERT INTO account VALUES (-2, 'somebody is')")
        again = ids(follower.catch_up())
        assert len(again) == len(set(again))
        assert set(ids(before)) | set(again) == survived(standby)
        assert {-1, -2} <= set(again)


def test_after_a_promotion_only_a_changed_list_of_transforms_is_announced(
    primary: Cluster, standby: Cluster, tmp_path: Path
) -> None:
    def announced(items: list[GroupItem]) -> list[str]:
        events = [item for item in items if isinstance(item, SchemaEvent) and item.effect is SchemaEffect.TRANSFORMS]
        return [event.after.name for event in events if event.after is not None]

    with two_hosts(primary, standby, tmp_path, start=False) as hosts:
        follower = hosts.follower
        use_config(MASK.format("first"), hosts.deliverer, follower)
        hosts.start()
        with load(primary, 0):
            follower.wait_for_start()
        hosts.deliverer.catch_up()
        wait_until_replayed(standby, primary)
        hosts.lose_primary()
        hosts.promote()
        follower.wait_for_stage(Stage.REALTIME)
        standby.sql("INSERT INTO account VALUES (-2, 'x')")
        assert announced(follower.catch_up()) == []
        follower.kill()
        use_config(MASK.format("second"), follower)
        follower.start()
        standby.sql("INSERT INTO account VALUES (-3, 'x')")
        assert announced(follower.catch_up()) == ["account"]


@pytest.mark.parametrize("point", [HandoverPoint.BEFORE_FIND_START, HandoverPoint.AFTER_FIND_START])
def test_a_sidecar_that_is_killed_while_it_looks_for_its_start_finds_it_after_a_restart(
    primary: Cluster, standby: Cluster, tmp_path: Path, point: HandoverPoint
) -> None:
    with two_hosts(primary, standby, tmp_path) as hosts:
        follower = hosts.follower
        follower.kill()
        follower.options[VARIABLE] = f"{point.value}:1"
        follower.start()
        primary.sql("INSERT INTO account VALUES (1, 'confirmed')")
        hosts.deliverer.catch_up()
        follower.wait_for_start()
        hosts.deliverer.kill()
        primary.sql("INSERT INTO account VALUES (2, 'not delivered')")
        wait_until_replayed(standby, primary)
        hosts.lose_primary()
        hosts.promote()
        standby.sql("INSERT INTO account VALUES (3, 'later')")
        follower.wait_until(lambda: not follower.running, "its death")
        assert follower.view.stage is Stage.REALTIME
        assert (follower.view.followed is None) is (point is HandoverPoint.AFTER_FIND_START)
        del follower.options[VARIABLE]
        follower.start()
        follower.wait_for_stage(Stage.REALTIME)
        assert [number for number in ids(follower.catch_up()) if number != 1] == [2, 3]


def head_of(sidecar: Sidecar) -> Sequence:
    """Return the sequence of the last value in a sidecar's outbox."""
    with OutboxReader.open(sidecar.folder) as reader:
        return reader.head()
