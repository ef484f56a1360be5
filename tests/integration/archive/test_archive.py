"""Folders of segments, as real servers write them and as disks and operators damage them."""

import gzip
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import lz4.frame
import pytest
import zstandard

from tests.support.servers.postgres import Cluster, new_cluster
from tidemark.io.archive.archive import ArchiveFolder, BadSegment, Hole, NoWal
from tidemark.io.archive.segment_file import DamagedFile
from tidemark.model.lsn import Lsn, TimelineId, format_lsn, parse_lsn
from tidemark.wal.segments import WalSlice

MB = 1 << 20
SEGMENTS = 5


def switch(node: Cluster) -> None:
    node.sql("SELECT pg_logical_emit_message(true, 'test', 'x')")
    node.sql("SELECT pg_switch_wal()")


@pytest.fixture(scope="module")
def node() -> Iterator[Cluster]:
    with new_cluster(initdb=["--wal-segsize=1"], settings={"wal_keep_size": "1GB"}) as made:
        for _ in range(SEGMENTS):
            switch(made)
        yield made


@pytest.fixture
def folder(node: Cluster, tmp_path: Path) -> Path:
    """Return a folder with the whole segments that the node has written, and other files that archives have."""
    end = parse_lsn(node.flush_lsn()) // MB
    archive = tmp_path / "archive"
    archive.mkdir()
    for path in (node.data / "pg_wal").iterdir():
        if len(path.name) == 24 and int(path.name[8:16], 16) * 4096 + int(path.name[16:], 16) < end:
            shutil.copy(path, archive)
    last = max(archive.iterdir()).name
    (archive / f"{last}.00000028.backup").write_text("START WAL LOCATION")
    (archive / "README").write_text("strangers live here")
    (archive / "0000000100000000000000").write_text("almost a name")
    return archive


def read_all(archive: ArchiveFolder, start: int) -> bytes:
    pieces = list(archive.read(Lsn(start)))
    for left, right in pairwise(pieces):
        assert left.end_lsn == right.start_lsn
    return b"".join(bytes(piece.data) for piece in pieces)


def segments(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if len(path.name) == 24)


def test_segments_are_read_in_order_from_any_lsn_and_other_files_are_ignored(folder: Path) -> None:
    archive = ArchiveFolder(folder)
    whole = b"".join(path.read_bytes() for path in segments(folder))
    first = archive.first_lsn()
    assert archive.segment_bytes == MB
    assert archive.format.major == 15
    assert read_all(archive, first) == whole
    assert read_all(archive, first + MB + 12345) == whole[MB + 12345 :]


def test_a_hole_names_the_first_missing_lsn_and_where_wal_continues(folder: Path) -> None:
    paths = segments(folder)
    paths[1].unlink()
    paths[2].unlink()
    archive = ArchiveFolder(folder)
    first = archive.first_lsn()
    with pytest.raises(Hole) as caught:
        read_all(archive, first)
    assert f"from {format_lsn(first + MB)} to {format_lsn(first + 3 * MB)}" in str(caught.value)
    with pytest.raises(Hole, match=format_lsn(first + 3 * MB)):
        read_all(archive, first + 2 * MB + 8)
    with pytest.raises(Hole) as later:
        read_all(archive, first + 100 * MB)
    assert "run the command again later" in later.value.hint, "WAL after the last segment may not be archived yet"
    assert "again later" not in caught.value.hint


@pytest.mark.parametrize("size", [0, 10, 8192, MB - 1])
def test_a_truncated_segment_is_named_with_the_lsn_at_which_it_ends(folder: Path, size: int) -> None:
    path = segments(folder)[1]
    with path.open("r+b") as file:
        file.truncate(size)
    archive = ArchiveFolder(folder)
    received: list[WalSlice] = []
    with pytest.raises(BadSegment, match=f"{path.name}.*truncated"):
        received.extend(archive.read(archive.first_lsn()))
    assert all(isinstance(piece, WalSlice) for piece in received)
    assert sum(len(piece.data) for piece in received) == MB + (size if size >= 40 else 0)


def test_a_segment_of_another_cluster_is_refused_by_name(folder: Path) -> None:
    path = segments(folder)[2]
    content = bytearray(path.read_bytes())
    content[24] ^= 1  # xlp_sysid
    path.write_bytes(content)
    archive = ArchiveFolder(folder)
    with pytest.raises(BadSegment, match=f"{path.name} belongs to cluster"):
        read_all(archive, archive.first_lsn())


def test_a_damaged_first_page_is_named(folder: Path) -> None:
    path = segments(folder)[2]
    content = bytearray(path.read_bytes())
    content[0] ^= 0xFF  # xlp_magic
    path.write_bytes(content)
    archive = ArchiveFolder(folder)
    with pytest.raises(BadSegment, match=path.name):
        read_all(archive, archive.first_lsn())


def test_a_recycled_segment_at_the_end_is_the_end_of_wal(folder: Path) -> None:
    paths = segments(folder)
    whole = b"".join(path.read_bytes() for path in paths)
    number = int(paths[-1].name, 16) + 1
    shutil.copy(paths[0], folder / f"{number:024X}")
    (folder / f"{number + 1:024X}").write_bytes(bytes(MB))
    archive = ArchiveFolder(folder)
    assert read_all(archive, archive.first_lsn()) == whole


def test_bad_bytes_are_the_end_of_wal_in_the_last_segment_and_damage_before_it(folder: Path) -> None:
    archive = ArchiveFolder(folder)
    first = archive.first_lsn()
    count = len(segments(folder))
    assert archive.damage(Lsn(first + (count - 1) * MB + 5), "page magic is wrong") is None
    error = archive.damage(Lsn(first + 5), "page magic is wrong")
    assert error is not None
    assert segments(folder)[0].name in str(error)
    assert format_lsn(first + 5) in str(error)


def test_a_partial_segment_is_read_to_its_end(folder: Path) -> None:
    last = segments(folder)[-1]
    content = last.read_bytes()
    last.unlink()
    last.with_suffix(".partial").write_bytes(content[: 3 * 8192])
    archive = ArchiveFolder(folder)
    received = read_all(archive, archive.first_lsn())
    assert received.endswith(content[: 3 * 8192])


def test_a_folder_without_wal_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NoWal):
        ArchiveFolder(tmp_path)
    with pytest.raises(NoWal, match="No such file"):
        ArchiveFolder(tmp_path / "nowhere")


@pytest.mark.feature("I33")
def test_timelines_join_at_the_lsn_in_the_history_file(folder: Path) -> None:
    paths = segments(folder)
    first = ArchiveFolder(folder).first_lsn()
    whole = b"".join(path.read_bytes() for path in paths)
    # Timeline 2 begins in the middle of the last but one segment; before that its file has the bytes of its parent.
    fork = first + (len(paths) - 2) * MB + 100 * 8
    forked = bytearray(paths[-2].read_bytes())
    forked[100 * 8 :] = b"\x02" * (MB - 100 * 8)
    paths[-2].with_name("00000002" + paths[-2].name[8:]).write_bytes(forked)
    (folder / "00000002.history").write_text(f"1\t{format_lsn(fork)}\tno recovery target specified\n")
    expected = whole[: (len(paths) - 2) * MB] + bytes(forked)
    for parent_kept in (True, False):
        if not parent_kept:
            paths[-2].rename(paths[-2].with_suffix(".partial"))
        archive = ArchiveFolder(folder)
        pieces = list(archive.read(first))
        assert b"".join(bytes(piece.data) for piece in pieces) == expected
        assert all((piece.timeline == 2) == (piece.start_lsn >= fork) for piece in pieces)
        assert read_all(ArchiveFolder(folder, TimelineId(1)), first) == (
            whole if parent_kept else whole[: (len(paths) - 1) * MB] + paths[-1].read_bytes()
        )
    paths[-2].with_suffix(".partial").unlink()  # a lost primary did not archive it
    assert read_all(ArchiveFolder(folder), first) == expected


SUFFIXES = {".gz": gzip.compress, ".lz4": lz4.frame.compress, ".zst": zstandard.ZstdCompressor().compress}
CHECKSUM = "-" + "0123456789" * 4


@pytest.mark.feature("I25")
@pytest.mark.parametrize("checksum", ["", CHECKSUM])
@pytest.mark.parametrize("suffix", ["", *SUFFIXES])
def test_compressed_archives_read_as_plain_ones(folder: Path, suffix: str, checksum: str) -> None:
    whole = b"".join(path.read_bytes() for path in segments(folder))
    for path in segments(folder)[::2]:
        pack(path, suffix, checksum)
    archive = ArchiveFolder(folder)
    first = archive.first_lsn()
    assert read_all(archive, first) == whole
    assert read_all(archive, first + 2 * MB + 12345) == whole[2 * MB + 12345 :]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_compressed_file_that_is_truncated_or_invalid_is_named(folder: Path, suffix: str) -> None:
    path = pack(segments(folder)[1], suffix)
    packed = path.read_bytes()
    first = ArchiveFolder(folder).first_lsn()
    for content in (packed[: len(packed) // 2], packed[:10], b"no such file" * 10, b""):
        path.write_bytes(content)
        with pytest.raises((DamagedFile, BadSegment), match=path.name):
            read_all(ArchiveFolder(folder), first)


def test_a_compressed_history_joins_timelines(folder: Path) -> None:
    end = ArchiveFolder(folder).first_lsn() + MB
    history = folder / "00000002.history"
    history.write_text(f"1\t{format_lsn(end)}\tno recovery target specified\n")
    pack(history, ".zst")
    assert ArchiveFolder(folder).history.switch_lsn(1) == end


def pack(path: Path, suffix: str, checksum: str = "") -> Path:
    """Store a file as a backup tool does."""
    content = path.read_bytes()
    path.unlink()
    target = path.with_name(path.name + checksum + suffix)
    target.write_bytes(SUFFIXES[suffix](content) if suffix else content)
    return target
