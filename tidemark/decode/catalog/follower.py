"""Mirrors that follow WAL without decoding any row: while a seed is taken, and along a journal."""

from collections.abc import Iterable, Sequence

from tidemark.decode.catalog.mirror import CatalogMirror
from tidemark.model.lsn import Xid
from tidemark.wal.record import Record
from tidemark.wal.rmgr import (
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

INTEREST = frozenset({RM_XLOG, RM_XACT, RM_MULTIXACT, RM_RELMAP, RM_STANDBY, RM_HEAP2, RM_HEAP})
"""Resource managers whose records can matter to a mirror, or tell whose subtransaction an xid is."""


class CatalogFollower:
    """Gives records and ends of transactions to mirrors, and keeps which subtransaction belongs to whom.

    NB: every record that has an xid must pass, of any resource manager: a top-level xid stands only in the first one.
    """

    def __init__(self, fmt: WalFormat, mirrors: Iterable[CatalogMirror]) -> None:
        self._format = fmt
        self._mirrors: Sequence[CatalogMirror] = tuple(mirrors)
        self.top_of: dict[Xid, Xid] = {}
        self._children: dict[Xid, list[Xid]] = {}

    def follow(self, record: Record, top_xid: Xid | None = None) -> bool:
        """Take the next record; tell if it changed a mirror. `top_xid` where it is known from elsewhere."""
        before = [mirror.revision for mirror in self._mirrors]
        if record.top_xid:
            self._assign(record.xid, record.top_xid)
        if record.rmgr == RM_XACT:
            self._transaction_end(record)
        elif record.rmgr == RM_STANDBY:
            running = standby.parse(record)
            if running is not None:
                for mirror in self._mirrors:
                    mirror.abort_older_than(running.oldest_running_xid)
        elif record.rmgr in INTEREST:
            top = self.top_of.get(record.xid, record.xid) if top_xid is None else top_xid
            for mirror in self._mirrors:
                mirror.redo(record, top)
        return before != [mirror.revision for mirror in self._mirrors]

    def _transaction_end(self, record: Record) -> None:
        ended = xact.parse(record, self._format)
        if isinstance(ended, xact.Assignment):
            for xid in ended.subxids:
                self._assign(xid, ended.top_xid)
        elif isinstance(ended, xact.Commit | xact.Abort):
            xids = (ended.xid, *ended.subxids)
            for xid in xids:
                self._forget(xid)
            for mirror in self._mirrors:
                if isinstance(ended, xact.Commit):
                    mirror.commit(xids, record.lsn)
                else:
                    mirror.abort(xids)

    def _assign(self, xid: Xid, top_xid: Xid) -> None:
        if xid not in self.top_of:
            self.top_of[xid] = top_xid
            self._children.setdefault(top_xid, []).append(xid)

    def _forget(self, xid: Xid) -> None:
        self.top_of.pop(xid, None)
        for child in self._children.pop(xid, ()):
            self.top_of.pop(child, None)
