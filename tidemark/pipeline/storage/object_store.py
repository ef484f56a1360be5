"""The files of a lake in an object store with the API of S3, by obstore: the Rust crate that delta-rs uses too.

An object becomes visible as a whole, and is durable when the store has acknowledged it. A commit is one conditional
request (`If-None-Match: *`): of two writers of a version, one is refused. If the answer to it is lost, the object is
read: the same content is our own. There are no folders; a common prefix counts as one.

Times of objects are compared only with each other: `now_s` is that of an object written for that purpose.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from errno import EEXIST, ENOENT
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError, InvalidPathError, NotFoundError

from tidemark.pipeline.storage.credentials import CredentialSource
from tidemark.pipeline.storage.lake_store import (
    PIECE_BYTES,
    ParquetSource,
    Publish,
    Stamp,
    StoredFile,
    WriteParquet,
    check_read,
)
from tidemark.pipeline.storage.object_client import DEFAULT_LIMITS, ObjectClient, RequestLimits
from tidemark.pipeline.storage.object_reader import ObjectReader
from tidemark.pipeline.storage.store_errors import StoreUnavailable, unavailable_reason
from tidemark.pipeline.storage.store_options import StoreOptions
from tidemark.pipeline.storage.turns import waiting

if TYPE_CHECKING:
    from obstore import ListResult, ObjectMeta

CLOCK = "_clock"  # the object below the lake's root whose time is that of the store
CLOCK_S = 60.0  # between two measurements of the store's time
CREATES_MAX = 4  # requests to create an object that are refused although it is not there
UNFINISHED = "_unfinished"  # an object in a folder into which another one is being moved
PART_BYTES = 16 << 20  # larger files are written in parts


class ObjectStore:
    """The objects below one prefix of a bucket; used by several threads."""

    checks_max = 8  # idle tables that a batch checks: two requests for each log and replica
    requests_at_once = 8
    deletes_at_once = 250

    def __init__(
        self, root: str, options: StoreOptions, source: CredentialSource, limits: RequestLimits = DEFAULT_LIMITS
    ) -> None:
        """`root`: the URL of the lake."""
        self.root = root
        self._bucket = root.removeprefix("s3://").partition("/")[0]
        self._source = source
        self._limits = limits
        self._client = ObjectClient(self._bucket, options, source, limits)
        self._clock: tuple[float, float] | None = None  # the store's time, and ours (monotonic) after it

    def read(self, path: str) -> bytes:
        """Return the content of an object."""
        with self._asking(path):
            found = self._client.opened().get(self._key(path))
        check_read(path, found.meta["size"], self._limits.read_bytes_max)
        with self._asking(path):
            return bytes(found.bytes())

    def pieces(self, path: str) -> Iterator[bytes]:
        """Yield the content of an object in pieces."""
        with self._asking(path):
            pieces = iter(self._client.opened().get(self._key(path)).stream(PIECE_BYTES))
        while True:
            with self._asking(path):
                piece = next(pieces, None)
            if piece is None:
                return
            yield bytes(piece)

    def exists(self, path: str) -> bool:
        """Return whether there is an object `path`."""
        return self._head(path) is not None

    def size(self, path: str) -> int:
        """Return the number of bytes of an object."""
        with self._asking(path):
            return self._client.opened().head(self._key(path))["size"]

    def stamp(self, path: str) -> Stamp:
        """Return the ETag, version and size of an object; () if it is missing, or the store has no ETags."""
        found = self._head(path)
        return () if found is None else _stamp(found["e_tag"], found["version"], found["size"])

    def _head(self, path: str) -> "ObjectMeta | None":
        try:
            with self._asking(path):
                return self._client.opened().head(self._key(path))
        except FileNotFoundError:
            return None
        except StoreUnavailable:
            self.check()  # the answer to a HEAD has no reason
            raise

    @contextmanager
    def staged(self, path: str, content: bytes, token: int) -> Iterator[Publish]:  # noqa: ARG002 - as the port has it
        """Write nothing: one conditional request writes the object and makes it visible."""
        yield lambda name: self._create(name, content)

    def replace(self, path: str, content: bytes) -> None:
        """Write an object."""
        with self._writing(path):
            self._client.opened().put(self._key(path), content, use_multipart=False)

    def parquet_source(self, path: str) -> ParquetSource:
        """Return the content of a file: a request costs more than a few MB. A larger one is read in ranges.

        Tidemark writes files of at most some 48 MB; other programs combine them into larger ones.
        """
        with self._asking(path):
            found = self._client.opened().get(self._key(path))
            if found.meta["size"] <= self._limits.parquet_bytes_max:
                return pa.BufferReader(bytes(found.bytes()))
        return pa.PythonFile(ObjectReader(found.meta["size"], partial(self._range, path)), mode="r")

    def _range(self, path: str, start: int, length: int) -> bytes:
        with self._asking(path):
            return bytes(self._client.opened().get_range(self._key(path), start=start, length=length))

    def write_parquet(
        self,
        path: str,
        write: WriteParquet,
        *,
        makes_folder: bool = False,  # noqa: ARG002 - as the port has them
        is_small: bool = False,  # noqa: ARG002
    ) -> int:
        """Write a Parquet file as one object."""
        sink = pa.BufferOutputStream()
        write(sink)
        content = sink.getvalue()
        with self._writing(path):
            self._client.opened().put(self._key(path), memoryview(content).cast("B"), chunk_size=PART_BYTES)
        return int(content.size)

    def delete(self, paths: Sequence[str]) -> int:
        """Delete objects; those that are missing count as deleted."""
        if paths:
            with self._writing(paths[0]):
                self._client.opened().delete([self._key(path) for path in paths])
        return len(paths)

    def files(self, folder: str) -> list[StoredFile]:
        """Return the objects of a folder."""
        found = [
            StoredFile(str(one["path"]).rpartition("/")[2], one["last_modified"].timestamp())
            for one in self._listed(folder)["objects"]
        ]
        if not found:
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), folder)
        return found

    def folders(self, folder: str) -> list[str]:
        """Return the common prefixes in a folder."""
        return sorted(str(prefix).rstrip("/").rpartition("/")[2] for prefix in self._listed(folder)["common_prefixes"])

    def remove_folder(self, folder: str) -> None:
        """Do nothing: a prefix without objects is no folder."""

    def move(self, folder: str, to: str) -> None:
        """Copy the objects of a folder, then delete them, the log first: remaining files are then a damaged table."""
        source, target = self._key(folder), self._key(to)
        with self._asking(folder):
            client = self._client.opened()
            client.put(f"{target}/{UNFINISHED}", b"", use_multipart=False)
            found, copied = self._objects(folder), self._objects(to)
            missing = [name for name, one in found.items() if name not in copied or not _is_copy(copied[name], one)]
            with ThreadPoolExecutor(self.requests_at_once, "tidemark-store") as pool:
                list(pool.map(lambda name: client.copy(f"{source}/{name}", f"{target}/{name}"), missing))
            client.delete([f"{target}/{UNFINISHED}"])
            keys = [f"{source}/{name}" for name in sorted(found, key=lambda name: not name.startswith("_delta_log/"))]
            for at in range(0, len(keys), self.deletes_at_once):
                client.delete(keys[at : at + self.deletes_at_once])

    def is_unfinished_move(self, folder: str, to: str) -> bool:
        """Return whether not all objects of a folder were copied to `to`, and those there are copies of them."""
        if not self.exists(f"{to}/{UNFINISHED}"):
            return False
        with self._asking(folder):
            found, copied = self._objects(folder), self._objects(to)
        return all(_is_copy(copied[name], one) for name, one in found.items() if name in copied)

    def _objects(self, folder: str) -> "dict[str, ObjectMeta]":
        """Return all objects below a folder, by name in it."""
        begin = len(self._key(folder)) + 1
        return {
            str(one["path"])[begin:]: one
            for part in self._client.opened().list(self._key(folder) + "/")
            for one in part
        }

    def is_unreadable(self, folder: str) -> bool:  # noqa: ARG002 - as the port has it
        """Return false: a refused request is `StoreUnavailable`."""
        return False

    def is_plain_file(self, folder: str) -> bool:  # noqa: ARG002 - as the port has it
        """Return false: an object and a folder of one name may exist together."""
        return False

    def folder_id(self, folder: str) -> int:  # noqa: ARG002 - as the port has it
        """Return 0: no folder replaces another."""
        return 0

    def now_s(self) -> float:
        """Return the store's time: that of an object written a while ago, and the time since then by our clock."""
        known = self._clock
        if known is None or monotonic() - known[1] > CLOCK_S:
            path = f"{self.root}/{CLOCK}"
            self.replace(path, b"")
            known = self._clock = (self.modified_s(path), monotonic())
        return known[0] + monotonic() - known[1]

    def modified_s(self, path: str) -> float:
        """Return when an object was written, by the store's clock."""
        with self._asking(path):
            return self._client.opened().head(self._key(path))["last_modified"].timestamp()

    def sync_files(self, paths: Collection[str]) -> None:
        """Do nothing: an acknowledged object is durable."""

    def sync_folder(self, path: str) -> None:
        """Do nothing: there are no folders."""

    def sync_parents(self, path: str) -> None:
        """Do nothing: there are no folders."""

    def check(self) -> None:
        """Raise `StoreUnavailable` if the store does not answer, or has no such bucket, or refuses us."""
        self._listed(f"{self.root}/_positions/_delta_log/_check")  # nothing: the shortest answer that names the bucket

    def delta_options(self) -> Mapping[str, str]:
        """Return delta-rs's options, with the present credentials."""
        return self._client.delta_options()

    def access(self) -> int:
        """Return the number of the present credentials."""
        return self._client.access()

    def _create(self, path: str, content: bytes) -> Stamp:
        """Create an object; raise `FileExistsError` if there is another one of this name."""
        for _ in range(CREATES_MAX):
            try:
                with self._writing(path):
                    made = self._client.opened().put(self._key(path), content, mode="create", use_multipart=False)
            except StoreUnavailable:
                # The answer may have been lost: then the object has our content, which no other content equals.
                if self._content(path) == content:
                    return ()
                raise
            except FileExistsError:
                found = self._content(path)
                if found == content:
                    return ()
                if found is not None:
                    raise
                # NB: a store also refuses a request beside another one for this name, of which nothing may be left.
            else:
                return _stamp(made["e_tag"], made["version"], len(content))
        raise self._failure(path, OSError(f"{CREATES_MAX} requests to create {path} were refused, but it is missing"))

    def _content(self, path: str) -> bytes | None:
        try:
            return self.read(path)
        except FileNotFoundError:
            return None

    def _listed(self, folder: str) -> "ListResult[Sequence[ObjectMeta]]":
        with self._writing(folder):  # a prefix is never missing either
            return self._client.opened().list_with_delimiter(self._key(folder) + "/")

    def _key(self, path: str) -> str:
        return path.removeprefix(f"s3://{self._bucket}/")

    @contextmanager
    def _writing(self, path: str) -> Iterator[None]:
        """Ask for something that needs no object: "not found" without a code of S3 is then no missing file."""
        try:
            with self._asking(path):
                yield
        except FileNotFoundError as error:
            raise self._failure(path, error.__cause__ or error) from error

    @contextmanager
    def _asking(self, path: str) -> Iterator[None]:
        try:
            with waiting():
                yield
        except (FileNotFoundError, NotFoundError) as error:
            if "NoSuchBucket" in str(error):
                raise self._failure(path, error) from error
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), path) from error
        except AlreadyExistsError as error:
            raise FileExistsError(EEXIST, os.strerror(EEXIST), path) from error
        except InvalidPathError:
            raise
        except (BaseError, OSError) as error:
            raise self._failure(path, error) from error

    def _failure(self, path: str, error: BaseException) -> StoreUnavailable:
        renewed = f"; {self._source.fault}" if self._source.fault else ""
        return StoreUnavailable(f"{path}: {unavailable_reason(str(error))}{renewed}")


def _stamp(e_tag: str | None, version: str | None, size: int) -> Stamp:
    return () if e_tag is None else (e_tag, str(version), size)


def _is_copy(copied: "ObjectMeta", source: "ObjectMeta") -> bool:
    """Return whether two objects have the same content.

    NB: a file that was written in parts has another ETag than its copy. It is large, and so no commit, and the names of
    data files are unique.
    """
    tags = str(copied["e_tag"]), str(source["e_tag"])
    return copied["size"] == source["size"] and (tags[0] == tags[1] or "-" in tags[1])
