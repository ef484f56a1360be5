"""A hot standby as the source of a sidecar: seed, first copy and stream from there, also across its promotion."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.conftest import NewCluster
from tests.integration.first_copy.test_first_copy import newest_generation
from tests.support.oracles.oracle import OurSide, ensure_role
from tests.support.processes.captures import Sidecar, change_log, replayed
from tests.support.processes.cdcctl import cdcctl, refused, succeeded
from tests.support.processes.cdcctl import reported as reported_by
from tests.support.processes.failover import Pair, archiving_node, paired
from tests.support.servers.archiving import ArchivingServer
from tests.support.servers.postgres import Cluster, StopMode, sql
from tests.support.servers.standby import copy_of, promote, recover, standby_of, wait_until_replayed
from tidemark.decode.transactions.heap_changes import RowNotLogged
from tidemark.io.state.state import StateStore
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import Lsn, parse_lsn
from tidemark.model.mode import Stage
from tidemark.model.snapshot import ReplayedSnapshot, parse_visibility
from tidemark.wal.segments import parse_segment_name
from tidemark.wal.versions import PAGE_BYTES

ROWS = 3000
SESSIONS = 4
JOIN_S = 120
LONG_S, SHORT_S = 0.3, 0.01  # an older transaction runs while later ones end: a standby does not report it
TABLES = 6
MB = 1 << 20  # a segment of a node that archives


@pytest.fixture
def primary(new_cluster: NewCluster) -> Cluster:
    made = new_cluster(15, autovacuum="off")
    made.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
    made.sql(f"INSERT INTO account SELECT n, 'old ' || n FROM generate_series(1, {ROWS}) n")
    return made


@contextmanager
def sidecar_at(
    standby: Cluster, primary: Cluster, root: Path, options: Mapping[str, str] = {}, *, copy: bool = False
) -> Iterator[Sidecar]:
    """Run a sidecar over a standby; changes are made at its primary."""
    sidecar = Sidecar(standby, "postgres", root, copy=copy, **options)
    sidecar.written_to = primary
    sidecar.init()
    try:
        sidecar.start()
        yield sidecar
    finally:
        sidecar.close()


@contextmanager
def overlapping_load(cluster: Cluster) -> Iterator[None]:
    """Change the table in overlapping transactions: some are always open."""
    stop = threading.Event()

    def run(share: int) -> None:
        number = 0
        with cluster.connect(autocommit=False) as session:
            while not stop.is_set():
                number += 1
                sql(session, f"INSERT INTO account VALUES ({ROWS * 10 + number * SESSIONS + share}, 'new')")
                sql(session, f"SELECT pg_sleep({LONG_S if share == 0 else SHORT_S})")
                sql(session, f"UPDATE account SET note = 'seen' WHERE id = {(number * SESSIONS + share) % ROWS + 1}")
                session.commit()

    threads = [threading.Thread(target=run, args=(share,)) for share in range(SESSIONS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(JOIN_S)


def rows_of(cluster: Cluster) -> dict[object, dict[str, object]]:
    return {number: {"id": number, "note": note} for number, note in cluster.sql("SELECT id, note FROM account")}


def test_a_copy_from_a_standby_joins_the_stream_without_gap_or_overlap(
    primary: Cluster, standby: Cluster, tmp_path: Path
) -> None:
    for number in range(1, TABLES):
        primary.sql(f"CREATE TABLE other{number} (id int PRIMARY KEY)")
    with overlapping_load(primary), sidecar_at(standby, primary, tmp_path, copy=True) as sidecar:
        sidecar.wait_for_event("first copy done")
        sidecar.catch_up()
    sidecar.start()
    try:
        items = sidecar.catch_up()
        assert replayed(change_log(items, "account")) == rows_of(primary)
    finally:
        sidecar.close()
    with StateStore.open(sidecar.folder) as store:
        snapshots = [parse_visibility(copy.snapshot) for copy in store.view().copies.values()]
    assert len(snapshots) == TABLES
    assert any(isinstance(snapshot, ReplayedSnapshot) for snapshot in snapshots)


@pytest.mark.feature("I33")
def test_a_sidecar_continues_after_the_promotion_of_its_standby(
    primary: Cluster, standby: Cluster, tmp_path: Path
) -> None:
    with sidecar_at(standby, primary, tmp_path, copy=True) as sidecar, ExitStack() as stack:
        primary.sql("INSERT INTO account VALUES (-1, 'before')")
        sidecar.catch_up()
        with primary.connect(autocommit=False) as preparing:
            sql(preparing, "INSERT INTO account VALUES (-2, 'prepared')")
            sql(preparing, "PREPARE TRANSACTION 'across'")
        lost = primary.connect(autocommit=False)
        stack.callback(lost.close)
        sql(lost, "INSERT INTO account VALUES (-3, 'never committed')")
        sidecar.catch_up()
        wait_until_replayed(standby, primary)
        primary.stop(StopMode.IMMEDIATE)
        promote(standby)
        sidecar.written_to = standby
        standby.sql("COMMIT PREPARED 'across'")
        standby.sql("UPDATE account SET note = 'behind' WHERE id = -1")
        sidecar.catch_up()
        sidecar.stop()
        sidecar.start()
        standby.sql("INSERT INTO account VALUES (-4, 'after the restart')")
        items = sidecar.catch_up()
        assert replayed(change_log(items, "account")) == rows_of(standby)
        timelines = [event["next_timeline"] for event in sidecar.events() if event["event"] == "timeline ended"]
        assert set(timelines) == {2}


def test_markers_go_to_the_primary_that_is_named_and_are_left_out_otherwise(
    primary: Cluster, standby: Cluster, tmp_path: Path
) -> None:
    often = {"TIDEMARK_MARKERS__CONFIRM_S": "0.2"}
    (tmp_path / "without").mkdir()
    with sidecar_at(standby, primary, tmp_path / "without", often) as sidecar:
        primary.sql("INSERT INTO account VALUES (-1, 'x')")
        sidecar.catch_up()
        reported = sidecar.wait_for_event("no markers are written")
        assert "markers.dsn" in str(reported["hint"])
        primary.sql("INSERT INTO account VALUES (-2, 'x')")
        sidecar.catch_up()
        assert sidecar.metric('tidemark_markers_failed_total{capture="main"}') == 0
        done = cdcctl("check", "--state", sidecar.folder.root, **sidecar.options)
        assert done.code != ExitCode.SUCCESS
        assert "is a standby" in reported_by(done.err)[0]
        assert "markers.dsn" in reported_by(done.err)[1]
    assert sum(event["event"] == "no markers are written" for event in sidecar.events()) == 1
    (tmp_path / "with").mkdir()
    to_primary = {**often, "TIDEMARK_MARKERS__DSN": primary.dsn()}
    with sidecar_at(standby, primary, tmp_path / "with", to_primary) as sidecar:
        primary.sql("INSERT INTO account VALUES (-3, 'x')")
        sidecar.catch_up()
        sidecar.wait_until(
            lambda: sidecar.metric('tidemark_markers_read_total{capture="main",kind="RealtimeCdc"}') > 0,
            "a marker by way of the primary",
        )
        done = succeeded(cdcctl("check", "--json", "--state", sidecar.folder.root, **sidecar.options))
        legs = json.loads(done.out)["legs"]
        assert {name for name, leg in legs.items() if leg["verdict"] == "passed"} == {"node", "capture", "consumer"}


@pytest.mark.feature("I33")
def test_archived_wal_of_the_dead_branch_is_never_delivered_behind_a_promotion(tmp_path: Path) -> None:
    with archiving_node() as archiving:
        left_behind = archiving.node
        left_behind.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        with standby_of(left_behind) as standby:
            pair = Pair(ArchivingServer(standby, archiving.spool), tmp_path, TIDEMARK_WATCHDOG__RESTART_S="20")
            pair.sidecar.written_to = left_behind
            pair.sidecar.init()
            try:
                pair.start()
                left_behind.sql("INSERT INTO account VALUES (1, 'before')")
                pair.catch_up()
                wait_until_replayed(standby, left_behind)
                promote(standby)
                for number in range(100, 103):  # the old primary still accepts writes
                    left_behind.sql(f"INSERT INTO account VALUES ({number}, 'never happened')")
                    archiving.switch()
                archiving.wait_until_archived()
                pair.sidecar.written_to = standby
                pair.insert(2)
                pair.catch_up()
                pair.switch_off()
                pair.insert(3)
                pair.catch_up()
                pair.switch_on()
                pair.wait_for_stage(Stage.REALTIME)
                pair.insert(4)
                assert list(replayed(change_log(pair.catch_up(), "account"))) == [1, 2, 3, 4]
            finally:
                pair.close()


@contextmanager
def exclusive_locks(cluster: Cluster) -> Iterator[threading.Event]:
    """Lock the table again and again, until stopped: a standby cancels queries that read it meanwhile."""
    stop = threading.Event()

    def run() -> None:
        with cluster.connect(autocommit=False) as session:
            while not stop.is_set():
                sql(session, "LOCK TABLE account IN ACCESS EXCLUSIVE MODE")
                session.commit()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join(JOIN_S)


def test_a_copy_that_the_standby_cancels_is_repeated_a_bounded_number_of_times(
    primary: Cluster, tmp_path: Path
) -> None:
    primary.sql(f"INSERT INTO account SELECT n, repeat('x', 500) FROM generate_series({ROWS + 1}, 60000) n")
    quick = {"TIDEMARK_RETRY__FIRST_S": "0.1", "TIDEMARK_RETRY__MAX_S": "0.1"}
    with standby_of(primary, max_standby_streaming_delay=0) as standby, exclusive_locks(primary) as stop:
        (tmp_path / "once").mkdir()
        with sidecar_at(standby, primary, tmp_path / "once", quick, copy=True) as sidecar:
            reported = sidecar.wait_for_event("first copy interrupted", kind="RecoveryConflict")
            assert "hot_standby_feedback" in str(reported["hint"])
            assert sidecar.metric('tidemark_errors_total{capture="main"}') > 0
            stop.set()
            kept = newest_generation(sidecar.catch_up())  # some rows of an aborted copy may be there
            assert replayed(change_log(kept, "account")) == rows_of(primary)
        (tmp_path / "ever").mkdir()
        with exclusive_locks(primary):
            ever = Sidecar(standby, "postgres", tmp_path / "ever", copy=True, **quick)
            ever.init()
            ever.refuses(ExitCode.NODE_UNFIT, "cancelled by the standby", "conflict with recovery")


@pytest.mark.feature("I33")
def test_a_recovery_to_a_point_in_time_is_followed_from_before_it_and_refused_from_behind_it(tmp_path: Path) -> None:
    with archiving_node() as archiving:
        node = archiving.node
        node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        with copy_of(node) as restored:
            (tmp_path / "before").mkdir()
            (tmp_path / "behind").mkdir()
            with (
                sidecar_at(node, node, tmp_path / "before") as before,
                sidecar_at(node, node, tmp_path / "behind") as behind,
            ):
                node.sql("INSERT INTO account VALUES (1)")
                before.catch_up()
                before.stop()
                point = node.flush_lsn()
                node.sql("INSERT INTO account VALUES (2)")
                behind.catch_up()
                behind.stop()
                archiving.switch()
                archiving.wait_until_archived()
                node.stop()
                recover(restored, f"cp {archiving.spool.folder}/%f %p", before=point)
                to_restored = {"TIDEMARK_CAPTURE__DSN": restored.dsn()}
                behind.options |= to_restored
                behind.refuses(ExitCode.CORRUPT_WAL, "timeline 2 begins at", "timeline 1 was received")
                before.options |= to_restored
                before.written_to = restored
                before.start()
                restored.sql("INSERT INTO account VALUES (3)")
                assert list(replayed(change_log(before.catch_up(), "account"))) == [1, 3]


def test_a_primary_with_wal_level_replica_is_refused_where_it_is_configured_for_markers(
    primary: Cluster, tmp_path: Path
) -> None:
    with standby_of(primary) as standby:
        primary.configure(reload=False, wal_level="replica", max_replication_slots=0)
        primary.restart()
        named = {"TIDEMARK_CAPTURE__DSN": standby.dsn(), "TIDEMARK_MARKERS__DSN": primary.dsn()}
        config = tmp_path / "tidemark.toml"
        config.write_text("")
        done = cdcctl("init", "--state", tmp_path / "state", "--config", config, **named)
        refused(done, ExitCode.NODE_UNFIT, "wal_level = replica", str(primary.folder))


@pytest.mark.feature("I33")
def test_a_record_that_the_lost_primary_sent_in_part_is_dropped_at_the_fork(
    primary: Cluster, standby: Cluster, tmp_path: Path
) -> None:
    with sidecar_at(standby, primary, tmp_path) as sidecar, ExitStack() as stack:
        primary.sql("INSERT INTO account VALUES (-1, 'before')")
        sidecar.catch_up()
        lost = primary.connect(autocommit=False)
        stack.callback(lost.close)
        sql(lost, "INSERT INTO account SELECT n, repeat('x', 300) FROM generate_series(100001, 103000) n")
        # NB: uncommitted WAL is flushed in whole pages (`XLogBackgroundFlush`), and so is sent up to a page's end.
        sidecar.wait_until(lambda: received(sidecar) % PAGE_BYTES == 0, "a page's end")
        primary.stop(StopMode.KILL)
        sidecar.wait_until(lambda: has_all_of(sidecar, standby), "what the standby has")
        torn_lsn = received(sidecar)
        promote(standby)
        sidecar.written_to = standby
        standby.sql("INSERT INTO account VALUES (-2, 'behind')")
        items = sidecar.catch_up()
        reported = sidecar.wait_for_event("discarding WAL that was not delivered: its timeline ended before it")
        assert parse_lsn(str(reported["at_lsn"])) < torn_lsn == parse_lsn(str(reported["received_lsn"]))
        standby.sql("INSERT INTO account VALUES (-3, 'and on')")
        items = sidecar.catch_up()
        assert list(replayed(change_log(items, "account"))) == [-1, -2, -3]


def received(sidecar: Sidecar) -> Lsn:
    return parse_lsn(str(sidecar.status()["received_lsn"]))


def has_all_of(sidecar: Sidecar, standby: Cluster) -> bool:
    """Return whether the standby receives nothing more, and the sidecar has everything."""
    if standby.sql("SELECT FROM pg_stat_wal_receiver"):
        return False
    ((came,),) = standby.sql("SELECT pg_last_wal_receive_lsn()")
    return received(sidecar) == parse_lsn(str(came))


@contextmanager
def switching(archiving: ArchivingServer) -> Iterator[None]:
    """Let the node archive a segment now and then."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(LONG_S):
            archiving.switch()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(JOIN_S)


def test_a_standby_that_replays_from_an_archive_alone_provides_copy_and_stream(tmp_path: Path) -> None:
    with archiving_node() as archiving, ExitStack() as stack:
        primary = archiving.node
        primary.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        primary.sql(f"INSERT INTO account SELECT n, 'old ' || n FROM generate_series(1, {ROWS}) n")
        standby = stack.enter_context(copy_of(primary, restore_command=f"cp {archiving.spool.folder}/%f %p"))
        (standby.data / "standby.signal").touch()
        stack.enter_context(switching(archiving))
        standby.start()
        with sidecar_at(standby, primary, tmp_path, copy=True) as sidecar:
            with overlapping_load(primary):
                sidecar.wait_for_event("first copy done")
                sidecar.catch_up()
            assert replayed(change_log(sidecar.catch_up(), "account")) == rows_of(primary)


@pytest.mark.feature("I33")
def test_an_archiver_drops_a_record_that_the_last_segment_of_a_lost_primary_contains_in_part(tmp_path: Path) -> None:
    with archiving_node() as archiving:
        node = archiving.node
        node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        # A segment that the archiver has switched ends with a whole record.
        unswitched = {"TIDEMARK_ARCHIVE__SWITCH_S": "3600"}
        with copy_of(node) as restored, paired(archiving, tmp_path, options=unswitched) as pair:
            pair.insert(1)
            pair.catch_up()
            pair.switch_off()
            pair.sidecar.stop()
            with closing(node.connect(autocommit=False)) as lost:
                sql(lost, "INSERT INTO account SELECT n, repeat('x', 300) FROM generate_series(1001, 16000) n")
                # Longer than three segments: in the last full one of them its record has not ended.
                sql(lost, f"SELECT pg_logical_emit_message(true, 'test', repeat('x', {3 * MB}))")
                node.sql("CREATE TABLE flushed ()")  # and all before it: later no segment is full
                archiving.wait_until_archived()
                last = max(path.name for path in archiving.spool.folder.iterdir() if len(path.name) == 24)
                key = parse_segment_name(last, MB)
                assert key is not None
                pair.wait_for(lambda: received(pair.archiver) == (key[1] + 1) * MB, f"the end of {last}")
                read_lsn = received(pair.archiver)
                node.stop(StopMode.KILL)
            recover(restored, f"cp {archiving.spool.folder}/%f %p")
            pair.sidecar.written_to = restored
            restored.sql("INSERT INTO account VALUES (2)")
            with switching(ArchivingServer(restored, archiving.spool)):
                assert list(replayed(change_log(pair.catch_up(), "account"))) == [1, 2]
            reported = pair.archiver.wait_for_event(
                "discarding WAL that was not delivered: its timeline ended before it"
            )
            assert parse_lsn(str(reported["at_lsn"])) < read_lsn


def test_a_primary_whose_level_no_standby_reports_ends_decoding_at_its_first_row(new_cluster: NewCluster) -> None:
    primary = new_cluster(15, wal_level="replica")
    ensure_role(primary)
    primary.sql("CREATE TABLE account (id int PRIMARY KEY)")
    with standby_of(primary, wal_level="logical") as standby:
        ours = OurSide(standby, ["postgres"])
        ours.settle()
        primary.sql("DELETE FROM account")
        primary.sql("VACUUM FULL pg_class")
        primary.sql("INSERT INTO account VALUES (1)")
        with pytest.raises(RowNotLogged, match=r"changes public\.account without its new row"):
            ours.read_until("what does not come")
        ours.changes.close()
