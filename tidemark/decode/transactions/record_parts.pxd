# The types of record_parts.py. Offsets in buffers are signed, so that differences are; wire integers are unsigned.

cimport cython

cdef Py_ssize_t RECORD_HEADER, BLOCK_START, IMAGE_HEADER_MAX, LOCATION, BLOCK_NUMBER
cdef unsigned int BLOCK_ID_MAX, ID_TOP_XID, ID_ORIGIN, ID_MAIN_LONG, ID_MAIN_SHORT
cdef unsigned int HAS_IMAGE, SAME_REL, FORK, IMAGE_HAS_HOLE


@cython.final
cdef class RecordParts:
    cdef const unsigned char[::1] linear
    cdef unsigned int image_compressed
    cdef Py_ssize_t at, end, promised, data_at, data_length, image_length, main_at, main_length
    cdef int blocks, origin
    cdef long long top, spc, block
    cdef unsigned long long db, rel

    @cython.locals(header="unsigned int", main=Py_ssize_t)
    cdef int read(self, Py_ssize_t begin, Py_ssize_t length) except -1 nogil

    @cython.locals(at=Py_ssize_t, flags="unsigned int", data_length=Py_ssize_t, image_length=Py_ssize_t,
                   compressed="unsigned int", first=bint, size=Py_ssize_t)
    cdef inline int read_block(self) except -1 nogil
