# The types of batch_body.py. Numbers of an IPC message are unsigned, locations and counts signed.

cimport cython

from tidemark.decode.datum.deforming cimport mark_unchanged, present

cdef long long UNIT_BITS, UNIT_OFFSETS, MARKED_NODE, MARKED_BUFFER, EXTERNAL_KIND, AT_EXTERNAL


cpdef int clear(unsigned char[::1] out, long long start, long long stop) except -1


cpdef int put_node(unsigned long long[::1] words, long long node, long long rows, long long nulls) except -1


cpdef int put_buffer(unsigned long long[::1] words, long long buffer, long long start, long long length) except -1


@cython.locals(rows="long long", nulls="long long", size="long long", row="long long")
cpdef long long survey(const long long[::1] tuple_at, const long long[::1] tuple_length,
                       long long[::1] totals) except -1


@cython.locals(filled="long long", columns="long long", rows="long long", column="long long", cell="long long")
cpdef long long fill_unchanged(long long[::1] locations, long long[::1] sizes, const long long[::1] old_locations,
                               const long long[::1] old_sizes, long long[::1] absent,
                               long long[::1] kinds) except? -2


cdef long long put_64(const long long[::1] values, long long rows, unsigned char[::1] out, long long at) except -1


@cython.locals(end="long long")
cdef long long put_32(const int[::1] values, long long rows, unsigned char[::1] out, long long at) except -1


@cython.locals(end="long long")
cdef long long put_8(const unsigned char[::1] values, long long rows, unsigned char[::1] out, long long at) except -1


@cython.locals(rows="long long", row="long long", found="int")
cdef bint are_zero_32(const int[::1] values) noexcept


@cython.locals(rows="long long", row="long long", found="int")
cdef bint are_zero_8(const unsigned char[::1] values) noexcept


@cython.locals(rows="long long", first_offset="long long", row="long long", index="long long", shares="bint",
               no_origin="bint")
cpdef long long put_rows(const unsigned char[::1] op, const int[::1] timeline, const long long[::1] commit_lsn,
                         const long long[::1] ordinal, const long long[::1] lsn, const long long[::1] xid,
                         const long long[::1] commit_time, const int[::1] origin,
                         const unsigned char[::1] before_kind, long long external, unsigned char[::1] out,
                         int[::1] offsets,
                         unsigned long long[::1] words, long long nodes, long long buffers, long long body,
                         long long at) except -1


@cython.locals(rows="long long", bitmap="long long", offsets_at="long long", start="long long", width="long long",
               end="long long", marked="long long", first_offset="long long", buffer="long long")
cpdef long long put_unchanged(const long long[::1] locations, const long long[::1] tuple_at, long long columns,
                              long long found, long long before, unsigned char[::1] out, int[::1] offsets,
                              unsigned long long[::1] words, long long nodes, long long buffers, long long body,
                              long long at) except -1


@cython.locals(longest="long long", index="long long", unit="long long", length="long long", end="long long")
cpdef long long put_nothing(const long long[::1] levels, const long long[::1] units, long long rows,
                            unsigned char[::1] out, unsigned long long[::1] words, long long nodes, long long buffers,
                            long long body, long long at) except -1


@cython.locals(rows="long long", bitmap="long long", end="long long")
cpdef long long put_validity(const long long[::1] tuple_at, long long nulls, unsigned char[::1] out,
                             unsigned long long[::1] words, long long nodes, long long buffers, long long body,
                             long long at) except -1
