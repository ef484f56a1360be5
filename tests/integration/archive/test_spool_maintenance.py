"""A spool that a real server fills: trimming removes only unneeded files, also for a state that is rebuilt from it."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tidemark_archiver.archive_maintenance import MAINTENANCE_S

from tests.support.processes.captures import Sidecar, change_log
from tests.support.processes.cdcctl import cdcctl, contents, succeeded
from tests.support.processes.failover import Archiver
from tests.support.servers.archiving import ArchivingServer, archive_script, archiving
from tidemark.io.archive.archive_state import archive_state
from tidemark.io.archive.spool import Spool
from tidemark.io.archive.spool_manifest import history_folder, read_manifest
from tidemark.io.archive.trimming import Horizon, Trimmed, trim
from tidemark.io.process.config import ArchiveConfig
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.history_files import load_catalogs
from tidemark.io.state.state import StateStore
from tidemark.model.errors import ConfigError, ExitCode
from tidemark.model.lsn import parse_lsn
from tidemark.runtime.daemon.spool_maintenance import MaintainedSpool, SpoolMaintenance
from tidemark.wire.manifest import MANIFEST

MB = 1 << 20
IDLE_SEGMENTS = 3


@pytest.fixture
def archive() -> Iterator[ArchivingServer]:
    with tempfile.TemporaryDirectory(prefix="tm-") as folder, archiving(Path(folder)) as made:
        made.node.sql("CREATE TABLE item (id int PRIMARY KEY)")
        yield made


@pytest.fixture
def sidecar(archive: ArchivingServer, tmp_path: Path) -> Iterator[Sidecar]:
    chosen = {"TIDEMARK_ARCHIVE__FOLDER": str(archive.spool.folder), "TIDEMARK_ARCHIVE__PROGRAM": str(archive_script())}
    made = Sidecar(archive.node, "postgres", tmp_path, copy=False, **chosen)
    made.init()
    yield made
    made.close()


def configured(archive: ArchivingServer, *, keep_bytes: int = 0) -> ArchiveConfig:
    return ArchiveConfig(folder=str(archive.spool.folder), keep_bytes=keep_bytes)


def maintain(archive: ArchivingServer, sidecar: Sidecar, *, keep_bytes: int = 0) -> MaintainedSpool:
    with StateStore.open(sidecar.folder) as store:
        maintained = SpoolMaintenance(configured(archive, keep_bytes=keep_bytes), store).maintain()
    assert maintained is not None
    return maintained


def deliver_over(archive: ArchivingServer, sidecar: Sidecar, segments: int) -> None:
    """Have rows delivered in each of so many segments, all archived."""
    for number in range(segments):
        archive.node.sql(f"INSERT INTO item SELECT coalesce(max(id), 0) + 1 FROM item -- {number}")
        archive.switch()
    archive.wait_until_archived()
    sidecar.catch_up()


SUBSET = "DO $$ BEGIN FOR n IN 2..100 LOOP EXECUTE format('CREATE TABLE other_%s (note text)', n); END LOOP; END $$"
CHANGE_OTHERS = (
    "DO $$ BEGIN FOR n IN 2..100 LOOP EXECUTE format('INSERT INTO other_%s VALUES (1)', n); END LOOP; END $$"
)
BURST = "DO $$ BEGIN FOR n IN 1..1000 LOOP INSERT INTO item VALUES (n); COMMIT; END LOOP; END $$"


@pytest.mark.feature("U03")
@pytest.mark.feature("U17")
@pytest.mark.parametrize(("before", "rows", "meanwhile"), [(SUBSET, 0, CHANGE_OTHERS), (BURST, 1000, "CHECKPOINT")])
def test_positions_move_and_the_spool_is_trimmed_while_one_of_100_tables_is_captured_and_in_the_silence_after_a_burst(
    archive: ArchivingServer, tmp_path: Path, before: str, rows: int, meanwhile: str
) -> None:
    """The interval of idle pointers is 0.3 s, and each round of silence lasts one or more of them."""
    chosen = {"TIDEMARK_ARCHIVE__FOLDER": str(archive.spool.folder), "TIDEMARK_ARCHIVE__PROGRAM": str(archive_script())}
    idle = Sidecar(archive.node, "postgres", tmp_path, copy=False, TIDEMARK_SELECT__TABLES="public.item", **chosen)
    idle.init()
    try:
        idle.start()
        archive.node.sql(before)
        idle.catch_up()
        for _ in range(3):
            for _ in range(IDLE_SEGMENTS):
                archive.node.sql(meanwhile)
                archive.switch()
            archive.wait_until_archived()
            flushed = parse_lsn(str(archive.node.sql("SELECT pg_current_wal_flush_lsn()")[0][0]))
            idle.wait_until(lambda upto=flushed: idle.restart_lsn() >= upto, "the pointer")  # type: ignore[misc]
            trimmed = maintain(archive, idle).trimmed
        assert trimmed.file_count >= IDLE_SEGMENTS - 1
        idle.kill()
        idle.start()
        archive.node.sql("INSERT INTO item VALUES (0)")
        found = [row["_after"] for row in change_log(idle.catch_up(), "item")]
        assert found == [*({"id": row} for row in range(1, rows + 1)), {"id": 0}]
    finally:
        idle.close()


@pytest.mark.feature("I13")
def test_trimmed_segments_are_not_needed_and_a_rebuilt_state_continues_from_the_rest(
    archive: ArchivingServer, sidecar: Sidecar
) -> None:
    sidecar.start()
    deliver_over(archive, sidecar, 3)
    first = maintain(archive, sidecar)
    assert first.trimmed == Trimmed()  # without a manifest: only from now on a lost state can be rebuilt
    deliver_over(archive, sidecar, 3)
    second = maintain(archive, sidecar)
    assert first.manifest is not None
    assert second.manifest is not None
    assert second.trimmed.file_count >= 2
    state = archive_state(archive.spool.folder, MB)
    start_lsn = first.manifest.start.restart_lsn
    assert state.path[0].start_lsn == start_lsn // MB * MB
    assert state.gap_after(start_lsn) is None
    assert maintain(archive, sidecar, keep_bytes=1 << 30).trimmed == Trimmed()
    reported = json.loads(
        succeeded(cdcctl("archive", "status", "--json", "--state", sidecar.folder.root, **sidecar.options)).out
    )
    assert reported["history_copied"]
    assert reported["owner"] == "Tidemark: trimmed"
    assert "no WAL is missing" in reported["delivered"] or "has not been archived yet" in reported["delivered"]
    assert reported["holes"] == []
    sidecar.kill()
    archive.node.sql("INSERT INTO item VALUES (1000)")
    archive.switch(2)
    archive.wait_until_archived()
    maintain(archive, sidecar)

    shutil.rmtree(sidecar.folder.root)
    config = archive.spool.folder.parent / "fresh.toml"
    config.write_text("")
    command = ("init", "--state", sidecar.folder.root, "--config", config, "--from-spool", archive.spool.folder)
    succeeded(cdcctl(*command, **sidecar.options))
    with StateStore.open(sidecar.folder) as store:
        view = store.view()
    assert view.start is not None
    state = archive_state(archive.spool.folder, MB)
    assert state.gap_after(view.start.restart_lsn) is None
    assert state.end_lsn is not None
    assert state.end_lsn - view.start.restart_lsn >= MB
    load_catalogs(sidecar.folder.history, view.history, view.journal, view.start.restart_lsn)


@pytest.mark.feature("I13")
def test_a_registered_reader_keeps_the_wal_behind_what_it_has_confirmed(
    archive: ArchivingServer, sidecar: Sidecar
) -> None:
    sidecar.start()
    with OutboxReader.open(sidecar.folder) as reader:
        reader.register("slow")
        reader.register("quick")
        deliver_over(archive, sidecar, 2)
        confirm(reader, "slow", "quick")
        deliver_over(archive, sidecar, 3)
        confirm(reader, "quick")
        maintain(archive, sidecar)
        kept = maintain(archive, sidecar)
        assert kept.horizon is not None
        with StateStore.open(sidecar.folder) as store:
            marks = store.marks()
        assert marks.confirmed is not None
        assert marks.start is not None
        assert kept.horizon.lsn == marks.confirmed.pointer.restart_lsn <= marks.start.restart_lsn - 2 * MB
        assert kept.trimmed.file_count >= 1
        assert archive_state(archive.spool.folder, MB).path[0].start_lsn == kept.horizon.lsn // MB * MB
        assert maintain(archive, sidecar).trimmed == Trimmed()
        confirm(reader, "slow")
        sidecar.wait_until(lambda: maintain(archive, sidecar).trimmed.file_count > 0, "the reader's confirmation")
        left = archive_state(archive.spool.folder, MB).path
        assert all(segment.start_lsn > kept.horizon.lsn for segment in left)


def confirm(reader: OutboxReader, *names: str) -> None:
    """Let readers confirm everything."""
    for name in names:
        reader.confirm(name, reader.head(), reader.head())


@pytest.mark.feature("I13")
def test_the_spool_of_another_cluster_or_capture_is_refused_and_left_as_it_is(
    archive: ArchivingServer, sidecar: Sidecar
) -> None:
    sidecar.start()
    deliver_over(archive, sidecar, 2)
    maintain(archive, sidecar)
    deliver_over(archive, sidecar, 3)
    sidecar.stop()
    owner, manifest = archive.spool.folder / ".tidemark", history_folder(archive.spool) / "manifest"
    of_ours = read_manifest(archive.spool)
    of_another = replace(of_ours, identity=replace(of_ours.identity, capture="other"))
    for path, content, reported in (
        (owner, b"5\n", "the spool of cluster 5"),
        (manifest, MANIFEST.encode(of_another), "the spool of capture 'other'"),
    ):
        kept = path.read_bytes()
        path.write_bytes(content)
        before = contents(archive.spool.folder)
        with pytest.raises(ConfigError, match=reported):
            maintain(archive, sidecar)
        assert contents(archive.spool.folder) == before
        path.write_bytes(kept)
    assert maintain(archive, sidecar).trimmed.file_count >= 1


@pytest.mark.feature("I13")
def test_no_daemon_starts_with_the_spool_of_another_cluster(archive: ArchivingServer, sidecar: Sidecar) -> None:
    sidecar.start()
    sidecar.stop()
    (archive.spool.folder / ".tidemark").write_bytes(b"5\n")
    archiver = Archiver(sidecar.cluster, sidecar.database, sidecar.folder.root.parent)
    for daemon in (sidecar, archiver):
        daemon.options |= sidecar.options
        daemon.refuses(ExitCode.CONFIG, f"{archive.spool.folder} is the spool of cluster 5, not of")


@pytest.mark.feature("I13")
def test_a_foreign_or_unconfigured_folder_is_left_unchanged(
    archive: ArchivingServer, sidecar: Sidecar, tmp_path: Path
) -> None:
    foreign = tmp_path / "foreign"
    shutil.copytree(archive.spool.folder, foreign)
    (foreign / ".tidemark").unlink()
    before = contents(foreign)
    elsewhere = ArchiveConfig(folder=str(foreign))
    with StateStore.open(sidecar.folder) as store:
        assert SpoolMaintenance(elsewhere, store).maintain() is None
        assert SpoolMaintenance(ArchiveConfig(), store).maintain() is None
    assert contents(foreign) == before
    assert not history_folder(archive.spool).exists()


def test_a_spool_that_has_not_changed_is_not_searched_again(
    archive: ArchivingServer, sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, searches = SimpleNamespace(now_s=0.0), list[Trimmed]()
    monkeypatch.setattr("tidemark.io.host.folder_changes.time", SimpleNamespace(monotonic=lambda: clock.now_s))

    def counted(spool: Spool, horizon: Horizon, segment_bytes: int) -> Trimmed:
        searches.append(trim(spool, horizon, segment_bytes))
        return searches[-1]

    monkeypatch.setattr("tidemark.runtime.daemon.spool_maintenance.trim", counted)
    sidecar.start()
    deliver_over(archive, sidecar, 3)
    sidecar.kill()
    with StateStore.open(sidecar.folder) as store:
        maintenance = SpoolMaintenance(configured(archive), store)
        for _ in range(6):
            clock.now_s += MAINTENANCE_S
            maintenance.maintain()
        assert searches[0].file_count >= 2, "the first maintenance has written the manifest"
        assert len(searches) < 5
        archive.switch()
        archive.wait_until_archived()
        before = len(searches)
        maintenance.maintain()
        assert len(searches) == before + 1
