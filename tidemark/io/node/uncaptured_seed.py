"""The seed of databases that are not captured: templates, and databases that may be renamed into the selection.

CREATE DATABASE fails if a session is in the template for five seconds (`CountOtherDBBackends`), so each visit is short
and has a separate connection. No session can connect to template0: it gets a copy of the mirror of a database that is
still as initdb left it, as template0 itself always is. Without a template's mirror, a database copied from it by
FILE_COPY cannot be followed, and that is reported when one is created.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TypeVar

from tidemark.decode.catalog.mirror import CatalogMirror
from tidemark.decode.catalog.new_databases import CopiedFiles, mirror_of
from tidemark.decode.catalog.seeding import seed
from tidemark.decode.catalog.shared import SharedCatalogs
from tidemark.io.node.node import Node
from tidemark.io.node.seed import Answers, FileRows, SeedSession
from tidemark.model.errors import TidemarkError
from tidemark.model.lsn import INVALID_XID, Oid, Xid
from tidemark.wal.versions import WalFormat

AnswerT = TypeVar("AnswerT")


class VisitingSession:
    """One database in a seed, with a short connection for each query."""

    def __init__(self, dsn: str, database: str) -> None:
        self._dsn = dsn
        self._database = database

    def begin_if_allowed(self, fmt: WalFormat, next_xid: Xid, shared: SharedCatalogs) -> CatalogMirror | None:
        """Return a mirror without rows; None if the node rejects the connection."""
        try:
            return self._in_session(lambda session: session.begin(fmt, next_xid, shared))
        except TidemarkError:
            return None

    def read(self, mirror: CatalogMirror, meanwhile: Callable[[], None]) -> Answers:
        """Copy the catalogs under one snapshot."""
        return self._in_session(lambda session: session.read(mirror, meanwhile))

    def files(self) -> FileRows:
        """Return the current files of the catalogs."""
        return self._in_session(lambda session: session.files())

    def check_files(self, mirror: CatalogMirror, files: FileRows) -> None:
        """Raise `SeedOvertaken` if the mirror's files differ from `files`."""
        self._in_session(lambda session: session.check_files(mirror, files))

    def is_untouched(self) -> bool:
        """Return whether the catalogs are as initdb left them."""
        return self._in_session(lambda session: session.is_untouched())

    def _in_session(self, query: Callable[[SeedSession], AnswerT]) -> AnswerT:
        with Node(self._dsn, self._database) as node:
            return query(SeedSession(node))


def uncaptured_databases(
    dsn: str, node: Node, captured: Collection[str], follows: Callable[[str], bool]
) -> Iterator[VisitingSession]:
    """Yield the uncaptured databases that this role may connect to: templates, and those that `follows` accepts."""
    for name, is_template in node.query(seed.CONNECTABLE.encode()):
        if str(name) not in captured and (is_template or follows(str(name))):
            yield VisitingSession(dsn, str(name))


def untouched_template(
    node: Node, sessions: Iterable[SeedSession | VisitingSession], mirrors: Sequence[CatalogMirror]
) -> list[CatalogMirror]:
    """Return the mirror of template0, if possible; the seed of `mirrors` is complete."""
    rows = node.query(seed.UNTOUCHED_TEMPLATE.encode())
    like = next((mirror for session, mirror in zip(sessions, mirrors, strict=True) if session.is_untouched()), None)
    if not rows or like is None:
        return []
    oid, tablespace, encoding = rows[0]
    copied = CopiedFiles(INVALID_XID)
    copied.copy(like, Oid(oid), Oid(tablespace))
    return [mirror_of(copied.heaps(()), like, Oid(oid), Oid(tablespace), int(str(encoding)))]
