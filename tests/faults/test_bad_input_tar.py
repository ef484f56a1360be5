"""Archives that are not a base backup, or a forged one: refused by name, and only the copies are written."""

import gzip
import io
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import lz4.frame
import pytest
import zstandard

from tidemark.io.backup.backup import open_backup
from tidemark.io.backup.tar_backup import MEMBER_BYTES_MAX, TarBackup, opened_archives
from tidemark.model.errors import ExitCode, TidemarkError
from tidemark.wal.data_directory import BackupUnusable, NotABackup

BLOCK = tarfile.BLOCKSIZE
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".lz4": lz4.frame.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def member(name: str, content: bytes = b"", **more: object) -> bytes:
    """Return a member in its archived form."""
    header = tarfile.TarInfo(name)
    header.size = len(content)
    for field, value in more.items():
        setattr(header, field, value)
    return header.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % BLOCK)


END = bytes(2 * BLOCK)
NOISE = random.Random(1).randbytes(5000)
WHOLE = member("PG_VERSION", b"15\n") + member("base/5/1259", NOISE) + member("base/5/16384", NOISE) + END


@pytest.fixture(autouse=True)
def disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the copies."""
    path = tmp_path / "room"
    path.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(path))
    return path


def backup(tmp_path: Path, content: bytes, suffix: str = "") -> Path:
    folder = tmp_path / "backup"
    folder.mkdir(exist_ok=True)
    (folder / f"base.tar{suffix}").write_bytes(content)
    return folder


def copied(folder: Path) -> dict[str, int]:
    """Return the copied names, and their size."""
    with opened_archives(folder) as archives:
        return sizes(archives)


def sizes(archives: TarBackup) -> dict[str, int]:
    files = (path for path in archives.copied.rglob("*") if path.is_file())
    return {str(path.relative_to(archives.copied)): path.stat().st_size for path in files}


@pytest.mark.parametrize("suffix", PACK)
def test_only_selected_members_are_copied_and_the_others_when_they_are_selected(
    tmp_path: Path, disk_space: Path, suffix: str
) -> None:
    with opened_archives(backup(tmp_path, PACK[suffix](WHOLE), suffix)) as archives:
        assert sizes(archives) == {"PG_VERSION": 3, "base/5/1259": len(NOISE)}
        archives.fetch([Path("base/5/16384"), Path("base/5/1259")])
        assert sizes(archives) == {"PG_VERSION": 3, "base/5/1259": len(NOISE), "base/5/16384": len(NOISE)}
    assert not list(disk_space.iterdir())


@pytest.mark.parametrize("suffix", PACK)
def test_an_archive_that_is_cut_off_anywhere_is_refused(tmp_path: Path, disk_space: Path, suffix: str) -> None:
    content = PACK[suffix](WHOLE)
    needed = len(content) - len(END) if not suffix else len(content) - 16
    for size in (*range(0, needed, 211), needed):
        with pytest.raises(BackupUnusable, match=r"base\.tar\S* (is truncated|cannot be unpacked)") as caught:
            copied(backup(tmp_path, content[:size], suffix))
        assert caught.value.exit_code == ExitCode.CONFIG
    assert not list(disk_space.iterdir())


def test_consecutive_compressed_streams_are_one_archive(tmp_path: Path) -> None:
    for suffix, pack in PACK.items():
        folder = tmp_path / f"of{suffix}"
        folder.mkdir()
        assert copied(backup(folder, pack(WHOLE[:700]) + pack(WHOLE[700:]), suffix)) == {
            "PG_VERSION": 3,
            "base/5/1259": len(NOISE),
        }


@pytest.mark.parametrize("suffix", PACK)
def test_a_damaged_archive_ends_in_a_named_error_or_in_its_content(
    tmp_path: Path, disk_space: Path, suffix: str
) -> None:
    content = PACK[suffix](WHOLE)
    rng = random.Random(2)
    refused = 0
    for _ in range(150):
        damaged = bytearray(content)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        try:
            copied(backup(tmp_path, bytes(damaged), suffix))
        except TidemarkError:
            refused += 1
    assert refused
    assert not list(disk_space.iterdir())


def test_names_outside_the_folder_and_links_are_skipped(tmp_path: Path, disk_space: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "1259").write_bytes(b"not of the backup")
    content = b"".join(
        (
            member("base/5", type=tarfile.SYMTYPE, linkname=str(outside)),
            member("base/5/1259", NOISE),
            member("../../evil", b"x"),
            member(f"{outside}/evil", b"x"),
            member("base/../../../outside/1259", b"x"),
            member("global/../../1262", b"x"),
            member("PG_VERSION", type=tarfile.SYMTYPE, linkname=str(outside / "1259")),
            member("backup_label", type=tarfile.LNKTYPE, linkname=str(outside / "1259")),
            member("pg_xact/0000", type=tarfile.FIFOTYPE),
            member("pg_tblspc/../base/1/1259", b"x"),
            END,
        )
    )
    folder = backup(tmp_path, content)
    (folder / "16999.tar").write_bytes(member("../../1/1259", b"x") + END)
    assert copied(folder) == {"base/5/1259": len(NOISE)}
    assert {path.name for path in tmp_path.iterdir()} == {"outside", "backup", "room"}
    assert [path.read_bytes() for path in outside.iterdir()] == [b"not of the backup"]
    with pytest.raises(NotABackup, match="PG_VERSION is missing"), open_backup(folder):
        pass
    assert not list(disk_space.iterdir())


def forged_size(size: int, name: str = "base/5/1259") -> bytes:
    header = bytearray(member(name))
    header[124:136] = b"\xff" * 12 if size < 0 else b"\x80" + size.to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:BLOCK])
    return bytes(header)


@pytest.mark.parametrize(
    ("header", "reported"),
    [
        (forged_size(MEMBER_BYTES_MAX + 1), "at most 1073741824 are read"),
        (forged_size(MEMBER_BYTES_MAX), "is truncated within base/5/1259"),
        (forged_size(1 << 80), "at most 1073741824 are read"),
        (forged_size(-1), "has -1 bytes"),
        (forged_size(1 << 80, "base/5/16384"), "is truncated"),
    ],
)
@pytest.mark.parametrize("suffix", PACK)
def test_a_forged_size_is_refused(tmp_path: Path, disk_space: Path, header: bytes, reported: str, suffix: str) -> None:
    with pytest.raises(BackupUnusable, match=reported):
        copied(backup(tmp_path, PACK[suffix](header + END), suffix))
    assert not list(disk_space.iterdir())


def test_extended_headers_are_skipped_unread(tmp_path: Path) -> None:
    long = io.BytesIO()
    with tarfile.open(fileobj=long, mode="w:", format=tarfile.PAX_FORMAT) as archive:
        reported = tarfile.TarInfo("PG_VERSION")
        reported.pax_headers = {"comment": "x" * 100_000}
        reported.size = 3
        archive.addfile(reported, io.BytesIO(b"15\n"))
    assert copied(backup(tmp_path, long.getvalue())) == {"PG_VERSION": 3}


def test_two_archives_of_one_name_are_refused(tmp_path: Path) -> None:
    backup(tmp_path, WHOLE)
    with pytest.raises(NotABackup, match=r"contains both base\.tar and base\.tar\.gz"):
        copied(backup(tmp_path, gzip.compress(WHOLE), ".gz"))
