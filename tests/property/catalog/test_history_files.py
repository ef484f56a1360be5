"""A journal whose writer dies at any moment, and the next writer's result: the same records, each once."""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tidemark.decode.catalog.history import DamagedHistory, dump_entry, journal_head
from tidemark.io.state.history_files import HistoryWriter, before_fork, journal_entries
from tidemark.model.lsn import INVALID_LSN, Lsn, SystemIdentifier, TimelineId, Xid
from tidemark.wal.record import Record
from tidemark.wire.state.history_index import BaseEntry, HistoryIndex, JournalMark

SYSTEM = SystemIdentifier(7_000_000_000_000_000_001)
MAJOR = 15
RECORD_BYTES = 200
LSNS = [Lsn(1000 * number) for number in range(1, 8)]
ENTRY_BYTES = len(
    dump_entry(
        Record(LSNS[0], LSNS[0], INVALID_LSN, Xid(7), Xid(0), 0, 10, 0, (), b"", bytes(RECORD_BYTES)),
        TimelineId(1),
        Xid(7),
    )
)
HEAD_BYTES = len(journal_head(MAJOR, SYSTEM))


def append(writer: HistoryWriter, lsn: Lsn) -> None:
    raw = int(lsn).to_bytes(RECORD_BYTES, "little")
    end = Lsn(lsn + RECORD_BYTES)
    writer.append(Record(lsn, end, INVALID_LSN, Xid(7), Xid(0), 0, 10, 0, (), b"", raw), TimelineId(1), Xid(7))


class CrashableDisk:
    """A history folder and its index, and copies of both at each moment at which a crash could leave them."""

    def __init__(self, folder: Path, index: HistoryIndex) -> None:
        self.folder = folder
        self.index = index
        self.mark = JournalMark()
        self.moments: list[tuple[HistoryIndex, Path]] = []
        folder.mkdir(exist_ok=True)

    def store(self, index: HistoryIndex) -> None:
        self.index = index
        self.remember()

    def remember(self) -> None:
        """Copy the present state, and the same with the last entry torn."""
        copy = self.folder.with_name(f"{self.folder.name}-{len(self.moments)}")
        shutil.copytree(self.folder, copy)
        self.moments.append((self.index, copy))

    def writer(self, file_bytes_max: int) -> HistoryWriter:
        return HistoryWriter(
            self.folder,
            self.index,
            self.mark,
            major=MAJOR,
            system_identifier=SYSTEM,
            file_bytes_max=file_bytes_max,
            file_mode=0o600,
            store=self.store,
        )

    def write(self, lsns: Sequence[Lsn], file_bytes_max: int) -> None:
        writer = self.writer(file_bytes_max)
        for lsn in lsns:
            append(writer, lsn)
            self.remember()
        writer.close()

    def read(self) -> list[Lsn]:
        files = [self.folder / journal.file for journal in self.index.journals]
        assert sorted(files) == sorted(path for path in self.folder.iterdir() if path.name.startswith("journal-"))
        return [entry.lsn for entry in journal_entries(self.folder, self.index, self.mark, INVALID_LSN)]


@pytest.mark.parametrize("file_bytes_max", [1, HEAD_BYTES + 2 * ENTRY_BYTES, 1 << 20])
@pytest.mark.parametrize("torn_bytes", [0, 1, ENTRY_BYTES])
def test_a_journal_continues_after_any_crash_without_a_hole_or_a_step_back(
    tmp_path: Path, file_bytes_max: int, torn_bytes: int
) -> None:
    disk = CrashableDisk(tmp_path / "history", HistoryIndex((), ()))
    disk.write(LSNS, file_bytes_max)
    assert disk.read() == LSNS
    for index, folder in disk.moments:
        left = CrashableDisk(folder, index)
        last = folder / index.journals[-1].file
        with last.open("r+b") as file:
            file.truncate(max(HEAD_BYTES, last.stat().st_size - torn_bytes))
        left.write(LSNS[:-2], file_bytes_max)  # records that a restart reads again, in one run and in the next
        left.write(LSNS, file_bytes_max)
        assert left.read() == LSNS, folder.name


@pytest.mark.parametrize("file_bytes_max", [1, HEAD_BYTES + 2 * ENTRY_BYTES, 1 << 20])
@pytest.mark.parametrize(
    "damage",
    [lambda content: content[:-ENTRY_BYTES], lambda content: content[:-1] + bytes([content[-1] ^ 1])],
    ids=["cut off", "a bit turned"],
)
def test_a_journal_that_lost_what_was_durable_is_refused_by_name_and_left_as_it_is(
    tmp_path: Path, file_bytes_max: int, damage: Callable[[bytes], bytes]
) -> None:
    disk = CrashableDisk(tmp_path / "history", HistoryIndex((), ()))
    disk.write(LSNS, file_bytes_max)
    last = disk.folder / disk.index.journals[-1].file
    whole = last.read_bytes()
    damaged = damage(whole)
    last.write_bytes(damaged)
    disk.mark = JournalMark(Lsn(LSNS[-1] + RECORD_BYTES))
    with pytest.raises(DamagedHistory, match=f"{last.name}.*damaged at byte {len(whole) - ENTRY_BYTES}"):
        disk.writer(file_bytes_max)
    assert last.read_bytes() == damaged
    disk.mark = JournalMark(Lsn(LSNS[-2] + RECORD_BYTES))  # no delivered change needs it: torn in a crash
    disk.write(LSNS, file_bytes_max)
    assert disk.read() == LSNS


def test_records_that_a_writer_appends_after_the_next_one_began_are_never_read(tmp_path: Path) -> None:
    """As by a stopped process that continues while the next owner of the epoch already writes."""
    disk = CrashableDisk(tmp_path / "history", HistoryIndex((), ()))
    late = disk.writer(1 << 20)
    for lsn in LSNS[:2]:
        append(late, lsn)
    late.sync()
    next_writer = disk.writer(1 << 20)
    append(late, LSNS[2])
    for lsn in LSNS[2:5]:
        append(next_writer, lsn)
    append(late, LSNS[3])
    append(late, LSNS[4])
    late.close()
    next_writer.close()
    assert disk.read() == LSNS[:5]
    disk.write(LSNS, 1 << 20)
    assert disk.read() == LSNS


@pytest.mark.parametrize("file_bytes_max", [1, HEAD_BYTES + 2 * ENTRY_BYTES, 1 << 20])
@pytest.mark.parametrize("fork_lsn", [Lsn(lsn + at) for lsn in LSNS[::3] for at in (0, RECORD_BYTES - 8, RECORD_BYTES)])
def test_a_journal_that_is_cut_at_a_fork_continues_along_the_other_branch(
    tmp_path: Path, file_bytes_max: int, fork_lsn: Lsn
) -> None:
    disk = CrashableDisk(tmp_path / "history", HistoryIndex((), ()))
    disk.write(LSNS, file_bytes_max)
    bases = tuple(BaseEntry(f"base-{lsn}", TimelineId(1), lsn, lsn, 1) for lsn in LSNS)
    durable = JournalMark(Lsn(LSNS[-1] + RECORD_BYTES))
    disk.index, disk.mark = before_fork(disk.folder, replace(disk.index, bases=bases), durable, fork_lsn)
    kept = [lsn for lsn in LSNS if lsn + RECORD_BYTES <= fork_lsn]
    assert [base.lsn for base in disk.index.bases] == [lsn for lsn in LSNS if lsn <= fork_lsn]
    assert [entry.lsn for entry in journal_entries(disk.folder, disk.index, disk.mark, INVALID_LSN)] == kept
    others = [Lsn(fork_lsn + 700 * number) for number in range(10)]
    writer = disk.writer(file_bytes_max)
    for lsn in [*kept, *others]:  # kept records are decoded again
        append(writer, lsn)
    writer.close()
    assert disk.read() == [*kept, *others]
    assert before_fork(disk.folder, disk.index, disk.mark, fork_lsn)[0].bases == disk.index.bases


def test_a_journal_that_damage_cut_short_is_not_mistaken_for_one_that_ends_at_a_fork(tmp_path: Path) -> None:
    disk = CrashableDisk(tmp_path / "history", HistoryIndex((), ()))
    disk.write(LSNS, 1 << 20)
    (journal,) = disk.folder.glob("journal-*")
    os.truncate(journal, journal.stat().st_size - 4 * ENTRY_BYTES)
    with pytest.raises(DamagedHistory, match="was durable up to"):
        before_fork(disk.folder, disk.index, JournalMark(Lsn(LSNS[-1] + RECORD_BYTES)), LSNS[-2])


@pytest.mark.parametrize("file_bytes_max", [1, HEAD_BYTES + 2 * ENTRY_BYTES, 1 << 20])
@pytest.mark.parametrize("fork_lsn", [Lsn(lsn + at) for lsn in LSNS[::3] for at in (0, RECORD_BYTES)])
def test_a_writer_that_reads_a_fork_drops_records_of_an_earlier_one_after_it(
    tmp_path: Path, file_bytes_max: int, fork_lsn: Lsn
) -> None:
    disk = CrashableDisk(tmp_path / "history", HistoryIndex((), ()))
    disk.write(LSNS, file_bytes_max)
    disk.index = replace(disk.index, bases=(BaseEntry("base", TimelineId(1), Lsn(7100), Lsn(7100), 1),))
    kept = [lsn for lsn in LSNS if lsn + RECORD_BYTES <= fork_lsn]
    others = [Lsn(fork_lsn + 700 * number) for number in range(10)]
    writer = disk.writer(file_bytes_max)
    for lsn in kept:
        append(writer, lsn)
    assert writer.cut_behind(fork_lsn) == (fork_lsn < Lsn(7100))
    assert writer.durable_lsn <= fork_lsn
    assert not writer.cut_behind(fork_lsn)
    for lsn in others:
        append(writer, lsn)
    writer.close()
    assert disk.read() == [*kept, *others]
    assert bool(disk.index.bases) == (fork_lsn >= Lsn(7100))
