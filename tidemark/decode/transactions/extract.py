"""The fast path from a block of records to row entries: no object for each ordinary record.

Ordinary means an insert, multi-insert, update or delete of a row in a known file, by a transaction that has no TOASTed
value to reassemble, except values whose chunks are held (`held_chunks`). Any other record stops the loop,
and `Decoder.decode` processes it: the rules are defined there once, and this module has only their ordinary case. Two
tables control the loop: the relation version of each file, and which xids are ordinary. A transaction that has changed
a catalog sees separate versions: it knows only the files whose version it received for that transaction.

A transaction that begins here is pending (`pending_rows`), with its subtransactions (`pending_children`). It commits
here as well if its commit record has only time, database and these subtransactions. The same kind of commit of a
transaction known to the caller is also processed here, and ends the call.

Lengths are checked against the record's end before they are used. An inconsistent record also stops the loop:
`parse_record` reports the error.

Cython compiles the module if a compiler is available (its `.pxd` has the types); interpreted, it does the same.
NB: assign a byte to a variable before shifting it, and use no literal over 31 bits: see the `.pxd`.
"""
# ruff: noqa: PLR0917 - columns and their bounds: a struct of them would be an object a call

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.decode.datum import toast
from tidemark.decode.datum.row_entries import ABSENT
from tidemark.decode.transactions.catalog_rows import CatalogRows
from tidemark.decode.transactions.file_versions import (
    FIRST_VERSION,
    HAS_CHUNKS,
    NO_ROWS,
    OWN_IS_REWRITE,
    FileVersions,
)
from tidemark.decode.transactions.held_chunks import HeldChunks
from tidemark.decode.transactions.pending_rows import JOINED, RECORD_ROWS_MAX, PendingRows
from tidemark.decode.transactions.record_parts import RecordParts
from tidemark.decode.transactions.speculative_rows import SpeculativeRows
from tidemark.decode.transactions.xid_states import KNOWN, ORDINARY, PASSED_OVER, UNKNOWN, XidStates
from tidemark.model import commit_time
from tidemark.model.change import BeforeKind, Op
from tidemark.wal import record
from tidemark.wal import rmgr as managers
from tidemark.wal.rmgr import heap, heap2, standby, xact
from tidemark.wal.versions import RECORD_HEADER_BYTES

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if not cython.compiled:
    from tidemark.wal.byte_readers import read_u16, read_u32
else:
    from cython.cimports.tidemark.wal.byte_readers import read_u16, read_u32  # type: ignore[no-redef] # the same ones

if TYPE_CHECKING:
    from array import array

NONE = -1  # no record, no slot or no LSN

# Copies as C integers, which Python code does not see.
IN_RECORD_MAX = RECORD_ROWS_MAX
XID_UNKNOWN = UNKNOWN
XID_KNOWN = KNOWN
XID_ORDINARY = ORDINARY
XID_PASSED_OVER = PASSED_OVER
IS_REWRITE = OWN_IS_REWRITE
XID_PENDING = PASSED_OVER + 1  # from here on, the transaction's slot plus this
FILE_HAS_NO_ROWS = NO_ROWS
FILE_HAS_CHUNKS = HAS_CHUNKS
JOINED_ROW = JOINED
VERSION_BASE = FIRST_VERSION
NOTHING = NONE
OTHERS = NONE  # in place of a slot: the caller has the transaction
NO_TUPLE = ABSENT
RM_XLOG = managers.RM_XLOG
RM_XACT = managers.RM_XACT
RM_DBASE = managers.RM_DBASE
RM_RELMAP = managers.RM_RELMAP
RM_STANDBY = managers.RM_STANDBY
RM_HEAP2 = managers.RM_HEAP2
RM_HEAP = managers.RM_HEAP
RM_LOGICALMSG = managers.RM_LOGICALMSG
OPCODE = heap.OPCODE_MASK
HEAP_INSERT, HEAP_DELETE, HEAP_UPDATE = heap.INSERT, heap.DELETE, heap.UPDATE
HEAP_HOT_UPDATE = heap.HOT_UPDATE
HEAP_CONFIRM = heap.CONFIRM
HEAP_LOCK = heap.LOCK
HEAP_INPLACE = heap.INPLACE
HEAP2_MULTI_INSERT = heap2.MULTI_INSERT
HEAP2_NEW_CID = heap2.NEW_CID
XACT_INVALIDATIONS = xact.INVALIDATIONS
RUNNING_XACTS = standby.RUNNING_XACTS
INIT_PAGE = heap.INIT_PAGE
INSERT_LAST = heap.INSERT_LAST_IN_MULTI
INSERT_SPECULATIVE, INSERT_NEW = heap.INSERT_IS_SPECULATIVE, heap.INSERT_CONTAINS_NEW_TUPLE
UPDATE_OLD_TUPLE, UPDATE_OLD_KEY = heap.UPDATE_CONTAINS_OLD_TUPLE, heap.UPDATE_CONTAINS_OLD_KEY
UPDATE_NEW = heap.UPDATE_CONTAINS_NEW_TUPLE
UPDATE_FROM_OLD = heap.UPDATE_PREFIX_FROM_OLD | heap.UPDATE_SUFFIX_FROM_OLD
DELETE_OLD_TUPLE, DELETE_OLD_KEY = heap.DELETE_CONTAINS_OLD_TUPLE, heap.DELETE_CONTAINS_OLD_KEY
DELETE_SUPER = heap.DELETE_IS_SUPER
XACT_COMMIT = xact.COMMIT
XACT_ABORT = xact.ABORT
XACT_HAS_INFO = xact.HAS_INFO
COMMIT_MAIN = 20  # bytes: time, flags, database, tablespace
ABORT_MAIN = 8  # bytes: time
COMMIT_HAS_DATABASE = xact.HAS_DBINFO
COMMIT_SAYS_MORE = 0x3FFFFFBC  # all flags except database, subtransactions, locks and synchronous commit
NO_ORDINARY_TIME = xact.NO_ORDINARY_TIME
POSTGRES_EPOCH_US = commit_time.PG_EPOCH_US
OP_INSERT, OP_UPDATE, OP_DELETE = ord(Op.INSERT.value), ord(Op.UPDATE.value), ord(Op.DELETE.value)
OP_REWRITE = ord(Op.REWRITE.value)
BEFORE_NONE, BEFORE_KEY, BEFORE_FULL = int(BeforeKind.NONE), int(BeforeKind.KEY), int(BeforeKind.FULL)
RECORD_HEADER = RECORD_HEADER_BYTES
ID_MAIN_SHORT = record.ID_MAIN_SHORT
TUPLE_HEADER = heap.TUPLE_HEADER_BYTES
PACKED_HEADER = heap.PACKED_HEADER_BYTES
HAS_EXTERNAL = toast.HAS_EXTERNAL
NO_BYTES = b""

Buffer = bytes | bytearray


class RowExtractor(XidStates):
    """The state of the loop and its tables."""

    def __init__(self, image_compressed: int, complete_from: int, pending: PendingRows, files: FileVersions) -> None:
        super().__init__(RecordParts(image_compressed), pending, complete_from)
        self.speculative = SpeculativeRows()
        self.chunks = HeldChunks()
        self.catalog_rows = CatalogRows(self.parts)
        self.files = files
        self.is_full = False
        self.other_end = NOTHING  # the last record processed, if it committed a transaction of the caller
        self.other_time = self.other_database = 0
        # Of the current record.
        self.index = 0  # in its block
        self.is_new = False  # whether the xid is new
        self.insert_op = OP_INSERT  # of a new row
        self.slot = OTHERS
        self.lsn = self.end_lsn = 0

    def extract(
        self,
        linear: bytearray,
        tuples: bytearray,
        arranged_tuples: bytearray,
        lsns: array[int],
        ends: array[int],
        xids: array[int],
        rmgrs: array[int],
        infos: array[int],
        offsets: array[int],
        lengths: array[int],
        start: int,
        stop: int,
        others_lsn: int,
    ) -> int:
        """Process the records from `start` on; return the first one not processed: not ordinary, or no space for it.

        `tuples` and `arranged_tuples` have space for the pending tuples and `linear`. `others_lsn` is the least first
        LSN of the caller's open transactions. `is_full` is set if the loop stopped for lack of space, `other_end` if it
        stopped after the commit of one of the caller's transactions.
        """
        space = self.pending.tuple_count + len(linear) + self.chunks.carried_size
        if len(tuples) < space or len(arranged_tuples) < space:
            return start
        self.linear = self.parts.linear = linear
        self.pending.begin(linear, tuples, arranged_tuples, others_lsn)
        self.chunks.begin(linear)
        self.pending.joined = self.chunks.joined
        self.other_end = NOTHING
        self.is_full = False
        at = start
        if not self.xids.has_space():
            self.xids.grow()
        with cython.nogil:
            while at < stop and self.other_end == NOTHING:
                if not self.pending.has_space() or not self.xids.has_space():
                    self.is_full = True
                    break
                self.xid = xids[at]
                self.lsn = lsns[at]
                self.end_lsn = ends[at]
                self.index = at
                if not self.process(offsets[at], lengths[at], rmgrs[at], infos[at]):
                    break
                at += 1
            self.pending.finish()
        self.linear = self.parts.linear = self.pending.linear = self.chunks.linear = NO_BYTES
        return at

    def process(self, begin: int, length: int, rmgr: int, info: int) -> int:
        """Process one record; return 0 if it is not ordinary."""
        state = XID_ORDINARY
        if self.xid != 0:
            state = self.xids.get(self.xid)
        # Nearly half of the records of a transaction with DDL need no processing once its xid is known.
        opcode = info & OPCODE
        if state != XID_UNKNOWN and (
            (rmgr == RM_HEAP2 and opcode == HEAP2_NEW_CID)
            or (rmgr == RM_XACT and opcode == XACT_INVALIDATIONS)
            or (rmgr == RM_STANDBY and opcode != RUNNING_XACTS)
        ):
            return 1
        if rmgr in (RM_HEAP, RM_HEAP2):
            return self.process_heap(begin, length, rmgr, info, state)
        if rmgr == RM_XACT:
            return self.process_end(begin, length, info, state) if self.xid != 0 else 0
        if rmgr in (RM_XLOG, RM_DBASE, RM_RELMAP, RM_STANDBY, RM_LOGICALMSG):
            return 0
        # No processing, unless it is the first record of a subtransaction, whose header names the top-level xid.
        return self.parts.read(begin, length) and self.join() if state == XID_UNKNOWN else 1

    def process_end(self, begin: int, length: int, info: int, state: int) -> int:
        """Process a commit with only time, database and subtransactions, or an abort with only a time.

        An unknown transaction has nothing to end.
        """
        if state in (XID_KNOWN, XID_PASSED_OVER) or state < 0:
            return 0
        if self.has_held(state):  # rare: the backend failed before the confirmation, or before a value's row
            return 0
        opcode = info & OPCODE
        has_info = info & XACT_HAS_INFO != 0
        if opcode == XACT_COMMIT and has_info and length >= RECORD_HEADER + 2 + COMMIT_MAIN:
            return self.process_commit(begin + RECORD_HEADER, length - RECORD_HEADER - 2, state)
        if opcode == XACT_ABORT and not has_info and length == RECORD_HEADER + 2 + ABORT_MAIN:
            return self.process_abort(state)
        return 0

    def process_abort(self, state: int) -> int:
        """Process an abort; return 0 if the caller has the transaction."""
        if state != XID_UNKNOWN and state < XID_PENDING:
            return 0
        self.advance_xid(self.xid)
        if state >= XID_PENDING:
            slot = state - XID_PENDING
            if self.pending.is_top(slot, self.xid):
                self.set_children_state(slot, XID_UNKNOWN)
                self.pending.release(slot)
            else:
                self.pending.drop(slot, self.xid)
                self.children.remove(slot, self.xid)
        self.xids.enter(self.xid, XID_UNKNOWN)
        return 1

    def process_commit(self, at: int, main: int, state: int) -> int:
        """Process a commit; return 0 if it contains anything else."""
        if self.linear[at] != ID_MAIN_SHORT or self.linear[at + 1] != main:
            return 0
        flags = read_u32(self.linear, at + 10)
        if flags & COMMIT_SAYS_MORE or not flags & COMMIT_HAS_DATABASE:
            return 0
        if not self.names_children(at + 2 + COMMIT_MAIN, main - COMMIT_MAIN, flags, state):
            return 0
        low = read_u32(self.linear, at + 2)
        high = read_u32(self.linear, at + 6)
        if high >= NO_ORDINARY_TIME:
            return 0
        time = (low | high << 32) + POSTGRES_EPOCH_US
        if state >= XID_PENDING:
            self.set_children_state(state - XID_PENDING, XID_UNKNOWN)
            self.pending.commit(state - XID_PENDING, self.lsn, self.end_lsn, time, read_u32(self.linear, at + 14))
        elif state == XID_ORDINARY:
            self.other_end = self.index
            self.other_time = time
            self.other_database = read_u32(self.linear, at + 14)
        else:
            self.advance_xid(self.xid)
        self.xids.enter(self.xid, XID_UNKNOWN)
        return 1

    def process_heap(  # noqa: PLR0911 - one for each kind of record
        self, begin: int, length: int, rmgr: int, info: int, state: int
    ) -> int:
        """Process a heap record."""
        opcode = info & OPCODE
        # NB: TRUNCATE names no file.
        if not self.parts.read(begin, length) or (self.parts.top != 0 and not self.can_join(state)):
            return 0
        known = self.files.of(self.parts.spc, self.parts.db, self.parts.rel)
        if state == XID_PASSED_OVER and (rmgr != RM_HEAP or opcode != HEAP_INPLACE):
            return 1 if known != 0 or self.files.is_passed(self.parts.spc, self.parts.db, self.parts.rel) else 0
        # NB: only of transactions that hold the restart LSN back: a partial one's changes would not be read again.
        if state < 0 and self.is_catalog():
            return self.hold_catalog_record(rmgr, info)
        if rmgr == RM_HEAP and opcode == HEAP_INPLACE:
            return 0
        if state < 0 and known != FILE_HAS_NO_ROWS:
            return self.process_own(rmgr, info, -state)
        if known != 0 and (known == FILE_HAS_NO_ROWS or not self.changes_rows(rmgr, opcode, known)):
            return self.join()
        self.insert_op = OP_INSERT
        self.is_new = state == XID_UNKNOWN
        self.slot = state - XID_PENDING if state >= XID_PENDING else OTHERS
        is_whole = state >= XID_ORDINARY or (self.is_new and (self.parts.top != 0 or self.is_complete(self.xid)))
        if known == 0 or self.xid == 0 or not is_whole:
            return 0
        if known == FILE_HAS_CHUNKS:
            return self.process_chunk(rmgr, opcode)
        return self.process_rows(rmgr, info, known - VERSION_BASE if known > 0 else known)

    def is_catalog(self) -> int:
        """Return whether the record's file is a tracked catalog's."""
        return 1 if self.files.catalog(self.parts.spc, self.parts.db, self.parts.rel) != 0 else 0

    def hold_catalog_record(self, rmgr: int, info: int) -> int:
        """Hold a record on a tracked catalog, of a transaction that the caller has."""
        if self.chunks.left > 0 or self.speculative.count > 0:
            return 0
        number = self.files.catalog(self.parts.spc, self.parts.db, self.parts.rel)
        return self.catalog_rows.hold_record(self.index, self.xid, number, rmgr, info)

    def changes_rows(self, rmgr: int, opcode: int, known: int) -> int:
        """Return whether the record changes rows; a deleted chunk is none."""
        if rmgr == RM_HEAP2:
            return 1 if opcode == HEAP2_MULTI_INSERT else 0
        return 0 if opcode == HEAP_LOCK or (known == FILE_HAS_CHUNKS and opcode == HEAP_DELETE) else 1

    def process_chunk(self, rmgr: int, opcode: int) -> int:
        """Process an insert into a TOAST table."""
        if rmgr != RM_HEAP or opcode != HEAP_INSERT or self.parts.main_length < 3:
            return 0
        is_logged = self.linear[self.parts.main_at + 2] & INSERT_NEW != 0
        if not is_logged or not self.is_tuple(self.parts.data_at, self.parts.data_length):
            return 0
        if not self.chunks.hold(self.xid, self.index, self.parts.data_at, self.parts.data_length):
            return 0
        self.begin()
        return 1

    def process_own(self, rmgr: int, info: int, top: int) -> int:
        """Process a heap record of a transaction that sees separate versions."""
        if self.catalog_rows.count > 0:  # what it sees depends on them
            return 0
        known = self.files.of_own(top, self.parts.spc, self.parts.db, self.parts.rel)
        opcode = info & OPCODE
        if known == FILE_HAS_NO_ROWS or (known != 0 and not self.changes_rows(rmgr, opcode, known)):
            return 1
        number = known - VERSION_BASE if known > 0 else NOTHING - known
        is_rewrite = known != FILE_HAS_CHUNKS and number & IS_REWRITE != 0
        if known == 0 or (is_rewrite and rmgr == RM_HEAP and opcode != HEAP_INSERT):
            return 0
        self.is_new = False
        self.slot = OTHERS
        if known == FILE_HAS_CHUNKS:
            return self.process_chunk(rmgr, opcode)
        self.insert_op = OP_REWRITE if is_rewrite else OP_INSERT
        number >>= 1
        return self.process_rows(rmgr, info, number if known > 0 else NOTHING - number)

    def process_rows(self, rmgr: int, info: int, relation: int) -> int:
        """Process the row changes of a record whose parts were located."""
        # Only a confirmation uses the chunks of a speculative row.
        is_confirm = rmgr == RM_HEAP and info & OPCODE == HEAP_CONFIRM
        if self.chunks.left > 0 and not is_confirm and self.speculative.has(self.xid):
            return 0
        if rmgr == RM_HEAP2:
            return self.process_multi_insert(info, relation)
        opcode = info & OPCODE
        if opcode == HEAP_INSERT:
            return self.process_insert(relation)
        if opcode == HEAP_DELETE:
            return self.process_delete(relation)
        return self.process_confirm() if opcode == HEAP_CONFIRM else self.process_update(relation)

    def is_tuple(self, at: int, length: int) -> int:
        """Return whether the bytes have the header of a packed tuple."""
        return 1 if length >= PACKED_HEADER and self.linear[at + 4] >= TUPLE_HEADER else 0

    def process_insert(self, relation: int) -> int:
        """Process an insert."""
        if self.parts.main_length < 3:
            return 0
        flags = self.linear[self.parts.main_at + 2]
        if not flags & INSERT_NEW or not self.is_tuple(self.parts.data_at, self.parts.data_length):
            return 0
        if flags & INSERT_SPECULATIVE:
            return self.hold_speculative(relation)
        return self.add_new(
            self.insert_op, BEFORE_NONE, relation, self.parts.data_at, self.parts.data_length, 0, NO_TUPLE
        )

    def hold_speculative(self, relation: int) -> int:
        """Hold a row that waits for its confirmation; its transaction begins with it."""
        if self.insert_op != OP_INSERT or not self.speculative.has_space():
            return 0
        self.begin()
        place = self.parts.block << 16 | read_u16(self.linear, self.parts.main_at)
        self.speculative.hold(
            self.xid,
            self.index,
            self.parts.spc,
            self.parts.db,
            self.parts.rel,
            place,
            relation,
            self.parts.data_at,
            self.parts.data_length,
        )
        return 1

    def has_held(self, state: int) -> int:
        """Return whether a row or chunk of a transaction in this state is held, or of another one in the same state."""
        for at in range(self.speculative.count):
            if self.xids.get(self.speculative.xids[at]) == state:
                return 1
        last = 0
        for at in range(self.chunks.first, self.chunks.count):
            xid = self.chunks.xids[at]
            if xid not in (0, last):
                last = xid
                if self.xids.get(xid) == state:
                    return 1
        return 0

    def process_confirm(self) -> int:
        """Process the confirmation of a row that is held."""
        if self.parts.main_length < 2:
            return 0
        place = self.parts.block << 16 | read_u16(self.linear, self.parts.main_at)
        held = self.speculative.find(self.xid, self.parts.spc, self.parts.db, self.parts.rel, place)
        if held == NOTHING or self.is_new:
            return 0
        at = self.speculative.starts[held]
        length = self.speculative.lengths[held]
        relation = self.speculative.relations[held]
        if not self.add_new(OP_INSERT, BEFORE_NONE, relation, at, length, 0, NO_TUPLE):
            return 0
        self.speculative.remove(held)
        return 1

    def process_delete(self, relation: int) -> int:
        """Process a delete."""
        if self.parts.main_length < 8:
            return 0
        flags = self.linear[self.parts.main_at + 7]
        if flags & DELETE_SUPER:
            place = self.parts.block << 16 | read_u16(self.linear, self.parts.main_at + 4)
            held = self.speculative.find(self.xid, self.parts.spc, self.parts.db, self.parts.rel, place)
            if held == NOTHING:
                return 0
            self.speculative.remove(held)
            self.forget_chunks()
            return 1
        if not flags & (DELETE_OLD_TUPLE | DELETE_OLD_KEY):
            self.add(OP_DELETE, BEFORE_NONE, relation, 0, NO_TUPLE, 0, NO_TUPLE)
            self.forget_chunks()
            return 1
        kind = BEFORE_FULL if flags & DELETE_OLD_TUPLE else BEFORE_KEY
        if not self.is_tuple(self.parts.main_at + 8, self.parts.main_length - 8):
            return 0
        self.add(OP_DELETE, kind, relation, 0, NO_TUPLE, self.parts.main_at + 8, self.parts.main_length - 8)
        self.forget_chunks()
        return 1

    def process_update(self, relation: int) -> int:
        """Process an update."""
        if self.parts.main_length < 14:
            return 0
        flags = self.linear[self.parts.main_at + 7]
        if flags & UPDATE_FROM_OLD or not flags & UPDATE_NEW:
            return 0
        if not self.is_tuple(self.parts.data_at, self.parts.data_length):
            return 0
        old_at = self.parts.main_at + 14
        old_length = NO_TUPLE
        kind = BEFORE_NONE
        if flags & (UPDATE_OLD_TUPLE | UPDATE_OLD_KEY):
            kind = BEFORE_FULL if flags & UPDATE_OLD_TUPLE else BEFORE_KEY
            if not self.is_tuple(old_at, self.parts.main_length - 14):
                return 0
            old_length = self.parts.main_length - 14
        return self.add_new(OP_UPDATE, kind, relation, self.parts.data_at, self.parts.data_length, old_at, old_length)

    def process_multi_insert(self, info: int, relation: int) -> int:
        """Process a multi-insert: all of its rows or none."""
        if self.parts.main_length < 4:
            return 0
        if not self.linear[self.parts.main_at] & INSERT_NEW:
            return 0
        count = read_u16(self.linear, self.parts.main_at + 2)
        if count > IN_RECORD_MAX or (not info & INIT_PAGE and self.parts.main_length < 4 + 2 * count):
            return 0
        if not self.walk_tuples(count, relation, False) or not self.walk_tuples(count, relation, True):
            return 0
        if self.linear[self.parts.main_at] & INSERT_LAST:
            self.forget_chunks()
        return 1

    def walk_tuples(self, count: int, relation: int, write: bool) -> int:  # noqa: FBT001
        """Check or add the tuples of a multi-insert; return 0 if one of them is not ordinary."""
        at = self.parts.data_at
        stop = self.parts.data_at + self.parts.data_length
        joined = 0
        for _ in range(count):
            at += (at - self.parts.data_at) & 1
            if at + 2 + PACKED_HEADER > stop:
                return 0
            length = PACKED_HEADER + read_u16(self.linear, at)
            at += 2
            if at + length > stop or not self.is_tuple(at, length):
                return 0
            new_at = at
            size = length
            if self.chunks.left > 0 and self.owns_chunks(relation, at):
                size = self.chunks.join(self.xid, relation, at, length, write)
                if size == 0:
                    return 0
                joined += size
                if self.chunks.has_values:
                    new_at = JOINED_ROW
                else:
                    size = length
            if write:
                self.add(self.insert_op, BEFORE_NONE, relation, new_at, size, 0, NO_TUPLE)
            at += length
        return 1 if at == stop and (write or self.has_bytes(joined + self.parts.data_length)) else 0

    def has_bytes(self, size: int) -> int:
        """Return whether tuples of so many bytes leave space for the tuples of the block's other records.

        They do, unless the row of a forged record repeats a value.
        """
        return self.pending.has_bytes(size + len(self.linear) - self.parts.end)

    def owns_chunks(self, relation: int, at: int) -> int:
        """Return whether a row of a selected relation can point to values whose chunks are held."""
        return 1 if relation >= 0 and self.linear[at + 2] & HAS_EXTERNAL and self.chunks.has(self.xid) else 0

    def forget_chunks(self) -> int:
        """Forget the chunks of a row that was processed."""
        return self.chunks.forget(self.xid) if self.chunks.left > 0 else 0

    def begin(self) -> int:
        """Make a new transaction or subtransaction pending."""
        if self.is_new:
            top = self.parts.top if self.parts.top != 0 else self.xid
            self.slot = self.xids.get(top) - XID_PENDING
            if self.slot < 0:
                self.slot = self.pending.hold(self.advance_xid(top), self.lsn)
                self.xids.enter(top, XID_PENDING + self.slot)
            self.join()
            self.is_new = False
        return 0

    def add_new(
        self, op: int, before_kind: int, relation: int, new_at: int, new_length: int, old_at: int, old_length: int
    ) -> int:
        """Add a row with its values whose chunks are held; return 0 if these are not what the row points to."""
        if self.chunks.left > 0 and self.owns_chunks(relation, new_at):
            size = self.chunks.join(self.xid, relation, new_at, new_length, False)
            if size == 0 or not self.has_bytes(size + self.parts.main_length):
                return 0
            if self.chunks.has_values:
                new_at = JOINED_ROW
                new_length = size
        self.add(op, before_kind, relation, new_at, new_length, old_at, old_length)
        return self.forget_chunks() + 1

    def add(
        self, op: int, before_kind: int, relation: int, new_at: int, new_length: int, old_at: int, old_length: int
    ) -> int:
        """Add a row, without its tuples if its relation is not selected."""
        is_unselected = relation < 0
        if is_unselected:
            relation = NOTHING - relation
            new_length = old_length = NO_TUPLE
        self.begin()
        if is_unselected and self.pending.count(self.slot, self.xid):
            return 0
        self.pending.add(
            self.slot,
            self.xid,
            self.lsn,
            op,
            before_kind,
            self.parts.origin,
            relation,
            new_at,
            new_length,
            old_at,
            old_length,
        )
        if is_unselected:
            self.pending.begin_count(self.slot)
        return 0
