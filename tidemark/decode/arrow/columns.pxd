# The types of columns.py. Locations and sizes are signed (negative ones have a meaning), wire integers unsigned.

cimport cython

cdef extern from *:
    """
    typedef unsigned __int128 tidemark_u128;
    """
    # NB: 128 bits. Cython assumes 64 and must not infer this type: only names declared with it may hold its values.
    ctypedef unsigned long long u128 "tidemark_u128"

cdef long long ALL_DONE, AHEAD, UUID_BYTES, UUID_TEXT_BYTES, TEXT_BYTES_MAX
cdef unsigned int SIGN_32, MASK_32
cdef unsigned long long SIGN_64, MASK_64
cdef unsigned int NUMERIC_SPECIAL, NUMERIC_SHORT, NUMERIC_LONG_NEGATIVE, NUMERIC_SHORT_NEGATIVE
cdef unsigned int NUMERIC_WEIGHT_SIGN, NUMERIC_WEIGHT, GROUP_MAX
cdef u128 GROUP_BASE, TEN, ZERO


@cython.locals(row="long long", location="long long")
cpdef long long build_bool(const unsigned char[::1] data, const long long[::1] locations, long long first,
                           long long rows, unsigned char[::1] out) except? -2


@cython.locals(row="long long", location="long long")
cpdef long long build_16(const unsigned char[::1] data, const long long[::1] locations, long long first, long long rows,
                         unsigned short[::1] out) except? -2


@cython.locals(row="long long", location="long long")
cpdef long long build_32(const unsigned char[::1] data, const long long[::1] locations, long long first, long long rows,
                         unsigned int[::1] out) except? -2


@cython.locals(row="long long", location="long long")
cpdef long long build_64(const unsigned char[::1] data, const long long[::1] locations, long long first, long long rows,
                         unsigned long long[::1] out) except? -2


@cython.locals(row="long long", location="long long")
cpdef long long build_widened(const unsigned char[::1] data, const long long[::1] locations, long long first,
                              long long rows, unsigned long long[::1] out) except? -2


@cython.locals(row="long long", location="long long", ordered="unsigned int")
cpdef long long build_clamped_32(const unsigned char[::1] data, const long long[::1] locations, long long first,
                                 long long rows, unsigned int low, unsigned int high, unsigned int epoch,
                                 unsigned int[::1] out) except? -2


@cython.locals(row="long long", location="long long", ordered="unsigned long long")
cpdef long long build_clamped_64(const unsigned char[::1] data, const long long[::1] locations, long long first,
                                 long long rows, unsigned long long low, unsigned long long high,
                                 unsigned long long epoch, unsigned long long[::1] out) except? -2


@cython.locals(total="long long", row="long long")
cpdef long long measure(const long long[::1] locations, const long long[::1] sizes, long long first, long long rows,
                        int[::1] offsets) except? -2


@cython.locals(row="long long", location="long long", size="long long", at="long long")
cpdef long long copy_bytes(const unsigned char[::1] data, const long long[::1] locations, const long long[::1] sizes,
                           long long first, long long rows, const int[::1] offsets, unsigned char[::1] out) except? -2


@cython.locals(at="long long", row="long long", location="long long", index="long long", byte="unsigned int")
cpdef long long build_uuid(const unsigned char[::1] data, const long long[::1] locations, const long long[::1] sizes,
                           long long first, long long rows, const unsigned char[::1] digits, int[::1] offsets,
                           unsigned char[::1] out) except? -2


@cython.locals(row="long long", location="long long", converted=int)
cpdef long long build_decimal(const unsigned char[::1] data, const long long[::1] locations, const long long[::1] sizes,
                              long long first, long long rows, long long precision, long long scale,
                              unsigned long long[::1] out, unsigned char[::1] validity) except? -2


@cython.locals(head="unsigned int", at="long long", negative="unsigned int", weight="long long", groups="long long",
               coefficient=u128, left="long long", index="long long", step="long long", group="unsigned int",
               low="unsigned long long", high="unsigned long long")
cdef inline int decimal(const unsigned char[::1] data, long long location, long long size, long long precision,
                        long long scale, long long row, unsigned long long[::1] out) except? -1 nogil


@cython.locals(written="long long", row="long long", location="long long", wanted="unsigned int", low="long long",
               high="long long", middle="long long", start="long long", size="long long", index="long long")
cpdef long long build_labels(const unsigned char[::1] data, const long long[::1] locations, long long first,
                             long long rows, const unsigned long long[::1] labels, long long at, long long count,
                             const unsigned char[::1] text, int[::1] offsets, unsigned char[::1] out) except? -2


cdef inline int is_ascii(const unsigned char[::1] text) except -1 nogil


@cython.locals(row="long long", at="long long", end="long long", lead="unsigned int", low="unsigned int",
               high="unsigned int", left="long long", index="long long", byte="unsigned int")
cpdef int valid_utf8(const unsigned char[::1] text, const int[::1] offsets, long long rows) except -1
