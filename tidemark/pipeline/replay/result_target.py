"""The place of a result: a folder, or a prefix of a bucket, as the location of a lake is.

A result for an object store is written to a temporary folder, and uploaded once it is complete: first its data files,
then its log as one commit, which a store makes only if there is none. A program sees the whole table, or none.
"""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import pyarrow as pa

from tidemark.io.host.local_path import is_in_store
from tidemark.pipeline.replay.refusal import TargetExists
from tidemark.pipeline.replay.result_folder import check_target, publish, unfinished_result
from tidemark.pipeline.storage.lake_store import LakeStore, ParquetSource
from tidemark.pipeline.storage.stores import store_of

FIRST_COMMIT = "_delta_log/00000000000000000000.json"
_LAST_OF = ("protocol", "metaData")


class ResultTarget(Protocol):
    """Where a result appears when it is complete."""

    def check(self) -> None:
        """Raise `TargetExists` if there is something at the place."""
        ...

    def unfinished(self) -> AbstractContextManager[Path]:
        """Return a local folder for what is not complete; it is removed at the end, also after an error."""
        ...

    def publish(self, result: Path) -> None:
        """Let a complete result appear; raise `TargetExists` if something else did meanwhile."""
        ...


class FolderTarget:
    """A folder of a local file system."""

    def __init__(self, to: Path) -> None:
        self._to = to

    def __str__(self) -> str:
        return str(self._to)

    def check(self) -> None:
        """See `ResultTarget`."""
        check_target(self._to)

    def unfinished(self) -> AbstractContextManager[Path]:
        """See `ResultTarget`."""
        return unfinished_result(self._to)

    def publish(self, result: Path) -> None:
        """See `ResultTarget`."""
        publish(result, self._to)


class StoreTarget:
    """A prefix of a bucket, whose store is open."""

    def __init__(self, to: str) -> None:
        self._to = to
        self._store: LakeStore = store_of(to)

    def __str__(self) -> str:
        return self._to

    def check(self) -> None:
        """See `ResultTarget`."""
        if self._store.folders(self._to) or self._has_files():
            raise TargetExists(f"{self._to} exists")

    def _has_files(self) -> bool:
        try:
            return bool(self._store.files(self._to))
        except FileNotFoundError:
            return False

    @contextmanager
    def unfinished(self) -> Iterator[Path]:
        """See `ResultTarget`."""
        with TemporaryDirectory(prefix="tidemark-replay-") as folder:
            yield Path(folder)

    def publish(self, result: Path) -> None:
        """See `ResultTarget`; after an error remove what was uploaded."""
        content, names = one_commit(result)
        uploaded: list[str] = []
        try:
            for name in names:
                uploaded.append(f"{self._to}/{name}")
                self._store.write_parquet(uploaded[-1], partial(_copy, result / name))
            with self._store.staged(f"{self._to}/{FIRST_COMMIT}", content, 0) as create:
                create(f"{self._to}/{FIRST_COMMIT}")
        except FileExistsError as error:
            self._store.delete(uploaded)
            raise TargetExists(f"{self._to} was created meanwhile") from error
        except BaseException:
            self._store.delete(uploaded)
            raise


def _copy(file: Path, to: ParquetSource) -> None:
    assert isinstance(to, pa.NativeFile), to  # an object store has no path
    to.write(file.read_bytes())


def one_commit(table: Path) -> tuple[bytes, list[str]]:
    """Return the one commit that makes a local Delta table of its files, without its history, and their names.

    NB: a result has no partitions, so that a path in its log is the name of a file.
    """
    last: dict[str, str] = {}
    added: dict[str, str] = {}
    for commit in sorted(table.glob("_delta_log/*.json")):
        for line in commit.read_text(encoding="utf-8").splitlines():
            ((kind, action),) = json.loads(line).items()
            if kind in _LAST_OF:
                last[kind] = line
            elif kind == "add":
                added[action["path"]] = line
            elif kind == "remove":
                added.pop(action["path"], None)
    lines = [*(last[kind] for kind in _LAST_OF), *added.values()]
    return "\n".join(lines).encode() + b"\n", list(added)


def result_target(to: str) -> ResultTarget:
    """Return the target at a location."""
    return StoreTarget(to) if is_in_store(to) else FolderTarget(Path(to))
