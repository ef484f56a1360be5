"""`cdcctl rewind`: the primary's last commits were delivered and are lost, and the capture continues."""

import itertools
import json
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from psycopg import Connection

from tests.support.processes.captures import Sidecar
from tests.support.processes.cdcctl import cdcctl, refused, reported, succeeded
from tests.support.processes.failover import QUICK, Archiver, archiving_node
from tests.support.servers.diverged_primary import DATABASE, Change, DivergedPrimary, branching, of_archive
from tests.support.servers.postgres import SUPERUSER, Cluster, new_cluster
from tests.support.servers.standby import wait_until_replayed
from tests.unit.engine.test_poison import batch_at
from tests.unit.plugins.test_group_transforms import EPOCH
from tidemark.io.parked.parked_table import ParkedTable
from tidemark.io.process.control import request
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_views import StateView
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import Lsn, TimelineId, format_lsn, parse_lsn
from tidemark.model.message_prefix import LOSS_PREFIX, REWIND_PREFIX
from tidemark.model.mode import Stage
from tidemark.runtime.plugins.poison_handling import parked_change
from tidemark.wal.segments import segment_name, segment_of, segment_start
from tidemark.wire.state.state_keys import DELIVERED, STAGE

MB = 1 << 20
NAME_LENGTH = 24  # of a segment's file
TABLES = ("quiet", "busy", "altered", "retyped", "dropped", "made")


@pytest.fixture
def diverged(primary: Cluster, tmp_path: Path) -> Iterator[DivergedPrimary]:
    with branching(primary, tmp_path, prepare=make_tables) as made:
        yield made


def make_tables(primary: Cluster) -> None:
    for table in ("quiet", "busy", "altered", "retyped", "dropped"):
        kind = "int" if table == "retyped" else "text"
        primary.sql(f"CREATE TABLE {table} (id int PRIMARY KEY, note {kind})")
        primary.sql(f"INSERT INTO {table} SELECT n, {'n' if kind == 'int' else chr(39) + 'kept' + chr(39)} "
                    "FROM generate_series(1, 3) n")  # fmt: skip


def deliver_a_dead_branch(diverged: DivergedPrimary, prepare: Callable[[DivergedPrimary], None] | None = None) -> None:
    """Deliver changes that both have, then changes of the primary alone; write half of these into the lake."""
    sidecar = diverged.sidecar
    sidecar.init()
    sidecar.start()
    if prepare is not None:
        prepare(diverged)
    write_what_both_have(diverged)
    write_what_is_lost(diverged)
    sidecar.stop()
    diverged.lose_primary()
    last = sidecar.refuses(ExitCode.CORRUPT_WAL, "timeline 2")
    assert "cdcctl rewind" in str(last["hint"])


def write_what_both_have(diverged: DivergedPrimary) -> None:
    diverged.primary.sql("INSERT INTO quiet VALUES (4, 'both')")
    diverged.primary.sql("UPDATE busy SET note = 'both' WHERE id = 1")
    diverged.sidecar.catch_up(alive=False)
    diverged.keep_standby_back()


def write_what_is_lost(diverged: DivergedPrimary) -> None:
    primary, sidecar = diverged.primary, diverged.sidecar
    primary.sql("INSERT INTO busy VALUES (4, 'dead'), (5, 'dead')")
    primary.sql("UPDATE busy SET note = 'dead' WHERE id = 1")
    primary.sql("DELETE FROM busy WHERE id = 2")
    with primary.connect() as session, session.transaction():
        session.execute("INSERT INTO quiet VALUES (90, 'rolled back')")
        session.execute("ROLLBACK AND CHAIN")
        session.execute("SAVEPOINT one")
        session.execute("INSERT INTO quiet VALUES (91, 'rolled back')")
        session.execute("ROLLBACK TO one")
        session.execute("INSERT INTO busy VALUES (6, 'dead')")
    sidecar.catch_up(alive=False)
    diverged.feed()
    primary.sql("ALTER TABLE altered ADD COLUMN extra int DEFAULT 7")
    primary.sql("INSERT INTO altered VALUES (4, 'dead', 8)")
    primary.sql("ALTER TABLE retyped ALTER note TYPE text USING 'dead ' || note")
    primary.sql("DROP TABLE dropped")
    primary.sql("CREATE TABLE made (id int PRIMARY KEY, wrong int)")
    primary.sql("INSERT INTO made VALUES (1, 1)")
    sidecar.catch_up(alive=False)


def write_the_new_branch(node: Cluster) -> None:
    node.sql("INSERT INTO busy VALUES (4, 'new'), (7, 'new')")
    node.sql("UPDATE busy SET note = 'new' WHERE id = 2")
    node.sql("DELETE FROM busy WHERE id = 3")
    node.sql("INSERT INTO quiet VALUES (5, 'new')")
    node.sql("UPDATE altered SET note = 'new' WHERE id = 1")
    node.sql("INSERT INTO retyped VALUES (4, 40)")
    node.sql("DELETE FROM dropped WHERE id = 1")
    node.sql("CREATE TABLE made (id int PRIMARY KEY, note text)")
    node.sql("INSERT INTO made VALUES (1, 'new'), (2, 'new')")
    node.sql(f"SELECT pg_logical_emit_message(true, '{REWIND_PREFIX}', 'anybody may write this')")


NEW_CHANGES: dict[str, list[Change]] = {
    "busy": [("i", 4, "new"), ("i", 7, "new"), ("u", 2, "new"), ("d", 3, None)],
    "quiet": [("i", 5, "new")],
    "altered": [("u", 1, "new")],
    "retyped": [("i", 4, 40)],
    "dropped": [("d", 1, None)],
    "made": [("i", 1, "new"), ("i", 2, "new")],
}


def resume_capture(diverged: DivergedPrimary, process: Sidecar, *, quiet_is_copied: bool = True) -> list[Change]:
    """Start a process, and wait until it has copied the tables; write more; write all changes into the lake.

    Return the values written into `quiet` meanwhile; nothing if that table is copied, as the copy may contain them.
    """
    numbers = itertools.count(100)
    written: list[Change] = []

    def is_copied_under_load() -> bool:
        if not quiet_is_copied:
            number = next(numbers)
            diverged.standby.sql(f"INSERT INTO quiet VALUES ({number}, 'meanwhile')")
            written.append(("i", number, "meanwhile"))
        return diverged.is_copied

    process.start()
    process.wait_until(is_copied_under_load, "the copies")
    diverged.standby.sql("INSERT INTO quiet VALUES (6, 'later')")
    diverged.standby.sql("UPDATE busy SET note = 'later' WHERE id = 1")
    diverged.sidecar.catch_up(alive=False)
    diverged.feed()
    return written


LATER: dict[str, list[Change]] = {"quiet": [("i", 6, "later")], "busy": [("u", 1, "later")]}


def check_lake(diverged: DivergedPrimary, meanwhile: Sequence[Change] = (), *, lost: bool = False) -> None:
    """Check the replicas, and that the log has each change of the new branch once and marks the dead ones."""
    for table in TABLES:
        diverged.check_replica(table)
        places = [(row["_tli"], row["_commit_lsn"], row["_ordinal"]) for row in diverged.log(table)]
        assert len(set(places)) == len(places), table
        since = [*([] if lost else NEW_CHANGES[table]), *(meanwhile if table == "quiet" else [])]
        assert diverged.changes(table, 2) == [*since, *LATER.get(table, [])], table
    (message,) = diverged.messages(REWIND_PREFIX)
    content = message["content"]
    assert isinstance(content, bytes)
    reported = json.loads(content)
    assert (reported["timeline"], reported["from"]) == (1, format_lsn(diverged.fork_lsn))
    assert len(diverged.messages(LOSS_PREFIX)) == lost
    dead = {str(row["note"]) for row in diverged.log("busy") if is_dead(diverged, row)}
    alive = {str(row["note"]) for row in diverged.log("busy") if not is_dead(diverged, row)}
    assert dead - {"None"} == {"dead"}
    assert "dead" not in alive


def is_dead(diverged: DivergedPrimary, row: dict[str, object]) -> bool:
    lsn = row["_commit_lsn"]
    assert isinstance(lsn, int)
    return row["_tli"] == 1 and lsn >= diverged.fork_lsn


@pytest.mark.parametrize("has_dead_wal", [True, False])
def test_all_of_the_new_branch_is_delivered_once_and_the_dead_one_is_reported(
    diverged: DivergedPrimary, *, has_dead_wal: bool
) -> None:
    deliver_a_dead_branch(diverged)
    write_the_new_branch(diverged.standby)
    arguments = ("--dead-wal", str(diverged.primary.data / "pg_wal")) if has_dead_wal else ()
    done = succeeded(diverged.rewind(*arguments))
    assert f"timeline 1 from {format_lsn(diverged.fork_lsn)}" in done.err
    waiting = [copy for copy in diverged.view.copies.values() if copy.is_open]
    assert len(waiting) == (4 if has_dead_wal else 5)
    assert diverged.view.losses.count == 0
    refused(diverged.rewind(*arguments), ExitCode.CONFIG, "the node has all changes up to")
    (shown,) = diverged.status()["rewinds"]
    assert f"timeline 1 from {format_lsn(diverged.fork_lsn)}" in shown
    check_lake(diverged, resume_capture(diverged, diverged.sidecar, quiet_is_copied=not has_dead_wal))
    with_copies = {row["_tli"] for row in diverged.log("quiet") if row["_op"] == "c"}
    assert with_copies == ({1} if has_dead_wal else {1, 2})


def park_around_the_fork(diverged: DivergedPrimary) -> None:
    """Park a change before the fork, one behind it, and one of the new branch."""
    changes = [batch_at(diverged.fork_lsn - 8, 1), batch_at(diverged.fork_lsn, 2), batch_at(diverged.fork_lsn, 3)]
    parked = [parked_change(each, "KeyError", EPOCH, 5) for each in changes]
    parked[2] = replace(parked[2], position=replace(parked[2].position, timeline=TimelineId(2)))
    with StateStore.open(diverged.sidecar.folder) as store, store.transaction(None) as transaction:
        for change in parked:
            ParkedTable(transaction).park(change, b"row", MB)


def parked_numbers(diverged: DivergedPrimary) -> list[int]:
    with StateStore.open(diverged.sidecar.folder) as store, store.reading() as transaction:
        return [each.number for each in ParkedTable(transaction).changes()]


def test_a_killed_rewind_leaves_the_old_or_the_new_state_and_a_second_one_completes_it(
    diverged: DivergedPrimary,
) -> None:
    deliver_a_dead_branch(diverged)
    write_the_new_branch(diverged.standby)
    park_around_the_fork(diverged)
    before = diverged.view
    for point in ("rewind-prepared", "write-inside", "write-cleared"):
        assert diverged.rewind(TIDEMARK_FAILPOINT=point).code == -signal.SIGKILL
        assert diverged.view == before, point
        assert parked_numbers(diverged) == [1, 2, 3]
    diverged.sidecar.refuses(ExitCode.CORRUPT_WAL, "timeline 2")
    assert diverged.rewind(TIDEMARK_FAILPOINT="rewind-rewound").code == -signal.SIGKILL
    after = diverged.view
    assert parked_numbers(diverged) == [1, 3], "the dead branch is dropped, in the transaction of the rewind"
    refused(diverged.rewind(), ExitCode.CONFIG, "the node has all changes up to")
    assert diverged.view == after
    resume_capture(diverged, diverged.sidecar)
    check_lake(diverged)


def test_without_wal_from_before_the_fork_the_loss_is_reported_and_the_replicas_are_right(
    diverged: DivergedPrimary,
) -> None:
    deliver_a_dead_branch(diverged)
    write_the_new_branch(diverged.standby)
    remove_wal(diverged.standby, diverged.fork_lsn)
    done = succeeded(diverged.rewind("--dead-wal", str(diverged.primary.data / "pg_wal")))
    assert "decoding cannot begin before the fork" in done.err
    assert "lost all commits after" in done.out.decode()
    assert diverged.view.losses.count == diverged.view.rewinds.count == 1
    resume_capture(diverged, diverged.sidecar)
    check_lake(diverged, lost=True)


def test_if_the_wal_of_the_last_base_is_gone_decoding_begins_at_the_position_of_a_marker(
    diverged: DivergedPrimary,
) -> None:
    diverged.sidecar.options["TIDEMARK_MARKERS__CONFIRM_S"] = "0.2"
    deliver_a_dead_branch(diverged, prepare=mark_the_segment)
    write_the_new_branch(diverged.standby)
    diverged.feed()
    diverged.trim_outbox()
    fork_segment = segment_of(diverged.fork_lsn - 1, MB)
    for path in (diverged.standby.data / "pg_wal").iterdir():
        if len(path.name) == NAME_LENGTH and path.name[8:] < segment_name(1, fork_segment, MB)[8:]:
            path.unlink()
    succeeded(diverged.rewind())
    start = diverged.view.start
    assert start is not None
    assert segment_start(fork_segment, MB) <= start.restart_lsn < diverged.fork_lsn
    assert diverged.view.losses.count == 0
    resume_capture(diverged, diverged.sidecar)
    check_lake(diverged)


def mark_the_segment(diverged: DivergedPrimary) -> None:
    """Let the sidecar write a marker in a segment that contains nothing else."""
    diverged.sidecar.catch_up()
    diverged.primary.sql("SELECT pg_switch_wal()")
    written = 'tidemark_markers_written_total{capture="main",kind="RealtimeCdc"}'
    before = diverged.sidecar.metric(written)

    def is_marked() -> bool:
        diverged.primary.sql("SELECT pg_logical_emit_message(true, 'tick', '')")
        return diverged.sidecar.metric(written) >= before + 3

    diverged.sidecar.wait_until(is_marked, "a marker")
    wait_until_replayed(diverged.standby, diverged.primary)


def test_a_check_passes_no_position_of_a_lost_branch_and_says_why_the_sidecar_ended(
    diverged: DivergedPrimary,
) -> None:
    deliver_a_dead_branch(diverged)
    delivered = diverged.view.delivered
    assert delivered is not None
    done = cdcctl("check", "--json", "--state", diverged.sidecar.folder.root, **diverged.sidecar.options)
    message, hint = reported(done.err)
    assert "leg capture is broken: the sidecar does not run" in message
    assert f"it ended with exit code {ExitCode.CORRUPT_WAL}: " in hint
    assert "timeline 2" in hint
    legs = json.loads(done.out)["legs"]
    (marker_lsn,) = re.findall("the marker ends at (.*)", legs["node"]["told"])
    assert parse_lsn(marker_lsn) < delivered.pointer.position.commit_lsn
    assert legs["consumer"]["verdict"] == "waits"


@pytest.mark.parametrize("is_killed", [True, False])
def test_catalogs_of_a_dead_branch_that_were_decoded_and_not_delivered_are_dropped(
    diverged: DivergedPrimary, *, is_killed: bool
) -> None:
    primary, sidecar = diverged.primary, diverged.sidecar
    sidecar.options["TIDEMARK_DELIVER__IDLE_POINTER_S"] = "600"  # or delivered would follow decoded
    sidecar.options["TIDEMARK_CAPTURE__DSN"] = either_of(primary, diverged.standby)
    sidecar.init()
    sidecar.start()
    primary.sql("INSERT INTO quiet VALUES (4, 'both')")
    sidecar.catch_up()
    sidecar.wait_for_event("the stream has caught up with the copy spool")  # later WAL must not be in that spool
    wait_until_replayed(diverged.standby, primary)
    diverged.keep_standby_back()
    with primary.connect(autocommit=False) as session:
        for number in range(30):
            session.execute(f"CREATE TABLE half_{number} (id int PRIMARY KEY, wrong text)".encode())
        primary.sql("CHECKPOINT")  # and all previous WAL is flushed
        flushed = parse_lsn(primary.flush_lsn())
        sidecar.wait_until(lambda: parse_lsn(str(sidecar.status()["decoded_lsn"])) >= flushed, "the dead branch")
        if is_killed:
            sidecar.kill()
        session.rollback()
    diverged.lose_primary()
    if is_killed:
        sidecar.start()
    diverged.standby.sql("CREATE TABLE fresh (id int PRIMARY KEY, note text)")
    diverged.standby.sql("INSERT INTO fresh VALUES (1, 'new')")
    sidecar.catch_up()
    assert parse_lsn(diverged.standby.flush_lsn()) < flushed, "the new branch has to be the shorter one"
    sidecar.stop()
    sidecar.start()
    diverged.standby.sql("INSERT INTO fresh VALUES (2, 'new')")
    sidecar.catch_up()
    diverged.feed()
    assert diverged.changes("fresh", 2) == [("i", 1, "new"), ("i", 2, "new")]


def either_of(*nodes: Cluster) -> str:
    """Return a DSN of the node that accepts writes."""
    folders, ports = ",".join(str(node.folder) for node in nodes), ",".join(str(node.port) for node in nodes)
    return f"host={folders} port={ports} dbname={DATABASE} user={SUPERUSER} target_session_attrs=read-write"


@pytest.mark.parametrize("again", [True, False])
def test_a_table_whose_copy_shows_the_dead_branch_is_copied_again_even_if_the_new_one_did_not_change_it(
    diverged: DivergedPrimary, *, again: bool
) -> None:
    copy_a_dead_branch(diverged)
    diverged.sidecar.catch_up(alive=False)
    diverged.sidecar.stop()
    diverged.lose_primary()
    check_copies_show_the_dead_branch(diverged)
    diverged.sidecar.options["TIDEMARK_COPY__ENABLED"] = str(again)
    diverged.standby.sql("INSERT INTO quiet VALUES (4, 'new')")
    succeeded(diverged.rewind("--dead-wal", str(diverged.primary.data / "pg_wal")))
    check_quiet_is_right(diverged)


def test_a_dead_branch_that_only_first_copies_show_ends_the_sidecar_and_is_rewound(diverged: DivergedPrimary) -> None:
    diverged.sidecar.options["TIDEMARK_DELIVER__IDLE_POINTER_S"] = "600"  # or delivered would follow decoded
    copy_a_dead_branch(diverged)
    diverged.sidecar.wait_for_event("the stream has caught up with the copy spool")
    diverged.sidecar.stop()
    rewind_copies(diverged, "the first copy of 5 tables contains changes")
    check_quiet_is_right(diverged)
    diverged.check_replica("busy")


def test_a_first_copy_that_is_killed_behind_the_fork_is_rewound_with_the_ddl_that_it_saw(
    diverged: DivergedPrimary,
) -> None:
    primary, sidecar = diverged.primary, diverged.sidecar
    primary.sql("CREATE TABLE last (id int PRIMARY KEY, note text)")
    primary.sql("INSERT INTO last VALUES (1, 'kept')")
    with primary.connect(autocommit=False) as holder:
        copy_a_dead_branch(diverged, holder)
        sidecar.kill()
    rewind_copies(diverged, "the first copy of 5 tables contains changes")
    check_quiet_is_right(diverged)
    for table in ("busy", "altered", "retyped", "dropped", "last"):
        diverged.check_replica(table)


def rewind_copies(diverged: DivergedPrimary, refused_as: str) -> None:
    """Lose the primary where only copies contain the dead branch; rewind."""
    diverged.lose_primary()
    before = diverged.view
    assert before.delivered is not None
    assert before.delivered.pointer.position.commit_lsn < diverged.fork_lsn
    check_copies_show_the_dead_branch(diverged)
    diverged.standby.sql("INSERT INTO quiet VALUES (4, 'new')")
    for _ in range(2):
        last = diverged.sidecar.refuses(ExitCode.CORRUPT_WAL, refused_as)
        assert "cdcctl rewind" in str(last["hint"])
    diverged.sidecar.options.pop("TIDEMARK_DELIVER__IDLE_POINTER_S", None)
    done = succeeded(diverged.rewind())
    assert "copied by first copies" in done.err
    assert diverged.view.rewinds.count == 1
    refused(diverged.rewind(), ExitCode.CONFIG, "the node has all changes up to")


def copy_a_dead_branch(diverged: DivergedPrimary, holder: Connection[object] | None = None) -> None:
    """Copy tables of the primary's dead branch; with a `holder` also its DDL, and `last` is not copied."""
    primary, sidecar = diverged.primary, diverged.sidecar
    sidecar.init()
    with primary.connect(autocommit=False) as older:
        older.execute("SELECT pg_current_xact_id()")
        primary.sql("SELECT pg_current_xact_id()")  # or the copy would not wait for the earlier transaction
        sidecar.start()
        sidecar.wait_for_event("first copy waits for older transactions")
        primary.sql("INSERT INTO busy VALUES (4, 'both')")
        wait_until_replayed(diverged.standby, primary)
        diverged.keep_standby_back()
        for number in range(20):  # transactions whose xids are used again
            primary.sql(f"INSERT INTO busy VALUES ({10 + number}, 'dead')")
        if holder is not None:
            holder.execute("LOCK last IN ACCESS EXCLUSIVE MODE")
            primary.sql("ALTER TABLE altered ADD COLUMN extra int DEFAULT 7")
            primary.sql("ALTER TABLE retyped ALTER note TYPE text USING 'dead ' || note")
            primary.sql("DROP TABLE dropped")
        older.rollback()
    left = 1 if holder is not None else 0
    sidecar.wait_until(lambda: sum(copy.is_open for copy in diverged.view.copies.values()) == left, "the first copy")


def check_copies_show_the_dead_branch(diverged: DivergedPrimary) -> None:
    copies = [copy for copy in diverged.view.copies.values() if not copy.is_open]
    assert copies
    assert all(copy.lx < diverged.fork_lsn < copy.seen_lsn for copy in copies), (diverged.fork_lsn, copies)


def check_quiet_is_right(diverged: DivergedPrimary) -> None:
    sidecar = diverged.sidecar
    sidecar.start()
    sidecar.wait_until(lambda: diverged.is_copied, "the copies")
    diverged.standby.sql("INSERT INTO quiet VALUES (5, 'new')")
    sidecar.catch_up(alive=False)
    diverged.feed()
    diverged.check_replica("quiet")
    assert diverged.changes("quiet", 2) == [("i", 4, "new"), ("i", 5, "new")]


def test_a_table_that_left_the_selection_on_the_dead_branch_is_copied_again(diverged: DivergedPrimary) -> None:
    primary, sidecar = diverged.primary, diverged.sidecar
    sidecar.options["TIDEMARK_SELECT__EXCLUDE_TABLES"] = "public.hidden_*"
    sidecar.init()
    sidecar.start()
    write_what_both_have(diverged)
    primary.sql("INSERT INTO busy VALUES (4, 'dead')")
    primary.sql("ALTER TABLE busy RENAME TO hidden_busy")
    sidecar.catch_up(alive=False)
    sidecar.stop()
    diverged.lose_primary()
    diverged.standby.sql("UPDATE busy SET note = 'new' WHERE id = 2")
    succeeded(diverged.rewind("--dead-wal", str(primary.data / "pg_wal")))
    sidecar.start()
    sidecar.wait_until(lambda: diverged.is_copied, "the copies")
    diverged.standby.sql("INSERT INTO busy VALUES (7, 'new')")
    sidecar.catch_up(alive=False)
    diverged.feed()
    diverged.check_replica("busy")
    assert diverged.changes("busy", 2) == [("u", 2, "new"), ("i", 7, "new")]


def remove_wal(node: Cluster, lsn: Lsn) -> None:
    """Let a node remove all segments up to that of `lsn`."""
    node.configure(wal_keep_size=0, max_wal_size="2MB", min_wal_size="2MB")
    last = segment_name(2, segment_of(lsn, MB), MB)[8:]
    for _ in range(20):
        node.sql("SELECT pg_logical_emit_message(false, 'fill', '')")
        node.sql("SELECT pg_switch_wal()")
        node.sql("CHECKPOINT")
        if not any(path.name[8:] <= last for path in (node.data / "pg_wal").iterdir() if len(path.name) == NAME_LENGTH):
            return
    raise AssertionError(sorted(path.name for path in (node.data / "pg_wal").iterdir()))


def test_an_archiver_that_delivered_a_dead_branch_continues_from_the_archive(tmp_path: Path) -> None:
    with (
        archiving_node() as node,
        branching(node.node, tmp_path, prepare=make_tables, **QUICK, **of_archive(node)) as diverged,
    ):
        archiver = Archiver(node.node, DATABASE, tmp_path, copy=True, **diverged.sidecar.options)
        diverged.sidecar.init()
        diverged.sidecar.start()
        try:
            archiver.start()
            diverged.sidecar.wait_until(lambda: diverged.is_copied, "the first copy")
            request(diverged.sidecar.folder.socket("sidecar"), {"command": "realtime-off"})
            diverged.sidecar.stop()
            write_what_both_have(diverged)
            write_what_is_lost(diverged)
            diverged.lose_primary()
            archiver.ended(ExitCode.CORRUPT_WAL, "timeline 2")
            write_the_new_branch(diverged.standby)
            refused_while_one_runs(diverged)
            done = succeeded(diverged.rewind())
            assert "5 tables were changed" in done.err
            assert diverged.view.stage is Stage.HELD
            archiver.options["TIDEMARK_CAPTURE__DSN"] = diverged.standby.dsn(DATABASE)
            resume_capture(diverged, archiver)
            check_lake(diverged)
        finally:
            archiver.close()


def refused_while_one_runs(diverged: DivergedPrimary) -> None:
    for role, named in (("sidecar", "a sidecar"), ("archiver", "an archiver")):
        with RoleLock.acquire(diverged.sidecar.folder, role):
            refused(diverged.rewind(), ExitCode.FENCED, f"{named} already runs")


def test_rewind_is_refused_without_a_divergence_at_another_cluster_and_during_a_return(
    primary: Cluster, tmp_path: Path
) -> None:
    sidecar = Sidecar(primary, DATABASE, tmp_path)
    sidecar.init()
    command = ("rewind", "--yes", "--state", sidecar.folder.root)
    before = state_of(sidecar)
    refused(cdcctl(*command, **sidecar.options), ExitCode.CONFIG, "; it is on timeline 1")
    with new_cluster(15) as other:
        elsewhere = {**sidecar.options, "TIDEMARK_CAPTURE__DSN": other.dsn(DATABASE)}
        refused(cdcctl(*command, **elsewhere), ExitCode.NODE_UNFIT, "is the cluster")
    assert state_of(sidecar) == before
    with StateStore.open(sidecar.folder) as store, store.transaction(None) as transaction:
        transaction.put(STAGE, Stage.RETURNING)
    refused(cdcctl(*command, **sidecar.options), ExitCode.CONFIG, "stage returning")
    with StateStore.open(sidecar.folder) as store, store.transaction(None) as transaction:
        transaction.put(STAGE, Stage.REALTIME)
        delivered = transaction.delivered()
        assert delivered is not None
        ahead = replace(delivered.pointer.position, timeline=TimelineId(7))
        transaction.put(DELIVERED, replace(delivered, pointer=replace(delivered.pointer, position=ahead)))
    refused(cdcctl(*command, **sidecar.options), ExitCode.CONFIG, "does not descend from timeline 7")


def state_of(sidecar: Sidecar) -> StateView:
    with StateStore.open(sidecar.folder) as store:
        return store.view()
