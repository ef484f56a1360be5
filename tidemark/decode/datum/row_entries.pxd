# The types of row_entries.py. Offsets and counts are signed, the fields of an entry are unsigned.

cimport cython

cdef Py_ssize_t STEP, TO_RELATION, TO_NEW, TO_OLD, TO_ROWS, TO_LSN
cdef unsigned int NO_TUPLE
cdef unsigned long long BYTE
cdef long long INVALID, LOW_BITS, NONE_UNKNOWN
cdef unsigned char SELECTED_VERSION


@cython.locals(words="const unsigned int[::1]", total="long long", row=Py_ssize_t, length="unsigned int")
cpdef long long tuple_bytes(entries, Py_ssize_t start, Py_ssize_t stop) except? -2


@cython.locals(words="const unsigned int[::1]", total="long long", row=Py_ssize_t, rows="unsigned int")
cpdef long long row_count(entries, Py_ssize_t start, Py_ssize_t stop) except? -2


@cython.locals(words="const unsigned int[::1]", row=Py_ssize_t, length="unsigned int")
cpdef Py_ssize_t rows_within(entries, Py_ssize_t start, Py_ssize_t stop,
                             long long space) except? -2


@cython.locals(words="const unsigned int[::1]", cost_sum="long long", row=Py_ssize_t, relation=Py_ssize_t)
cpdef Py_ssize_t add_costs(entries, Py_ssize_t start, Py_ssize_t stop, const long long[::1] costs,
                           unsigned char[::1] marked, long long[::1] total, long long most) except? -2


@cython.locals(words="const unsigned int[::1]", count=Py_ssize_t, row=Py_ssize_t)
cpdef Py_ssize_t tally(entries, long long[::1] rows) except? -2


@cython.locals(words="const unsigned int[::1]", count=Py_ssize_t, at="long long", run=Py_ssize_t, moved=Py_ssize_t,
               row=Py_ssize_t, stop="long long", entry=Py_ssize_t, relation=Py_ssize_t, new="unsigned int",
               old="unsigned int", new_size="long long", old_size="long long", to="long long",
               low="unsigned long long", high="unsigned long long", ordinal_of_first="long long", its_timeline=int,
               its_commit_lsn="long long", its_time="long long", its_xid="long long", rows="unsigned int")
cpdef Py_ssize_t arrange(entries, long long tuple_bytes, const long long[::1] run_rows,
                         const long long[::1] run_ordinals, const int[::1] run_timelines,
                         const long long[::1] run_commit_lsns, const long long[::1] run_times,
                         const long long[::1] run_xids, long long[::1] next_row, unsigned char[::1] op,
                         unsigned char[::1] before_kind, int[::1] origin, long long[::1] lsn, long long[::1] ordinal,
                         int[::1] timeline, long long[::1] commit_lsn, long long[::1] time, long long[::1] xid,
                         long long[::1] new_at, long long[::1] new_length, long long[::1] old_at,
                         long long[::1] old_length) except? -2


@cython.final
cdef class RowSorter:
    cdef unsigned char[::1] selection
    cdef long long[::1] next_row
    cdef unsigned char[::1] op, before_kind
    cdef int[::1] origin, timeline
    cdef long long[::1] lsn, ordinal, commit_lsn, time, xid, new_at, new_length, old_at, old_length

    @cython.locals(number=Py_ssize_t)
    cpdef Py_ssize_t count(self, entries, Py_ssize_t versions) except? -2

    @cython.locals(number=Py_ssize_t, rows="long long", count="long long", moved="long long")
    cpdef object sort(self, entries, long long tuple_bytes, Py_ssize_t runs, const long long[::1] run_rows,
                      const long long[::1] run_ordinals, const int[::1] run_timelines,
                      const long long[::1] run_commit_lsns, const long long[::1] run_times,
                      const long long[::1] run_xids)


@cython.locals(words="const unsigned int[::1]", row=Py_ssize_t)
cpdef int has_selected(entries, Py_ssize_t start, Py_ssize_t stop) except? -2


@cython.locals(at=Py_ssize_t)
cpdef Py_ssize_t put_runs(const long long[::1] row_ends, const long long[::1] commit_lsns, const long long[::1] times,
                          const long long[::1] xids, Py_ssize_t start, Py_ssize_t stop, long long more_rows,
                          int timeline, Py_ssize_t to, long long[::1] run_rows, long long[::1] run_ordinals,
                          int[::1] run_timelines, long long[::1] run_commit_lsns, long long[::1] run_times,
                          long long[::1] run_xids) except? -2
