# The types of small_batch.py. Numbers of an IPC message are unsigned, locations and counts signed.

cimport cython

from tidemark.decode.arrow.batch_body cimport fill_unchanged, put_nothing, put_rows, put_unchanged, put_validity, survey
from tidemark.decode.arrow.batch_columns cimport put_columns
from tidemark.decode.datum.deforming cimport locate

cdef long long ROW_SPACE, HEAD_SPACE, COLUMN_SPACE, COUNTED, COMPRESSED_VALUES, MISSING_VALUES, EXTERNAL_VALUES
cdef long long ALL_LOCATED, ALL_PUT, ROW_NODES, ROW_BUFFERS


@cython.locals(index="long long")
cdef int zero(long long[::1] counts, long long count) except -1


@cython.locals(odd="long long")
cdef long long locate_side(const unsigned char[::1] data, const long long[::1] tuple_at,
                           const long long[::1] tuple_length, long long nulls, long long columns,
                           const int[::1] lengths, const int[::1] aligns, const int[::1] slots,
                           long long[::1] locations, long long[::1] sizes, long long[::1] counts) except? -2


@cython.locals(rows="long long", halt="long long")
cdef long long put_side(const unsigned char[::1] data, const long long[::1] tuple_at, long long nulls,
                        long long columns, const long long[::1] locations, const long long[::1] sizes,
                        const long long[::1] counts, const unsigned long long[::1] plan,
                        const unsigned char[::1] labels, const long long[::1] levels, const long long[::1] units,
                        long long[::1] stack, long long[::1] state, unsigned char[::1] out,
                        unsigned short[::1] out_16, unsigned int[::1] out_32, unsigned long long[::1] words,
                        int[::1] offsets, long long nodes, long long buffers, long long body,
                        long long at) except? -1


@cython.final
cdef class SmallShape:
    cdef const int[::1] lengths, aligns, slots
    cdef const unsigned long long[::1] plan
    cdef const unsigned char[::1] labels, head
    cdef const long long[::1] levels, units
    cdef long long columns, row_bytes, length, body_length, nodes, buffers


@cython.final
cdef class SmallBatches:
    cdef readonly object rows
    cdef const unsigned char[::1] op, before_kind
    cdef const int[::1] timeline, origin
    cdef const long long[::1] commit_lsn, ordinal, lsn, xid, commit_time, new_at, new_length, old_at, old_length
    cdef readonly long long[::1] counts
    cdef long long[::1] locations, sizes, stack, state
    cdef readonly unsigned char[::1] out
    cdef unsigned short[::1] out_16
    cdef unsigned int[::1] out_32
    cdef unsigned long long[::1] words
    cdef int[::1] offsets

    @cython.locals(length=Py_ssize_t)
    cpdef object message(self, SmallShape shape, const unsigned char[::1] data, long long start, long long stop)

    @cython.locals(rows="long long", columns="long long", cells="long long", body="long long", width="long long",
                   new_nulls="long long", old_nulls="long long", space="long long", at="long long",
                   nodes="long long", buffers="long long", news="const long long[::1]", olds="const long long[::1]")
    cdef Py_ssize_t put(self, SmallShape shape, const unsigned char[::1] data, long long start,
                        long long stop) except -1
