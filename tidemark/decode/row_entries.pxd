# The types of row_entries.py. Places and counts are signed, what an entry holds is unsigned.

cimport cython

cdef Py_ssize_t STEP, TO_RELATION, TO_NEW, TO_OLD, TO_LSN
cdef unsigned int NO_TUPLE
cdef unsigned long long BYTE
cdef long long MISFIT, LOW_BITS


@cython.locals(words="const unsigned int[::1]", total="long long", row=Py_ssize_t, length="unsigned int")
cpdef long long tuple_bytes(entries, Py_ssize_t start, Py_ssize_t stop) except? -2


@cython.locals(words="const unsigned int[::1]", row=Py_ssize_t, length="unsigned int")
cpdef Py_ssize_t rows_within(entries, Py_ssize_t start, Py_ssize_t stop,
                             long long room) except? -2


@cython.locals(words="const unsigned int[::1]", count=Py_ssize_t, row=Py_ssize_t, relation=Py_ssize_t,
               length="unsigned int")
cpdef Py_ssize_t tally(entries, long long[::1] rows, long long[::1] tuples) except? -2


@cython.locals(words="const unsigned int[::1]", count=Py_ssize_t, at="long long", run=Py_ssize_t, moved=Py_ssize_t,
               first="long long", row=Py_ssize_t, entry=Py_ssize_t, relation=Py_ssize_t, new="unsigned int",
               old="unsigned int", new_size="long long",
               old_size="long long", size="long long", to="long long", place="long long", low="unsigned long long",
               high="unsigned long long")
cpdef Py_ssize_t arrange(entries, const unsigned char[::1] tuples,
                         const long long[::1] run_rows, const long long[::1] run_ordinals, long long[::1] next_row,
                         long long[::1] next_byte, const long long[::1] base_byte,
                         unsigned char[::1] data, unsigned char[::1] op, unsigned char[::1] before_kind,
                         int[::1] origin, long long[::1] lsn, long long[::1] run_of, long long[::1] ordinal,
                         long long[::1] new_at, long long[::1] new_length, long long[::1] old_at,
                         long long[::1] old_length) except? -2


@cython.locals(row=Py_ssize_t)
cpdef Py_ssize_t spread(const long long[::1] run_of, Py_ssize_t start, Py_ssize_t stop, const long long[::1] values,
                        long long[::1] out) except? -2


@cython.locals(at=Py_ssize_t)
cpdef Py_ssize_t shift(const long long[::1] values, Py_ssize_t start, Py_ssize_t stop, long long by,
                       long long[::1] out) except? -2


@cython.locals(at=Py_ssize_t)
cpdef Py_ssize_t narrow(const long long[::1] values, Py_ssize_t start, Py_ssize_t stop,
                        long long[::1] out) except? -2
