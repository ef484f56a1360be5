"""A damaged catalog base: the older one that may replace it, and that nothing is removed because of the damage."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.forged.byte_targets.small_base import BASE
from tidemark.decode.catalog.history import DamagedHistory, load_base
from tidemark.io.state.history_files import DamagedBase, HistoryWriter, load_catalogs
from tidemark.model.lsn import Lsn
from tidemark.wire.state.history_index import HistoryIndex, JournalMark

SMALL = load_base(BASE.read_bytes(), str(BASE))
FIRST, SECOND, THIRD, WANTED = (Lsn(number << 20) for number in (1, 2, 3, 4))


class HistoryOfBases:
    """A history of three bases, and the reports of damaged ones."""

    def __init__(self, folder: Path, *, unreadable: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.index = HistoryIndex()
        self.reported: list[DamagedBase] = []
        self.writer = HistoryWriter(
            folder,
            self.index,
            JournalMark(),
            major=SMALL.major,
            system_identifier=SMALL.system_identifier,
            file_bytes_max=1 << 20,
            file_mode=0o600,
            store=self.store,
            unreadable=unreadable,
        )
        for lsn in (FIRST, SECOND, THIRD):
            self.writer.write_base(replace(SMALL, lsn=lsn), lsn)

    def store(self, index: HistoryIndex) -> None:
        self.index = index

    def file(self, lsn: Lsn) -> Path:
        (name,) = (base.file for base in self.index.bases if base.lsn == lsn)
        return self.folder / name

    def load(self, seeded_lsn: Lsn | None) -> Lsn:
        base = load_catalogs(
            self.folder, self.index, JournalMark(), WANTED, seeded_lsn=seeded_lsn, passed_over=self.reported.append
        )
        return base.lsn


def spoil(path: Path) -> bytes:
    path.write_bytes(path.read_bytes()[:-3] + b"\0\0\0")
    return path.read_bytes()


@pytest.mark.feature("I24")
def test_an_older_base_replaces_a_damaged_one_which_is_named_and_left_unchanged(tmp_path: Path) -> None:
    kept = HistoryOfBases(tmp_path)
    assert (kept.load(FIRST), kept.reported) == (THIRD, [])
    spoilt = spoil(kept.file(THIRD))
    assert kept.load(FIRST) == SECOND
    kept.file(SECOND).unlink()
    kept.reported.clear()
    assert kept.load(FIRST) == FIRST
    assert [damaged.entry.lsn for damaged in kept.reported] == [THIRD, SECOND]
    assert kept.file(THIRD).name in str(kept.reported[0].error)
    assert kept.file(THIRD).read_bytes() == spoilt


@pytest.mark.parametrize("seeded_lsn", [THIRD, None])
def test_no_base_from_before_the_last_seed_replaces_a_later_one(tmp_path: Path, seeded_lsn: Lsn | None) -> None:
    """Between the two an operator may have given up WAL, and its catalog changes are in no journal."""
    kept = HistoryOfBases(tmp_path)
    spoil(kept.file(THIRD))
    with pytest.raises(DamagedHistory, match=kept.file(THIRD).name):
        kept.load(seeded_lsn)
    assert kept.reported == []


def test_where_every_base_is_damaged_the_newest_is_named(tmp_path: Path) -> None:
    kept = HistoryOfBases(tmp_path)
    for lsn in (FIRST, SECOND, THIRD):
        spoil(kept.file(lsn))
    with pytest.raises(DamagedHistory, match=kept.file(THIRD).name):
        kept.load(FIRST)


def test_a_base_that_replaces_a_damaged_one_is_not_removed_with_it(tmp_path: Path) -> None:
    kept = HistoryOfBases(tmp_path)
    kept.writer.prune(WANTED)
    assert [base.lsn for base in kept.index.bases] == [THIRD]
    other = tmp_path / "other"
    other.mkdir()
    beside = HistoryOfBases(other, unreadable=(kept.file(THIRD).name,))
    beside.writer.prune(WANTED)
    assert [base.lsn for base in beside.index.bases] == [SECOND, THIRD]
