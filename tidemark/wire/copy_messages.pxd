# The types of copy_messages.py. Counts and places are signed, so that differences of them are.

cimport cython

cdef unsigned char ROW, BEGIN, END, NOTICE
cdef long long LENGTH


cdef class CopyMessages:
    cdef public Py_ssize_t rows
    cdef readonly Py_ssize_t kept
    cdef readonly bint is_full, is_over, is_broken
    cdef unsigned char kind
    cdef long long length, left
    cdef Py_ssize_t length_left

    @cython.locals(at=Py_ssize_t, size=Py_ssize_t, byte="unsigned char")
    cpdef Py_ssize_t take(self, unsigned char[::1] data, Py_ssize_t count, Py_ssize_t rows_max,
                          Py_ssize_t bytes_max) except? -2

    @cython.locals(kept=Py_ssize_t, last="unsigned char")
    cdef int keep(self, unsigned char[::1] data, Py_ssize_t at, Py_ssize_t size) except -1 nogil
