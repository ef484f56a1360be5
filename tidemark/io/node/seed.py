"""The SQL of a seed: queries one database for the input of `tidemark.decode.catalog.seeding.seed`.

That module and `runtime.seed.seeding` define the order. Catalogs are copied under one snapshot, as binary COPY data:
nothing is parsed here.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from tidemark.decode.catalog.mirror import CatalogMirror
from tidemark.decode.catalog.redo import SeedOvertaken
from tidemark.decode.catalog.seeding import seed
from tidemark.decode.catalog.shared import SharedCatalogs
from tidemark.io.node.node import Node
from tidemark.model.errors import NodeUnfit
from tidemark.model.lsn import Lsn, Oid, Xid
from tidemark.wal.versions import WalFormat

FILES_ATTEMPTS_MAX = 20
CATALOG_BYTES_MAX = 4 << 30  # for one database as COPY data: about ten million columns

Answers = dict[seed.SeedQuery, list[bytes]]
FileRows = list[tuple[int, int]]  # of the catalogs: OID, filenode


class CatalogsTooLarge(NodeUnfit):
    """A database with more relations than fit into a mirror."""

    hint = "capture a database with fewer tables: a mirror holds about ten million columns"


def being_rewritten(node: Node) -> SeedOvertaken:
    """Return the error for a node on which the files of the catalogs change between any two queries."""
    return SeedOvertaken(f"{node.where}: the system catalogs are rewritten continually")


class SeedSession:
    """One database in a seed, over one session."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def begin(self, fmt: WalFormat, next_xid: Xid, shared: SharedCatalogs | None) -> CatalogMirror:
        """Return a mirror with the layouts and files of this database's catalogs, and no rows."""
        ((oid, tablespace, encoding),) = self.node.query(seed.IDENTITY.encode())
        identity = seed.DatabaseIdentity(Oid(oid), Oid(tablespace), str(encoding))
        columns = cast("list[seed.ColumnRow]", self.node.query(seed.COLUMNS.encode()))
        files, files_lsn = self._files_at()
        return seed.begin(fmt, identity, columns, files, next_xid=next_xid, files_lsn=files_lsn, shared=shared)

    def _files_at(self) -> tuple[FileRows, Lsn]:
        """Return the files of the catalogs, and an LSN at which they were current."""
        files = self.files()
        for _ in range(FILES_ATTEMPTS_MAX):
            lsn = self.node.insert_lsn()
            if files == (files := self.files()):
                return files, lsn
        raise being_rewritten(self.node)

    def check_files(self, mirror: CatalogMirror, files: FileRows) -> None:
        """Raise `SeedOvertaken` if the mirror's files differ from `files`: a catalog was rewritten meanwhile."""
        heaps = {**mirror.store.heaps, **mirror.shared.store.heaps}
        if {oid: heap.file.rel for oid, heap in heaps.items()} != dict(files):
            raise SeedOvertaken(f"{self.node.where}: a system catalog was rewritten during the seed")

    def is_untouched(self) -> bool:
        """Return whether the catalogs of this database are as initdb left them."""
        ((untouched,),) = self.node.query(seed.UNTOUCHED.encode())
        return bool(untouched)

    def files(self) -> FileRows:
        """Return the current files of the catalogs."""
        return cast("FileRows", self.node.query(seed.FILES.encode()))

    def read(self, mirror: CatalogMirror, meanwhile: Callable[[], None]) -> Answers:
        """Copy the catalogs under one snapshot; call `meanwhile` between pieces, to answer keepalives of a stream."""
        with self._one_snapshot():
            return self._copied(seed.queries(mirror), meanwhile)

    def read_tables(self, mirror: CatalogMirror) -> Answers:
        """Copy the catalog rows that describe users' tables under one snapshot."""
        with self._one_snapshot():
            ((relations, types),) = self.node.query(seed.DESCRIBING.encode())
            return self._copied(seed.queries_of_tables(mirror, relations, types), _nothing)

    @contextmanager
    def _one_snapshot(self) -> Iterator[None]:
        """Run the body under one snapshot, with the settings on which texts depend."""
        self.node.query("; ".join(seed.SESSION).encode())
        with self.node.repeatable_read():
            yield

    def _copied(self, queries: Sequence[seed.SeedQuery], meanwhile: Callable[[], None]) -> Answers:
        answers: Answers = {}
        total = 0
        with self.node.translated() as session:
            for query in queries:
                pieces = answers[query] = []
                with session.cursor().copy(query.copy.encode()) as copy:
                    for piece in copy:
                        pieces.append(bytes(piece))
                        total += len(piece)
                        if total > CATALOG_BYTES_MAX:
                            raise CatalogsTooLarge(
                                f"the catalogs of {self.node.where} are larger than {CATALOG_BYTES_MAX} bytes"
                            )
                        meanwhile()
        return answers


def _nothing() -> None:
    """Do nothing: no stream has to be answered."""
