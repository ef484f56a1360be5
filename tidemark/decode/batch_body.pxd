# The types of batch_body.py. Numbers of a plan and of an IPC message are unsigned, places and counts signed.

cimport cython

from tidemark.decode.columns cimport (
    build_16, build_32, build_64, build_bool, build_clamped_32, build_clamped_64, build_decimal, build_labels,
    build_uuid, build_widened, copy_bytes, measure, valid_utf8
)
from tidemark.decode.places cimport mark_unchanged, present
from tidemark.decode.text_columns cimport build_jsonb_text, build_numeric_text

cdef long long WAY_OTHER, WAY_BOOL, WAY_16, WAY_32, WAY_64, WAY_UNSIGNED, WAY_DATE, WAY_TIMESTAMP, WAY_DECIMAL
cdef long long WAY_BYTES, WAY_TEXT, WAY_UUID, WAY_LABELS, WAY_NUMERIC_TEXT, WAY_JSONB
cdef long long STOP_DONE, STOP_OTHER, STOP_FULL, STOP_TOO_LONG, STOP_WRITTEN, TOGETHER
cdef long long NUMBERS, UNIT_BITS, UNIT_OFFSETS, MARKED_NODE, MARKED_BUFFER, UUID_TEXT_BYTES, TEXT_BYTES_MAX


cdef int clear(unsigned char[::1] out, long long start, long long stop) except -1


cpdef int put_node(unsigned long long[::1] words, long long node, long long rows, long long nulls) except -1


cpdef int put_buffer(unsigned long long[::1] words, long long buffer, long long start, long long length) except -1


@cython.locals(rows="long long", nulls="long long", size="long long", row="long long")
cpdef long long survey(const long long[::1] tuple_at, const long long[::1] tuple_length,
                       long long[::1] totals) except -1


cdef long long put_64(const long long[::1] values, long long rows, unsigned char[::1] out, long long at) except -1


@cython.locals(end="long long")
cdef long long put_32(const int[::1] values, long long rows, unsigned char[::1] out, long long at) except -1


@cython.locals(end="long long")
cdef long long put_8(const unsigned char[::1] values, long long rows, unsigned char[::1] out, long long at) except -1


@cython.locals(rows="long long", place="long long", row="long long", index="long long")
cpdef long long put_rows(const unsigned char[::1] op, const int[::1] timeline, const long long[::1] commit_lsn,
                         const long long[::1] ordinal, const long long[::1] lsn, const long long[::1] xid,
                         const long long[::1] commit_time, const int[::1] origin,
                         const unsigned char[::1] before_kind, unsigned char[::1] out, int[::1] offsets,
                         unsigned long long[::1] words, long long nodes, long long buffers, long long body,
                         long long at) except -1


@cython.locals(rows="long long", bitmap="long long", offsets_at="long long", start="long long", width="long long",
               end="long long", marked="long long", place="long long", buffer="long long")
cpdef long long put_unchanged(const long long[::1] places, const long long[::1] tuple_at, long long columns,
                              long long found, unsigned char[::1] out, int[::1] offsets,
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


@cython.locals(left="long long", index="long long", byte="unsigned int")
cdef long long unset(const unsigned char[::1] bits, long long count) except -1


@cython.locals(bitmap="long long", slot="long long", step="long long", way="long long", node="long long",
               buffer="long long", nulls="long long", first="long long", at="long long", size="long long",
               start="long long", end="long long", odd="long long", room="long long", needed="long long",
               halt="long long", next_slot="long long", last="long long", begin="long long", count="long long",
               index="long long", ends="int[::1]")
cpdef long long put_columns(const unsigned char[::1] data, const long long[::1] places, const long long[::1] sizes,
                            const long long[::1] absent, long long rows, const unsigned long long[::1] plan,
                            const unsigned char[::1] labels, long long[::1] stack, unsigned char[::1] out,
                            unsigned short[::1] out_16, unsigned int[::1] out_32, unsigned long long[::1] out_64,
                            int[::1] offsets, long long nodes, long long buffers, long long body,
                            long long[::1] state) except? -1


@cython.locals(step="long long", way="long long", bitmap="long long", first="long long", at="long long",
               start="long long", size="long long", end="long long", room="long long", needed="long long",
               odd="long long", buffer="long long", ends="int[::1]")
cdef long long put_written(const unsigned char[::1] data, const long long[::1] places, const long long[::1] sizes,
                           long long nulls, long long rows, long long slot, const unsigned long long[::1] plan,
                           const unsigned char[::1] labels, long long[::1] stack, unsigned char[::1] out,
                           unsigned long long[::1] out_64, int[::1] offsets, long long nodes, long long buffers,
                           long long body, long long[::1] state) except? -1
