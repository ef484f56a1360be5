"""Mirrors that follow WAL without decoding any row: during a seed, and along a journal."""

from tidemark.decode.catalog.databases import DatabaseMirrors
from tidemark.model.lsn import Xid
from tidemark.wal.record import Record
from tidemark.wal.rmgr import (
    RM_DBASE,
    RM_HEAP,
    RM_HEAP2,
    RM_MULTIXACT,
    RM_RELMAP,
    RM_STANDBY,
    RM_XACT,
    RM_XLOG,
    standby,
    xact,
)
from tidemark.wal.versions import WalFormat

INTEREST = frozenset({RM_XLOG, RM_XACT, RM_DBASE, RM_MULTIXACT, RM_RELMAP, RM_STANDBY, RM_HEAP2, RM_HEAP})
"""Resource managers whose records can matter to a mirror, or contain the parent of a subtransaction."""


class CatalogFollower:
    """Passes records and ends of transactions to mirrors, and tracks the top-level xid of each subtransaction.

    NB: pass every record that has an xid, of any resource manager: only the first one of an xid has the top-level xid.
    """

    def __init__(self, fmt: WalFormat, mirrors: DatabaseMirrors) -> None:
        self._format = fmt
        self._mirrors = mirrors
        self.top_of: dict[Xid, Xid] = {}
        self._children: dict[Xid, list[Xid]] = {}

    def follow(self, record: Record, top_xid: Xid | None = None) -> bool:
        """Apply the next record; return whether it changed a mirror. `top_xid`: if it is known otherwise."""
        before = self._mirrors.revision
        if record.top_xid:
            self.assign(record.xid, record.top_xid)
        if record.rmgr == RM_XACT:
            self._transaction_end(record)
        elif record.rmgr == RM_STANDBY:
            running = standby.parse(record)
            if running is not None:
                self._mirrors.abort_older_than(running.oldest_running_xid)
        elif record.rmgr in INTEREST:
            top = self.top_of.get(record.xid, record.xid) if top_xid is None else top_xid
            self._mirrors.redo(record, top)
        return before != self._mirrors.revision

    def assign(self, xid: Xid, top_xid: Xid) -> None:
        """Record the top-level transaction of a subtransaction."""
        if xid not in self.top_of:
            self.top_of[xid] = top_xid
            self._children.setdefault(top_xid, []).append(xid)

    def _transaction_end(self, record: Record) -> None:
        ended = xact.parse(record, self._format)
        if isinstance(ended, xact.Assignment):
            for xid in ended.subxids:
                self.assign(xid, ended.top_xid)
        elif isinstance(ended, xact.Commit | xact.Abort):
            xids = (ended.xid, *ended.subxids)
            for xid in xids:
                self._forget(xid)
            if isinstance(ended, xact.Commit):
                self._mirrors.commit(xids, record.lsn)
            else:
                self._mirrors.abort(xids)

    def _forget(self, xid: Xid) -> None:
        self.top_of.pop(xid, None)
        for child in self._children.pop(xid, ()):
            self.top_of.pop(child, None)
