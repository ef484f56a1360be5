# The types of catalog_rows.py.

cimport cython

cdef Py_ssize_t SPACE
cdef long long WHOLE_RECORD


@cython.final
cdef class CatalogRows:
    cdef long long[::1] records, xids, files, tids, starts, lengths
    cdef public Py_ssize_t count

    cdef inline int has_space(self, Py_ssize_t count) except -1 nogil

    @cython.locals(at=Py_ssize_t)
    cdef int hold(self, Py_ssize_t record, long long xid, long long file, long long tid, Py_ssize_t start,
                  Py_ssize_t length) except -1 nogil

    cdef int hold_record(self, Py_ssize_t record, long long xid) except -1 nogil

    @cython.locals(at=Py_ssize_t, start=Py_ssize_t)
    cpdef list take(self, bytearray linear, list files)
