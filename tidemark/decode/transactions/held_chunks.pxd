# The types of held_chunks.py. Offsets in buffers are signed, so that their differences are; wire integers are unsigned.

cimport cython

from tidemark.decode.datum.lookup cimport IntegerMap

cdef Py_ssize_t CHUNKS_MAX, BLOCK_RECORDS, CARRIED_MAX
cdef Py_ssize_t NO_CHUNK, REFUSED, TUPLE_HEADER_SIZE, PACKED_HEADER_SIZE, CHUNK_KEY, PLAIN_HEADER
cdef Py_ssize_t POINTER_BYTES, VARIABLE
cdef unsigned int COLUMN_COUNT_BITS, NULLS, POINTER_TAG, POINTER_BYTE, SHORT_BIT, COMPRESSED_BITS, STORED_BITS


@cython.final
cdef class HeldChunks:
    cdef const unsigned char[::1] linear
    cdef unsigned char[::1] joined, carried
    cdef readonly Py_ssize_t size, left, first_record, oldest_record, carried_size
    cdef bint has_values, has_nulls
    cdef IntegerMap layouts
    cdef int[::1] columns
    cdef Py_ssize_t column_count, carried_count, first, count, layout, head, base, position, end
    cdef long long[::1] xids, records, values, numbers, starts, sizes

    cdef int begin(self, const unsigned char[::1] linear) except -1

    @cython.locals(size=Py_ssize_t, at=Py_ssize_t)
    cpdef int carry(self, const unsigned char[::1] linear) except -1

    @cython.locals(count=Py_ssize_t, size=Py_ssize_t, at=Py_ssize_t, begin=Py_ssize_t, length=Py_ssize_t)
    cdef int move(self) except -1 nogil

    @cython.locals(begin=Py_ssize_t, space=Py_ssize_t, value="unsigned int", number="unsigned int", header=Py_ssize_t,
                   size=Py_ssize_t, first="unsigned int")
    cdef int hold(self, long long xid, Py_ssize_t record, Py_ssize_t at, Py_ssize_t length) except -1 nogil

    @cython.locals(at=Py_ssize_t)
    cdef int is_next(self, long long xid, long long value, long long number) except -1 nogil

    @cython.locals(at=Py_ssize_t)
    cdef int has(self, long long xid) except -1 nogil

    @cython.locals(at=Py_ssize_t)
    cdef int forget(self, long long xid) except -1 nogil

    cdef int advance(self) except -1 nogil

    cpdef list take(self)

    @cython.locals(at=Py_ssize_t)
    cdef Py_ssize_t find(self, long long xid, long long value) except? -2 nogil

    @cython.locals(stored=Py_ssize_t, index=Py_ssize_t, byte="unsigned int")
    cdef Py_ssize_t join(self, long long xid, long long version, Py_ssize_t at, Py_ssize_t length,
                         bint consume) except -1 nogil

    @cython.locals(stored=Py_ssize_t, hoff=Py_ssize_t, bitmap=Py_ssize_t, is_valid=bint)
    cdef Py_ssize_t begin_row(self, long long version, Py_ssize_t at, Py_ssize_t length) except -1 nogil

    @cython.locals(size=Py_ssize_t, mask=Py_ssize_t, is_variable=bint, at=Py_ssize_t, first="unsigned int",
                   chunk=Py_ssize_t, is_aligned=bint)
    cdef int put_column(self, long long xid, Py_ssize_t index, bint consume) except -1 nogil

    @cython.locals(first="unsigned int", size=Py_ssize_t)
    cdef Py_ssize_t datum_size(self, Py_ssize_t at, Py_ssize_t end) except -1 nogil

    @cython.locals(raw=Py_ssize_t, stored=Py_ssize_t, header="unsigned long long", byte="unsigned int",
                   xid="long long", value="long long", left=Py_ssize_t, number="long long", at=Py_ssize_t)
    cdef int put_value(self, Py_ssize_t chunk, Py_ssize_t pointer, bint consume) except -1 nogil

    @cython.locals(at=Py_ssize_t, length=Py_ssize_t)
    cdef int put_chunk(self, Py_ssize_t chunk) except -1 nogil

    cdef inline int put(self, Py_ssize_t at, Py_ssize_t length) except -1 nogil

    @cython.locals(at=Py_ssize_t)
    cdef inline int pad(self, Py_ssize_t length) except -1 nogil
