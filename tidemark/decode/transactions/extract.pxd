# The types of extract.py. Offsets in buffers are signed, so that their differences are; wire integers are unsigned.

cimport cython

from tidemark.decode.transactions.catalog_rows cimport CatalogRows
from tidemark.decode.transactions.held_chunks cimport HeldChunks
from tidemark.decode.transactions.pending_rows cimport PendingRows
from tidemark.decode.transactions.file_versions cimport FileVersions
from tidemark.decode.transactions.speculative_rows cimport SpeculativeRows
from tidemark.decode.transactions.xid_states cimport XidStates

cdef Py_ssize_t IN_RECORD_MAX, RECORD_HEADER, PACKED_HEADER
cdef long long XID_UNKNOWN, XID_KNOWN, XID_ORDINARY, XID_PASSED_OVER, XID_PENDING, IS_REWRITE
cdef long long FILE_HAS_NO_ROWS, FILE_HAS_CHUNKS, VERSION_BASE, NOTHING, OTHERS
cdef long long POSTGRES_EPOCH_US
cdef unsigned int NO_TUPLE
cdef Py_ssize_t JOINED_ROW
cdef unsigned int RM_XLOG, RM_XACT, RM_DBASE, RM_RELMAP, RM_STANDBY, RM_HEAP2, RM_HEAP, RM_LOGICALMSG, OPCODE
cdef unsigned int HEAP_INSERT, HEAP_DELETE, HEAP_UPDATE, HEAP_HOT_UPDATE, HEAP_CONFIRM, HEAP_LOCK
cdef unsigned int HEAP_INPLACE, HEAP2_MULTI_INSERT, HEAP2_NEW_CID, INIT_PAGE, INSERT_SPECULATIVE, INSERT_NEW
cdef unsigned int RUNNING_XACTS, XACT_INVALIDATIONS
cdef unsigned int NO_ORDINARY_TIME
cdef unsigned int XACT_COMMIT, XACT_ABORT, XACT_HAS_INFO, COMMIT_MAIN, ABORT_MAIN, COMMIT_HAS_DATABASE, COMMIT_SAYS_MORE
cdef unsigned int INSERT_LAST, HAS_EXTERNAL
cdef unsigned int UPDATE_OLD_TUPLE, UPDATE_OLD_KEY, UPDATE_NEW, UPDATE_FROM_OLD
cdef unsigned int DELETE_OLD_TUPLE, DELETE_OLD_KEY, DELETE_SUPER
cdef unsigned char OP_INSERT, OP_UPDATE, OP_DELETE, OP_REWRITE, BEFORE_NONE, BEFORE_KEY, BEFORE_FULL
cdef unsigned int ID_MAIN_SHORT
cdef unsigned int TUPLE_HEADER


# NB: Cython 3.3 generates invalid C for a final class with a method that returns `long long` and an exception value.
@cython.final
cdef class RowExtractor(XidStates):
    cdef readonly bint is_full
    cdef readonly long long other_end, other_time, other_database
    cdef bint is_new
    cdef FileVersions files
    cdef unsigned char insert_op
    cdef Py_ssize_t index
    cdef long long slot
    cdef readonly SpeculativeRows speculative
    cdef readonly HeldChunks chunks
    cdef readonly CatalogRows catalog_rows
    cdef long long lsn, end_lsn

    @cython.locals(space=Py_ssize_t, at=Py_ssize_t)
    cpdef Py_ssize_t extract(self, const unsigned char[::1] linear, unsigned char[::1] tuples,
                             unsigned char[::1] arranged_tuples, const long long[::1] lsns, const long long[::1] ends,
                             const unsigned int[::1] xids, const unsigned char[::1] rmgrs,
                             const unsigned char[::1] infos, const long long[::1] offsets,
                             const long long[::1] lengths, Py_ssize_t start, Py_ssize_t stop,
                             long long others_lsn) except -1

    @cython.locals(state="long long", opcode="unsigned int")
    cdef int process(self, Py_ssize_t begin, Py_ssize_t length, unsigned int rmgr, unsigned int info) except -1 nogil

    @cython.locals(opcode="unsigned int", has_info=bint)
    cdef int process_end(self, Py_ssize_t begin, Py_ssize_t length, unsigned int info, long long state) except -1 nogil

    @cython.locals(slot="long long")
    cdef int process_abort(self, long long state) except -1 nogil

    @cython.locals(flags="unsigned int", low="long long", high="long long", time="long long")
    cdef int process_commit(self, Py_ssize_t at, Py_ssize_t main, long long state) except -1 nogil

    @cython.locals(opcode="unsigned int", known="long long", is_whole=bint)
    cdef int process_heap(self, Py_ssize_t begin, Py_ssize_t length, unsigned int rmgr,
                          unsigned int info, long long state) except -1 nogil

    cdef inline int is_catalog(self) except -1 nogil

    @cython.locals(number="long long")
    cdef int hold_catalog_record(self, unsigned int rmgr, unsigned int info) except -1 nogil

    cdef inline int changes_rows(self, unsigned int rmgr, unsigned int opcode, long long known) except -1 nogil

    @cython.locals(is_logged=bint)
    cdef int process_chunk(self, unsigned int rmgr, unsigned int opcode) except -1 nogil

    @cython.locals(opcode="unsigned int", known="long long", number="long long", is_rewrite=bint)
    cdef int process_own(self, unsigned int rmgr, unsigned int info, unsigned long long top) except -1 nogil

    @cython.locals(opcode="unsigned int", is_confirm=bint)
    cdef int process_rows(self, unsigned int rmgr, unsigned int info, long long relation) except -1 nogil

    cdef inline int is_tuple(self, Py_ssize_t at, Py_ssize_t length) except -1 nogil

    @cython.locals(flags="unsigned int")
    cdef int process_insert(self, long long relation) except -1 nogil

    @cython.locals(place="long long")
    cdef int hold_speculative(self, long long relation) except -1 nogil

    @cython.locals(place="long long", held=Py_ssize_t, at=Py_ssize_t, length=Py_ssize_t, relation="long long")
    cdef int process_confirm(self) except -1 nogil

    @cython.locals(at=Py_ssize_t)
    cdef int has_held(self, long long state) except -1 nogil

    @cython.locals(flags="unsigned int", kind="unsigned char", place="long long", held=Py_ssize_t)
    cdef int process_delete(self, long long relation) except -1 nogil

    @cython.locals(flags="unsigned int", kind="unsigned char", old_at=Py_ssize_t, old_length=Py_ssize_t)
    cdef int process_update(self, long long relation) except -1 nogil

    @cython.locals(count="unsigned int")
    cdef int process_multi_insert(self, unsigned int info, long long relation) except -1 nogil

    @cython.locals(_="unsigned int", at=Py_ssize_t, stop=Py_ssize_t, length=Py_ssize_t, joined=Py_ssize_t,
                   size=Py_ssize_t, new_at=Py_ssize_t)
    cdef int walk_tuples(self, unsigned int count, long long relation, bint write) except -1 nogil

    cdef inline int has_bytes(self, Py_ssize_t size) except -1 nogil

    cdef inline int owns_chunks(self, long long relation, Py_ssize_t at) except -1 nogil

    cdef inline int forget_chunks(self) except -1 nogil

    @cython.locals(top="long long")
    cdef int begin(self) except -1 nogil

    @cython.locals(size=Py_ssize_t)
    cdef int add_new(self, unsigned char op, unsigned char before_kind,
                     long long relation, Py_ssize_t new_at, Py_ssize_t new_length, Py_ssize_t old_at,
                     Py_ssize_t old_length) except -1 nogil

    @cython.locals(is_unselected=bint)
    cdef int add(self, unsigned char op, unsigned char before_kind,
                 long long relation, Py_ssize_t new_at, Py_ssize_t new_length, Py_ssize_t old_at,
                 Py_ssize_t old_length) except -1 nogil
