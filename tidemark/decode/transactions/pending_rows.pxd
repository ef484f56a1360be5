# The types of pending_rows.py. Offsets, counts, slots and LSNs are signed, so that their differences are signed.

cimport cython

cdef Py_ssize_t ENTRIES_MAX, IN_RECORD_MAX, STEP, WORDS
cdef long long SLOTS, NOTHING, OTHERS, GONE, ALL_XIDS, ROWS_EACH, BYTES_EACH, SINCE
cdef unsigned int NO_TUPLE
cdef Py_ssize_t IN_JOINED


# NB: Cython 3.3 generates invalid C for a final class with a method that returns `long long` and an exception value.
@cython.final
cdef class PendingRows:
    cdef readonly Py_ssize_t row_count, tuple_count, run_count, end_count, other_rows, other_bytes
    cdef readonly long long other_more
    cdef readonly Py_ssize_t others_at, others_byte_at
    cdef readonly long long head, tail, pending_count
    cdef readonly bint is_arranged, needs_moves, has_gaps, is_sorted
    cdef long long oldest, others_lsn
    cdef unsigned long long[::1] words
    cdef const unsigned char[::1] linear
    cdef unsigned char[::1] entries, arranged, joined, tuples, arranged_tuples
    cdef long long[::1] row_slots, row_sizes, arranged_sizes
    cdef long long[::1] run_xids, run_rows, run_bytes, run_more
    cdef long long[::1] end_xids, end_firsts, end_lsns, end_ends, end_times, end_databases, end_restarts
    cdef long long[::1] end_counts, end_rows, end_bytes, end_slots
    cdef long long[::1] slot_xids, slot_firsts, slot_rows, slot_bytes, slot_row_at, slot_byte_at, slot_more
    cdef long long[::1] slot_latest

    cdef int begin(self, const unsigned char[::1] linear, unsigned char[::1] tuples, unsigned char[::1] arranged_tuples,
                   long long others_lsn) except -1

    cdef int has_space(self) except -1 nogil

    @cython.locals(slot="long long")
    cdef Py_ssize_t hold(self, long long xid, long long lsn) except -1 nogil

    @cython.locals(at=Py_ssize_t, begin=Py_ssize_t, size=Py_ssize_t, run=Py_ssize_t, low="unsigned long long",
                   high="unsigned long long")
    cdef int add(self, long long slot, long long xid, long long lsn, unsigned char op, unsigned char before_kind,
                 unsigned int origin, long long relation, Py_ssize_t new_at, Py_ssize_t new_length, Py_ssize_t old_at,
                 Py_ssize_t old_length) except -1 nogil

    @cython.locals(row=Py_ssize_t, one="unsigned long long")
    cdef int begin_count(self, long long slot) except -1 nogil

    @cython.locals(row="long long", rows="unsigned long long", one="unsigned long long")
    cdef int count(self, long long slot, long long xid) except -1 nogil

    cdef inline int copy(self, Py_ssize_t at, Py_ssize_t length) except -1 nogil

    cdef int copy_joined(self, Py_ssize_t length) except -1 nogil

    cdef int has_bytes(self, Py_ssize_t size) except -1 nogil

    @cython.locals(end=Py_ssize_t, restart="long long")
    cdef int commit(self, long long slot, long long lsn, long long end_lsn, long long time,
                    long long database) except -1 nogil

    cdef int is_top(self, long long slot, long long xid) except -1 nogil

    @cython.locals(row=Py_ssize_t, owner="long long", rows="long long")
    cdef int drop(self, long long slot, long long xid) except -1 nogil

    cdef int release(self, long long slot) except -1 nogil

    cdef Py_ssize_t oldest_lsn(self) except? -2 nogil

    cdef int finish(self) except -1 nogil

    @cython.locals(row=Py_ssize_t, byte=Py_ssize_t, end=Py_ssize_t, slot="long long", number="long long",
                   pending_at=Py_ssize_t, pending_byte_at=Py_ssize_t)
    cdef int arrange(self) except -1 nogil

    @cython.locals(at=Py_ssize_t, other=Py_ssize_t, other_byte=Py_ssize_t, row=Py_ssize_t, slot="long long",
                   size=Py_ssize_t)
    cdef int place(self) except -1 nogil

    cdef inline int move(self, Py_ssize_t row, Py_ssize_t at, Py_ssize_t size, Py_ssize_t to,
                         Py_ssize_t to_byte) except -1 nogil

    @cython.locals(at=Py_ssize_t, number="long long", slot="long long")
    cdef int keep(self, Py_ssize_t row, Py_ssize_t rows, Py_ssize_t byte, Py_ssize_t size) except -1 nogil
