# The types of xid_states.py.

cimport cython

from tidemark.decode.datum.lookup cimport IntegerMap
from tidemark.decode.transactions.pending_children cimport PendingChildren
from tidemark.decode.transactions.pending_rows cimport PendingRows
from tidemark.decode.transactions.record_parts cimport RecordParts

cdef long long IS_UNKNOWN, IS_ORDINARY, FIRST_SLOT, NO_SLOT, XIDS_MASK, XIDS_AHEAD
cdef unsigned int NAMES_CHILDREN


# NB: Cython 3.3 generates invalid C for a class with a method that returns `long long` and an exception value.
cdef class XidStates:
    cdef PendingRows pending
    cdef PendingChildren children
    cdef RecordParts parts
    cdef const unsigned char[::1] linear
    cdef IntegerMap xids
    cdef public long long next_xid
    cdef long long xid, complete_from

    cpdef set_xid_state(self, unsigned int xid, long long state)

    @cython.locals(state="long long")
    cpdef Py_ssize_t pending_slot(self, unsigned long long xid) except? -2

    @cython.locals(slot="long long", child="long long")
    cpdef Py_ssize_t remove_child(self, unsigned long long xid) except -1

    @cython.locals(slot="long long")
    cpdef int release(self, unsigned long long xid) except -1

    @cython.locals(child="long long")
    cdef int set_children_state(self, long long slot, long long state) except -1 nogil

    @cython.locals(top_state="long long")
    cdef int can_join(self, long long state) except -1 nogil

    @cython.locals(top_state="long long")
    cdef int join(self) except -1 nogil

    @cython.locals(slot="long long", known="long long", number="long long", child="long long")
    cdef int names_children(self, Py_ssize_t at, Py_ssize_t size, unsigned int flags, long long state) except -1 nogil

    @cython.locals(distance="long long", full="long long")
    cdef Py_ssize_t advance_xid(self, long long xid) except? -2 nogil

    cdef int is_complete(self, long long xid) except -1 nogil
