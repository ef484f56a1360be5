"""The files of a lake on a local file system, or on a network's that is mounted as one."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from time import time

import pyarrow as pa

from tidemark.io.host.disk import replace_file, sync, write_all
from tidemark.pipeline.storage.lake_store import (
    PIECE_BYTES,
    ParquetSource,
    Publish,
    Stamp,
    StoredFile,
    WriteParquet,
    check_read,
)
from tidemark.pipeline.storage.turns import waiting

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_FILE_MODE = 0o644
SYNCED_KEPT = 1 << 14  # paths of synced files: a file without a commit is never asked for
SYNCED_AT_ONCE = 8  # files: a journal of the file system commits what several threads wait for together


class LocalStore:
    """A local file system."""

    checks_max = 50  # idle tables checked in each batch: 1,000 tables are checked within 20 batches
    requests_at_once = 1  # a stat takes less time than to wake a thread
    deletes_at_once = 1

    def __init__(self) -> None:
        self._synced: set[str] = set()  # files whose content is durable, until `sync_files` is asked for them

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        with Path(path).open("rb") as file:
            check_read(path, os.fstat(file.fileno()).st_size)
            return file.read()

    def pieces(self, path: str) -> Iterator[bytes]:
        """Yield the content of a file in pieces."""
        with Path(path).open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder `path`."""
        try:
            os.stat(path)  # noqa: PTH116 - called for each table of a batch
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def size(self, path: str) -> int:
        """Return the number of bytes of a file."""
        return os.stat(path).st_size  # noqa: PTH116

    def stamp(self, path: str) -> Stamp:
        """Return a value that differs after any file of the folder was added, removed or replaced; () without the file.

        A change within some milliseconds of the one before, the resolution of the times of files, is not seen by it.
        """
        try:
            found, folder = os.stat(path), os.stat(os.path.dirname(path))  # noqa: PTH116, PTH120
        except OSError:
            return ()
        return found.st_ino, found.st_mtime_ns, found.st_size, folder.st_dev, folder.st_ino, folder.st_mtime_ns

    @contextmanager
    def staged(self, path: str, content: bytes, token: int) -> Iterator[Publish]:
        """Write and sync a file beside `path`; link(2) makes it visible."""
        name = f"{path}#{token}"
        try:
            # NB: a file of Python costs more than the commit.
            with waiting():
                descriptor = os.open(name, _NEW, 0o666)
                try:
                    write_all(descriptor, content)
                    os.fdatasync(descriptor)
                finally:
                    os.close(descriptor)
            yield partial(_link, name)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name)  # noqa: PTH108

    def replace(self, path: str, content: bytes) -> None:
        """Write and sync a file, then rename it."""
        replace_file(Path(path), content, _FILE_MODE)

    def parquet_source(self, path: str) -> ParquetSource:
        """Return what a Parquet file is read from."""
        return path

    def write_parquet(
        self, path: str, write: WriteParquet, *, makes_folder: bool = False, is_small: bool = False
    ) -> int:
        """Write a new Parquet file; with `makes_folder` also its folder if that is missing.

        The content of a small file is durable, so that `sync_files` leaves it out: one descriptor serves for all.
        """
        if makes_folder:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        try:
            if is_small:
                return self._write_small(path, write)
            with waiting(), pa.OSFile(path, "wb") as sink:  # a path as the sink costs a third of a small file
                write(sink)
        except BaseException:
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(path)  # noqa: PTH108 - a full disk should not be filled by parts of files
            raise
        return self.size(path)

    def _write_small(self, path: str, write: WriteParquet) -> int:
        with waiting():
            sink = pa.BufferOutputStream()
            write(sink)
            content = memoryview(sink.getvalue())
            descriptor = os.open(path, _NEW, 0o666)
            try:
                write_all(descriptor, content)
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        if len(self._synced) >= SYNCED_KEPT:
            self._synced.clear()
        self._synced.add(path)
        return len(content)

    def delete(self, paths: Sequence[str]) -> int:
        """Delete files in order."""
        deleted = 0
        for path in paths:
            with suppress(FileNotFoundError):
                Path(path).unlink()
                deleted += 1
        return deleted

    def files(self, folder: str) -> list[StoredFile]:
        """Return the files of a folder."""
        found = []
        with os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # the stream removes the other names of its commits meanwhile
                    found.append(StoredFile(entry.name, entry.stat().st_mtime))
        return found

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder."""
        try:
            return sorted(entry.name for entry in Path(folder).iterdir() if entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def remove_folder(self, folder: str) -> None:
        """Remove a folder and those below it, as far as they are empty."""
        for path, _, _ in os.walk(folder, topdown=False):
            with suppress(OSError):  # it has a file
                os.rmdir(path)  # noqa: PTH106 - as `os.walk` has it

    def move(self, folder: str, to: str) -> None:
        """Rename a folder."""
        Path(folder).rename(to)

    def is_unfinished_move(self, folder: str, to: str) -> bool:  # noqa: ARG002 - as the port has it
        """Return false: a folder is renamed as a whole."""
        return False

    def is_unreadable(self, folder: str) -> bool:
        """Return whether a folder exists that this process may not read."""
        return Path(folder).exists() and not os.access(folder, os.R_OK | os.X_OK)

    def is_plain_file(self, folder: str) -> bool:
        """Return whether a file is where a folder should be."""
        path = Path(folder)
        return path.exists() and not path.is_dir()

    def folder_id(self, folder: str) -> int:
        """Return the inode of a folder."""
        return os.stat(folder).st_ino  # noqa: PTH116

    def now_s(self) -> float:
        """Return the time."""
        return time()

    def modified_s(self, path: str) -> float:
        """Return when a file was written."""
        return os.stat(path).st_mtime  # noqa: PTH116

    def sync_files(self, paths: Collection[str]) -> None:
        """Make the content of files durable."""
        left = [path for path in paths if path not in self._synced]
        self._synced.difference_update(paths)
        if len(left) <= 1:
            for path in left:
                with waiting():
                    _sync_file(path)
            return
        with waiting(), ThreadPoolExecutor(min(len(left), SYNCED_AT_ONCE), "tidemark-sync") as pool:
            list(pool.map(_sync_file, left))

    def sync_folder(self, path: str) -> None:
        """Make the entries of a folder durable."""
        with waiting():
            sync(path)

    def sync_parents(self, path: str) -> None:
        """Make a folder and those above it durable, as far as this user may read them."""
        with suppress(PermissionError):
            for parent in [Path(path), *Path(path).parents]:
                sync(parent)

    def check(self) -> None:
        """Do nothing: the work reports the errors of a disk."""

    def delta_options(self) -> Mapping[str, str] | None:
        """Return None."""
        return None

    def access(self) -> int:
        """Return 0: there are no credentials."""
        return 0


def _link(staged: str, path: str) -> Stamp:
    try:
        os.link(staged, path)
    except FileExistsError:
        # NB: NFS repeats a link whose reply was lost: the staged file then has its second name already (link(2)).
        if os.stat(staged).st_nlink != 2:  # noqa: PTH116 - a Path needs a variable; its names: staged and path
            raise
    return ()  # the folder changes once more, when the staged name is removed


def _sync_file(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
