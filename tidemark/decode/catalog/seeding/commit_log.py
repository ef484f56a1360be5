"""The status of transactions, from the files in a backup and from all later WAL.

pg_xact has two bits for each transaction. A backup copies its pages at any moment, but transactions that ended before
the backup's first checkpoint were on disk by then; all later ends are in WAL from its redo LSN on, and are recorded
here over the pages. The same holds for pg_multixact: where the members of each multixact begin, and their xids.
So a page that was in use before the checkpoint must be there: without it, committed rows would be taken for open ones.
"""

from array import array
from collections.abc import Callable, Iterable
from struct import Struct

from tidemark.decode.catalog.transactions import XidStatus, precedes
from tidemark.model.lsn import FIRST_NORMAL_XID, INVALID_XID, Xid
from tidemark.wal.data_directory import BackupUnusable
from tidemark.wal.rmgr.multixact import FIRST_UPDATER, MultixactCreated
from tidemark.wal.versions import PAGE_BYTES

ReadPage = Callable[[int], bytes | None]  # by number; None: there is no such page

_XIDS_PER_BYTE = 4
_XIDS_PER_PAGE = PAGE_BYTES * _XIDS_PER_BYTE
_COMMITTED, _ABORTED = 1, 2  # clog.h; 0 is in progress, 3 a subtransaction whose top-level one is about to commit
_STATUSES = (XidStatus.OPEN, XidStatus.COMMITTED, XidStatus.ABORTED, XidStatus.OPEN)

_U32 = Struct("<I")
_OFFSETS_PER_PAGE = PAGE_BYTES // _U32.size
_GROUP_MEMBERS = 4  # multixact.c: a byte of flags for each of four members, then their xids
_GROUP = Struct("<4B4I")
_GROUPS_PER_PAGE = PAGE_BYTES // _GROUP.size
_MULTIXACTS = 1 << 32
_NOT_RECORDED = 1  # BootstrapTransactionId, which updates no row in a multixact
MEMBERS_MAX = 1 << 20  # of one multixact: limited by the number of backends, which the server bounds by 2^18


class CommitLog:
    """Which transactions have ended, and how."""

    def __init__(self, read_page: ReadPage, next_xid: Xid) -> None:
        """`next_xid` was next at the start of the WAL: the pages of earlier transactions are in the backup."""
        self._read_page = read_page
        self._next_xid = next_xid
        self._pages: dict[int, bytearray] = {}  # pages that were read: 1 MB for four million transactions
        self._oldest_running: Xid | None = None

    def record(self, xids: Iterable[Xid], *, committed: bool) -> None:
        """Record the end of transactions."""
        for xid in xids:
            page, index, shift = self._locate(xid)
            page[index] = page[index] & ~(3 << shift) | (_COMMITTED if committed else _ABORTED) << shift

    def record_running(self, oldest_running: Xid) -> None:
        """Record that all earlier transactions have ended: those without an end were aborted by a crash."""
        self._oldest_running = oldest_running

    def status(self, xid: Xid) -> XidStatus:
        """Return the status of a transaction."""
        if xid < FIRST_NORMAL_XID:
            return XidStatus.COMMITTED if xid != INVALID_XID else XidStatus.ABORTED  # of an undone insertion
        page, index, shift = self._locate(xid)
        status = _STATUSES[page[index] >> shift & 3]
        if status is XidStatus.OPEN and self._oldest_running is not None and precedes(xid, self._oldest_running):
            return XidStatus.ABORTED
        return status

    def _locate(self, xid: Xid) -> tuple[bytearray, int, int]:
        number, rest = divmod(xid, _XIDS_PER_PAGE)
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = bytearray(self._read_page(number) or self._new_page(number))
        return page, rest // _XIDS_PER_BYTE, 2 * (rest % _XIDS_PER_BYTE)

    def _new_page(self, number: int) -> bytes:
        """Return the page of transactions that began after the start of the WAL; raise `BackupUnusable` otherwise."""
        if precedes(Xid(number * _XIDS_PER_PAGE), self._next_xid):
            raise BackupUnusable(f"page {number} of pg_xact, with the status of transactions, is not in the backup")
        return bytes(PAGE_BYTES)


class Multixacts:
    """Which member of a multixact has changed the row."""

    def __init__(self, read_offsets: ReadPage, read_members: ReadPage, next_multixact: int, next_member: int) -> None:
        """`next_multixact` and `next_member` were next at the start of the WAL: earlier ones are on the pages."""
        self._read_offsets = read_offsets
        self._read_members = read_members
        self._next = next_multixact
        self._begins = {next_multixact: next_member}  # where the members of the first later ones begin
        self._updaters: dict[int, array[int]] = {}  # of later ones, by page: 4 MB for a million multixacts

    def record(self, created: MultixactCreated) -> None:
        """Record a new multixact."""
        if precedes(created.multixact, Xid(self._next)):  # created while the checkpoint was written
            self._begins[created.multixact] = created.first_member
        number, index = divmod(created.multixact, _OFFSETS_PER_PAGE)
        page = self._updaters.get(number)
        if page is None:
            page = self._updaters[number] = array("I", [_NOT_RECORDED]) * _OFFSETS_PER_PAGE
        page[index] = created.updater

    def updater(self, multixact: Xid) -> Xid | None:
        """Return the xid that has changed the row, 0 if there is none; None if this is unknown."""
        number, index = divmod(multixact, _OFFSETS_PER_PAGE)
        page = self._updaters.get(number)
        if page is not None and page[index] != _NOT_RECORDED:
            return Xid(page[index])
        begin, end = self._begin(multixact), self._begin(multixact % (_MULTIXACTS - 1) + 1)
        if begin is None or end is None or not 0 < (end - begin) % _MULTIXACTS <= MEMBERS_MAX:
            return None
        for number in range(begin, begin + (end - begin) % _MULTIXACTS):
            member = self._member(number % _MULTIXACTS)
            if member is None:
                return None
            xid, status = member
            if status >= FIRST_UPDATER:
                return xid
        return INVALID_XID

    def _begin(self, multixact: int) -> int | None:
        known = self._begins.get(multixact)
        if known is not None:
            return known
        number, index = divmod(multixact, _OFFSETS_PER_PAGE)
        page = self._read_offsets(number)
        if page is None:
            return None
        begin: int = _U32.unpack_from(page, index * _U32.size)[0]
        return begin or None  # zero is never a valid start

    def _member(self, number: int) -> tuple[Xid, int] | None:
        group, index = divmod(number, _GROUP_MEMBERS)
        page_number, group_index = divmod(group, _GROUPS_PER_PAGE)
        page = self._read_members(page_number)
        if page is None:
            return None
        values = _GROUP.unpack_from(page, group_index * _GROUP.size)
        return Xid(values[_GROUP_MEMBERS + index]), values[index]
