"""`cdcctl archive repair`: gives up a hole on confirmation, reports the loss to readers, and restores the tables."""

import json
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.forged.confirmations import confirm_in_the_file
from tests.support.lakes.lakes import feed_by_hand, rows_by_key
from tests.support.processes.captures import Sidecar, replayed
from tests.support.processes.cdcctl import cdcctl, contents, refused, succeeded
from tests.support.servers.postgres import Cluster, new_cluster
from tidemark.io.process.config import CopyConfig
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_views import StateView
from tidemark.model.change import ChangeBatch, CopyBoundary, GroupItem, LogicalMessage, SchemaChange, SchemaEvent
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import Lsn, format_lsn
from tidemark.model.message_prefix import LOSS_PREFIX
from tidemark.model.mode import Stage
from tidemark.model.position import NO_SEQUENCE
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.positions.table_position import TableState
from tidemark.pipeline.lake.report import OpenedLake
from tidemark.pipeline.replay.moment import EndOfLake
from tidemark.pipeline.replay.refusal import ReplayRefused
from tidemark.pipeline.replay.replaying import replay
from tidemark.pipeline.replay.result_target import FolderTarget
from tidemark.wal.segments import segment_start
from tidemark.wire.state.copy_progress import CopyPhase
from tidemark.wire.state.state_keys import STAGE
from tidemark.wire.values import ValueKind

MB = 1 << 20
READER = "reader"  # a role without SELECT


@pytest.fixture
def node() -> Iterator[Cluster]:
    with new_cluster(15, initdb=["--wal-segsize=1"]) as made:
        made.sql("CREATE DATABASE shop")
        yield made


class Holed:
    """A stopped capture, and an archive of all later WAL except one segment."""

    def __init__(self, node: Cluster, root: Path) -> None:
        self.node = node
        self.archive = root / "archive"
        self.archive.mkdir()
        self.lake = root / "lake"
        self.sidecar = Sidecar(node, "shop", root, copy=True, TIDEMARK_ARCHIVE__FOLDER=str(self.archive))
        self.state = self.sidecar.folder.root

    def sql(self, *statements: str) -> None:
        for statement in statements:
            self.node.sql(statement, "shop")

    def switch(self) -> str:
        self.sql("SELECT pg_logical_emit_message(false, 'fill', '')")
        ((name,),) = self.node.sql("SELECT pg_walfile_name(pg_switch_wal())")
        return str(name)

    def take(self, *without: str) -> None:
        """Archive the whole segments of the node, except these."""
        ((current,),) = self.node.sql("SELECT pg_walfile_name(pg_current_wal_insert_lsn())")
        for path in (self.node.data / "pg_wal").iterdir():
            if len(path.name) == 24 and path.name < str(current) and path.name not in without:
                shutil.copy(path, self.archive)

    def set_stage(self, stage: Stage) -> None:
        with StateStore.open(self.sidecar.folder) as store, store.transaction(None) as transaction:
            transaction.put(STAGE, stage)

    def run(self, *arguments: str) -> tuple[str, str]:
        done = succeeded(cdcctl("archive", *arguments, "--state", self.state, **self.sidecar.options))
        return done.out.decode(), done.err

    def view(self) -> StateView:
        with StateStore.open(self.sidecar.folder) as store:
            return store.view()

    def messages(self) -> list[dict[str, object]]:
        """Return the lake's log of messages, without those of catch-ups."""
        (folder,) = self.lake.glob("*/messages")
        rows: list[dict[str, object]] = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
        return [row for row in rows if not str(row["prefix"]).startswith(("sync-", "fill"))]

    def lake_state(self, table: str) -> TableState:
        with StateStore.open(self.sidecar.folder) as store:
            positions = Positions(str(self.lake), store.identity)
        (found,) = [known.state for known in positions.tables.values() if known.name == table]
        return found

    def items(self) -> list[GroupItem]:
        with OutboxReader.open(self.sidecar.folder) as reader:
            values = reader.read(NO_SEQUENCE, reader.head())
            return [value.item() for value in values if value.header.kind is not ValueKind.TRANSACTIONS]


def rows(items: list[GroupItem], table: str) -> list[dict[str, object]]:
    """Return a table's rows since its last copy, in stream order."""
    found: list[dict[str, object]] = []
    for item in items:
        if isinstance(item, CopyBoundary) and item.begin and item.relation.name == table:
            found.clear()
        if isinstance(item, ChangeBatch) and item.relation.name == table:
            found += item.rows.to_pylist()
    return found


def make_the_hole(holed: Holed) -> tuple[str, Lsn]:
    """Stop the capture, lose a segment with rows and DDL; return its name and its start LSN."""
    holed.sql("INSERT INTO kept VALUES (1, 'before'), (2, 'before')", "INSERT INTO dropped VALUES (1)")
    holed.sidecar.catch_up()
    holed.sidecar.stop()
    feed_by_hand(holed.sidecar.folder, holed.lake, "lake")
    holed.switch()
    holed.sql("INSERT INTO kept VALUES (3, 'in the hole')", "DELETE FROM kept WHERE id = 1", "DROP TABLE dropped")
    holed.sql("ALTER TABLE altered ALTER note TYPE text USING 'n' || note", "CREATE TABLE made (id int PRIMARY KEY)")
    holed.sql("INSERT INTO made VALUES (5)")
    lost = holed.switch()
    holed.sql("INSERT INTO kept VALUES (4, 'behind the hole')")
    holed.switch()
    holed.take(lost)
    holed.set_stage(Stage.ARCHIVE)
    return lost, segment_start(int(lost[8:16], 16) << 12 | int(lost[16:], 16), MB)


def check_reported(holed: Holed, start: Lsn) -> None:
    """Check that state and outbox record the loss, and the position at which decoding continues."""
    with StateStore.open(holed.sidecar.folder) as store:
        view = store.view()
    (loss,) = view.losses.kept
    assert (loss.hole_start_lsn, loss.hole_end_lsn) == (start, start + MB)
    assert view.start is not None
    assert view.start.restart_lsn == loss.resumed_lsn
    assert view.term is not None
    assert view.term.epoch.number == 2
    assert {copy.phase for copy in view.copies.values()} == {CopyPhase.WAITING, CopyPhase.COPYING}
    items = holed.items()
    (message,) = [item for item in items if isinstance(item, LogicalMessage) and item.prefix == LOSS_PREFIX]
    assert json.loads(message.content)["hole"] == [format_lsn(start), format_lsn(start + MB)]
    (drop,) = [item for item in items if isinstance(item, SchemaEvent) and item.change is SchemaChange.DROP]
    assert drop.before is not None
    assert drop.before.name == "dropped"


@pytest.mark.feature("I29")
def test_a_hole_is_shown_given_up_and_reported_and_the_tables_are_copied_again(node: Cluster, tmp_path: Path) -> None:
    holed = Holed(node, tmp_path)
    sidecar = holed.sidecar
    holed.sql("CREATE TABLE kept (id int PRIMARY KEY, note text)", "CREATE TABLE dropped (id int PRIMARY KEY)")
    holed.sql("CREATE TABLE altered (id int PRIMARY KEY, note int)", "INSERT INTO altered VALUES (1, 7)")
    sidecar.init()
    try:
        sidecar.start()
        lost, start = make_the_hole(holed)
        assert lost in json.loads(holed.run("status", "--json")[0])["delivered"]
        before = contents(sidecar.folder.history)
        begun = holed.view().start
        assert begun is not None
        confirmed = replace(begun.position, ordinal=begun.position.ordinal + 1)
        confirm_in_the_file(sidecar.folder, confirmed)  # as a killed process leaves it
        unasked = cdcctl("archive", "repair", "--state", holed.state, **sidecar.options)  # without confirmation
        assert unasked.code == ExitCode.CONFIG
        assert f"WAL from {format_lsn(start)} to {format_lsn(start + MB)}: {lost}" in unasked.err
        assert f"the last delivered position: {confirmed}\n" in unasked.err
        assert "while the node has that WAL in pg_wal, `cdcctl realtime on` continues" in unasked.err
        assert contents(sidecar.folder.history) == before
        node.sql(f"CREATE ROLE {READER} LOGIN REPLICATION")
        sidecar.options["TIDEMARK_CAPTURE__DSN"] = f"{node.dsn('shop')} user={READER}"
        out, warned = holed.run("repair", "--yes")
        sidecar.options["TIDEMARK_CAPTURE__DSN"] = node.dsn("shop")
        assert "2 tables to copy again" in out
        assert f"{READER} cannot read" in warned
        check_reported(holed, start)
        assert holed.view().losses.kept[0].after == confirmed
        assert "nothing to repair" in holed.run("repair", "--yes")[0]

        feed_by_hand(sidecar.folder, holed.lake, "lake")
        assert rows_by_key(holed.lake, "kept").keys() == {1, 2}  # stale, and reported so
        assert rows_by_key(holed.lake, "altered") == {}
        assert [message["prefix"] for message in holed.messages()] == [LOSS_PREFIX]
        assert holed.lake_state("dropped") is TableState.DROPPED
        holed.set_stage(Stage.REALTIME)
        sidecar.start()
        holed.sql("UPDATE kept SET note = 'after' WHERE id = 4", "INSERT INTO altered VALUES (2, 'x')")
        holed.sql("INSERT INTO made VALUES (6)")
        items = sidecar.catch_up()
        for table in ("kept", "altered", "made"):
            expected = {key: row for key, *row in node.sql(f"SELECT * FROM {table}", "shop")}
            assert {key: list(row.values())[1:] for key, row in replayed(rows(items, table)).items()} == expected
        feed_by_hand(sidecar.folder, holed.lake, "lake")
        for table in ("kept", "altered", "made"):
            expected = {key: row for key, *row in node.sql(f"SELECT * FROM {table}", "shop")}
            assert rows_by_key(holed.lake, table) == expected
            assert holed.lake_state(table) is TableState.LIVE
    finally:
        sidecar.close()


def test_a_killed_repair_leaves_the_old_or_the_new_state_and_a_second_one_completes_it(
    node: Cluster, tmp_path: Path
) -> None:
    holed = Holed(node, tmp_path)
    sidecar = holed.sidecar
    holed.sql("CREATE TABLE kept (id int PRIMARY KEY, note text)", "CREATE TABLE dropped (id int PRIMARY KEY)")
    holed.sql("CREATE TABLE altered (id int PRIMARY KEY, note int)")
    sidecar.init()
    repair = ("archive", "repair", "--yes", "--state", holed.state)
    try:
        sidecar.start()
        _, start = make_the_hole(holed)
        before = holed.view()
        for point in ("repair-prepared", "write-inside", "write-cleared"):
            assert cdcctl(*repair, **sidecar.options, TIDEMARK_FAILPOINT=point).code == -signal.SIGKILL
            assert holed.view() == before, point
        assert cdcctl(*repair, **sidecar.options, TIDEMARK_FAILPOINT="repair-repaired").code == -signal.SIGKILL
        check_reported(holed, start)
        assert "nothing to repair" in holed.run("repair", "--yes")[0]
        holed.set_stage(Stage.REALTIME)
        sidecar.start()
        holed.sql("UPDATE kept SET note = 'after' WHERE id = 4")
        items = sidecar.catch_up()
        for table in ("kept", "altered", "made"):
            expected = {key: row for key, *row in node.sql(f"SELECT * FROM {table}", "shop")}
            assert {key: list(row.values())[1:] for key, row in replayed(rows(items, table)).items()} == expected
        holed.sql("CREATE TABLE later (id int)")  # its journal entry removes what killed commands left
        sidecar.catch_up()
        last = holed.view().history
        kept = {base.file for base in last.bases} | {journal.file for journal in last.journals}
        assert set(contents(sidecar.folder.history)) == kept
    finally:
        sidecar.close()


def test_repair_is_refused_while_delivery_does_not_read_the_archive(node: Cluster, tmp_path: Path) -> None:
    holed = Holed(node, tmp_path)
    holed.sidecar.init()
    holed.take()
    command = ("archive", "repair", "--yes", "--state", holed.state)
    options = holed.sidecar.options
    refused(cdcctl(*command, **options), ExitCode.CONFIG, "stage realtime")
    holed.set_stage(Stage.RETURNING)
    refused(cdcctl(*command, **options), ExitCode.CONFIG, "stage returning")
    holed.set_stage(Stage.HELD)
    with RoleLock.acquire(holed.sidecar.folder, "archiver"):
        refused(cdcctl(*command, **options), ExitCode.FENCED, "an archiver already runs")
    before = contents(holed.state / "history")
    assert "nothing to repair" in holed.run("repair", "--yes")[0]
    assert contents(holed.state / "history") == before
    options = {**options, "TIDEMARK_ARCHIVE__FOLDER": ""}
    refused(cdcctl(*command, **options), ExitCode.CONFIG, "no archive is configured")


@pytest.mark.feature("I29")
def test_a_loss_without_a_copy_is_a_gap_of_each_log_from_which_no_moment_after_it_is_shown(
    node: Cluster, tmp_path: Path
) -> None:
    holed = Holed(node, tmp_path)
    sidecar = holed.sidecar
    sidecar.options["TIDEMARK_COPY__ENABLED"] = "false"
    sidecar.config = replace(sidecar.config, copy=CopyConfig(enabled=False))
    holed.sql("CREATE TABLE dropped (id int PRIMARY KEY)", "CREATE TABLE altered (id int PRIMARY KEY, note int)")
    sidecar.init()
    try:
        sidecar.start()
        holed.sql("CREATE TABLE kept (id int PRIMARY KEY, note text)")
        make_the_hole(holed)
        holed.run("repair", "--yes")
        holed.set_stage(Stage.REALTIME)
        sidecar.start()
        holed.sql("UPDATE kept SET note = 'after' WHERE id = 4")
        sidecar.catch_up()
        feed_by_hand(sidecar.folder, holed.lake, "lake")
    finally:
        sidecar.close()
    lake = OpenedLake(str(holed.lake))
    kept = lake.find("public.kept")
    (gap,) = kept.breaks
    with pytest.raises(ReplayRefused, match=f"its changes after {gap.after} and before {gap.to} are missing"):
        replay(lake, kept, EndOfLake(), FolderTarget(tmp_path / "to"))
    assert lake.find("public.dropped").state is TableState.DROPPED
