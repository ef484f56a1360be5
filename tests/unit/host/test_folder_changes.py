"""When a folder is listed again: after a change, and not before earlier listings are a small share of the time."""

import os
import time
from pathlib import Path

import pytest

from tidemark.io.host.folder_changes import (
    CPU_SHARE_MAX,
    MTIME_TICK_S_MAX,
    UNCHANGED_CPU_SHARE_MAX,
    UNSHOWN_S,
    FolderChanges,
)

YEAR_NS = 365 * 86_400 * 1_000_000_000


class FakeClocks:
    """The clocks of the module under test."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.used_s = 5.0

    def monotonic(self) -> float:
        return self.now_s

    def thread_time(self) -> float:
        return self.used_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClocks:
    clock = FakeClocks()
    monkeypatch.setattr("tidemark.io.host.folder_changes.time", clock)
    return clock


def test_a_listing_that_takes_long_is_not_repeated_soon(tmp_path: Path, clock: FakeClocks) -> None:
    changes = FolderChanges(tmp_path)
    assert changes.may_be_new()
    with changes.listing():
        clock.used_s += 0.5
    assert not changes.may_be_new()
    changes.forget()
    clock.now_s += 0.5 / CPU_SHARE_MAX - 0.1
    assert not changes.may_be_new(), "also after a hole, for which the folder is listed again"
    clock.now_s += 0.2
    assert changes.may_be_new()


@pytest.mark.parametrize("ahead_ns", [-YEAR_NS, 0, YEAR_NS])
def test_a_folder_is_listed_until_its_mtime_shows_every_change_by_whatever_clock(
    tmp_path: Path, clock: FakeClocks, ahead_ns: int
) -> None:
    changed_ns = time.time_ns() + ahead_ns
    os.utime(tmp_path, ns=(0, changed_ns))
    changes = FolderChanges(tmp_path)
    assert changes.may_be_new()
    clock.now_s += MTIME_TICK_S_MAX / 2
    assert changes.may_be_new(), "a change within the same tick of the file system's clock"
    clock.now_s += MTIME_TICK_S_MAX
    assert changes.may_be_new(), "such a change may have come after the last listing"
    clock.now_s += 1
    assert not changes.may_be_new()
    os.utime(tmp_path, ns=(0, changed_ns + 1))
    assert changes.may_be_new()


def settled(folder: Path, clock: FakeClocks) -> FolderChanges:
    changes = FolderChanges(folder)
    assert changes.may_be_new()
    clock.now_s += 2 * MTIME_TICK_S_MAX
    assert changes.may_be_new()
    assert not changes.may_be_new()
    return changes


def test_a_folder_that_was_replaced_by_one_of_the_same_age_is_listed(tmp_path: Path, clock: FakeClocks) -> None:
    archive, other = tmp_path / "archive", tmp_path / "other"
    for folder in (archive, other):
        folder.mkdir()
        os.utime(folder, ns=(0, YEAR_NS))
    changes = settled(archive, clock)
    archive.rename(tmp_path / "former")
    other.rename(archive)
    assert changes.may_be_new()


def test_a_folder_without_a_visible_change_is_listed_now_and_then(tmp_path: Path, clock: FakeClocks) -> None:
    changes = settled(tmp_path, clock)
    clock.now_s += UNSHOWN_S
    assert changes.may_be_new()
    assert not changes.may_be_new()


def test_an_unchanged_folder_of_very_many_files_is_listed_even_less_often(tmp_path: Path, clock: FakeClocks) -> None:
    changes = settled(tmp_path, clock)
    with changes.listing():
        clock.used_s += 1.0
    clock.now_s += 1.0 / UNCHANGED_CPU_SHARE_MAX - 1
    assert not changes.may_be_new()
    clock.now_s += 1
    assert changes.may_be_new()
