"""A second copy of the catalog history, in the spool: updated at intervals, so that a lost state folder can be rebuilt.

Files are written first, then the manifest that names them; files that it no longer names are removed last. So all
files of the spool's manifest exist. Files are written under a temporary name, synced and renamed; the current journal
is appended to: a crash can tear it only behind everything that the manifest needs. Only our own spool is written.
"""

import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path

from tidemark.decode.catalog.history import DamagedHistory, Journal, entries_from
from tidemark.io.archive.spool import Spool
from tidemark.io.archive.spool_manifest import MANIFEST_FILE, NoHistoryCopy, history_folder, read_manifest
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.disk import replace_file, sync, write_all, writing
from tidemark.io.state.history_files import check_reached
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_views import StateView
from tidemark.model.lsn import INVALID_LSN, Lsn
from tidemark.model.position import Pointer, Position
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.manifest import MANIFEST, CopiedTable, Manifest
from tidemark.wire.state.history_index import JournalFile

_OURS = ("base-", "journal-", f"{MANIFEST_FILE}.")
_ATTEMPTS_MAX = 3  # to copy an index whose files are pruned during the copy


@dataclass(frozen=True, slots=True)
class _Grown:
    """How much of the current journal is copied: up to the end of an entry."""

    file: str
    byte_count: int
    end_lsn: Lsn


class HistoryCopy:
    """The copy of one state in one spool. It remembers what it has copied, so that an update costs only what is new.

    The first update of a process compares the existing copy with the original. A later one writes nothing if neither
    the state nor the copy has changed.
    """

    def __init__(self, store: StateStore, spool: Spool) -> None:
        self._store = store
        self._spool = spool
        self._grown: _Grown | None = None
        self._written: Manifest | None = None

    def update(self) -> Manifest | None:
        """Update the copy to the current state; return its manifest, or None if the state has no beginning yet.

        A rebuilt state needs WAL from the manifest's `start.restart_lsn` on. Raise `NoSpool` for a folder that is not
        ours, `ConfigError` for the spool of another cluster.
        """
        self._spool.system_identifier()
        self._spool.check_owner(self._store.identity.system_identifier)
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            manifest = _manifest(self._store.view())
            if manifest is None:
                return None
            try:
                return self._copy(manifest)
            except FileNotFoundError as error:
                if attempt == _ATTEMPTS_MAX:
                    raise DamagedHistory(f"{error.filename} is recorded in the state but does not exist") from error
        raise AssertionError

    def _copy(self, manifest: Manifest) -> Manifest:
        """Update the files; return the manifest that names them now."""
        source, folder, file_mode = self._store.folder.history, _make_folder(self._spool), self._spool.file_mode
        is_changed = False
        for base in manifest.history.bases:
            is_changed |= _copy_range(source / base.file, folder / base.file, base.byte_count, file_mode)
        for journal in manifest.history.journals:
            path = source / journal.file
            if journal.end_lsn == INVALID_LSN:
                is_changed |= self._update_growing(path, folder / journal.file, journal, manifest.journal.end_lsn)
            else:
                is_changed |= _copy_range(path, folder / journal.file, path.stat().st_size, file_mode)
        written, self._written = self._written, None  # until all is written
        if written is not None and not is_changed and self._is_current(written, manifest):
            self._written = written
            return written
        sync(folder)
        replace_file(folder / MANIFEST_FILE, MANIFEST.encode(manifest), file_mode)
        sync(folder)
        named = {*_names(manifest), MANIFEST_FILE}
        for path in folder.iterdir():
            if path.name not in named and path.name.startswith(_OURS):
                path.unlink(missing_ok=True)
        self._written = manifest
        return manifest

    def _is_current(self, written: Manifest, manifest: Manifest) -> bool:
        """Return whether a manifest that was written is still there, and the state has not changed since."""
        if replace(manifest, copied_at_us=written.copied_at_us) != written:
            return False
        try:
            return read_manifest(self._spool) == written
        except (NoHistoryCopy, DamagedValue):
            return False

    def _update_growing(self, source: Path, target: Path, journal: JournalFile, durable_lsn: Lsn) -> bool:
        """Copy the durable part of the current journal: what follows may be torn by a crash, cut or rewritten.

        Return whether the copy was changed.
        """
        known, self._grown = self._grown, None  # until the copy is complete
        if known is None or known.file != journal.file or _byte_count(target) != known.byte_count:
            known = _Grown(journal.file, 0, journal.start_lsn)
        elif known.end_lsn >= durable_lsn:
            self._grown = known
            return False
        with source.open("rb") as file:
            file.seek(known.byte_count)
            content = file.read()
        complete_bytes, end_lsn = 0, known.end_lsn
        if not known.byte_count:
            complete_bytes = Journal(content, str(source)).complete_bytes  # its header
        for entry, end in entries_from(content, complete_bytes):
            if entry.end_lsn > durable_lsn:
                break
            complete_bytes, end_lsn = end, entry.end_lsn
        check_reached(source, known.byte_count + complete_bytes, end_lsn, durable_lsn)
        if known.byte_count:
            _append(target, content[:complete_bytes])
        elif not target.exists() or target.read_bytes() != content[:complete_bytes]:
            replace_file(target, content[:complete_bytes], self._spool.file_mode)
        self._grown = _Grown(journal.file, known.byte_count + complete_bytes, end_lsn)
        return True


def fetch_history(spool: Spool, manifest: Manifest, folder: Path, file_mode: int) -> None:
    """Copy the files that a manifest names into `folder`, each atomically; may be repeated after a failure."""
    for name in _names(manifest):
        path = history_folder(spool) / name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise NoHistoryCopy(f"{path} is recorded in the manifest but cannot be read: {error.strerror}") from error
        replace_file(folder / name, content, file_mode)
    sync(folder)


def _manifest(view: StateView) -> Manifest | None:
    beginning = view.beginning
    if beginning is None:
        return None
    confirmed = view.horizon
    at_begin = Pointer(Position(beginning.timeline, Lsn(beginning.lsn - 1), 0), beginning.lsn)
    return Manifest(
        identity=view.identity,
        beginning=beginning,
        history=view.history,
        journal=view.journal,
        start=confirmed.pointer if confirmed is not None else at_begin,
        head=view.ledger.head,
        term=view.term,
        fingerprint=view.fingerprint,
        tables=tuple(CopiedTable(*key, progress) for key, progress in sorted(view.copies.items())),
        copied_at_us=SystemClock().wall_us(),
        followed=view.followed,
    )


def _names(manifest: Manifest) -> list[str]:
    index = manifest.history
    return [*(base.file for base in index.bases), *(journal.file for journal in index.journals)]


def _make_folder(spool: Spool) -> Path:
    """Create the folder with the spool's permissions and, if a group shares the spool, its group."""
    folder = history_folder(spool)
    if not folder.is_dir():
        with writing(folder):
            folder.mkdir(exist_ok=True)
            folder.chmod(stat.S_IMODE(spool.folder.stat().st_mode))
            sync(spool.folder)
    return folder


def _copy_range(source: Path, target: Path, byte_count: int, file_mode: int) -> bool:
    """Copy the first `byte_count` bytes unless the target has them: a file only grows. Return whether it had not."""
    if _byte_count(target) == byte_count:
        return False
    with source.open("rb") as file:
        content = file.read(byte_count)
    replace_file(target, content, file_mode)
    return True


def _byte_count(path: Path) -> int | None:
    """Return the size of a file; None if it does not exist."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _append(target: Path, content: bytes) -> None:
    with writing(target):
        descriptor = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            write_all(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
