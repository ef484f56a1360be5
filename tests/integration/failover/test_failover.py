"""Both processes, a node that archives, and the hand-over between them: nothing lost, nothing twice, whole."""

import itertools
import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.processes.captures import OnDemandReader, change_log, replayed
from tests.support.processes.cdcctl import cdcctl
from tests.support.processes.failover import HANGS_SOON, MOVED_S, Pair, archived_messages, paired
from tests.support.processes.json_lines import lines_of
from tests.support.processes.waiting import let_pass
from tests.support.servers.archiving import ArchivingServer
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state import StateStore
from tidemark.model.change import GroupItem
from tidemark.model.errors import ExitCode
from tidemark.model.mode import Stage
from tidemark.wire.control import Json
from tidemark.wire.marker import Ignored, Marker, MarkerKind

KEEPING = {"TIDEMARK_ARCHIVE__KEEP_BYTES": str(1 << 30)}  # so that all markers are there at the end


def ids(items: list[GroupItem]) -> list[object]:
    """Return the keys inserted by these changes, in order; none may come twice."""
    return list(replayed(change_log(items, "account")))


def test_the_operators_off_and_on_lose_nothing_and_repeat_nothing(pair: Pair) -> None:
    pair.insert(1)
    assert pair.switch_off() == {"ok": True, "before": "realtime", "stage": "held"}
    pair.insert(2)
    assert ids(pair.catch_up()) == [1, 2]
    assert pair.switch_on()["stage"] == "archive"
    pair.wait_for_stage(Stage.REALTIME)
    pair.insert(3)
    assert ids(pair.catch_up()) == [1, 2, 3]
    assert [(each.before, each.after) for each in pair.switches()] == [
        (Stage.REALTIME, Stage.HELD),
        (Stage.HELD, Stage.ARCHIVE),
        (Stage.ARCHIVE, Stage.RETURNING),
        (Stage.RETURNING, Stage.RETURNED),
        (Stage.RETURNED, Stage.REALTIME),
    ]


def test_a_killed_sidecar_is_detected_and_the_archiver_continues(pair: Pair) -> None:
    pair.insert(1)
    pair.catch_up()
    pair.sidecar.kill()
    pair.wait_for_stage(Stage.ARCHIVE)
    pair.insert(2)
    assert ids(pair.catch_up()) == [1, 2]
    pair.sidecar.start()
    pair.wait_for_stage(Stage.REALTIME)
    pair.insert(3)
    assert ids(pair.catch_up()) == [1, 2, 3]


def test_a_stopped_sidecar_is_killed_and_the_archiver_continues(node: ArchivingServer, tmp_path: Path) -> None:
    with paired(node, tmp_path, options=HANGS_SOON) as pair:
        pair.insert(1)
        pair.catch_up()
        assert pair.sidecar.process is not None
        pair.sidecar.process.send_signal(signal.SIGSTOP)
        pair.wait_for_stage(Stage.ARCHIVE)
        assert pair.sidecar.process.wait(timeout=120) == -signal.SIGKILL


def test_realtime_returns_through_the_smallest_ring(node: ArchivingServer, tmp_path: Path) -> None:
    least = {"TIDEMARK_RING__BYTES_MAX": str(2 << 20), "TIDEMARK_ARCHIVE__SWITCH_S": "600"}
    with paired(node, tmp_path, options=least) as pair:
        pair.switch_off()
        pair.wait_for_stage(Stage.HELD)
        pair.insert(1)
        node.switch()
        pair.wait_for(lambda: ids(pair.delivered()) == [1], "the archiver, whose first segment switch is over by then")
        node.switch()  # the marker comes at the beginning of a segment: the rest of that goes into the ring
        node.wait_until_archived()
        pair.switch_on()
        pair.wait_for(lambda: Stage.RETURNING in [each.before for each in pair.switches()], "the first attempt's end")
        ended = next(each for each in pair.switches() if each.before is Stage.RETURNING)
        assert ended.after is Stage.RETURNED, pair.reported()
        pair.wait_for_stage(Stage.REALTIME)
        pair.insert(2)
        assert ids(pair.catch_up()) == [1, 2]
        pair.sidecar.stop()
        pair.sidecar.options["TIDEMARK_RING__BYTES_MAX"] = str(1 << 20)
        pair.sidecar.refuses(ExitCode.CONFIG, "ring.bytes_max is 1048576: with an archive it is at least 2097152")


@pytest.mark.feature("I08")
def test_a_full_ring_stops_realtime_once_with_one_line_and_one_marker(node: ArchivingServer, tmp_path: Path) -> None:
    small = {"TIDEMARK_DELIVER__GROUP_BYTES_MAX": str(1 << 18), "TIDEMARK_DECODE__QUEUE_BYTES": str(1 << 20)}
    with paired(node, tmp_path, options=small | KEEPING, bytes_max=1 << 20) as pair:
        pair.insert(1)
        pair.catch_up()
        with OutboxReader.open(pair.sidecar.folder) as reader:
            on_demand = OnDemandReader(reader)
            on_demand.read()
            for first in range(10, 16010, 400):  # an open transaction is no reason to wait
                rows = f"generate_series({first}, {first + 399})"
                pair.node.sql(f"INSERT INTO account SELECT n, repeat('x', 1000) FROM {rows} n")
            pair.wait_for(lambda: bool(pair.switches()), "the overflow")
            pair.wait_for_stage(Stage.ARCHIVE)
            assert pair.switches()[0].reason.startswith("the ring of 4194304 bytes is full at ")

            def reads_on() -> bool:
                on_demand.read()
                return pair.stage is Stage.REALTIME

            assert not reads_on()
            pair.wait_for(reads_on, "the way back")

            def stops() -> list[Marker]:
                return [marker for marker in pair.markers() if marker.kind is MarkerKind.STOP]

            def is_reported_once() -> bool:  # each time: on a slow machine the ring may be full again at once
                lines = [event for event in pair.sidecar.events() if event["event"] == "capture failed"]
                return len(stops()) == len(lines) == sum(each.before is Stage.REALTIME for each in pair.switches())

            pair.wait_for(is_reported_once, "a line and a marker for each stop")
            assert stops()[0].reason == pair.switches()[0].reason
            assert stops()[0].pointer is not None
            pair.insert(2)
            pair.wait_for(lambda: reads_on() and len(change_log(on_demand.items, "account")) >= 16002, "all rows")
            assert len(ids(on_demand.items)) == 16002


@pytest.mark.feature("I17")
def test_realtime_stays_off_after_the_operators_off_and_returns_automatically_otherwise(pair: Pair) -> None:
    pair.switch_off()
    pair.insert(1)
    assert ids(pair.catch_up()) == [1]
    pair.sidecar.stop()
    pair.sidecar.start()
    pair.insert(2)
    assert ids(pair.catch_up()) == [1, 2]
    assert pair.stage is Stage.HELD
    pair.switch_on()
    pair.wait_for_stage(Stage.REALTIME)
    pair.sidecar.kill()
    pair.wait_for_stage(Stage.ARCHIVE)
    pair.sidecar.start()
    pair.wait_for_stage(Stage.REALTIME)


@pytest.mark.feature("I19")
def test_a_killed_archiver_continues_at_the_exact_row_active_and_passive(pair: Pair) -> None:
    pair.switch_off()
    pair.node.sql("INSERT INTO account SELECT n, 'x' FROM generate_series(1, 20000) n")
    pair.archiver.kill()
    pair.insert(30000)
    pair.archiver.start()
    assert len(ids(pair.catch_up())) == 20001
    pair.archiver.kill()
    pair.archiver.start()
    pair.switch_on()
    pair.wait_for_stage(Stage.REALTIME)
    pair.archiver.kill()
    pair.insert(30001)
    pair.catch_up()
    pair.archiver.start()
    pair.sidecar.kill()
    pair.insert(30002)
    assert len(ids(pair.catch_up())) == 20003


@pytest.mark.feature("I18")
def test_wal_that_the_node_removed_is_read_from_the_archive(pair: Pair) -> None:
    pair.insert(1)
    pair.catch_up()
    pair.archiver.stop()
    pair.sidecar.stop()
    pair.node.configure(wal_keep_size="0")
    pair.node.sql("INSERT INTO account SELECT n, repeat('x', 500) FROM generate_series(10, 6009) n")
    for _ in range(3):
        pair.archiving.switch(3)
        pair.archiving.wait_until_archived()
        pair.node.sql("CHECKPOINT")
    pair.node.configure(wal_keep_size="256MB")
    pair.sidecar.start()
    pair.wait_for_stage(Stage.ARCHIVE)
    assert "has already been removed" in pair.switches()[0].reason
    pair.archiver.start()
    pair.wait_for_stage(Stage.REALTIME)
    pair.insert(2)
    assert len(ids(pair.catch_up())) == 6002


def test_a_ring_that_overflows_during_a_return_leaves_delivery_to_the_archiver(pair: Pair) -> None:
    pair.switch_off()
    pair.wait_for(lambda: pair.archiver.status().get("role") == "active", "active")
    assert pair.archiver.process is not None
    pair.switch_on()
    pair.wait_for_stage(Stage.RETURNING, Stage.REALTIME)
    pair.switch_off()
    pair.switch_on()
    pair.wait_for(lambda: pair.stage is not Stage.HELD, "on")
    pair.archiver.process.send_signal(signal.SIGSTOP)
    pair.node.sql("INSERT INTO account SELECT n, repeat('x', 500) FROM generate_series(1, 20000) n")
    pair.archiver.process.send_signal(signal.SIGCONT)
    pair.wait_for_stage(Stage.REALTIME)
    pair.insert(30000)
    assert len(ids(pair.catch_up())) == 20001


@pytest.mark.feature("I09")
@pytest.mark.feature("I15")
def test_the_try_start_marker_contains_the_attempt_and_the_archiver_delivers_what_commits_before_it(
    node: ArchivingServer, tmp_path: Path
) -> None:
    with paired(node, tmp_path, options=KEEPING) as pair:
        pair.switch_off()
        pair.insert(1)
        assert ids(pair.catch_up()) == [1]
        pair.switch_on()
        pair.wait_for_stage(Stage.REALTIME)
        (marker,) = [marker for marker in pair.markers() if marker.kind is MarkerKind.TRY_START]
        with StateStore.open(pair.sidecar.folder) as store:
            handed_over = store.view().hand_over
        assert marker.sequence == handed_over.attempt == 1
        assert marker.pointer is not None
        assert marker.pointer.position.commit_lsn <= handed_over.lsn
        assert handed_over.timeline == marker.pointer.position.timeline


@pytest.mark.feature("I10")
def test_a_forged_marker_is_ignored_counted_and_reported_once(node: ArchivingServer, tmp_path: Path) -> None:
    with paired(node, tmp_path, options=KEEPING) as pair:
        pair.switch_off()
        pair.switch_on()
        pair.wait_for_stage(Stage.REALTIME)
        genuine = next(content for content in archived_messages(node.spool.folder) if b"TryStart" in content)
        forged = genuine.replace(b'"sequence":"1"', b'"sequence":"2"')
        foreign = genuine.replace(b'"capture":"main"', b'"capture":"other"')
        pair.switch_off()
        for content in (forged, forged, foreign, b"rubbish", genuine):
            pair.emit(content)
        pair.switch_on()
        pair.wait_for_stage(Stage.REALTIME)
        pair.insert(1)
        assert ids(pair.catch_up()) == [1]
        reported = [event["reason"] for event in pair.archiver.events() if "ignored" in str(event["event"])]
        assert reported == [why.value for why in (Ignored.FORGED, Ignored.FOREIGN, Ignored.MALFORMED)]
        assert pair.archiver.metric('tidemark_markers_ignored_total{capture="main",kind="FORGED"}') >= 2


@pytest.mark.feature("I22")
def test_the_archiver_delivers_all_that_is_archived_while_the_node_is_down(
    node: ArchivingServer, tmp_path: Path
) -> None:
    with paired(node, tmp_path) as pair:
        pair.switch_off()
        pair.insert(1)
        pair.catch_up()
        pair.archiver.stop()
        pair.insert(*range(2, 50))
        node.switch()
        node.wait_until_archived()
        node.node.stop()
        try:
            pair.archiver.start()
            pair.wait_for(lambda: len(ids(pair.delivered())) == 49, "what is archived")
        finally:
            node.node.start()
        pair.switch_on()
        pair.wait_for_stage(Stage.REALTIME)


@pytest.mark.feature("I07")
def test_confirm_markers_are_paced_and_an_idle_node_archives_nothing_because_of_tidemark(
    node: ArchivingServer, tmp_path: Path
) -> None:
    """At the requested rate while rows come; none in five periods of archive_timeout without rows, in both modes."""
    confirm_s = 1.0
    with paired(node, tmp_path, options={**KEEPING, "TIDEMARK_MARKERS__CONFIRM_S": str(confirm_s)}) as pair:
        written = f'tidemark_markers_written_total{{capture="main",kind="{MarkerKind.CONFIRM.value}"}}'
        began_s, numbers = time.monotonic(), itertools.count(1)

        def has_reported_three_times() -> bool:
            pair.insert(next(numbers))
            return pair.sidecar.metric(written) >= 3

        pair.wait_for(has_reported_three_times, "confirm markers")
        pair.catch_up()
        confirms = [marker.pointer for marker in pair.markers() if marker.kind is MarkerKind.CONFIRM]
        assert 3 <= len(confirms) <= (time.monotonic() - began_s) / confirm_s + 2
        positions = [pointer.position for pointer in confirms if pointer is not None]
        assert positions == sorted(set(positions))
        node.node.configure(archive_timeout=1)
        try:
            pair.wait_until_idle(time_outs=5)
            pair.switch_off()
            pair.insert(next(numbers))
            pair.catch_up()
            pair.wait_until_idle(time_outs=5)
        finally:
            node.node.configure(archive_timeout=0)


def test_a_sidecar_stopped_inside_a_write_transaction_is_killed_and_the_archiver_continues(
    node: ArchivingServer, tmp_path: Path
) -> None:
    with paired(node, tmp_path, options=HANGS_SOON) as pair:
        pair.insert(1)
        pair.catch_up()
        pair.sidecar.kill()
        pair.wait_for_stage(Stage.ARCHIVE)
        pair.sidecar.options["TIDEMARK_FAILPOINT"] = "write-inside:8:stop"  # soon after it delivers
        pair.sidecar.start(wait=False)
        numbers = [1]
        with pair.node.connect() as session:

            def has_died() -> bool:
                numbers.append(numbers[-1] + 1)
                session.execute("INSERT INTO account VALUES (%s, 'waiting')", (numbers[-1],))
                return not pair.sidecar.running

            pair.wait_for(has_died, "its death")
        assert pair.sidecar.process is not None
        assert pair.sidecar.process.returncode == -signal.SIGKILL
        assert ids(pair.catch_up()) == numbers


def test_a_consumer_that_hangs_stops_realtime_and_then_the_archiver_with_a_separate_code(
    node: ArchivingServer, tmp_path: Path
) -> None:
    taken = tmp_path / "taken"
    os.mkfifo(taken)
    options = {
        "TIDEMARK_DELIVER__CONSUMER": "jsonl",
        "TIDEMARK_DELIVER__JSONL_FILE": str(taken),
        "TIDEMARK_DELIVER__HANG_S": "1",
        "TIDEMARK_DELIVER__STOP_S": "1",
    }
    with paired(node, tmp_path, options=options) as pair:
        pair.wait_for_stage(Stage.ARCHIVE)
        assert pair.switches()[0].reason.startswith("the consumer JsonlConsumer has been in on_assigned for over 1 s")
        pair.archiver.ended(ExitCode.CONSUMER_FAILED, "has been in on_assigned")
        assert pair.sidecar.running


@pytest.mark.feature("I36")
def test_the_archiver_delivers_what_a_consumer_that_fails_in_the_sidecar_did_not_confirm(
    node: ArchivingServer, tmp_path: Path
) -> None:
    lines = tmp_path / "lines.jsonl"
    pair = Pair(node, tmp_path, TIDEMARK_DELIVER__CONSUMER="jsonl", TIDEMARK_DELIVER__JSONL_FILE=str(lines))
    pair.sidecar.options["TIDEMARK_DELIVER__JSONL_FILE"] = "/dev/full"
    pair.sidecar.init()
    try:
        pair.start()
        numbers = list(range(1, 31))
        pair.insert(*numbers)
        pair.wait_for_stage(Stage.ARCHIVE)
        assert "No space left on device" in pair.switches()[0].reason
        pair.wait_for(lambda: len(inserted(lines)) >= len(numbers), "what the sidecar's consumer did not confirm")
        assert inserted(lines) == numbers
    finally:
        pair.close()


def inserted(lines: Path) -> list[Json]:
    rows = [line["after"] for line in lines_of(lines) if line["op"] == "i"]
    return [row["id"] for row in rows if isinstance(row, dict)]


@pytest.mark.feature("I31")
def test_segments_are_forced_in_archive_mode_alone_at_most_every_switch_s_and_only_with_the_grant(
    node: ArchivingServer, tmp_path: Path
) -> None:
    def forced(pair: Pair, *numbers: int) -> int:
        """Write a little, every second, from a new segment on; return how many segments were ended meanwhile."""
        pair.archiving.switch()
        before = pair.segment_number()
        for number in numbers:
            pair.insert(number)
            let_pass(1, "a change every second, with a switch every two at most")
        return pair.segment_number() - before

    numbers = itertools.count(1)
    with paired(node, tmp_path / "granted", options={"TIDEMARK_ARCHIVE__SWITCH_S": "2"}) as pair:
        assert forced(pair, *itertools.islice(numbers, 4)) == 0, "in realtime nothing of ours forces a segment"
        pair.switch_off()
        pair.wait_for(lambda: pair.archiver.status().get("role") == "active", "active")
        began_s, ended = time.monotonic(), 0
        while ended < 2:
            ended += forced(pair, next(numbers))
            assert ended <= (time.monotonic() - began_s) / 2 + 2, "a switch each 2 s, and the one of the stop"
            assert time.monotonic() - began_s < MOVED_S, pair.reported()
        assert ids(pair.catch_up()) == list(range(1, next(numbers)))
    node.node.sql("CREATE ROLE plain LOGIN")
    plain = {"TIDEMARK_ARCHIVE__SWITCH_S": "1", "TIDEMARK_MARKERS__DSN": node.node.dsn(user="plain")}
    with paired(node, tmp_path / "plain", options=plain) as pair:
        pair.switch_off()
        assert forced(pair, *itertools.islice(numbers, 3)) == 0
        asked = ("realtime", "on", "--state", pair.sidecar.folder.root, "--deadline-s", "4")
        assert "EXECUTE on pg_switch_wal() is not granted" in cdcctl(*asked, **pair.sidecar.options).err
        node.switch()
        pair.wait_for_stage(Stage.REALTIME)
        pair.switch_off()
        granted = "segment switches are now granted"
        refused = (
            "segment switches are not granted: in archive mode, changes arrive when the server itself switches segments"
        )
        pair.archiver.wait_for_event(refused)
        node.node.sql("GRANT EXECUTE ON FUNCTION pg_switch_wal() TO plain")
        pair.wait_for(lambda: forced(pair, next(numbers)) > 0, "a switch, once that is granted")
        pair.wait_for(lambda: forced(pair, next(numbers)) > 0, "another one")
        node.node.sql("REVOKE EXECUTE ON FUNCTION pg_switch_wal() FROM plain")
        pair.wait_for(lambda: forced(pair, next(numbers), next(numbers)) == 0, "an end of it")
        assert forced(pair, next(numbers), next(numbers)) == 0
        reported = [event["event"] for event in pair.archiver.events() if event["event"] in (granted, refused)]
        assert reported == [refused, granted, refused]
    node.node.sql("DROP ROLE plain")


@pytest.mark.feature("I31")
def test_a_commit_forces_its_segment_also_behind_commits_of_later_transactions(pair: Pair) -> None:
    pair.switch_off()
    pair.wait_for(lambda: pair.archiver.status().get("role") == "active", "active")
    with pair.node.connect("postgres") as session, session.transaction():
        session.execute("INSERT INTO account VALUES (1, 'committed last')")
        pair.insert(2)
        pair.wait_for(lambda: ids(pair.delivered()) == [2], "the later transaction")
        pair.wait_until_idle(time_outs=3)
    pair.wait_for(lambda: ids(pair.delivered()) == [2, 1], "what was committed last")
