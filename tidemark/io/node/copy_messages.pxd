# The types of copy_messages.py. Counts and offsets are signed, since their differences may be negative.

cimport cython

cdef unsigned char ROW, BEGIN, END, NOTICE
cdef long long LENGTH
cdef Py_ssize_t LOOKED_AT, FEW, NOTHING, BROKEN_OFF
cdef unsigned int PAUSE, PAUSES


cdef class CopyMessages:
    cdef object plain
    cdef readonly int descriptor
    cdef unsigned char[::1] spare
    cdef public Py_ssize_t rows
    cdef readonly Py_ssize_t kept
    cdef readonly bint is_full, is_over, is_broken
    cdef unsigned char kind
    cdef long long length, left
    cdef Py_ssize_t length_left

    @cython.locals(count=Py_ssize_t, pauses="unsigned int")
    cpdef int receive(self, unsigned char[::1] data, Py_ssize_t rows_max, Py_ssize_t bytes_max) except -1

    @cython.locals(size=Py_ssize_t, came=Py_ssize_t)
    cdef Py_ssize_t peek(self, unsigned char[::1] data) except? -9 nogil

    @cython.locals(came=Py_ssize_t)
    cdef int consume(self, Py_ssize_t size) except -1 nogil

    cdef int pause(self) except -1 nogil

    @cython.locals(begin=Py_ssize_t, at=Py_ssize_t, end=Py_ssize_t, size=Py_ssize_t, byte="unsigned char")
    cdef Py_ssize_t append_rows(self, unsigned char[::1] data, Py_ssize_t count, Py_ssize_t rows_max,
                                Py_ssize_t bytes_max) except? -9 nogil

    @cython.locals(kept=Py_ssize_t, last="unsigned char")
    cdef int keep(self, unsigned char[::1] data, Py_ssize_t at, Py_ssize_t size) except -1 nogil
