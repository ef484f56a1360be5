"""The SQL sessions of a first copy: one with the node, and those in the one database that is planned or copied.

The copy reuses the sessions of the plan, so that no second connection reads the same catalogs again. Any error ends all
of them: an attempt begins with new ones.
"""

from contextlib import ExitStack

from tidemark.io.node.copy_source import CopySource
from tidemark.io.node.node import Node
from tidemark.model.lsn import Oid
from tidemark.wal.versions import wal_format
from tidemark.wire.state.values import Identity


class CopySessions:
    """Connects on first use, and again after `close`."""

    def __init__(self, dsn: str, identity: Identity) -> None:
        self._dsn = dsn
        self._identity = identity
        self._node: Node | None = None
        self._source: tuple[Oid, CopySource] | None = None

    def node(self) -> Node:
        """Return the session with the node, after a check that it is the node of the state."""
        if self._node is None:
            with ExitStack() as stack:
                node = stack.enter_context(Node(self._dsn))
                node.check_same_node(self._identity.system_identifier)
                self._node = node
                stack.pop_all()
        return self._node

    def source(self, database: Oid, name: str) -> CopySource:
        """Return the source for the database of that OID and name; close one of another database."""
        if self._source is None or self._source[0] != database:
            self.leave_source()
            fmt = wal_format(self._identity.server_major)
            self._source = (database, CopySource(self._dsn, name, fmt, database))
        return self._source[1]

    def leave_node(self) -> None:
        """Close the session with the node until it is needed again."""
        node, self._node = self._node, None
        if node is not None:
            node.close()

    def leave_source(self) -> None:
        """Close the sessions in a database, and discard its descriptions."""
        source, self._source = self._source, None
        if source is not None:
            source[1].close()

    def close(self) -> None:
        """Close all sessions."""
        self.leave_node()
        self.leave_source()
