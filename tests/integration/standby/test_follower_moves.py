"""A follower's transitions without loss: switchover and back, refusals, status, limits."""

import itertools
import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import NewCluster
from tests.support.lakes.lakes import feed_by_hand, rows_by_key
from tests.support.processes.captures import change_log
from tests.support.processes.cdcctl import cdcctl, refused, succeeded
from tests.support.processes.failover import Archiver, Pair, archiving_node
from tests.support.processes.following import Hosts, two_hosts
from tests.support.servers.postgres import Cluster
from tests.support.servers.standby import promote, wait_until_replayed
from tidemark.io.archive.history_copy import HistoryCopy
from tidemark.io.archive.spool import Spool
from tidemark.io.archive.spool_manifest import read_manifest
from tidemark.io.process.marker_key import load_marker_key
from tidemark.io.state.state import StateStore
from tidemark.model.change import MARKER_PREFIX, GroupItem
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import Lsn, TimelineId
from tidemark.model.mode import Stage
from tidemark.model.position import Epoch, Pointer, Position, Sequence
from tidemark.wire.marker import Instance, Marker, MarkerKind, write_marker

MB = 1 << 20
LATER = TimelineId(7)


@pytest.fixture
def primary(new_cluster: NewCluster) -> Cluster:
    made = new_cluster(15, autovacuum="off")
    made.sql("CREATE TABLE account (id int PRIMARY KEY)")
    return made


def insert(cluster: Cluster, *numbers: int) -> None:
    for number in numbers:
        cluster.sql(f"INSERT INTO account VALUES ({number})")


def ids(items: list[GroupItem]) -> list[object]:
    return [row["_after"]["id"] for row in change_log(items, "account")]  # type: ignore[index]


def emit(hosts: Hosts, marker: Marker) -> None:
    """Write a marker by hand, signed by the key of both."""
    content = write_marker(marker, load_marker_key(hosts.follower.config, hosts.follower.folder))
    with hosts.primary.connect() as session:
        session.execute("SELECT pg_logical_emit_message(true, %s, %s::bytea)", (MARKER_PREFIX, content))


def led(hosts: Hosts) -> None:
    """Deliver a row, and wait until the follower knows that it is confirmed."""
    insert(hosts.primary, 1)
    hosts.deliverer.catch_up()
    hosts.follower.wait_for_start()


@pytest.mark.feature("I12")
def test_a_deliverer_whose_node_restarts_as_a_standby_follows_and_takes_over_again(
    primary: Cluster, standby: Cluster, tmp_path: Path
) -> None:
    with two_hosts(primary, standby, tmp_path) as hosts:
        one, two = hosts.deliverer, hosts.follower
        led(hosts)
        first = ids(one.catch_up())
        wait_until_replayed(standby, primary)
        primary.stop()
        hosts.promote()
        two.wait_for_stage(Stage.REALTIME)
        insert(standby, 2)
        second = ids(two.catch_up())
        (primary.data / "standby.signal").touch()
        primary.configure(reload=False, primary_conninfo=standby.dsn())
        primary.start()
        one.wait_for_stage(Stage.FOLLOWER)
        insert(standby, 3)
        second += ids(two.catch_up())[len(second) :]
        one.wait_for_start()
        wait_until_replayed(primary, standby)
        two.kill()  # neither sidecar delivers the last row
        insert(standby, 4)
        wait_until_replayed(primary, standby)
        standby.stop()
        promote(primary)
        one.wait_for_stage(Stage.REALTIME)
        insert(primary, 5)
        one.written_to = primary
        third = ids(one.catch_up())
        assert one.view.term is not None
        assert one.view.term.epoch.timeline == 3
        moves = [(switch.before, switch.after) for switch in one.view.switches.kept]
    assert moves == [(Stage.REALTIME, Stage.FOLLOWER), (Stage.FOLLOWER, Stage.REALTIME)]
    assert first == [1]
    assert [number for number in second if number != 1] == [2, 3]
    assert third[-2:] == [4, 5]
    assert set(third) <= {3, 4, 5}


def test_the_status_shows_a_follower_and_a_switch_is_refused(
    primary: Cluster, standby: Cluster, tmp_path: Path
) -> None:
    with two_hosts(primary, standby, tmp_path) as hosts:
        led(hosts)
        two = hosts.follower
        place = ("--state", two.folder.root)
        shown = json.loads(succeeded(cdcctl("status", "--json", *place, **two.options)).out)
        assert (shown["stage"], shown["delivering"]) == ("follower", "nobody")
        assert shown["following"]["can_take_over"] is True
        assert shown["following"]["deliverer_epoch"] == "1.1"
        assert shown["following"]["deliverer_confirmed"] == shown["delivered"]["position"]
        assert two.metric('tidemark_mode{capture="main"}') == Stage.FOLLOWER.number
        assert two.metric('tidemark_leader_marker_lsn_bytes{capture="main"}') > 0
        assert two.metric('tidemark_rows_delivered_total{capture="main"}') == 0
        waits = succeeded(cdcctl("spark", "run", *place, "--lake", tmp_path / "lake", "--once"))
        assert "waiting for its promotion" in waits.err
        assert not two.view.readers
        for direction in ("on", "off"):
            refused(cdcctl("realtime", direction, *place, **two.options), ExitCode.CONFIG, "this node is a standby")


def test_init_reports_that_it_makes_a_follower(primary: Cluster, standby: Cluster, tmp_path: Path) -> None:
    del primary
    key, config = tmp_path / "marker.key", tmp_path / "tidemark.toml"
    key.write_text("a secret that both of the nodes have")
    key.chmod(0o600)
    config.write_text(f'[capture]\ndsn = "{standby.dsn()}"\n[markers]\nkey_file = "{key}"\n[standby]\nfollow = true\n')
    place = ("--state", tmp_path / "state", "--config", config)
    assert "delivers nothing until its promotion" in succeeded(cdcctl("init", *place)).err
    shown = json.loads(succeeded(cdcctl("status", "--json", *place)).out)
    assert (shown["stage"], shown["following"]["can_take_over"]) == ("follower", False)
    assert "already" in succeeded(cdcctl("init", *place)).out.decode()


def new_spool(node: Cluster, root: Path) -> Spool:
    spool = Spool(root / "spool")
    ((identifier,),) = node.sql("SELECT system_identifier FROM pg_control_system()")
    spool.create(int(str(identifier)))
    return spool


def test_the_archiver_beside_a_follower_is_passive(primary: Cluster, standby: Cluster, tmp_path: Path) -> None:
    spool = new_spool(primary, tmp_path)
    with two_hosts(primary, standby, tmp_path) as hosts:
        two = hosts.follower
        options = {**two.options, "TIDEMARK_ARCHIVE__FOLDER": str(spool.folder), "TIDEMARK_METRICS__ARCHIVER_PORT": "0"}
        archiver = Archiver(standby, "postgres", tmp_path / "two", copy=False, **options)
        archiver.start()
        try:
            led(hosts)
            two.kill()  # no loss: the watchdog does not replace a process that delivers nothing
            archiver.wait_until(lambda: archiver.metric('tidemark_mode{capture="main"}') == 3, "its look at the stage")
            assert archiver.status()["role"] == "passive"
            assert two.view.stage is Stage.FOLLOWER
        finally:
            archiver.close()


@pytest.mark.feature("I12")
def test_a_followers_lost_state_is_a_followers_before_any_process_runs_and_can_take_over(
    primary: Cluster, standby: Cluster, tmp_path: Path
) -> None:
    spool = new_spool(primary, tmp_path)
    with two_hosts(primary, standby, tmp_path) as hosts:
        two = hosts.follower
        two.options["TIDEMARK_ARCHIVE__FOLDER"] = str(spool.folder)
        led(hosts)
        with StateStore.open(two.folder) as store:
            HistoryCopy(store, spool).update()
        known = read_manifest(spool)
        two.kill()
        shutil.rmtree(two.folder.root)
        config = tmp_path / "fresh.toml"
        config.write_text("")
        command = ("init", "--state", two.folder.root, "--config", config, "--from-spool", spool.folder)
        assert "as a follower" in succeeded(cdcctl(*command, **two.options)).err
        fresh = two.view
        assert (fresh.stage, fresh.start) == (Stage.FOLLOWER, known.start)
        assert fresh.followed is not None
        assert known.followed is not None
        assert fresh.followed.leader == known.followed.leader
        two.start()
        hosts.deliverer.kill()  # neither sidecar delivers later changes
        insert(primary, 2)
        wait_until_replayed(standby, primary)
        hosts.lose_primary()
        hosts.promote()
        two.wait_for_stage(Stage.REALTIME)
        insert(standby, 3)
        assert ids(two.catch_up())[-2:] == [2, 3]


def test_a_promotion_without_an_earlier_marker_is_refused_by_name(
    primary: Cluster, standby: Cluster, tmp_path: Path
) -> None:
    with two_hosts(primary, standby, tmp_path, start=False) as hosts:
        other = tmp_path / "other.key"
        other.write_text("some other secret that nobody has")
        other.chmod(0o600)
        hosts.follower.options["TIDEMARK_MARKERS__KEY_FILE"] = str(other)
        hosts.start()
        insert(primary, 1)
        hosts.deliverer.catch_up()
        hosts.follower.wait_for_event("message with the prefix of Tidemark is ignored")
        wait_until_replayed(standby, primary)
        hosts.lose_primary()
        hosts.promote()
        hosts.follower.ended(ExitCode.STATE, "no marker confirms a position after")
        assert hosts.follower.view.stage is Stage.FOLLOWER


def test_a_marker_of_a_timeline_that_the_follower_is_not_on_is_ignored(
    primary: Cluster, standby: Cluster, tmp_path: Path
) -> None:
    with two_hosts(primary, standby, tmp_path) as hosts:
        led(hosts)
        two = hosts.follower
        known = two.view
        identity = known.identity
        instance = Instance(identity.system_identifier, identity.capture)
        strange = Pointer(Position(LATER, Lsn(1), 0), Lsn(1))
        before = known.delivered
        assert before is not None
        emit(hosts, Marker(MarkerKind.CONFIRM, instance, Epoch(LATER, 1), Sequence(1), strange))
        emit(hosts, Marker(MarkerKind.CHECK, instance, Epoch(TimelineId(1), 99), Sequence(1), before.pointer))
        two.wait_for_event("a marker with a pointer of another timeline is ignored")
        insert(primary, 2)
        hosts.deliverer.catch_up()
        two.wait_until(
            lambda: (at := two.view.delivered) is not None and at.pointer != before.pointer, "the next marker"
        )
        assert two.view.followed is not None
        assert two.view.followed.leader is not None
        assert two.view.followed.leader.epoch == Epoch(TimelineId(1), 1)


def test_a_lake_with_changes_that_the_standby_lacks_stops_the_takeover(
    primary: Cluster, standby: Cluster, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with two_hosts(primary, standby, tmp_path, lake=lake) as hosts:
        led(hosts)
        wait_until_replayed(standby, primary)
        standby.configure(primary_conninfo="''")
        standby.sql("SELECT pg_wal_replay_resume()")
        hosts.follower.wait_until(
            lambda: standby.sql("SELECT count(*) FROM pg_stat_wal_receiver") == [(0,)], "the end of its stream"
        )
        insert(primary, 2)
        hosts.deliverer.catch_up()
        feed_by_hand(hosts.deliverer.folder, lake, "lake")
        hosts.lose_primary()
        hosts.promote()
        hosts.follower.ended(ExitCode.CORRUPT_WAL, "timeline 2 begins at")
        hosts.follower.refuses(ExitCode.CORRUPT_WAL, "timeline 2 begins at")
        assert hosts.follower.view.ledger.head == 0


def test_changes_of_a_dead_branch_delivered_after_the_promotion_are_not_in_the_lake(
    primary: Cluster, standby: Cluster, tmp_path: Path
) -> None:
    lake, aside = tmp_path / "lake", tmp_path / "aside"
    with two_hosts(primary, standby, tmp_path, lake=lake) as hosts:
        one, two = hosts.deliverer, hosts.follower
        led(hosts)
        feed_by_hand(one.folder, lake, "lake")
        wait_until_replayed(standby, primary)
        hosts.primary_dies()
        one.folder.root.rename(aside)
        hosts.promote()
        two.wait_for_stage(Stage.REALTIME)
        insert(standby, 2)
        two.catch_up()
        feed_by_hand(two.folder, lake, "lake")
        aside.rename(one.folder.root)
        primary.start()  # it still is a primary
        insert(primary, 777)
        one.start()
        assert 777 in ids(one.catch_up())
        feed_by_hand(one.folder, lake, "lake")
        assert set(rows_by_key(lake, "account")) == {1, 2}
        insert(standby, 3)
        two.catch_up()
        feed_by_hand(two.folder, lake, "lake")
        assert set(rows_by_key(lake, "account")) == {1, 2, 3}


def test_history_kept_for_a_silent_deliverer_is_bounded(primary: Cluster, standby: Cluster, tmp_path: Path) -> None:
    bound = {"TIDEMARK_STANDBY__UNMARKED_BYTES_MAX": str(MB), "TIDEMARK_HISTORY__BASE_EVERY_BYTES": str(MB)}
    with two_hosts(primary, standby, tmp_path, options=bound) as hosts:
        led(hosts)
        two = hosts.follower
        first = two.view.history.bases[0]
        hosts.deliverer.kill()
        numbers = itertools.count(2)

        def write_more() -> None:
            number = next(numbers)
            primary.sql(f"INSERT INTO account SELECT n FROM generate_series({number}00000, {number}15000) n")

        for _ in range(4):
            write_more()
        reported = two.wait_for_event(
            "no marker of the delivering capture for too long; removing the WAL that was kept for a promotion"
        )
        assert reported["setting"] == "standby.unmarked_bytes_max"

        def is_let_go_of() -> bool:
            write_more()  # the next write, after the process has checked its identity, releases what precedes it
            return first not in two.view.history.bases

        two.wait_until(is_let_go_of, "the end of the first base")
        place = ("--state", two.folder.root)
        shown = json.loads(succeeded(cdcctl("status", "--json", *place, **two.options)).out)
        assert shown["following"]["can_take_over"] is False
        hosts.deliverer.start()
        hosts.deliverer.catch_up()
        two.wait_for_start()


def test_a_state_that_follows_is_refused_where_standbys_are_sources(
    primary: Cluster, standby: Cluster, tmp_path: Path
) -> None:
    with two_hosts(primary, standby, tmp_path) as hosts:
        two = hosts.follower
        two.stop()
        two.options["TIDEMARK_STANDBY__FOLLOW"] = "false"
        del two.options["TIDEMARK_STANDBY__LAKE"]
        two.refuses(ExitCode.CONFIG, "standby.follow is not set")


def test_a_deliverer_that_cannot_query_its_node_leaves_archived_wal_to_the_archiver(tmp_path: Path) -> None:
    with archiving_node() as node:
        node.node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        key = tmp_path / "state" / "marker.key"  # as init creates it
        follow = {"TIDEMARK_STANDBY__FOLLOW": "true", "TIDEMARK_MARKERS__KEY_FILE": str(key)}
        pair = Pair(node, tmp_path, copy=False, TIDEMARK_REALTIME__AWAY_S="1", **follow)
        pair.sidecar.init()
        try:
            pair.sidecar.start()
            pair.insert(1)
            pair.catch_up()
            pair.sidecar.stop()
            pair.insert(2)
            node.switch()
            node.wait_until_archived()
            node.node.stop()
            pair.sidecar.start()
            pair.sidecar.wait_for_event("the node does not report whether it is a standby")
            pair.archiver.start()
            pair.wait_for(lambda: 2 in ids(pair.delivered()), "what is archived")
            assert "no stream from the node" in pair.switches()[-1].reason
        finally:
            pair.close()
