# The types of batch_columns.py. Numbers of a plan and of an IPC message are unsigned, locations and counts signed.

cimport cython

from tidemark.decode.arrow.batch_body cimport clear, put_buffer, put_node
from tidemark.decode.arrow.columns cimport (
    build_16, build_32, build_64, build_bool, build_clamped_32, build_clamped_64, build_decimal, build_labels,
    build_uuid, build_widened, copy_bytes, measure, valid_utf8
)
from tidemark.decode.datum.deforming cimport present
from tidemark.decode.arrow.text_columns cimport build_jsonb_text, build_numeric_text

cdef long long KERNEL_OTHER, KERNEL_BOOL, KERNEL_16, KERNEL_32, KERNEL_64, KERNEL_UNSIGNED, KERNEL_DATE
cdef long long KERNEL_TIMESTAMP, KERNEL_DECIMAL
cdef long long KERNEL_BYTES, KERNEL_TEXT, KERNEL_UUID, KERNEL_LABELS, KERNEL_NUMERIC_TEXT, KERNEL_JSONB
cdef long long STOP_DONE, STOP_OTHER, STOP_FULL, STOP_TOO_LONG, STOP_WRITTEN, TOGETHER
cdef long long NUMBERS, UUID_TEXT_BYTES, TEXT_BYTES_MAX


@cython.locals(left="long long", index="long long", byte="unsigned int")
cdef long long unset(const unsigned char[::1] bits, long long count) except -1


@cython.locals(halt="long long", slot="long long", reserved="long long", filled="long long", whole="long long")
cpdef long long put_columns(const unsigned char[::1] data, const long long[::1] locations, const long long[::1] sizes,
                            const long long[::1] absent, long long rows, const unsigned long long[::1] plan,
                            const unsigned char[::1] labels, long long[::1] stack, unsigned char[::1] out,
                            unsigned short[::1] out_16, unsigned int[::1] out_32, unsigned long long[::1] out_64,
                            int[::1] offsets, long long nodes, long long buffers, long long body,
                            long long[::1] state) except? -1


cdef long long byte_count(long long kernel, long long rows) except? -1


@cython.locals(bitmap="long long", halt="long long", slot="long long", at="long long", step="long long",
               kernel="long long", nulls="long long", first="long long", needed="long long", size="long long",
               start="long long", end="long long", buffer="long long")
cdef long long reserve(const long long[::1] locations, const long long[::1] sizes, const long long[::1] absent,
                       long long rows, const unsigned long long[::1] plan, unsigned char[::1] out,
                       unsigned long long[::1] out_64, int[::1] offsets, long long nodes, long long buffers,
                       long long body, long long[::1] state) except? -1


@cython.locals(begin="long long", count="long long", index="long long", step="long long", kernel="long long",
               buffer="long long", first="long long", at="long long", start="long long", odd="long long")
cdef long long fill(const unsigned char[::1] data, const long long[::1] locations, const long long[::1] sizes,
                    long long rows, const unsigned long long[::1] plan, unsigned char[::1] out,
                    unsigned short[::1] out_16, unsigned int[::1] out_32, unsigned long long[::1] out_64,
                    int[::1] offsets, long long buffers, long long body, long long slot,
                    long long last) except? -1


cdef long long fill_texts(const unsigned char[::1] data, const long long[::1] locations, const long long[::1] sizes,
                          long long first, long long count, long long kernel, int[::1] ends,
                          unsigned char[::1] out) except? -1


@cython.locals(bitmap="long long", index="long long", step="long long", kernel="long long", buffer="long long",
               start="long long", at="long long", size="long long", nulls="long long", ends="int[::1]")
cdef long long seal(long long rows, const unsigned long long[::1] plan, unsigned char[::1] out,
                    unsigned long long[::1] out_64, int[::1] offsets, long long nodes, long long buffers,
                    long long body, long long slot, long long last) except? -1


@cython.locals(step="long long", kernel="long long", bitmap="long long", first="long long", at="long long",
               start="long long", size="long long", end="long long", space="long long", needed="long long",
               odd="long long", buffer="long long", ends="int[::1]")
cdef long long put_written(const unsigned char[::1] data, const long long[::1] locations, const long long[::1] sizes,
                           long long nulls, long long rows, long long slot, const unsigned long long[::1] plan,
                           const unsigned char[::1] labels, long long[::1] stack, unsigned char[::1] out,
                           unsigned long long[::1] out_64, int[::1] offsets, long long nodes, long long buffers,
                           long long body, long long[::1] state) except? -1
