"""Trimming a spool on disk: counted, restricted to our files, and repeated after an interruption."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.processes.cdcctl import contents
from tidemark.io.archive.spool import NoSpool, Spool
from tidemark.io.archive.trimming import FILES_MAX, Horizon, Trimmed, trim
from tidemark.model.lsn import Lsn, TimelineId
from tidemark.wal.segments import segment_name

MB = 1 << 20
HORIZON = Horizon(TimelineId(2), Lsn(5 * MB + 17))


def fill(folder: Path, numbers: Iterable[int], timeline: int = 1) -> None:
    for number in numbers:
        (folder / segment_name(timeline, number, MB)).write_bytes(b"x" * 10)


def test_segments_below_the_horizon_are_removed_and_counted_and_no_others(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.create(7)
    fill(spool.folder, range(1, 9))
    fill(spool.folder, range(4, 9), timeline=2)
    (spool.folder / "00000002.history").write_text("1\t0/400000\t\n")
    assert trim(spool, HORIZON, MB) == Trimmed(5, 50)
    left = {path.name for path in spool.folder.iterdir() if len(path.name) == 24}
    assert left == {segment_name(timeline, number, MB) for timeline in (1, 2) for number in range(5, 9)}
    assert (spool.folder / "00000002.history").exists()
    assert spool.is_ours
    assert trim(spool, HORIZON, MB) == Trimmed()


def test_a_folder_without_the_sentinel_is_never_trimmed(tmp_path: Path) -> None:
    fill(tmp_path, range(1, 9))
    before = contents(tmp_path)
    with pytest.raises(NoSpool, match=str(tmp_path)):
        trim(Spool(tmp_path), HORIZON, MB)
    assert contents(tmp_path) == before


def test_only_files_are_trimmed_whatever_else_has_the_name_of_a_segment(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.create(7)
    fill(spool.folder, (1, 9))  # the newest segment is always kept
    folder, link = (spool.folder / segment_name(1, number, MB) for number in (2, 3))
    folder.mkdir()
    link.symlink_to(spool.folder / "elsewhere")
    assert trim(spool, HORIZON, MB) == Trimmed(1, 10)
    assert folder.is_dir()
    assert link.is_symlink()


def test_a_spool_far_below_the_horizon_is_trimmed_in_steps(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.create(7)
    fill(spool.folder, range(1, FILES_MAX + 11))
    far = Horizon(TimelineId(1), Lsn((FILES_MAX + 6) * MB))
    assert trim(spool, far, MB).file_count == FILES_MAX
    assert not (spool.folder / segment_name(1, FILES_MAX, MB)).exists()
    assert trim(spool, far, MB).file_count == 5
