"""The spool: complete files or none, no conflicting copies, no other cluster's, no writes into a foreign folder."""

import os
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers.archiving import LONG_HEADER_BYTES, segment_bytes
from tidemark.io.archive.spool import NoSpool, NotArchived, OtherContent, Spool
from tidemark.model.errors import ConfigError

CLUSTER = 7_123_456_789_012_345_678
NAME = "000000010000000000000001"


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    made = Spool(tmp_path / "spool")
    made.create(CLUSTER)
    return made


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "pg_wal_file"
    path.write_bytes(segment_bytes(CLUSTER))
    return path


def kept(spool: Spool) -> set[str]:
    return {path.name for path in spool.folder.iterdir()}


@pytest.mark.feature("I25")
@pytest.mark.feature("I26")
def test_a_file_is_copied_completely_and_a_second_copy_changes_nothing(spool: Spool, source: Path) -> None:
    before = kept(spool)
    spool.keep(source, NAME)
    spool.keep(source, NAME)
    archived = spool.folder / NAME
    assert archived.read_bytes() == source.read_bytes()
    assert archived.stat().st_ino != source.stat().st_ino
    assert archived.stat().st_nlink == source.stat().st_nlink == 1
    assert stat.S_IMODE(archived.stat().st_mode) & 0o137 == 0
    assert kept(spool) - before == {NAME}


@pytest.mark.feature("I25")
def test_other_content_is_refused_and_the_existing_file_stays(spool: Spool, source: Path) -> None:
    spool.keep(source, NAME)
    other = bytearray(source.read_bytes())
    other[-1] ^= 1
    there = (spool.folder / NAME).read_bytes()
    for content in (other, other[:-1], b""):
        source.write_bytes(bytes(content))
        with pytest.raises(OtherContent, match=NAME):
            spool.keep(source, NAME)
        assert (spool.folder / NAME).read_bytes() == there


def test_wal_of_another_cluster_is_refused_by_name(spool: Spool, source: Path) -> None:
    source.write_bytes(segment_bytes(CLUSTER + 1))
    with pytest.raises(OtherContent, match=f"cluster {CLUSTER + 1}, but the spool is of {CLUSTER}"):
        spool.keep(source, NAME)
    source.write_bytes(b"1\t0/3000000\tno recovery target specified\n")
    spool.keep(source, "00000002.history")  # has no header


def test_a_folder_that_is_no_spool_is_left_unchanged(tmp_path: Path, source: Path) -> None:
    foreign = tmp_path / "backup"
    with pytest.raises(NoSpool, match=str(foreign)):
        Spool(foreign).keep(source, NAME)
    foreign.mkdir()
    (foreign / NAME).write_bytes(b"theirs")
    with pytest.raises(ConfigError, match="not empty"):
        Spool(foreign).create(CLUSTER)
    with pytest.raises(NoSpool):
        Spool(foreign).keep(source, NAME)
    assert [path.name for path in foreign.iterdir()] == [NAME]


def test_a_spool_is_created_once_and_belongs_to_one_cluster(spool: Spool) -> None:
    with spool.ledger.open("rb") as file:
        ledger = file.read()
    spool.create(CLUSTER)
    assert spool.ledger.read_bytes() == ledger
    with pytest.raises(ConfigError, match=f"cluster {CLUSTER}, not of 5"):
        spool.create(5)


def test_names_that_no_server_uses_are_refused(spool: Spool, source: Path) -> None:
    for name in ("../escape", "wal", f"{NAME}.gz", f".{NAME}", ""):
        with pytest.raises(ConfigError, match="is not the name of a WAL file"):
            spool.keep(source, name)


def test_the_floor_of_free_space_is_kept_and_a_missing_file_named(spool: Spool, source: Path) -> None:
    with pytest.raises(NotArchived, match=r"less than archive\.free_bytes_min"):
        spool.keep(source, NAME, free_bytes_min=1 << 60)
    with pytest.raises(NotArchived, match=f"{NAME}: No such file"):
        spool.keep(source.with_name("gone"), NAME)
    assert not {name for name in kept(spool) if name.endswith(".new")}


def test_the_archive_command_imports_the_standard_library_alone() -> None:
    program = (
        "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p];"
        "import tidemark_archiver.archive_command;"
        "print({m.split('.')[0] for m in sys.modules} - sys.stdlib_module_names - {'__main__'})"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (Path.cwd(), Path("archiver").absolute())))}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    assert set(done.stdout.strip("{}\n").replace("'", "").split(", ")) == {"tidemark_archiver", "tidemark"}
    assert struct.calcsize("<HHIQI4xQII") == LONG_HEADER_BYTES
