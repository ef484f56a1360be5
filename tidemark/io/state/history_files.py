"""The catalog history as files: bases and journal in STATE/history, their index in LMDB.

    base-<timeline>-<lsn>       a saved mirror; written under another name, fsynced, renamed
    journal-<timeline>-<lsn>    catalog-relevant records from that LSN on; appended, fsynced before a delivery needs it

A journal file may end in a torn entry after a crash: no delivery needed it, and it is never read. The needed length is
known, since the transaction of each delivery records how far the journal was durable (`JournalMark`): a shorter file is
damaged. Each writer appends to its own files: a fenced writer may still append, but only behind the end that the index
gives to its file, where nothing reads. Files that the index does not name remain from a crash, or from such a writer,
and are removed when the next writer has begun a file.
"""

import itertools
import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tidemark.decode.catalog.databases import SelectsDatabase, no_database
from tidemark.decode.catalog.history import (
    Base,
    DamagedHistory,
    Journal,
    dump_base,
    dump_entry,
    journal_head,
    load_base,
    replay,
)
from tidemark.decode.catalog.history import (
    JournalEntry as Entry,
)
from tidemark.io.host.disk import replace_file, sync, write_all, writing
from tidemark.model.errors import StateError
from tidemark.model.lsn import INVALID_LSN, Lsn, SystemIdentifier, TimelineId, Xid, format_lsn
from tidemark.wal.record import RawRecord, Record
from tidemark.wire.state.history_index import BaseEntry, HistoryIndex, JournalFile, JournalMark

ChooseSurplus = Callable[[Sequence[BaseEntry]], Sequence[BaseEntry]]


class NoBase(StateError):
    """No saved catalog is old enough for the requested LSN."""

    hint = "WAL before the oldest base cannot be decoded; start later, or run a new first copy"


class DamagedBase(NamedTuple):
    """A base that cannot be read, and why."""

    entry: BaseEntry
    error: DamagedHistory


def ignore_damaged_base(_damaged: DamagedBase) -> None:
    """Do not report a skipped base."""


def no_surplus(_bases: Sequence[BaseEntry]) -> Sequence[BaseEntry]:
    """Keep all bases."""
    return ()


def base_for(index: HistoryIndex, lsn: Lsn) -> BaseEntry:
    """Return the newest base at or below `lsn`."""
    return _bases_for(index, lsn)[0]


def _bases_for(index: HistoryIndex, lsn: Lsn) -> Sequence[BaseEntry]:
    """Return the bases at or below `lsn`, newest first, at least one."""
    usable = sorted((base for base in index.bases if base.lsn <= lsn), key=lambda base: base.lsn, reverse=True)
    if not usable:
        oldest = min((base.lsn for base in index.bases), default=None)
        available = "there is none" if oldest is None else f"the oldest is of {format_lsn(oldest)}"
        raise NoBase(f"no catalog base for {format_lsn(lsn)}: {available}")
    return usable


def load_catalogs(
    folder: Path,
    index: HistoryIndex,
    mark: JournalMark,
    lsn: Lsn,
    captured: SelectsDatabase = no_database,
    *,
    seeded_lsn: Lsn | None = None,
    passed_over: Callable[[DamagedBase], None] = ignore_damaged_base,
) -> Base:
    """Return the mirrors as of `lsn`: the newest base at or below it, and the journal from there.

    A damaged base is kept, and skipped for an older one: the journal is complete back to the base of the last seed,
    at `seeded_lsn` (None: unknown). Before that LSN WAL may be missing. For databases that are not in `captured`, a
    mirror that cannot be followed is left out, as it was when WAL was decoded.
    """
    damaged: list[DamagedBase] = []
    for entry in _bases_for(index, lsn):
        if damaged and (seeded_lsn is None or entry.lsn < seeded_lsn):
            break
        try:
            base = _load_base(folder / entry.file)
        except DamagedHistory as error:
            damaged.append(DamagedBase(entry, error))
            continue
        base.mirrors.select(captured)
        try:
            replay(base, journal_entries(folder, index, mark, entry.lsn), lsn)
        except DamagedHistory as error:
            if damaged:
                raise damaged[0].error from error
            raise
        for each in damaged:
            passed_over(each)
        return base
    raise damaged[0].error


def _load_base(path: Path) -> Base:
    try:
        return load_base(path.read_bytes(), str(path))
    except OSError as error:
        raise DamagedHistory(f"cannot read the catalog base {path}: {error}") from error


def journal_entries(folder: Path, index: HistoryIndex, mark: JournalMark, start_lsn: Lsn) -> Iterator[Entry]:
    """Yield the entries that end after `start_lsn`; raise if durable entries are missing."""
    for listed in index.journals:
        if listed.end_lsn == INVALID_LSN or listed.end_lsn > start_lsn:
            path = folder / listed.file
            journal = _read_journal(path)
            reached = listed.start_lsn
            for entry in _entries_of(listed, journal):
                yield entry
                reached = entry.end_lsn
            check_reached(path, journal.complete_bytes, reached, listed.end_lsn or mark.end_lsn)


def before_fork(
    folder: Path, index: HistoryIndex, mark: JournalMark, fork_lsn: Lsn
) -> tuple[HistoryIndex, JournalMark]:
    """Return the index and the durable mark as of a fork; the files stay unchanged."""
    bases = tuple(base for base in index.bases if base.lsn <= fork_lsn)
    journals: list[JournalFile] = []
    for listed in index.journals:
        if INVALID_LSN < listed.end_lsn <= fork_lsn:
            journals.append(listed)
            continue
        path = folder / listed.file
        journal = _read_journal(path)
        ends = [entry.end_lsn for entry in _entries_of(listed, journal)]
        reached = ends[-1] if ends else listed.start_lsn
        check_reached(path, journal.complete_bytes, reached, listed.end_lsn or mark.end_lsn)
        before = [end_lsn for end_lsn in ends if end_lsn <= fork_lsn]
        if before:
            sync(path)
            journals.append(replace(listed, end_lsn=before[-1]))
    end_lsn = max((journal.end_lsn for journal in journals), default=INVALID_LSN)
    return HistoryIndex(bases, tuple(journals)), JournalMark(min(mark.end_lsn, end_lsn))


def _entries_of(listed: JournalFile, journal: Journal) -> Iterator[Entry]:
    """Yield the entries of a journal file up to the end that the index gives to it.

    Later ones are from a fenced writer, or of a dead branch.
    """
    for entry in journal:
        if listed.end_lsn != INVALID_LSN and entry.end_lsn > listed.end_lsn:
            return
        yield entry


def _read_journal(path: Path) -> Journal:
    try:
        return Journal(path.read_bytes(), str(path))
    except OSError as error:
        raise DamagedHistory(f"cannot read the catalog journal {path}: {error}") from error


def check_reached(path: Path, complete_bytes: int, reached: Lsn, wanted: Lsn) -> None:
    """Raise if the last complete entry of a journal ends at `reached`, before `wanted`, which was durable."""
    if reached < wanted:
        raise DamagedHistory(
            f"{path} was durable up to {format_lsn(wanted)} but now ends at {format_lsn(reached)}: it is "
            f"truncated or damaged at byte {complete_bytes}"
        )


def _files(index: HistoryIndex) -> set[str]:
    return {base.file for base in index.bases} | {journal.file for journal in index.journals}


class HistoryWriter:
    """Appends to the journal, writes bases, removes unneeded files; `store` makes the index durable.

    One thread writes; any thread may call `sync`.
    """

    def __init__(
        self,
        folder: Path,
        index: HistoryIndex,
        mark: JournalMark,
        *,
        major: int,
        system_identifier: SystemIdentifier,
        file_bytes_max: int,
        file_mode: int,
        store: Callable[[HistoryIndex], None],
        unreadable: Collection[str] = (),
    ) -> None:
        """`unreadable` are damaged base files: they do not count as a replacement for older files."""
        self.index = index
        self._unreadable = frozenset(unreadable)
        self._store = store
        self._lock = threading.Lock()  # between the thread that changes the descriptor and `sync`
        self.written_bytes = 0
        self._folder = folder
        self._head = journal_head(major, system_identifier)
        self._file_bytes_max = file_bytes_max
        self._file_mode = file_mode
        self._descriptor = -1
        self._file_bytes = 0
        self._end_lsn = INVALID_LSN  # of the last entry: earlier records are in the journal already
        self.durable_lsn = INVALID_LSN  # the same, for entries that `sync` has made durable
        self._continue_journal(mark)

    def append(self, record: Record | RawRecord, timeline: TimelineId, top_xid: Xid) -> None:
        """Write a record unless it is already in the journal: after a restart some are decoded again."""
        if record.lsn < self._end_lsn:
            return
        is_full = self._file_bytes >= self._file_bytes_max and self._file_bytes > len(self._head)
        if self._descriptor < 0 or is_full:
            with self._lock:
                self._begin_file(record.lsn, timeline)
            self._store(self.index)
            self._remove_unlisted()  # after that transaction, in which a fenced writer fails
        entry = dump_entry(record, timeline, top_xid)
        with writing(self._folder):  # the next start cuts off a torn entry
            write_all(self._descriptor, entry)
        self._file_bytes += len(entry)
        self.written_bytes += len(entry)
        self._end_lsn = record.end_lsn

    def sync(self) -> None:
        """Make all appended entries durable; callable from any thread."""
        if self.durable_lsn < self._end_lsn:
            with self._lock:
                # NB: read before the fsync, which does not cover later entries of the other thread.
                end_lsn = self._end_lsn
                with writing(self._folder):
                    os.fsync(self._descriptor)
                self.durable_lsn = end_lsn

    def write_base(self, base: Base, restart_lsn: Lsn) -> BaseEntry:
        """Save a base and add it to the index; return its entry."""
        name = f"base-{base.timeline:08X}-{base.lsn:016X}"
        content = dump_base(base)
        replace_file(self._folder / name, content, self._file_mode)
        with writing(self._folder):
            sync(self._folder)
        entry = BaseEntry(name, base.timeline, base.lsn, restart_lsn, len(content))
        others = tuple(known for known in self.index.bases if known.file != name)
        self.index = HistoryIndex((*others, entry), self.index.journals)
        self._store(self.index)
        return entry

    def prune(self, horizon_lsn: Lsn, surplus: ChooseSurplus = no_surplus) -> None:
        """Remove the files that no restart at or after `horizon_lsn` needs, and `surplus` bases among the rest."""
        readable = (base.lsn for base in self.index.bases if base.file not in self._unreadable)
        kept_from = max((lsn for lsn in readable if lsn <= horizon_lsn), default=INVALID_LSN)
        bases = tuple(base for base in self.index.bases if base.lsn >= kept_from)
        thinned = surplus([base for base in bases if base.file not in self._unreadable])
        bases = tuple(base for base in bases if base not in thinned)
        journals = tuple(
            journal for journal in self.index.journals if journal.end_lsn == INVALID_LSN or journal.end_lsn > kept_from
        )
        gone = _files(self.index) - _files(HistoryIndex(bases, journals))
        if gone:
            self.index = HistoryIndex(bases, journals)
            self._store(self.index)  # first: each file that the index names must exist
        for name in gone:
            (self._folder / name).unlink(missing_ok=True)

    def cut_behind(self, fork_lsn: Lsn) -> bool:
        """Cut off the entries and bases of a dead branch, behind a fork; return whether there were any."""
        if self._end_lsn <= fork_lsn and all(base.lsn <= fork_lsn for base in self.index.bases):
            return False
        self.close()
        index, reached = before_fork(self._folder, self.index, JournalMark(self._end_lsn), fork_lsn)
        with self._lock:
            self._end_lsn = self.durable_lsn = reached.end_lsn
        self.index = index
        self._store(index)  # NB: before any further delivery, which must not rely on the removed entries
        return True

    def close(self) -> None:
        """Sync and close the journal."""
        if self._descriptor >= 0:
            self.sync()
            os.close(self._descriptor)
            self._descriptor = -1

    def _begin_file(self, lsn: Lsn, timeline: TimelineId) -> None:
        if self._descriptor >= 0:
            with writing(self._folder):
                os.fsync(self._descriptor)
            self.durable_lsn = self._end_lsn
            os.close(self._descriptor)
        journals = self._closed()
        with writing(self._folder):
            name, self._descriptor = self._create(f"journal-{timeline:08X}-{lsn:016X}")
            write_all(self._descriptor, self._head)
            os.fsync(self._descriptor)  # a file that the index names has a valid header
            sync(self._folder)
        self._file_bytes = len(self._head)
        self.index = HistoryIndex(self.index.bases, (*journals, JournalFile(name, timeline, lsn)))

    def _closed(self) -> tuple[JournalFile, ...]:
        """Return the journal's files with the last one closed at its end, or left out if it has no entry."""
        *closed, last = self.index.journals or (None,)
        if last is not None and last.start_lsn < self._end_lsn:
            closed.append(JournalFile(last.file, last.timeline, last.start_lsn, self._end_lsn))
        return tuple(entry for entry in closed if entry is not None)

    def _create(self, wanted: str) -> tuple[str, int]:
        """Create a new file with the wanted name, or with a suffix if it exists; return its name and descriptor."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        for number in itertools.count():
            name = f"{wanted}-{number}" if number else wanted
            with suppress(FileExistsError):
                return name, os.open(self._folder / name, flags, self._file_mode)
        raise AssertionError

    def _continue_journal(self, mark: JournalMark) -> None:
        """Continue after the last complete entry of the current file; raise if that is before `mark`.

        Its writer may still append to it for a moment, so the index closes the file at its present end when we add our
        first file. If the file has no entry, nothing in it was durable, and the previous file's end applies.
        """
        if not self.index.journals:
            return
        self._end_lsn = max(journal.end_lsn for journal in self.index.journals)
        last = self.index.journals[-1]
        path = self._folder / last.file
        journal = _read_journal(path)
        for entry in _entries_of(last, journal):
            self._end_lsn = entry.end_lsn
        check_reached(path, journal.complete_bytes, self._end_lsn, mark.end_lsn)
        sync(path)
        self.durable_lsn = self._end_lsn

    def _remove_unlisted(self) -> None:
        known = _files(self.index)
        for path in self._folder.iterdir():
            if path.name not in known and path.name.startswith(("base-", "journal-")):
                path.unlink()
