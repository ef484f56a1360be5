"""Files of Iceberg tables on a local disk, durable when they are closed: a commit names only files that stay.

pyiceberg creates an instance by the catalog's property `py-io-impl` (`catalog`).
Files are read as pyiceberg reads them.
"""

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from tidemark.io.host.disk import sync


class _SyncedStream:
    """A file that is written once; the entries of its folders are durable as well when it is closed."""

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self._folders = [path.parent]  # whose entries are new
        while not self._folders[-1].exists():
            self._folders.append(self._folders[-1].parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb" if overwrite else "xb")

    @property
    def closed(self) -> bool:
        """Return whether the file is closed."""
        return self._file.closed

    def write(self, b: bytes) -> int:
        """Write bytes."""
        return self._file.write(b)

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._file.tell()

    def flush(self) -> None:
        """Give the buffered bytes to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Make the file durable and close it."""
        if self._file.closed:
            return
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        for folder in self._folders:
            sync(folder)

    def __enter__(self) -> Self:
        """Return the stream, to be closed at the end of the block."""
        return self

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        """Make the file durable and close it."""
        self.close()


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: FBT001, FBT002 - pyiceberg's signature
        """Create the file; it must not exist, unless `overwrite`."""
        return _SyncedStream(Path(self._path), overwrite=overwrite)


class SyncedFileIO(PyArrowFileIO):
    """Reads and writes the files of tables on a local disk."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return the file at `location`, to be created."""
        file = super().new_output(location)
        return _SyncedFile(fs=file._filesystem, location=location, path=file._path)  # noqa: SLF001 - no accessor
