"""A hot standby as the source: the decoded lines equal those of the primary's own test_decoding."""

from collections.abc import Callable, Iterable
from contextlib import closing
from typing import IO, NoReturn

import pytest

from tests.conftest import NewCluster
from tests.oracle.test_tail import in_transactions, stream, tailing
from tests.support.oracles.oracle import (
    ROLE,
    OurSide,
    ServerSide,
    assert_same_lines,
    emit_fence,
    ensure_role,
    without_tidemarks_messages,
)
from tests.support.oracles.oracle_rounds.round import assert_equal, follow
from tests.support.processes.waiting import let_pass
from tests.support.servers.postgres import Cluster, StopMode, sql
from tests.support.servers.proxies import cable
from tests.support.servers.standby import promote, standby_of, wait_until_replayed
from tests.support.workloads.random_sessions.crew import Crew
from tests.support.workloads.random_sessions.objects import load_for
from tests.support.workloads.workloads import run_script
from tidemark.model.lsn import FullXid, Lsn, TimelineId, parse_lsn
from tidemark.model.snapshot import ReplayedSnapshot
from tidemark.runtime.replay.diverged import DeadBranchDelivered
from tidemark.runtime.seed.steady_stream import SteadyStream
from tidemark.wal.versions import PAGE_BYTES

SETTINGS = {"autovacuum_naptime": "1s", "max_wal_size": "128MB", "wal_keep_size": "2GB", "max_connections": "40"}
SESSIONS = 4
SECONDS = 6.0  # of load in each test


def begun_behind(snapshot: ReplayedSnapshot, rows: Iterable[tuple[Lsn, str]]) -> list[str]:
    """Return the lines of the transactions that `snapshot` does not contain: a young cluster, of epoch 0."""
    kept: list[str] = []
    transaction: list[str] = []
    for lsn, line in rows:
        transaction.append(line)
        if line.startswith("COMMIT "):
            xid = FullXid(int(line.removeprefix("COMMIT ")))
            if not snapshot.shows(xid, Lsn(lsn - 1)):  # the record ends there, and the next one begins
                kept += transaction
            transaction = []
    return without_tidemarks_messages(kept)


def test_a_seed_at_a_standby_under_load_begins_exactly_at_its_replay_position(
    new_cluster: NewCluster, major: int
) -> None:
    primary = new_cluster(major, **SETTINGS)
    primary.sql("CREATE DATABASE fuzz")
    ensure_role(primary)
    with standby_of(primary) as standby:
        server = ServerSide(primary, "fuzz")
        load = load_for(primary, f"standby {major}", messages=False)
        with Crew(primary, "fuzz", load, SESSIONS) as crew:
            let_pass(SECONDS / 8, "load before and after the restart point")
            primary.sql("CHECKPOINT")
            standby.sql("CHECKPOINT")  # a restartpoint, during the load
            let_pass(SECONDS / 8, "load before and after the restart point")
            ours = OurSide(standby, ["fuzz"])
            ours.settle()
            follow(ours, SECONDS / 2)
            crew.stop()
        ours.read_until(emit_fence(primary, "fuzz"))
        snapshot = ours.changes.snapshot
        assert isinstance(snapshot, ReplayedSnapshot)
        rows, failure = server.decodable_rows()  # NB: the server's decoder cannot follow every rewrite of a catalog
        expected, found = begun_behind(snapshot, rows), ours.new_lines("fuzz")
        assert expected or failure
        assert_equal(f"a standby under load, {major}", expected, found[: len(expected)] if failure else found)
        ours.check_catalogs(f"a standby under load, {major}", primary)
        ours.changes.close()


def test_tail_prints_a_standbys_lines_before_and_behind_its_promotion(new_cluster: NewCluster, major: int) -> None:
    primary = new_cluster(major)
    primary.sql("CREATE DATABASE stranger")
    ensure_role(primary)
    with standby_of(primary) as standby:
        before = ServerSide(primary, "stranger")
        with tailing(standby.dsn("stranger", ROLE), "--format", "test_decoding") as tail:
            run_script(primary, "stranger", "ddl")
            fence = emit_fence(primary, "stranger")
            printed = read_to(fence, stream(tail.stdout))
            expected = "\n".join(before.lines()).split("\n")
            assert_same_lines("tail", expected, in_transactions(without_tidemarks_messages(printed)))
            wait_until_replayed(standby, primary)
            primary.stop()
            promote(standby)
            behind = ServerSide(standby, "stranger")
            run_script(standby, "stranger", "two_phase")
            printed = read_to(emit_fence(standby, "stranger"), stream(tail.stdout))
            if printed[0].startswith("COMMIT "):  # from 16 on messages are in transactions: the fence's ends here
                printed.pop(0)
            expected = "\n".join(behind.lines()).split("\n")
            assert_same_lines("promoted", expected, in_transactions(without_tidemarks_messages(printed)))


def read_to(fence: str, lines: IO[str]) -> list[str]:
    """Return the lines up to the one with the fence."""
    printed: list[str] = []
    for line in lines:
        printed.append(line.rstrip("\n"))
        if fence in line:
            break
    return printed


@pytest.mark.feature("I33")
def test_a_record_that_was_sent_in_part_is_dropped_where_the_next_timeline_begins(new_cluster: NewCluster) -> None:
    primary = new_cluster()
    ensure_role(primary)
    with standby_of(primary) as standby:
        ours = OurSide(standby, ["postgres"])
        assert_record_in_part_is_dropped(primary, standby, ours)


@pytest.mark.feature("I33")
def test_a_connection_that_breaks_during_the_promotion_continues_at_the_fork(new_cluster: NewCluster) -> None:
    primary = new_cluster()
    ensure_role(primary)
    with standby_of(primary) as standby, cable(standby.port) as way:
        ours = OurSide(standby, ["postgres"], proxy_port=way.port)
        assert_record_in_part_is_dropped(primary, standby, ours, before_promotion=way.cut)


@pytest.mark.feature("I33")
def test_a_new_primary_without_records_that_were_decoded_ends_the_stream(new_cluster: NewCluster) -> None:
    primary = new_cluster()
    ensure_role(primary)
    primary.sql("CREATE TABLE lost (a int)")
    with standby_of(primary) as standby, cable(primary.port) as way:
        ours = OurSide(primary, ["postgres"], proxy_port=way.port)
        ours.settle()
        wait_until_replayed(standby, primary)
        standby.stop()
        primary.sql("INSERT INTO lost VALUES (1)")
        ours.read_until(emit_fence(primary, "postgres"))
        primary.stop(StopMode.KILL)
        standby.start()
        promote(standby)
        way.lead_to(standby.port)
        with pytest.raises(DeadBranchDelivered, match="but timeline 1 was decoded up to"):
            ours.read_until(emit_fence(standby, "postgres"))
        ours.changes.close()
        identifier, dead_lsn = ours.seed.node.system_identifier, ours.changes.decoded_lsn
        with (
            SteadyStream(standby.dsn("postgres", ROLE), identifier, dead_lsn, TimelineId(1)) as later,
            pytest.raises(DeadBranchDelivered, match="but timeline 1 is to be read from"),
        ):
            read_on(later)


def read_on(stream: SteadyStream) -> NoReturn:
    while True:
        stream.read(1.0)


def assert_record_in_part_is_dropped(
    primary: Cluster, standby: Cluster, ours: OurSide, before_promotion: Callable[[], object] = bool
) -> None:
    """Promote the standby inside a record, and check that the lines continue behind the fork."""
    ours.settle()
    framer = ours.changes.decoding.framer
    lose_primary_inside_a_record(primary, standby, ours, before_promotion)
    assert_promoted_lines(standby, ours)
    assert ours.changes.decoding.framer is not framer
    ours.changes.close()


def lose_primary_inside_a_record(
    primary: Cluster, standby: Cluster, ours: OurSide, before_promotion: Callable[[], object]
) -> None:
    """Kill the primary after a part of a record was read from its standby, which is then promoted."""
    primary.sql("CREATE TABLE lost (a int, v text)")
    with closing(primary.connect(autocommit=False)) as lost:
        ours.read_until(emit_fence(primary, "postgres"))
        framer = ours.changes.decoding.framer
        sql(lost, "INSERT INTO lost SELECT n, repeat('x', 300) FROM generate_series(1, 3000) n")
        ((reported,),) = primary.sql("SELECT pg_current_wal_insert_lsn()::text")
        inserted = parse_lsn(reported)
        # Uncommitted WAL is flushed in whole pages: wait for the last of them.
        while framer.fed_lsn is None or framer.fed_lsn < inserted - inserted % PAGE_BYTES:
            follow(ours, 0.1)
        primary.stop(StopMode.KILL)
    before_promotion()
    promote(standby)


def assert_promoted_lines(standby: Cluster, ours: OurSide) -> None:
    """Compare the lines of changes on the new primary."""
    server = ServerSide(standby, "postgres")
    run_script(standby, "postgres", "two_phase")
    ours.read_until(emit_fence(standby, "postgres"))
    assert_same_lines("after the fork", server.lines(), ours.new_lines("postgres"))
