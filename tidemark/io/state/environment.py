"""The LMDB environment of a state folder: opened once in a process, durable, its errors translated.

Rules of LMDB that this module enforces: `sync=True` only; never `writemap` (a full disk would be SIGBUS);
`max_readers` and `max_dbs` the same in every opener (later values are silently ignored); the same files never opened
twice in one process; transactions short; no buffer outlives its transaction.
"""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Self, TypeAlias, TypeVar

import lmdb

from tidemark.io.host import failpoints
from tidemark.io.host.disk import StateFull, writing
from tidemark.io.state.locking.heartbeat import HeartbeatFile, Slot
from tidemark.io.state.locking.write_lock import WriteLock
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import Disposition, ExitCode, StateError

READERS_MAX = 512
LOCK_FILE_BYTES = (READERS_MAX - 1) * 64 + 192  # lock.mdb: an entry for each reader but the first, behind a header
DATABASES_MAX = 32
MAP_FACTOR = 16  # map size in outbox bounds: address space only, so that the map is never the limit
MAP_BYTES_MIN = 1 << 30
DATABASES = ("state", "outbox", "schemas", "readers", "copies", "parked")
ADDED = frozenset({"parked"})  # databases that a state of an earlier version does not have
SHUT_S = 10.0  # for a write in progress in another thread; longer than the disk takes for one

DAMAGED_HINT = (
    "restore the state folder from a copy, or start again with a first copy: `cdcctl init` with a new state folder"
)


class StateMissing(StateError):
    """There is no state in the folder."""

    hint = "create it with `cdcctl init`"


class StateReplaced(StateError):
    """The files of an open state are no longer those in its folder. A restart opens the new ones."""

    disposition = Disposition.RETRY
    exit_code = ExitCode.UNEXPECTED
    hint = "start the process again: it then opens the new state"


class WritePoint(Enum):
    """Failpoints of a write transaction: in all of them the process holds LMDB's lock."""

    LOCKED = "write-locked"  # before the heartbeat file shows it
    INSIDE = "write-inside"  # the heartbeat file shows it
    CLEARED = "write-cleared"  # before the commit


LmdbTransaction: TypeAlias = "lmdb.Transaction[bytes]"
LmdbViews: TypeAlias = "lmdb.Transaction[memoryview]"
LmdbDatabase: TypeAlias = "lmdb._Database"  # noqa: SLF001 - lmdb gives the type of a handle no public name
TransactionT = TypeVar("TransactionT", LmdbTransaction, LmdbViews)
Guarded: TypeAlias = Callable[["Environment"], AbstractContextManager[object]]  # the guard against stuck writers


@dataclass(eq=False)
class Environment:
    """An open environment; `write` and `read` are the only ways to its data."""

    folder: StateFolder
    _lmdb: lmdb.Environment
    _heartbeat: HeartbeatFile
    write_lock: WriteLock
    _databases: dict[str, LmdbDatabase]
    _file: tuple[int, int] | None  # device and inode of the data file
    is_read_only: bool = False
    openers: int = 1
    _guards: ExitStack = field(default_factory=ExitStack)
    _writing: threading.Lock = field(default_factory=threading.Lock)
    _is_shut: bool = False

    @classmethod
    def open(
        cls,
        folder: StateFolder,
        *,
        map_bytes: int = 0,
        create: bool = False,
        read_only: bool = False,
        guarded: Guarded = nullcontext,
    ) -> Self:
        """Open the environment of `folder`; a second opener in this process gets the same one.

        Opening acquires the write lock, as every write does, and so waits for an open write transaction. `guarded` runs
        from then on, until the last opener closes. `read_only` never waits, and has no guard. Raises `StateReplaced` if
        an opener in this process still has the files of a former state.
        """
        with _OPEN_LOCK:
            key = (os.getpid(), folder.lmdb.resolve())
            opened = _OPEN.get(key)
            if isinstance(opened, cls):
                assert read_only or not opened.is_read_only, "it was opened for reading only"
                opened.check_in_place()
                opened.openers += 1
                return opened
            is_new = not (folder.lmdb / "data.mdb").exists()
            if is_new and not create:
                raise StateMissing(f"no state in {folder.root}")
            try:
                opened = cls._open(folder, map_bytes, guarded, create=create, read_only=read_only)
            except StateError:
                if is_new:  # a partial file would be left, which could not be opened
                    (folder.lmdb / "data.mdb").unlink(missing_ok=True)
                raise
            _OPEN[key] = opened
            return opened

    @classmethod
    def _open(cls, folder: StateFolder, map_bytes: int, guarded: Guarded, *, create: bool, read_only: bool) -> Self:
        if not read_only:
            _allocate_lock_file(folder)
        try:
            opened = lmdb.open(
                str(folder.lmdb),
                map_size=map_bytes,  # 0: as in the file
                max_readers=READERS_MAX,
                max_dbs=DATABASES_MAX,
                mode=folder.file_mode,
                create=create,
                readonly=read_only,
                sync=True,
                metasync=True,
                writemap=False,
                readahead=False,
            )
            _check_whole(opened, folder.lmdb / "data.mdb")
        except lmdb.Error as error:
            raise _translated(error, folder.root) from error
        try:
            heartbeat = HeartbeatFile.open(folder.heartbeat, folder.file_mode)
        except BaseException:
            opened.close()
            raise
        write_lock = WriteLock.open(folder.lmdb / "lock.mdb")
        databases: dict[str, LmdbDatabase] = {}
        made = cls(folder, opened, heartbeat, write_lock, databases, _file_id(folder), read_only)
        try:
            # NB: a handle lasts only if a write transaction made it, or the whole environment is read-only. A
            # transaction begun by open_db would wait for the lock with the interpreter lock: no guard could run.
            if not read_only:
                made._guards.enter_context(guarded(made))
            with nullcontext() if read_only else opened.begin(write=True) as transaction:
                for name in DATABASES:
                    # A program that only reads leaves out what is missing.
                    with suppress(*([lmdb.NotFoundError] if read_only and name in ADDED else [])):
                        is_created = create or (name in ADDED and not read_only)
                        databases[name] = opened.open_db(name.encode(), txn=transaction, create=is_created)
        except BaseException as error:
            made._shut()
            if isinstance(error, lmdb.Error):
                raise _translated(error, folder.root) from error
            raise
        return made

    def close(self) -> None:
        """Release the environment; the last opener closes it."""
        with _OPEN_LOCK:
            self.openers -= 1
            if self.openers == 0:
                del _OPEN[os.getpid(), self.folder.lmdb.resolve()]
                self._shut()

    def _shut(self) -> None:
        """Close the files once no thread writes; a thread that still writes is cut off by the end of the process.

        NB: LMDB would abort a write by force, and wait for ever for a transaction that is kept, as by an exception.
        """
        self._guards.close()
        if self._writing.acquire(timeout=SHUT_S):
            self._is_shut = True
            self._writing.release()
            self._lmdb.close()
        self.write_lock.close()
        self._heartbeat.close()

    def is_replaced(self) -> bool:
        """Return whether the folder now contains another data file, or none."""
        return _file_id(self.folder) != self._file

    def check_in_place(self) -> None:
        """Raise `StateReplaced` if the folder now contains another data file, or none."""
        if self.is_replaced():
            raise StateReplaced(f"the state in {self.folder.root} was replaced or removed while this process used it")

    @property
    def heartbeat(self) -> HeartbeatFile:
        """The heartbeat file of the same state."""
        return self._heartbeat

    def has_database(self, name: str) -> bool:
        """Return whether one of `DATABASES` exists; see `ADDED`."""
        return name in self._databases

    def database(self, name: str) -> LmdbDatabase:
        """Return the handle of one of `DATABASES`."""
        return self._databases[name]

    @contextmanager
    def read(self) -> Iterator[LmdbTransaction]:
        """Run a read transaction. Keep it short: while it is open, no freed page of the file is reused."""
        transaction = self._begin(write=False)
        try:
            with transaction:
                yield transaction
        except lmdb.Error as error:
            raise _translated(error, self.folder.root) from error

    @contextmanager
    def read_views(self) -> Iterator[LmdbViews]:
        """Run a read transaction whose values are views of the file's pages: release them before it ends."""
        transaction = self._begin_views()
        try:
            with transaction:
                yield transaction
        except lmdb.Error as error:
            raise _translated(error, self.folder.root) from error

    @contextmanager
    def write(self) -> Iterator[LmdbTransaction]:
        """Run a write transaction, durable on return; an exception in the body discards it."""
        # The lock orders the threads of this process, so that the heartbeat's slot never has two writers.
        with self._writing:
            if self._is_shut:
                raise StateError(f"the state folder {self.folder.root} is closed: it accepts no more writes")
            transaction = self._begin(write=True)
            try:
                with transaction:
                    failpoints.passed(WritePoint.LOCKED)
                    self._heartbeat.beat(Slot.WRITER)
                    try:
                        failpoints.passed(WritePoint.INSIDE)
                        yield transaction
                    finally:
                        # NB: the end releases LMDB's lock before it returns; the next holder fills the slot itself.
                        self._heartbeat.clear(Slot.WRITER)
                    failpoints.passed(WritePoint.CLEARED)
            except lmdb.Error as error:
                raise _translated(error, self.folder.root) from error

    def _begin(self, *, write: bool) -> LmdbTransaction:
        return self._begun(lambda: self._lmdb.begin(write=write))

    def _begin_views(self) -> LmdbViews:
        return self._begun(lambda: self._lmdb.begin(buffers=True))

    def _begun(self, begin: Callable[[], TransactionT]) -> TransactionT:
        try:
            try:
                return begin()
            except lmdb.MapResizedError:  # another process opened it with a larger map
                self._lmdb.set_mapsize(0)
                return begin()
        except lmdb.Error as error:
            raise _translated(error, self.folder.root) from error

    def clear_stale_readers(self) -> int:
        """Free the slots of killed readers, and with them the pages that they hold; return how many."""
        return self._lmdb.reader_check()

    @property
    def last_commit(self) -> int:
        """The number of the last write transaction that any process has committed."""
        return int(self._lmdb.info()["last_txnid"])

    def free_bytes(self) -> int:
        """Return the free space of the file system for an unprivileged process."""
        stat = os.statvfs(self.folder.lmdb)
        return stat.f_bavail * stat.f_frsize

    def file_bytes(self) -> int:
        """Return the size of the data file."""
        return (self.folder.lmdb / "data.mdb").stat().st_size


_OPEN: dict[tuple[int, Path], Environment] = {}
_OPEN_LOCK = threading.Lock()


def _file_id(folder: StateFolder) -> tuple[int, int] | None:
    """Return device and inode of the data file: LMDB keeps it open, so no other file gets them meanwhile."""
    try:
        found = (folder.lmdb / "data.mdb").stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _check_whole(opened: lmdb.Environment, path: Path) -> None:
    """Raise for a file that is shorter than its pages. NB: LMDB maps it, and would die of SIGBUS when it reads them."""
    needed = (int(opened.info()["last_pgno"]) + 1) * int(opened.stat()["psize"])
    found = path.stat().st_size
    if found < needed:
        opened.close()
        raise StateError(f"{path} is truncated: {found} of {needed} bytes", hint=DAMAGED_HINT)


def map_bytes_for(outbox_bytes_max: int) -> int:
    """Return the map size for an outbox of this bound."""
    return max(MAP_BYTES_MIN, MAP_FACTOR * outbox_bytes_max)


def _allocate_lock_file(folder: StateFolder) -> None:
    """Reserve the space of lock.mdb. NB: LMDB maps it sparse, and would die of SIGBUS when it writes on a full disk.

    A descriptor of the file must not be closed while LMDB has it open in this process (`WriteLock.open`).
    """
    path = folder.lmdb / "lock.mdb"
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, folder.file_mode)
        try:
            os.posix_fallocate(descriptor, 0, LOCK_FILE_BYTES)
        finally:
            os.close(descriptor)


def _translated(error: lmdb.Error, root: Path) -> StateError:
    # Measured: a full disk is "mdb_txn_commit: Input/output error", code EIO, as often as ENOSPC; nothing is lost.
    if isinstance(error, lmdb.MapFullError) or error.code in (errno.EIO, errno.ENOSPC):
        return StateFull(f"no space in the state folder {root}: {error}")
    if error.code == errno.ENOMEM:
        hint = (
            f"it maps {MAP_FACTOR} times outbox.bytes_max of address space: raise the limit (ulimit -v, LimitAS=), or "
            "lower that key before cdcctl init"
        )
        return StateError(f"state folder {root}: {error}", hint=hint)
    if isinstance(error, lmdb.ReadersFullError):
        return StateError(f"{READERS_MAX} readers already use the state folder {root}: {error}")
    if isinstance(error, lmdb.InvalidError | lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.VersionMismatchError):
        return StateError(f"{root / 'lmdb' / 'data.mdb'} is damaged: {error}", hint=DAMAGED_HINT)
    if error.code in (errno.EACCES, errno.EPERM):
        hint = "run this as the user of the capture (the owner of the folder), or as a member of capture.group"
        return StateError(f"state folder {root}: {error}", hint=hint)
    return StateError(
        f"state folder {root}: {error}", hint="check that the folder is on a local disk and that only Tidemark uses it"
    )
