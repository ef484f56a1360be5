"""The catalog history in the spool: copied as it grows, complete at any moment, and enough to rebuild a lost state."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lakes.lakes import feed_by_hand, rows_by_key
from tests.support.processes.captures import Sidecar
from tests.support.processes.cdcctl import cdcctl, refused, succeeded
from tests.support.servers.postgres import Cluster, new_cluster
from tidemark.decode.catalog.history import DamagedHistory
from tidemark.io.archive.history_copy import HistoryCopy
from tidemark.io.archive.spool import NoSpool, Spool
from tidemark.io.archive.spool_manifest import history_folder, read_manifest
from tidemark.io.state.history_files import load_catalogs
from tidemark.io.state.state import StateStore
from tidemark.model.errors import ConfigError, ExitCode
from tidemark.model.lsn import INVALID_LSN
from tidemark.model.mode import Stage
from tidemark.model.position import Epoch
from tidemark.pipeline.lake.positions.table_position import TableState
from tidemark.pipeline.lake.report import OpenedLake
from tidemark.runtime.first_copy.recopying import refuse
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.manifest import Manifest
from tidemark.wire.state.copy_progress import CopyPhase, Recopy
from tidemark.wire.state.process_log import Owner
from tidemark.wire.state.state_keys import STAGE
from tidemark.wire.state.values import Followed

READER = "lake"


@pytest.fixture
def node() -> Iterator[Cluster]:
    with new_cluster(15, initdb=["--wal-segsize=1"]) as made:
        made.sql("CREATE DATABASE shop")
        yield made


class Shop:
    """A captured database, its spool, and a lake that is fed by the test."""

    def __init__(self, node: Cluster, root: Path) -> None:
        self.node = node
        self.root = root
        self.lake = root / "lake"
        chosen = {"TIDEMARK_ARCHIVE__FOLDER": str(root / "spool"), "TIDEMARK_ARCHIVE__FILLED_BY": "pg_receivewal"}
        self.sidecar = Sidecar(node, "shop", root, copy=True, **chosen)
        self.state = self.sidecar.folder.root
        self.spool = Spool(root / "spool")
        ((identifier,),) = node.sql("SELECT system_identifier FROM pg_control_system()")
        self.spool.create(int(str(identifier)))

    def sql(self, *statements: str) -> None:
        for statement in statements:
            self.node.sql(statement, "shop")

    def copy(self) -> Manifest:
        with StateStore.open(self.sidecar.folder) as store:
            manifest = HistoryCopy(store, self.spool).update()
        assert manifest is not None
        return manifest

    def feed(self, *, confirm: bool = True) -> None:
        """Write all values of the outbox into the lake."""
        feed_by_hand(self.sidecar.folder, self.lake, READER, confirm=confirm)

    def settled(self) -> bool:
        """Return whether the sidecar has recorded the reader's confirmation."""
        with StateStore.open(self.sidecar.folder) as store:
            marks = store.marks()
        return marks.confirmed is not None and marks.confirmed.sequence == marks.readers[READER].applied

    def source(self, table: str) -> dict[object, list[object]]:
        return {key: list(row) for key, *row in self.node.sql(f"SELECT * FROM {table}", "shop")}

    def lose(self) -> None:
        """Lose the state."""
        shutil.rmtree(self.state)

    @property
    def manifest(self) -> Manifest:
        return read_manifest(self.spool)

    def init_from_spool(self, *more: str | Path) -> None:
        config = self.root / "shop.toml"
        config.write_text("")
        command = ("init", "--state", self.state, "--config", config, "--from-spool", self.spool.folder, *more)
        done = succeeded(cdcctl(*command, **self.sidecar.options))
        assert "rebuilt as of" in done.err

    def stage_of_another(self) -> Stage:
        """Lose the state again, and return the stage in which the next one begins."""
        self.lose()
        self.init_from_spool()
        with StateStore.open(self.sidecar.folder) as store:
            return store.marks().stage

    def rebuild_state(self, *more: str | Path) -> None:
        """Rebuild the state from the spool."""
        self.init_from_spool(*more)
        with StateStore.open(self.sidecar.folder) as store, store.transaction(None) as transaction:
            assert transaction.stage() is Stage.ARCHIVE
            transaction.put(STAGE, Stage.REALTIME)  # the node still has the WAL: no archiver is needed

    def epoch(self) -> Epoch:
        with StateStore.open(self.sidecar.folder) as store:
            term = store.view().term
        assert term is not None
        return term.epoch

    def phases(self) -> set[CopyPhase]:
        with StateStore.open(self.sidecar.folder) as store:
            return {copy.phase for copy in store.view().copies.values()}


@pytest.fixture
def shop(node: Cluster, tmp_path: Path) -> Iterator[Shop]:
    """Create a shop whose lake equals the source, with a history copied at that moment; then change more rows."""
    made = Shop(node, tmp_path)
    made.sql("CREATE TABLE item (id int PRIMARY KEY, note text)", "INSERT INTO item VALUES (1, 'copied')")
    made.sidecar.init()
    try:
        made.sidecar.start()
        made.sql("CREATE TABLE sale (id int PRIMARY KEY)", "INSERT INTO sale VALUES (1)")
        made.sidecar.catch_up()
        made.feed()
        made.sidecar.wait_until(made.settled, "the reader's confirmation")
        made.copy()
        made.sql("ALTER TABLE item ADD price int DEFAULT 7", "INSERT INTO item VALUES (2, 'in the lake', 8)")
        made.sql("INSERT INTO sale VALUES (2)")
        made.sidecar.catch_up()
        made.feed(confirm=False)
        made.sql("ALTER TABLE sale ADD by text", "INSERT INTO sale VALUES (3, 'lost with the outbox')")
        made.sql("CREATE TABLE late (id int PRIMARY KEY)", "INSERT INTO late VALUES (1)")
        made.sidecar.catch_up()
        yield made
    finally:
        made.sidecar.close()


def resume(shop: Shop) -> None:
    """Run the capture again, and check that the lake becomes equal to the source."""
    shop.sidecar.start()
    shop.sql("UPDATE item SET note = 'after' WHERE id = 1", "INSERT INTO sale VALUES (4, 'after')", "DELETE FROM late")
    shop.sidecar.catch_up()
    shop.feed()
    for table in ("item", "sale", "late"):
        assert rows_by_key(shop.lake, table) == shop.source(table)


def test_a_lost_state_continues_from_the_spool_and_the_lake_without_a_copy(shop: Shop) -> None:
    shop.sidecar.kill()
    before = read_manifest(shop.spool)
    shop.lose()
    shop.rebuild_state("--lake", shop.lake)
    assert shop.phases() == {CopyPhase.DONE}
    with StateStore.open(shop.sidecar.folder) as store:
        view = store.view()
    assert view.start == before.start
    assert view.identity.outbox_id != before.identity.outbox_id
    assert view.ledger.head > before.head
    resume(shop)
    assert not [
        event for event in shop.sidecar.events() if event["event"] == "table copied" and event["generation"] == 2
    ]


def test_a_lost_state_without_a_lake_copies_all_tables_as_their_next_generation(shop: Shop) -> None:
    shop.sidecar.kill()
    shop.copy()
    shop.lose()
    shop.rebuild_state()
    assert shop.phases() == {CopyPhase.WAITING}
    shutil.rmtree(shop.lake)
    resume(shop)
    generations = [event["generation"] for event in shop.sidecar.events() if event["event"] == "table copied"]
    assert 2 in generations


def test_a_refused_copy_of_a_lost_state_is_repeated(shop: Shop) -> None:
    shop.sidecar.kill()
    with StateStore.open(shop.sidecar.folder) as store:
        tables = store.relations().values()
        key = next((database, relation.oid) for database, relation in tables if relation.name == "item")
        epoch = store.begin_epoch(Owner("sidecar", "host", "boot", 1, 1))
        refuse(store, epoch, key, Recopy("postgres.public.item", 0, INVALID_LSN, 0, failed="too large"))
    shop.copy()
    shop.lose()
    shop.rebuild_state("--lake", shop.lake)
    with StateStore.open(shop.sidecar.folder) as store:
        assert store.view().copies[key].phase is CopyPhase.WAITING
    resume(shop)


@pytest.mark.feature("P22")
@pytest.mark.parametrize("planned", [False, True])
def test_tables_that_a_lost_state_has_delivered_and_that_are_gone_are_reported_as_dropped(
    node: Cluster, tmp_path: Path, *, planned: bool
) -> None:
    """The history in the spool is from before the first copy, as when the spool was not writable since then."""
    shop = Shop(node, tmp_path)
    shop.sql("CREATE TABLE item (id int PRIMARY KEY, note text)", "INSERT INTO item VALUES (1, 'copied')")
    shop.sql("CREATE TABLE gone (id int PRIMARY KEY)", "INSERT INTO gone VALUES (1)")
    shop.sidecar.init()
    shop.copy()
    try:
        with node.connect("shop", autocommit=False) as older:
            older.execute("INSERT INTO item VALUES (2, 'older')")
            shop.sidecar.start()
            shop.sidecar.wait_for_event("first copy waits for older transactions")
            if planned:
                shop.copy()
        shop.sidecar.catch_up()
        shop.feed()
        shop.sidecar.kill()
        shop.sql("DROP TABLE gone")
        assert {table.progress.generation for table in shop.manifest.tables} <= {0}
        shop.lose()
        if planned:  # without the lake, whose generations show that tables were copied
            shop.rebuild_state()
        else:
            shop.rebuild_state("--lake", shop.lake)
        shop.sidecar.start()
        shop.sidecar.catch_up()
        shop.feed()
    finally:
        shop.sidecar.close()
    states = {table.name: table.state for table in OpenedLake(str(shop.lake)).tables}
    assert (states["item"], states["gone"]) == (TableState.LIVE, TableState.DROPPED)
    assert rows_by_key(shop.lake, "item") == shop.source("item")


def test_a_repeated_copy_writes_only_what_is_new(shop: Shop) -> None:
    first = shop.copy()
    folder = history_folder(shop.spool)
    before = {path.name: path.stat().st_ino for path in folder.iterdir() if path.name != "manifest"}
    assert {base.file for base in first.history.bases} < set(before)
    shop.copy()
    assert {path.name: path.stat().st_ino for path in folder.iterdir() if path.name != "manifest"} == before
    shop.sql("CREATE TABLE one_more (id int PRIMARY KEY)")
    shop.sidecar.catch_up()
    (folder / "base-00000001-0000000000000000").touch()  # named by an earlier index, but no longer
    (folder / "manifest.new").touch()
    (folder / "letter").touch()
    second = shop.copy()
    assert second.journal.end_lsn > first.journal.end_lsn
    names = {path.name for path in folder.iterdir()}
    assert names == {*before, "manifest", "letter"}
    assert second == read_manifest(shop.spool)
    assert {oct(path.stat().st_mode & 0o777) for path in folder.iterdir() if path.name != "letter"} == {"0o600"}
    # The copied files contain the catalogs of every LSN from the base to the mark.
    base = load_catalogs(folder, second.history, second.journal, second.journal.end_lsn)
    tables = {relation.name for mirror in base.mirrors.values() for relation in mirror.relations()}
    assert "one_more" in tables


def test_an_update_of_an_unchanged_state_writes_nothing_and_restores_what_is_lost(shop: Shop) -> None:
    """NB: the folder changes with each file that is written under a temporary name and renamed."""
    shop.sidecar.kill()
    folder = history_folder(shop.spool)
    path = folder / "manifest"
    with StateStore.open(shop.sidecar.folder) as store:
        copy = HistoryCopy(store, shop.spool)
        first = copy.update()
        before = folder.stat().st_mtime_ns
        assert copy.update() == first == shop.manifest
        assert folder.stat().st_mtime_ns == before
        for damage in (path.unlink, lambda: path.write_bytes(path.read_bytes()[:-1])):
            damage()
            again = copy.update()
            assert again == shop.manifest
            assert folder.stat().st_mtime_ns != before
            before = folder.stat().st_mtime_ns
        assert first is not None
        base = folder / first.history.bases[-1].file
        content = base.read_bytes()
        base.unlink()
        assert copy.update() == shop.manifest
        assert base.read_bytes() == content
        epoch = store.begin_epoch(Owner("sidecar", "host", "boot", 1, 1))
        changed = copy.update()
        assert changed == shop.manifest
        assert changed is not None
        assert changed.term is not None
        assert changed.term.epoch == epoch


def test_only_the_growth_of_a_journal_is_read_and_written(shop: Shop) -> None:
    with StateStore.open(shop.sidecar.folder) as store:
        copy = HistoryCopy(store, shop.spool)
        first = copy.update()
        assert first is not None
        file = first.history.journals[-1].file
        source, target = store.folder.history / file, history_folder(shop.spool) / file
        copied, inode = target.read_bytes(), target.stat().st_ino
        shop.sql("CREATE TABLE one_more (id int PRIMARY KEY)")
        shop.sidecar.catch_up()
        whole = source.read_bytes()
        source.write_bytes(bytes(len(copied)) + whole[len(copied) :])  # the copied part cannot be read again
        second = copy.update()
        assert second is not None
        assert second.history == first.history
        assert second.journal.end_lsn > first.journal.end_lsn
        grown = target.read_bytes()
        assert (grown[: len(copied)], target.stat().st_ino) == (copied, inode)
        assert len(copied) < len(grown) <= len(whole)
        assert grown == whole[: len(grown)]
        source.unlink()
        assert copy.update() is not None  # nothing is new, so nothing is read
        source.write_bytes(bytes(len(whole)))
        with pytest.raises(DamagedHistory, match=file):
            HistoryCopy(store, shop.spool).update()  # a new process compares the whole copy with the original
        assert target.read_bytes() == grown  # and does not replace it by less
        source.write_bytes(whole)
        os.truncate(target, len(grown) - 1)  # as after a crash
        assert HistoryCopy(store, shop.spool).update() is not None
        assert target.read_bytes() == grown
        load_catalogs(history_folder(shop.spool), second.history, second.journal, second.journal.end_lsn)


def test_a_copy_that_breaks_off_before_its_manifest_leaves_the_previous_one_intact(shop: Shop) -> None:
    path = history_folder(shop.spool) / "manifest"
    before, content = read_manifest(shop.spool), path.read_bytes()
    shop.sql("CREATE TABLE one_more (id int PRIMARY KEY)")
    shop.sidecar.catch_up()
    assert shop.copy().journal.end_lsn > before.journal.end_lsn
    path.write_bytes(content)  # the files exist, but the last write is missing
    (history_folder(shop.spool) / f"{before.history.journals[-1].file}.new").write_bytes(b"torn")
    shop.sidecar.kill()
    assert read_manifest(shop.spool) == before
    shop.lose()
    shop.rebuild_state("--lake", shop.lake)
    resume(shop)


def test_a_foreign_folder_is_never_written_and_a_damaged_copy_is_named(shop: Shop, tmp_path: Path) -> None:
    shop.sidecar.kill()
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    with StateStore.open(shop.sidecar.folder) as store:
        with pytest.raises(NoSpool):
            HistoryCopy(store, Spool(foreign)).update()
        other = Spool(tmp_path / "other")
        other.create(5)
        with pytest.raises(ConfigError, match="is the spool of cluster 5"):
            HistoryCopy(store, other).update()
    assert list(foreign.iterdir()) == []
    manifest = shop.copy()
    folder = history_folder(shop.spool)
    journal = folder / manifest.history.journals[-1].file
    os.truncate(journal, journal.stat().st_size - 1)
    with pytest.raises(DamagedHistory, match=journal.name):
        load_catalogs(folder, manifest.history, manifest.journal, manifest.journal.end_lsn)
    assert shop.copy().journal == manifest.journal
    load_catalogs(folder, manifest.history, manifest.journal, manifest.journal.end_lsn)  # repaired
    path = folder / "manifest"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedValue, match="manifest"):
        read_manifest(shop.spool)


def test_a_state_that_cannot_be_rebuilt_is_refused_by_name(shop: Shop, tmp_path: Path) -> None:
    shop.sidecar.kill()
    state, config = tmp_path / "fresh", tmp_path / "fresh.toml"
    config.write_text('[capture]\nname = "other"\n')
    command = ("init", "--state", state, "--config", config)
    folder = shop.spool.folder
    for more, code, reported in (
        (("--from-spool", tmp_path / "none"), ExitCode.STATE, "cannot be read"),
        (("--from-spool", folder), ExitCode.CONFIG, "history of capture 'main', not of 'other'"),
        (("--from-spool", folder, "--lake", tmp_path / "no-lake"), ExitCode.CONFIG, "is not a lake of this capture"),
        (("--lake", shop.lake), ExitCode.CONFIG, "--lake requires --from-spool"),
    ):
        refused(cdcctl(*command, *more), code, reported)
        assert not state.exists()
    config.write_text("")
    there = cdcctl("init", "--state", shop.state, "--config", config, "--from-spool", folder)
    assert "already is the state of this capture" in succeeded(there).out.decode()
    assert json.loads(succeeded(cdcctl("status", "--state", shop.state, "--json")).out)["mode"] == "realtime"


@pytest.mark.feature("I12")
def test_a_lost_deliverers_state_follows_unless_its_node_reports_that_it_is_no_standby(shop: Shop) -> None:
    shop.sidecar.kill()
    key = shop.root / "marker.key"
    key.write_text("a secret that all of the hosts have")
    key.chmod(0o600)
    shop.sidecar.options |= {"TIDEMARK_STANDBY__FOLLOW": "true", "TIDEMARK_MARKERS__KEY_FILE": str(key)}
    assert shop.stage_of_another() is Stage.ARCHIVE
    (shop.node.data / "standby.signal").touch()
    shop.node.restart()
    assert shop.stage_of_another() is Stage.FOLLOWER
    shop.node.stop()
    assert shop.stage_of_another() is Stage.FOLLOWER
    with StateStore.open(shop.sidecar.folder) as store:
        view = store.view()
    assert view.followed == Followed(shop.manifest.start, shop.manifest.start, has_start=True)


def test_an_interrupted_rebuild_is_completed_by_a_repeat(shop: Shop) -> None:
    shop.sidecar.kill()
    manifest = shop.copy()
    missing = history_folder(shop.spool) / manifest.history.bases[-1].file
    aside = shop.root / "aside"
    shutil.move(missing, aside)
    shop.lose()
    config = shop.root / "shop.toml"
    config.write_text("")
    command = ("init", "--state", shop.state, "--config", config, "--from-spool", shop.spool.folder)
    refused(cdcctl(*command, **shop.sidecar.options), ExitCode.STATE, str(missing))
    repair = cdcctl("archive", "repair", "--yes", "--state", shop.state, **shop.sidecar.options)
    assert repair.code in (ExitCode.CONFIG, ExitCode.STATE)
    shutil.move(aside, missing)
    shop.rebuild_state("--lake", shop.lake)
    resume(shop)


def test_the_epochs_of_a_rebuilt_state_are_above_those_begun_since_the_last_copy(shop: Shop) -> None:
    for _ in range(2):
        shop.sidecar.kill()
        shop.sidecar.start()
    shop.sidecar.kill()
    lost = shop.epoch()
    shop.lose()
    shop.rebuild_state("--lake", shop.lake)
    shop.sidecar.start()
    assert shop.epoch() > lost
