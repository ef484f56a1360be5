"""`cdcctl rewind` where first copies contain a dead branch, and earlier changes are still to be emitted."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.cdcctl import refused, succeeded
from tests.support.servers.diverged_primary import DATABASE, DivergedPrimary, branching
from tests.support.servers.postgres import Cluster, StopMode
from tests.support.servers.standby import promote, wait_until_replayed
from tidemark.model.errors import ExitCode
from tidemark.model.message_prefix import REWIND_PREFIX

TABLES = ("busy", "altered", "dropped", "renamed")
CHANGED = ("fresh", "altered", "busy")


@pytest.fixture
def diverged(primary: Cluster, tmp_path: Path) -> Iterator[DivergedPrimary]:
    with branching(primary, tmp_path, prepare=make_tables) as made:
        yield made


def make_tables(primary: Cluster) -> None:
    for table in TABLES:
        primary.sql(f"CREATE TABLE {table} (id int PRIMARY KEY, note text)")
        primary.sql(f"INSERT INTO {table} SELECT n, 'kept' FROM generate_series(1, 3) n")


@pytest.mark.parametrize("is_met", [True, False])
def test_changes_before_the_fork_follow_the_message_of_a_rewind_and_are_not_lost(
    diverged: DivergedPrimary, *, is_met: bool
) -> None:
    primary, sidecar = diverged.primary, diverged.sidecar
    sidecar.init()
    primary.sql("CREATE TABLE fresh (id int PRIMARY KEY, note text)")
    primary.sql("CREATE TABLE last (id int PRIMARY KEY, note text)")
    with primary.connect(autocommit=False) as older, primary.connect(autocommit=False) as holder:
        older.execute("SELECT pg_current_xact_id()")
        primary.sql("SELECT pg_current_xact_id()")  # or the copy would not wait for the earlier transaction
        sidecar.start()
        sidecar.wait_for_event("first copy waits for older transactions")
        primary.sql("ALTER TABLE altered ADD COLUMN more int")
        for table in CHANGED:
            primary.sql(f"INSERT INTO {table} (id, note) VALUES (4, 'both')")
        primary.sql("SELECT pg_logical_emit_message(true, 'mine', 'both')")
        lose(diverged, "ALTER TABLE altered ADD COLUMN extra int", "INSERT INTO busy VALUES (5, 'dead')")
        holder.execute("LOCK last IN ACCESS EXCLUSIVE MODE")
        older.rollback()
        kill_before_the_last(diverged)
    diverged.feed()
    diverged.lose_primary()
    for table in CHANGED:
        diverged.standby.sql(f"INSERT INTO {table} (id, note) VALUES (5, 'new')")
    resume_capture(diverged, is_met=is_met)
    for table in (*TABLES, "fresh", "last"):
        diverged.check_replica(table)
    for table in CHANGED:
        # NB: a sidecar that reads the fork first emits the changes before it, with the copies as they are.
        assert diverged.changes(table, 1) == ([] if is_met else [("i", 4, "both")]), table
        assert diverged.changes(table, 2) == [("i", 5, "new")], table
    assert [message["content"] for message in diverged.messages("mine")] == [b"both"]
    assert len(diverged.messages(REWIND_PREFIX)) == 1


def lose(diverged: DivergedPrimary, *statements: str) -> None:
    """Run statements at the primary alone."""
    wait_until_replayed(diverged.standby, diverged.primary)
    diverged.keep_standby_back()
    for statement in statements:
        diverged.primary.sql(statement)


def kill_before_the_last(diverged: DivergedPrimary) -> None:
    """Kill the sidecar when all tables are copied but one, which another session has locked."""
    sidecar = diverged.sidecar
    sidecar.wait_until(lambda: [copy.is_open for copy in diverged.view.copies.values()].count(True) == 1, "copies")
    sidecar.kill()


def resume_capture(diverged: DivergedPrimary, *, is_met: bool = True) -> None:
    """Check that the dead branch is detected, if `is_met`; rewind, and write everything into the lake."""
    if is_met:
        diverged.sidecar.refuses(ExitCode.CORRUPT_WAL, "timeline 1 was left at")
    before = diverged.view
    for point in ("rewind-prepared", "write-inside"):
        assert diverged.rewind(TIDEMARK_FAILPOINT=point).code == -signal.SIGKILL
        assert diverged.view == before, point
    succeeded(diverged.rewind())
    refused(diverged.rewind(), ExitCode.CONFIG, "the node has all changes up to")
    diverged.sidecar.start()
    diverged.sidecar.wait_until(lambda: diverged.is_copied, "the copies")
    diverged.sidecar.catch_up(alive=False)
    diverged.feed()


@pytest.mark.parametrize("is_met", [True, False])
def test_a_table_that_only_the_dead_branch_dropped_is_copied(diverged: DivergedPrimary, *, is_met: bool) -> None:
    primary, sidecar = diverged.primary, diverged.sidecar
    sidecar.options["TIDEMARK_SELECT__EXCLUDE_TABLES"] = "public.hidden_*"
    primary.sql("CREATE TABLE last (id int PRIMARY KEY, note text)")
    sidecar.init()
    with primary.connect(autocommit=False) as older, primary.connect(autocommit=False) as holder:
        older.execute("SELECT pg_current_xact_id()")
        lose(diverged, "DROP TABLE dropped", "ALTER TABLE renamed RENAME TO hidden_renamed")
        sidecar.start()
        sidecar.wait_for_event("first copy waits for older transactions")
        holder.execute("LOCK last IN ACCESS EXCLUSIVE MODE")
        older.rollback()
        kill_before_the_last(diverged)
    diverged.lose_primary()
    for table in ("dropped", "renamed"):
        diverged.standby.sql(f"INSERT INTO {table} VALUES (4, 'new')")
    resume_capture(diverged, is_met=is_met)
    for table in (*TABLES, "last"):
        diverged.check_replica(table)


def test_rows_that_are_copied_right_after_a_promotion_are_on_the_new_timeline(diverged: DivergedPrimary) -> None:
    primary, standby = diverged.primary, diverged.standby
    # The checkpoint after the promotion has enough to write to take its maximal time.
    standby.configure(checkpoint_timeout="1h", shared_buffers="64MB")
    standby.stop()
    standby.start()
    diverged.sidecar.init()
    primary.sql("CREATE TABLE filler AS SELECT n, repeat('x', 1000) FROM generate_series(1, 20000) n")
    wait_until_replayed(standby, primary)
    primary.stop(StopMode.IMMEDIATE)
    promote(standby)
    diverged.sidecar.options["TIDEMARK_CAPTURE__DSN"] = standby.dsn(DATABASE)
    diverged.sidecar.options["TIDEMARK_SELECT__TABLES"] = "public.busy"
    diverged.sidecar.start()
    diverged.sidecar.wait_until(lambda: diverged.is_copied, "the copy")
    ((checkpointed,),) = standby.sql("SELECT timeline_id FROM pg_control_checkpoint()", DATABASE)
    assert checkpointed == 1, "the checkpoint was over too soon to tell anything"
    diverged.feed()
    assert {row["_tli"] for row in diverged.log("busy")} == {2}
