# The types of speculative_rows.py.

cimport cython

cdef Py_ssize_t SPACE, NOT_FOUND


@cython.final
cdef class SpeculativeRows:
    cdef long long[::1] xids, records, files, databases, tablespaces, places, relations, starts, lengths
    cdef readonly Py_ssize_t count

    cdef inline int has_space(self) except -1 nogil

    @cython.locals(at=Py_ssize_t)
    cdef int hold(self, long long xid, Py_ssize_t record, long long spc, long long db, long long rel, long long place,
                  long long relation, Py_ssize_t start, Py_ssize_t length) except -1 nogil

    @cython.locals(at=Py_ssize_t)
    cdef Py_ssize_t find(self, long long xid, long long spc, long long db, long long rel,
                         long long place) except? -2 nogil

    @cython.locals(at=Py_ssize_t)
    cdef int has(self, long long xid) except -1 nogil

    @cython.locals(last=Py_ssize_t)
    cdef int remove(self, Py_ssize_t at) except -1 nogil

    cpdef list take(self)
