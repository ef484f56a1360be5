"""`cdcctl init --from-backup` with an invalid backup, or without its WAL: refused by name, and nothing is created."""

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.processes.cdcctl import cdcctl, refused, succeeded
from tests.support.servers.archiving import segment_bytes
from tests.support.servers.backups import by_copy
from tests.support.servers.postgres import new_cluster
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.backup.backup import open_backup
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ExitCode, TidemarkError
from tidemark.model.lsn import Lsn, parse_lsn
from tidemark.model.mode import Stage
from tidemark.runtime.seed.backup_seeding import seed_from_backup
from tidemark.runtime.seed.seed_observer import SilentObserver

pytestmark = pytest.mark.usefixtures("forked")

SEGMENT = 1 << 20
PAGE = 8192


@dataclass
class BackupInput:
    """The input of the command; a case damages it."""

    backup: Path
    archive: Path
    running: Path  # the data directory of a running server
    database: str = "postgres"

    @property
    def start(self) -> int:
        """The start LSN of the backup."""
        return parse_lsn((self.backup / "backup_label").read_text().split()[3])

    def segments(self) -> list[tuple[int, Path]]:
        """Return the archive's segments by number."""
        found = [path for path in self.archive.iterdir() if len(path.name) == 24]
        return sorted((int(path.name[8:16], 16) * 4096 + int(path.name[16:], 16), path) for path in found)

    def change(self, name: str, at: int, content: bytes) -> None:
        path = self.backup / name
        before = path.read_bytes()
        path.write_bytes(before[:at] + content + before[at + len(content) :])

    def label(self, before: str, after: str) -> None:
        path = self.backup / "backup_label"
        path.write_text(path.read_text().replace(before, after))


def no_folder(given: BackupInput) -> None:
    given.backup = given.backup / "nowhere"


def empty(given: BackupInput) -> None:
    given.backup = given.archive.parent / "empty"
    given.backup.mkdir()


def tar(given: BackupInput) -> None:
    empty(given)
    (given.backup / "base.tar.gz").touch()


def of_a_running_server(given: BackupInput) -> None:
    given.backup = given.running


def started_from(given: BackupInput) -> None:
    (given.backup / "backup_label").rename(given.backup / "backup_label.old")


def label_without_start(given: BackupInput) -> None:
    given.label("START WAL", "BEGIN WAL")


def incremental(given: BackupInput) -> None:
    given.label("START TIMELINE: 1\n", "START TIMELINE: 1\nINCREMENTAL FROM LSN: 0/2000028\n")


def other_timeline(given: BackupInput) -> None:
    given.label("START TIMELINE: 1\n", "START TIMELINE: 2\n")


def other_checkpoint(given: BackupInput) -> None:
    text = (given.backup / "backup_label").read_text()
    reported = text.split("CHECKPOINT LOCATION: ")[1].split()[0]
    given.label(f"CHECKPOINT LOCATION: {reported}", "CHECKPOINT LOCATION: 0/FFF000")


def old_major(given: BackupInput) -> None:
    (given.backup / "PG_VERSION").write_text("12\n")


def control_damaged(given: BackupInput) -> None:
    given.change("global/pg_control", 20, b"\xff")


def control_cut_off(given: BackupInput) -> None:
    path = given.backup / "global" / "pg_control"
    path.write_bytes(path.read_bytes()[:100])


def map_damaged(given: BackupInput) -> None:
    given.change("global/pg_filenode.map", 16, b"\xff")


def page_damaged(given: BackupInput) -> None:
    given.change("global/1262", 12, b"\xff" * 6)


def of_another_cluster(given: BackupInput) -> None:
    for _number, path in given.segments():
        path.write_bytes(segment_bytes(77))


def no_archive(given: BackupInput) -> None:
    shutil.rmtree(given.archive)
    given.archive.mkdir()


def begins_late(given: BackupInput) -> None:
    for number, path in given.segments():
        if number <= given.start // SEGMENT:
            path.unlink()


def ends_early(given: BackupInput) -> None:
    """Leave the last segment as during reception: up to the page after the checkpoint's."""
    for number, path in given.segments():
        if number == given.start // SEGMENT:
            keep = (given.start % SEGMENT // PAGE + 1) * PAGE
            path.with_name(f"{path.name}.partial").write_bytes(path.read_bytes()[:keep])
        if number >= given.start // SEGMENT:
            path.unlink()


def no_such_database(given: BackupInput) -> None:
    given.database = "nobody"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> BackupInput:
    """Take a backup of an idle server, and its WAL; the server continues."""
    folder = tmp_path_factory.mktemp("sound")
    with new_cluster(15, {"autovacuum": "off"}, initdb=["--wal-segsize=1"]) as node:
        by_copy(node, folder / "backup", 1, lambda: node.sql("CREATE TABLE t (a int)"))
        node.sql("SELECT pg_switch_wal()")
        left_out = shutil.ignore_patterns("archive_status", "summaries")
        shutil.copytree(node.data / "pg_wal", folder / "archive", ignore=left_out)
        shutil.copytree(node.data / "global", folder / "running" / "global")
        for name in ("PG_VERSION", "postmaster.pid"):
            shutil.copy(node.data / name, folder / "running")
    return BackupInput(folder / "backup", folder / "archive", folder / "running")


@pytest.mark.parametrize(
    ("spoil", "code", "reported"),
    [
        (no_folder, ExitCode.CONFIG, "is not a folder"),
        (empty, ExitCode.CONFIG, "is not a base backup: PG_VERSION is missing"),
        (tar, ExitCode.CONFIG, "base.tar.gz is truncated"),
        (of_a_running_server, ExitCode.CONFIG, "is the data directory of a server (postmaster.pid exists)"),
        (started_from, ExitCode.CONFIG, "backup_label is missing"),
        (label_without_start, ExitCode.CONFIG, "backup_label has no line START WAL LOCATION"),
        (incremental, ExitCode.CONFIG, "is of an incremental backup"),
        (other_timeline, ExitCode.CONFIG, "began on timeline 2"),
        (other_checkpoint, ExitCode.GAP, "0/FFE000"),
        (old_major, ExitCode.NODE_UNFIT, "PostgreSQL 12 is not supported"),
        (control_damaged, ExitCode.CONFIG, "pg_control fails its checksum"),
        (control_cut_off, ExitCode.CONFIG, "pg_control is cut off"),
        (map_damaged, ExitCode.CONFIG, "pg_filenode.map is damaged"),
        (page_damaged, ExitCode.CONFIG, "page 0 of pg_database"),
        (of_another_cluster, ExitCode.CONFIG, "belongs to system 77, the backup"),
        (no_archive, ExitCode.CONFIG, "contains no WAL segment"),
        (begins_late, ExitCode.GAP, "is not in"),
        (ends_early, ExitCode.GAP, "before the end of the backup that began at"),
        (no_such_database, ExitCode.CONFIG, "no database of"),
    ],
)
def test_a_folder_without_a_backup_or_without_its_wal_is_refused_by_name(
    sound: BackupInput, tmp_path: Path, spoil: Callable[[BackupInput], None], code: ExitCode, reported: str
) -> None:
    shutil.copytree(sound.backup, tmp_path / "backup")
    shutil.copytree(sound.archive, tmp_path / "archive")
    given = BackupInput(tmp_path / "backup", tmp_path / "archive", sound.running)
    spoil(given)
    with pytest.raises(TidemarkError, match=re.escape(reported)) as caught, open_backup(given.backup) as opened:
        seed_from_backup(opened, ArchiveFolder(given.archive), lambda name: name == given.database)
    assert caught.value.exit_code == code
    assert caught.value.hint


class Heard(SilentObserver):
    """Keeps the messages of a replay."""

    def __init__(self) -> None:
        self.replays: list[tuple[Lsn, Lsn, Lsn]] = []

    def replaying(self, start_lsn: Lsn, lsn: Lsn, end_lsn: Lsn) -> None:
        self.replays.append((start_lsn, lsn, end_lsn))


@pytest.mark.parametrize("has_manifest", [True, False])
def test_how_far_the_wal_of_a_backup_is_read_is_reported_up_to_its_end(
    sound: BackupInput, tmp_path: Path, *, has_manifest: bool
) -> None:
    shutil.copytree(sound.backup, tmp_path / "backup")
    if not has_manifest:
        (tmp_path / "backup" / "backup_manifest").unlink(missing_ok=True)
    heard, archive = Heard(), ArchiveFolder(sound.archive)
    with open_backup(tmp_path / "backup") as opened:
        seed = seed_from_backup(opened, archive, lambda name: name == sound.database, observer=heard)
        assert {start for start, _, _ in heard.replays} == {opened.label.start_lsn}
    assert [lsn for _, lsn, _ in heard.replays] == sorted(lsn for _, lsn, _ in heard.replays)
    _, lsn, end_lsn = heard.replays[-1]
    assert lsn == seed.lsn
    assert lsn <= end_lsn <= archive.last_lsn()


def test_a_refused_backup_creates_nothing(sound: BackupInput, tmp_path: Path) -> None:
    state = tmp_path / "state"
    where = ("--from-backup", sound.running, "--archive", sound.archive)
    refused(cdcctl("init", "--state", state, *where), ExitCode.CONFIG, "is the data directory of a server")
    assert not state.exists()


def test_options_that_do_not_apply_to_a_backup_are_refused_and_an_archive_is_required(
    sound: BackupInput, tmp_path: Path
) -> None:
    backup = ("init", "--state", tmp_path / "state", "--from-backup", sound.backup)
    refused(cdcctl(*backup), ExitCode.CONFIG, "no archive is named")
    refused(cdcctl(*backup, "--dsn", "host=nowhere"), ExitCode.CONFIG, "--dsn cannot be combined with --from-backup")
    assert not (tmp_path / "state").exists()


def configured(path: Path, *databases: str, archive: Path | None = None) -> Path:
    """Write the configuration of a capture for daemons."""
    text = f"[capture]\ndsn = 'host=nowhere'\nname = 'kept'\n[select]\ndatabases = {list(databases)}\n"
    path.write_text(text + (f"[archive]\nfolder = '{archive}'\n" if archive else ""))
    return path


def test_a_configuration_chooses_the_databases_of_a_backup_and_names_the_archive(
    sound: BackupInput, tmp_path: Path
) -> None:
    config = configured(tmp_path / "tidemark.toml", "post*", archive=sound.archive)
    state = tmp_path / "state"
    init = ("init", "--state", state, "--config", config, "--from-backup", sound.backup, "--database", "post*")
    made = succeeded(cdcctl(*init))
    assert "postgres from" in made.lines[0]
    assert re.search(r"metrics on 127\.0\.0\.1: sidecar \d+, archiver \d+, pipeline \d+", made.err)
    with StateStore.open(StateFolder(state)) as store:
        view = store.view()
    assert view.identity.capture == "kept"
    assert view.beginning is not None
    assert list(view.beginning.databases.values()) == ["postgres"]
    assert view.stage is Stage.ARCHIVE  # which has the WAL after the backup
    assert (state / "tidemark.toml").read_text() == config.read_text()
    assert "already is the state of this capture" in succeeded(cdcctl(*init)).lines[0]


def test_a_database_that_the_backup_lacks_is_refused_beside_one_that_it_contains(
    sound: BackupInput, tmp_path: Path
) -> None:
    init = ("init", "--state", tmp_path / "state", "--from-backup", sound.backup, "--archive", sound.archive)
    chosen = ("--database", "postgres", "--database", "nobody*")
    refused(cdcctl(*init, *chosen), ExitCode.CONFIG, f"{sound.backup} has no database nobody*")
    assert not (tmp_path / "state").exists()


def test_databases_that_the_configuration_does_not_select_are_refused(sound: BackupInput, tmp_path: Path) -> None:
    config = configured(tmp_path / "tidemark.toml", "shop_*")
    where = ("--from-backup", sound.backup, "--archive", sound.archive)
    init = ("init", "--state", tmp_path / "state", "--config", config, *where)
    refused(cdcctl(*init), ExitCode.CONFIG, f"no database of {sound.backup} is selected")
    refused(cdcctl(*init, "--database", "postgres"), ExitCode.CONFIG, "--database differs from", str(config))
    assert not (tmp_path / "state").exists()
