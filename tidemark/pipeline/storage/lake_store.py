"""The port for the files of a lake: what the pipeline needs of a local file system or of an object store.

Paths are texts: absolute paths, or URLs as `s3://bucket/prefix/...`. Missing files are `FileNotFoundError`, and a file
that must not exist but does is `FileExistsError`, in every store. Other errors of the host are `OSError`; those of a
store that does not answer, or refuses us, are `StoreUnavailable`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from errno import EFBIG
from typing import Protocol, TypeAlias

import pyarrow as pa

Stamp = tuple[int | str, ...]
Publish = Callable[[str], Stamp]
"""Makes staged content visible under a name; raises `FileExistsError` if a file has this name.

Returns the file's stamp (`LakeStore.stamp`); () if it is not known without asking.
"""
ParquetSource: TypeAlias = str | pa.NativeFile
"""What PyArrow reads a Parquet file from."""
WriteParquet = Callable[[ParquetSource], None]
"""Writes a Parquet file to a sink."""
PIECE_BYTES = 1 << 20
READ_BYTES_MAX = 512 << 20  # of a file that is read as a whole; a commit of 2,000 files with 1,600 columns has 400 MB


def check_read(path: str, size: int, bytes_max: int = READ_BYTES_MAX) -> None:
    """Raise `OSError` if a file is too large to be read as a whole."""
    if size > bytes_max:
        raise OSError(EFBIG, f"the file has {size} bytes, and at most {bytes_max} are read as a whole", path)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a folder."""

    name: str
    modified_s: float  # since 1970, by the clock of the store


class LakeStore(Protocol):
    """The files of a lake."""

    checks_max: int  # idle tables that a batch may check, by a request for each of their files
    requests_at_once: int
    deletes_at_once: int  # files that one request deletes

    def read(self, path: str) -> bytes:
        """Return the content of a file of at most `READ_BYTES_MAX` bytes; `check_read` refuses a larger one."""

    def pieces(self, path: str) -> Iterator[bytes]:
        """Yield the content of a file in bounded pieces."""

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder `path`."""

    def size(self, path: str) -> int:
        """Return the number of bytes of a file."""

    def stamp(self, path: str) -> Stamp:
        """Return a value that differs after the file was replaced; () if it is missing. No two stores compare."""

    def staged(self, path: str, content: bytes, token: int) -> AbstractContextManager[Publish]:
        """Write durable content that is not visible yet, for a file near `path`; `token` is in no other content."""

    def replace(self, path: str, content: bytes) -> None:
        """Write a small file as a whole; one of this name is replaced."""

    def parquet_source(self, path: str) -> ParquetSource:
        """Return what a Parquet file is read from."""

    def write_parquet(
        self, path: str, write: WriteParquet, *, makes_folder: bool = False, is_small: bool = False
    ) -> int:
        """Write a new Parquet file; return its size. After an error there is none.

        With `makes_folder` its folder, of a partition, may be missing. A file that is small is first made in memory.
        """

    def delete(self, paths: Sequence[str]) -> int:
        """Delete files in order; return how many of them existed, as far as the store reports that."""

    def files(self, folder: str) -> list[StoredFile]:
        """Return the files of a folder, in no order; raise `FileNotFoundError` if it is missing or has none."""

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder, sorted; none if it is missing."""

    def remove_folder(self, folder: str) -> None:
        """Remove a folder, and those below it, of which the files were deleted; do nothing if it has one again."""

    def move(self, folder: str, to: str) -> None:
        """Rename a folder; a repetition after a crash continues it."""

    def is_unfinished_move(self, folder: str, to: str) -> bool:
        """Return whether an interrupted `move` of the folder to `to` is to be continued."""

    def is_unreadable(self, folder: str) -> bool:
        """Return whether a folder exists that this process may not read."""

    def is_plain_file(self, folder: str) -> bool:
        """Return whether a file is where a folder should be."""

    def folder_id(self, folder: str) -> int:
        """Return a number that differs for a folder that replaced this one; raise `FileNotFoundError` without one."""

    def now_s(self) -> float:
        """Return the time by the clock that sets `StoredFile.modified_s`, or a little earlier."""

    def modified_s(self, path: str) -> float:
        """Return when a file was written, by the store's clock."""

    def sync_files(self, paths: Collection[str]) -> None:
        """Make the content of files durable, also of those that other programs wrote."""

    def sync_folder(self, path: str) -> None:
        """Make the entries of a folder durable."""

    def sync_parents(self, path: str) -> None:
        """Make a folder and those above it durable, as far as this user may read them."""

    def check(self) -> None:
        """Raise `StoreUnavailable` if the store does not answer or refuses us."""

    def delta_options(self) -> Mapping[str, str] | None:
        """Return delta-rs's options for the store, which may contain secrets; None for a local file system."""

    def access(self) -> int:
        """Return the number of the present credentials: with another one, open tables have older credentials."""
