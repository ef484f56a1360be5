"""A base backup compared with its manifest: an altered, missing or extra file is refused by name before it is read."""

import hashlib
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import NewCluster
from tests.support.processes.cdcctl import cdcctl, refused, succeeded
from tests.support.servers.backups import by_program, in_tar_format
from tests.support.servers.postgres import Cluster
from tests.support.servers.postgres import new_cluster as cluster_of_major
from tests.support.servers.standby import standby_of, wait_until_replayed
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.backup.backup import open_backup
from tidemark.model.errors import ExitCode, TidemarkError
from tidemark.model.lsn import format_lsn, parse_lsn
from tidemark.runtime.seed.backup_seeding import seed_from_backup
from tidemark.runtime.seed.seeding import Seed

MAJORS = (15, 18)  # of formats 1 and 2
CATALOG = "base/5/1249"  # pg_attribute of the database postgres
IN_A_ROW = 6000  # of its first page, which is full


@dataclass
class ManifestInput:
    """Backups of one server, and the archive; a case damages a copy of one."""

    backup: Path
    earlier: Path  # another of the same server
    archive: Path
    user_file: str

    @property
    def manifest(self) -> Path:
        return self.backup / "backup_manifest"

    def reseal(self, pattern: str, by: Callable[[re.Match[str]], str]) -> None:
        """Change the manifest, and give it a correct checksum."""
        text, changes = re.subn(pattern, by, self.manifest.read_text(), count=1)
        assert changes == 1
        head = text[: text.rindex("\n", 0, -1) + 1]
        reported = hashlib.sha256(head.encode()).hexdigest()
        self.manifest.write_text(f'{head}"Manifest-Checksum": "{reported}"}}\n')


def flip(path: Path, at: int) -> None:
    """Change one bit."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def seed_of(backup: Path, archive: Path) -> Seed:
    with open_backup(backup) as opened:
        return seed_from_backup(opened, ArchiveFolder(archive), "postgres".__eq__)


@pytest.fixture(scope="module", params=MAJORS)
def node(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with cluster_of_major(request.param, {"autovacuum": "off"}) as made:
        made.sql("CREATE TABLE t (a int PRIMARY KEY)")
        made.sql("INSERT INTO t SELECT generate_series(1, 1000)")
        yield made


@pytest.fixture(scope="module")
def sound(node: Cluster, tmp_path_factory: pytest.TempPathFactory) -> ManifestInput:
    folder = tmp_path_factory.mktemp("sound")
    for name in ("earlier", "backup"):
        by_program(node, node.folder / name)
    ((user_file,),) = node.sql("SELECT pg_relation_filepath('t')")
    node.sql("SELECT pg_switch_wal()")
    shutil.copytree(
        node.data / "pg_wal", folder / "archive", ignore=shutil.ignore_patterns("archive_status", "summaries")
    )
    return ManifestInput(node.folder / "backup", node.folder / "earlier", folder / "archive", str(user_file))


@pytest.fixture
def given(sound: ManifestInput, tmp_path: Path) -> ManifestInput:
    shutil.copytree(sound.backup, tmp_path / "backup")
    return ManifestInput(tmp_path / "backup", sound.earlier, sound.archive, sound.user_file)


def manifest_changed(given: ManifestInput) -> str:
    flip(given.manifest, 200)
    return "backup_manifest fails its own checksum"


def manifest_cut_off(given: ManifestInput) -> str:
    given.manifest.write_bytes(given.manifest.read_bytes()[:-20])
    return "backup_manifest is cut off"


def manifest_empty(given: ManifestInput) -> str:
    given.manifest.write_bytes(b"")
    return "backup_manifest is cut off"


def manifest_of_an_earlier_backup(given: ManifestInput) -> str:
    shutil.copy(given.earlier / "backup_manifest", given.manifest)
    return "by backup_label it began at"


def manifest_of_another_timeline(given: ManifestInput) -> str:
    given.reseal(r'"Timeline": 1', lambda _: '"Timeline": 2')
    return "on timeline 2; by backup_label"


def manifest_of_another_version(given: ManifestInput) -> str:
    given.reseal(r'Manifest-Version": \d', lambda _: 'Manifest-Version": 9')
    return "version 9"


def algorithm_unknown(given: ManifestInput) -> str:
    given.reseal('"CRC32C"', lambda _: '"MD5"')
    return "unknown checksum algorithm MD5"


def other_end(given: ManifestInput) -> str:
    given.reseal(r'"End-LSN": "([^"]*)"', lambda found: f'"End-LSN": "{format_lsn(parse_lsn(found[1]) + 8)}"')
    return "according to its manifest, the backup"


def catalog_altered(given: ManifestInput) -> str:
    flip(given.backup / CATALOG, IN_A_ROW)
    return f"{CATALOG} differs from"


def catalog_cut_off(given: ManifestInput) -> str:
    path = given.backup / CATALOG
    path.write_bytes(path.read_bytes()[:-8192])
    return f"bytes, but {path.stat().st_size + 8192} are listed"


def catalog_missing(given: ManifestInput) -> str:
    (given.backup / CATALOG).unlink()
    return f"{CATALOG} differs from"


def segment_too_many(given: ManifestInput) -> str:
    shutil.copy(given.backup / CATALOG, given.backup / f"{CATALOG}.1")
    return "it is not listed"


def commit_log_altered(given: ManifestInput) -> str:
    flip(given.backup / "pg_xact" / "0000", 100)
    return "pg_xact/0000 differs from"


def map_altered(given: ManifestInput) -> str:
    flip(given.backup / "global" / "pg_filenode.map", 500)
    return "global/pg_filenode.map differs from"


def label_altered(given: ManifestInput) -> str:
    with (given.backup / "backup_label").open("a") as file:
        file.write("\n")
    return "backup_label differs from"


@pytest.mark.parametrize(
    "spoil",
    [
        manifest_changed,
        manifest_cut_off,
        manifest_empty,
        manifest_of_an_earlier_backup,
        manifest_of_another_timeline,
        manifest_of_another_version,
        algorithm_unknown,
        other_end,
        catalog_altered,
        catalog_cut_off,
        catalog_missing,
        segment_too_many,
        commit_log_altered,
        map_altered,
        label_altered,
    ],
)
def test_a_backup_that_differs_from_its_manifest_is_refused_by_name(
    given: ManifestInput, spoil: Callable[[ManifestInput], str]
) -> None:
    reported = spoil(given)
    with pytest.raises(TidemarkError, match=re.escape(reported)) as caught:
        seed_of(given.backup, given.archive)
    assert caught.value.exit_code == ExitCode.CONFIG
    assert caught.value.hint


def test_a_manifest_of_another_cluster_is_refused(given: ManifestInput) -> None:
    if "System-Identifier" not in given.manifest.read_text():
        given.reseal(r'Manifest-Version": 1', lambda _: 'Manifest-Version": 2,\n"System-Identifier": 77')
    else:
        given.reseal(r'"System-Identifier": \d+', lambda _: '"System-Identifier": 77')
    with pytest.raises(TidemarkError, match="backup_manifest belongs to system 77, pg_control to"):
        seed_of(given.backup, given.archive)


def test_unread_files_are_not_compared_with_the_manifest(given: ManifestInput) -> None:
    flip(given.backup / given.user_file, 8000)
    assert seed_of(given.backup, given.archive).databases


def test_without_a_manifest_nothing_is_compared(given: ManifestInput) -> None:
    given.manifest.unlink()
    flip(given.backup / "pg_xact" / "0000", 100)
    assert seed_of(given.backup, given.archive).databases


def test_the_command_names_the_file_and_creates_nothing(given: ManifestInput, tmp_path: Path) -> None:
    state = tmp_path / "state"
    init = ("init", "--state", state, "--from-backup", given.backup, "--archive", given.archive)
    flip(given.backup / CATALOG, IN_A_ROW)
    refused(cdcctl(*init), ExitCode.CONFIG, CATALOG, "backup_manifest: it fails its CRC32C checksum")
    assert not state.exists()
    flip(given.backup / CATALOG, IN_A_ROW)
    succeeded(cdcctl(*init))


@pytest.mark.parametrize("algorithm", ["NONE", "CRC32C", "SHA224", "SHA256", "SHA384", "SHA512"])
def test_each_kind_of_checksum_is_verified(node: Cluster, algorithm: str) -> None:
    folder = node.folder / f"of_{algorithm}"
    by_program(node, folder, f"--manifest-checksums={algorithm}", "--manifest-force-encode")
    node.sql("SELECT pg_switch_wal()")
    assert "Encoded-Path" in (folder / "backup_manifest").read_text()
    archive = node.data / "pg_wal"
    assert seed_of(folder, archive).databases
    flip(folder / "pg_xact" / "0000", 4000)
    if algorithm == "NONE":
        assert seed_of(folder, archive).databases
        (folder / "pg_xact" / "0000").write_bytes(b"")
    with pytest.raises(TidemarkError, match="pg_xact/0000 differs from"):
        seed_of(folder, archive)


@pytest.mark.parametrize("is_packed", [False, True])
def test_archives_are_compared_with_the_manifest_beside_or_within_them(
    node: Cluster, tmp_path: Path, *, is_packed: bool
) -> None:
    taken, folder = node.folder / f"tar_{is_packed}", tmp_path / "backup"
    in_tar_format(node, taken, "-X", "none")
    node.sql("SELECT pg_switch_wal()")
    shutil.copytree(taken, folder)
    base = folder / "base.tar"
    if is_packed:  # as in a backup that was written to a pipe
        with tarfile.open(base, "a") as archive:
            archive.add(folder / "backup_manifest", "backup_manifest")
        (folder / "backup_manifest").unlink()
    assert seed_of(folder, node.data / "pg_wal").databases
    with tarfile.open(base) as archive:
        at = archive.getmember(CATALOG).offset_data
    flip(base, at + IN_A_ROW)
    with pytest.raises(TidemarkError, match=f"{CATALOG} differs from .*backup_manifest: it fails its CRC32C"):
        seed_of(folder, node.data / "pg_wal")


def test_a_backup_of_a_standby_equals_its_manifest(node: Cluster) -> None:
    with standby_of(node) as standby:
        node.sql("CREATE TABLE of_standby (a int)")
        node.sql("CHECKPOINT")
        wait_until_replayed(standby, node)
        folder = standby.folder / "backup"
        by_program(standby, folder)
        node.sql("DROP TABLE of_standby")
        node.sql("SELECT pg_switch_wal()")
        given = ManifestInput(folder, folder, node.data / "pg_wal", "")
        assert seed_of(folder, given.archive).databases
        given.reseal(r'"End-LSN": "[^"]*"', lambda _: '"End-LSN": "0/28"')
        with pytest.raises(TidemarkError, match="requires replay up to 0/28, pg_control up to"):
            seed_of(folder, given.archive)


def test_a_backup_that_is_combined_from_incremental_ones_equals_its_manifest(new_cluster: NewCluster) -> None:
    node = new_cluster(18, autovacuum="off", summarize_wal="on")
    full, rest, whole = (node.folder / name for name in ("full", "rest", "whole"))
    by_program(node, full)
    node.sql("CREATE TABLE t (a int)")
    by_program(node, rest, f"--incremental={full / 'backup_manifest'}")
    node.run(node.server.client("pg_combinebackup"), str(full), str(rest), "-o", str(whole))
    node.sql("SELECT pg_switch_wal()")
    assert seed_of(whole, node.data / "pg_wal").databases
    flip(whole / CATALOG, IN_A_ROW)
    with pytest.raises(TidemarkError, match=f"{CATALOG} differs from"):
        seed_of(whole, node.data / "pg_wal")
