"""The catalog history's second home, in the spool: copied now and then, so that a lost state folder can be made anew.

Files first, then the manifest that names them, each written aside, synced and renamed; what it names no more is removed
behind it. So the manifest in the spool is always one whose files are there. Only our own spool is written.
"""

import stat
from pathlib import Path

from tidemark.decode.catalog.history import DamagedHistory, Journal
from tidemark.io.clock import SystemClock
from tidemark.io.disk import put_whole, sync, writing
from tidemark.io.spool import Spool
from tidemark.io.state import StateStore
from tidemark.io.state_views import StateView
from tidemark.model.errors import ConfigError, StateError
from tidemark.model.lsn import INVALID_LSN, Lsn
from tidemark.model.position import Pointer, Position
from tidemark.wire.manifest import MANIFEST, CopiedTable, Manifest
from tidemark.wire.state import JournalEntry

FOLDER = "history"
_MANIFEST = "manifest"
_OURS = ("base-", "journal-", f"{_MANIFEST}.")
_ATTEMPTS_MAX = 3  # at an index whose files are pruned meanwhile


class NoHistoryCopy(StateError):
    """A spool without a copied catalog history."""

    hint = "make a new state by cdcctl init: its first copy starts the tables anew"


def history_folder(spool: Spool) -> Path:
    """Return where the copy stands."""
    return spool.folder / FOLDER


def copy_history(store: StateStore, spool: Spool) -> Manifest | None:
    """Bring the copy up to what the state is now; None as long as the state has no beginning. Costs little if it is.

    WAL from `start.restart_lsn` of the manifest on is what a state made anew needs. Raise `NoSpool` for a folder that
    is not ours.
    """
    if spool.system_identifier() != store.identity.system_identifier:
        raise ConfigError(
            f"{spool.folder} is the spool of another cluster", hint="give each cluster a spool of its own"
        )
    for attempt in range(1, _ATTEMPTS_MAX + 1):
        manifest = _manifest(store.view())
        if manifest is None:
            return None
        try:
            _copy(store.folder.history, manifest, spool)
        except FileNotFoundError as error:
            if attempt == _ATTEMPTS_MAX:
                raise DamagedHistory(f"{error.filename} is named by the state and not there") from error
        else:
            return manifest
    raise AssertionError


def read_manifest(spool: Spool) -> Manifest:
    """Return the manifest of a spool's copy; raise `NoHistoryCopy` where there is none."""
    path = history_folder(spool) / _MANIFEST
    try:
        return MANIFEST.decode(path.read_bytes())
    except OSError as error:
        raise NoHistoryCopy(f"{path} cannot be read: {error.strerror}") from error


def fetch_history(spool: Spool, manifest: Manifest, folder: Path, file_mode: int) -> None:
    """Copy the files that a manifest names into `folder`; whole or not at all, over again if it is called again."""
    for name in _names(manifest):
        path = history_folder(spool) / name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise NoHistoryCopy(f"{path} is named by the manifest and cannot be read: {error.strerror}") from error
        put_whole(folder / name, content, file_mode)
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
    )


def _names(manifest: Manifest) -> list[str]:
    index = manifest.history
    return [*(base.file for base in index.bases), *(journal.file for journal in index.journals)]


def _copy(source: Path, manifest: Manifest, spool: Spool) -> None:
    folder = _make_folder(spool)
    for base in manifest.history.bases:
        _bring(source / base.file, folder / base.file, base.byte_count, spool.file_mode)
    for journal in manifest.history.journals:
        byte_count = _durable_bytes(source / journal.file, journal, manifest.journal.end_lsn)
        _bring(source / journal.file, folder / journal.file, byte_count, spool.file_mode)
    sync(folder)
    put_whole(folder / _MANIFEST, MANIFEST.encode(manifest), spool.file_mode)
    sync(folder)
    named = {*_names(manifest), _MANIFEST}
    for path in folder.iterdir():
        if path.name not in named and path.name.startswith(_OURS):
            path.unlink(missing_ok=True)


def _make_folder(spool: Spool) -> Path:
    """Make the folder, with the permissions and, where a group shares the spool, the group of the spool's own."""
    folder = history_folder(spool)
    if not folder.is_dir():
        with writing(folder):
            folder.mkdir(exist_ok=True)
            folder.chmod(stat.S_IMODE(spool.folder.stat().st_mode))
            sync(spool.folder)
    return folder


def _durable_bytes(path: Path, journal: JournalEntry, durable_lsn: Lsn) -> int:
    """Return how much of a journal is there for good: all of a closed one, of the last what a delivery relied on.

    What is behind that may be torn by a crash, cut off, and written otherwise.
    """
    if journal.end_lsn != INVALID_LSN:
        return path.stat().st_size
    written = Journal(path.read_bytes(), str(path))
    for entry in written:
        if entry.end_lsn > durable_lsn:
            break
    return written.whole_bytes  # up to the end of the entry before


def _bring(source: Path, target: Path, byte_count: int, file_mode: int) -> None:
    """Copy the first `byte_count` bytes, unless they are there: a file only ever grows."""
    try:
        if target.stat().st_size == byte_count:
            return
    except FileNotFoundError:
        pass
    with source.open("rb") as file:
        content = file.read(byte_count)
    put_whole(target, content, file_mode)
