"""A node that continued on another timeline, and processes that start after the fork."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.processes.captures import change_log, replayed
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.processes.failover import Pair, archiving_node, paired
from tests.support.servers.archiving import ArchivingServer
from tests.support.servers.postgres import Cluster, cluster_without_data
from tidemark.io.state.state import StateStore
from tidemark.model.change import GroupItem
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import Lsn, TimelineId, format_lsn, parse_lsn
from tidemark.model.mode import Stage
from tidemark.wal.segments import first_page_lsn, parse_segment_name
from tidemark.wire.state.state_keys import DELIVERED

MB = 1 << 20


@pytest.fixture
def node() -> Iterator[ArchivingServer]:
    with archiving_node() as made:
        made.node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        yield made


@pytest.fixture
def pair(node: ArchivingServer, tmp_path: Path) -> Iterator[Pair]:
    with paired(node, tmp_path, options={"TIDEMARK_WATCHDOG__RESTART_S": "20"}) as both:
        yield both


def fork(node: ArchivingServer) -> None:
    """Let the node recover to the end of its WAL and continue on the next timeline."""
    node.node.stop()
    node.node.configure(reload=False, restore_command=f"cp {node.spool.folder}/%f %p")
    (node.node.data / "recovery.signal").touch()
    node.node.start()
    node.wait_for(lambda: node.node.sql("SELECT pg_is_in_recovery()") == [(False,)])


@pytest.mark.feature("I33")
def test_both_processes_restart_behind_a_fork_with_a_catalog_base_from_before_it(
    node: ArchivingServer, pair: Pair
) -> None:
    pair.insert(1)
    pair.catch_up()
    fork(node)
    node.switch()  # no restart begins on the page of the fork any more
    pair.insert(2)
    pair.catch_up()
    pair.sidecar.stop()
    pair.sidecar.start()
    pair.insert(3)
    pair.catch_up()
    pair.switch_off()
    pair.insert(4)
    pair.catch_up()
    pair.switch_on()
    pair.wait_for_stage(Stage.REALTIME)
    pair.insert(5)
    assert list(replayed(change_log(pair.catch_up(), "account"))) == [1, 2, 3, 4, 5]


@pytest.mark.feature("I33")
def test_a_copy_from_between_two_forks_is_kept_by_a_start_with_a_catalog_base_from_before_both(
    node: ArchivingServer, tmp_path: Path
) -> None:
    with paired(node, tmp_path, copy=True, options={"TIDEMARK_WATCHDOG__RESTART_S": "20"}) as pair:
        pair.insert(1)
        pair.catch_up()
        fork(node)
        pair.insert(2)
        pair.catch_up()
        state = pair.sidecar.folder.root
        succeeded(cdcctl("table", "recopy", "public.account", "--state", state, **pair.sidecar.options))
        fork(node)
        node.switch()  # a restart begins on a page of the third timeline
        pair.insert(3)
        pair.catch_up()
        for process in (pair.archiver, pair.sidecar):
            process.stop()
            process.start()
        pair.insert(4)
        pair.catch_up()
        pair.switch_off()
        pair.insert(5)
        generation = [row for row in change_log(pair.catch_up(), "account") if row["_tli"] != 1]
        assert list(replayed([row for row in generation if row["_op"] == "c" or row["_tli"] == 3])) == [1, 2, 3, 4, 5]


@pytest.mark.feature("I33")
def test_a_start_behind_a_fork_keeps_the_catalog_history_of_the_page_that_it_begins_on(
    node: ArchivingServer, pair: Pair
) -> None:
    pair.insert(1)
    pair.catch_up()
    fork(node)
    node.switch()
    columns: list[str] = []
    altered_lsn = restart_lsn = Lsn(0)
    while not altered_lsn or altered_lsn < first_page_lsn(restart_lsn):
        columns.append(f"more_{len(columns)}")
        ((altered,),) = node.node.sql("SELECT pg_current_wal_insert_lsn()::text")
        altered_lsn = parse_lsn(str(altered))
        node.node.sql(f"ALTER TABLE account ADD COLUMN {columns[-1]} int")
        pair.catch_up()
        restart_lsn = pair.sidecar.restart_lsn()
    for _ in range(2):
        pair.sidecar.stop()
        pair.sidecar.start()
        pair.catch_up()
        assert pair.sidecar.restart_lsn() > restart_lsn, "a transaction that has ended is open again"
    node.node.sql(f"INSERT INTO account (id, {columns[-1]}) VALUES (2, 7)")
    after = change_log(pair.catch_up(), "account")[-1]["_after"]
    assert after == {"id": 2, "note": None, **dict.fromkeys(columns), columns[-1]: 7}


@pytest.mark.feature("I33")
def test_a_state_that_was_created_on_the_page_of_a_fork_keeps_its_catalog_base_at_each_start_of_the_archiver(
    node: ArchivingServer, tmp_path: Path
) -> None:
    fork(node)
    left_lsn = parse_lsn((node.node.data / "pg_wal" / "00000002.history").read_text().split()[1])
    with paired(node, tmp_path, options={"TIDEMARK_WATCHDOG__RESTART_S": "20"}) as pair:
        assert first_page_lsn(pair.sidecar.restart_lsn()) <= left_lsn < pair.sidecar.restart_lsn()
        pair.switch_off()
        for number in (1, 2):
            pair.insert(number)
            pair.catch_up()
            pair.archiver.stop()
            pair.archiver.start()
        pair.insert(3)
        assert list(replayed(change_log(pair.catch_up(), "account"))) == [1, 2, 3]


@contextmanager
def lost(node: ArchivingServer, pair: Pair, segment: str) -> Iterator[None]:
    """Remove a segment for a while: the archiver stops there and reports the range, and again after a restart."""
    path, aside = node.spool.folder / segment, node.spool.folder.parent / segment
    shutil.move(path, aside)
    key = parse_segment_name(segment, MB)
    assert key is not None
    start_lsn, end_lsn = (format_lsn(Lsn(number * MB)) for number in (key[1], key[1] + 1))
    for _ in range(2):
        pair.archiver.refuses(ExitCode.GAP, f"WAL from {start_lsn} to {end_lsn} is not in {node.spool.folder}")
    yield
    shutil.move(aside, path)


def in_order(items: list[GroupItem]) -> list[object]:
    return list(replayed(change_log(items, "account")))


@pytest.mark.feature("I28")
def test_a_segment_missing_before_or_at_a_fork_stops_the_archiver_at_each_start_and_is_never_skipped(
    node: ArchivingServer, pair: Pair
) -> None:
    pair.insert(1)
    pair.switch_off()
    assert in_order(pair.catch_up()) == [1]
    node.switch()
    pair.archiver.stop()
    pair.insert(2)
    node.switch()
    pair.insert(3)
    fork(node)
    pair.insert(4)
    (at_fork,) = node.switch()
    pair.insert(5)
    node.switch()
    node.wait_until_archived()
    before_fork = max(path.name for path in node.spool.folder.glob("00000001*") if len(path.name) == len(at_fork))
    assert (before_fork[:8], at_fork[:8]) == ("00000001", "00000002")
    assert int(before_fork[8:], 16) + 1 == int(at_fork[8:], 16)
    for segment, delivered in ((before_fork, [1, 2]), (at_fork, [1, 2, 3])):
        with lost(node, pair, segment):
            assert in_order(pair.delivered()) == delivered
    pair.archiver.start()
    assert in_order(pair.catch_up()) == [1, 2, 3, 4, 5]


@contextmanager
def copied(node: Cluster) -> Iterator[Cluster]:
    """Make a server from a copy of the node as it is now; both run."""
    with cluster_without_data(node.major) as copy:
        node.stop()
        copy.run(Path("/bin/cp"), "-a", str(node.data), str(copy.data))
        node.start()
        copy.configure(reload=False, port=copy.port, unix_socket_directories=f"'{copy.folder}'")
        copy.configure(reload=False, archive_mode="off", restore_command="false")
        yield copy


@pytest.mark.parametrize("forked", ["node", "copy"])
def test_a_sidecar_does_not_return_to_a_node_that_lacks_delivered_changes(
    node: ArchivingServer, tmp_path: Path, forked: str
) -> None:
    options = {"TIDEMARK_WATCHDOG__RESTART_S": "20", "TIDEMARK_REALTIME__AUTOMATIC_RETURN": "false"}
    with paired(node, tmp_path, options=options) as pair, copied(node.node) as copy:
        pair.switch_off()
        if forked == "node":
            fork(node)
        else:
            (copy.data / "recovery.signal").touch()
        copy.start()
        node.wait_for(lambda: copy.sql("SELECT pg_is_in_recovery()") == [(False,)])
        pair.insert(1)
        node.switch()
        assert in_order(pair.catch_up()) == [1]
        pair.sidecar.stop()
        pair.sidecar.options["TIDEMARK_CAPTURE__DSN"] = copy.dsn()
        pair.sidecar.start()
        pair.switch_on()
        pair.sidecar.ended(ExitCode.CORRUPT_WAL, "timeline 1", "timeline 2")
        assert pair.stage is Stage.ARCHIVE
        assert pair.archiver.running


def test_a_node_that_remained_on_an_older_timeline_is_refused(node: ArchivingServer, tmp_path: Path) -> None:
    pair = Pair(node, tmp_path)
    pair.sidecar.init()
    with StateStore.open(pair.sidecar.folder) as store, store.transaction(None) as transaction:
        before = transaction.delivered()
        assert before is not None
        ahead = replace(before.pointer.position, timeline=TimelineId(2))
        transaction.put(DELIVERED, replace(before, pointer=replace(before.pointer, position=ahead)))
    pair.insert(1)
    pair.sidecar.refuses(ExitCode.CORRUPT_WAL, "timeline 1", "timeline 2")
