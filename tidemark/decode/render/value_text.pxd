# The types of value_text.py. Offsets in buffers are signed (so that their differences are), bytes unsigned.

cimport cython

cdef extern from *:
    """
    typedef unsigned __int128 tidemark_u128;
    """
    # NB: 128 bits. Cython assumes 64 and must not infer this type: only names declared with it may hold its values.
    ctypedef unsigned long long u128 "tidemark_u128"

cdef long long ALL_DONE, FULL, INTEGER_BYTES, DECIMAL_BYTES, INSTANT_BYTES, SECONDS_A_DAY
cdef unsigned long long MASK_64, SIGN_64
cdef u128 DIGIT_GROUP
cdef const unsigned char[::1] WORD_NULL, WORD_TRUE, WORD_FALSE, WORD_NAN, WORD_INFINITY, WORD_MINUS_INFINITY
cdef const unsigned char[::1] HEX, UPPER_HEX, BASE64


@cython.locals(byte="unsigned int")
cdef long long is_null(const unsigned char[::1] valid, long long bit) except? -9 nogil


@cython.locals(first="unsigned char", last="unsigned char")
cdef long long copied(const unsigned char[::1] data, long long location, long long size, unsigned char[::1] out,
                      long long at) except? -9 nogil


@cython.locals(index="long long")
cdef long long write_word(const unsigned char[::1] word, unsigned char[::1] out, long long at) except? -9 nogil


@cython.locals(size="long long", rest="unsigned long long")
cdef long long write_unsigned(unsigned long long number, unsigned char[::1] out, long long at) except? -9 nogil


@cython.locals(end="long long", location="long long")
cdef long long write_padded(unsigned long long number, long long size, unsigned char[::1] out,
                            long long at) except? -9 nogil


@cython.locals(magnitude="unsigned long long")
cdef long long write_integer(long long value, unsigned char[::1] out, long long at) except? -9 nogil


@cython.locals(at="long long")
cpdef long long write_integers(const long long[::1] values, const unsigned char[::1] valid, long long valid_at,
                               long long first, long long row, long long rows, unsigned char[::1] out,
                               long long[::1] offsets, long long base) except? -9


@cython.locals(at="long long")
cpdef long long write_booleans(const unsigned char[::1] bits, long long bits_at, const unsigned char[::1] valid,
                               long long valid_at, long long first, long long row, long long rows,
                               unsigned char[::1] out, long long[::1] offsets, long long base) except? -9


@cython.locals(at="long long", value="unsigned long long", low="unsigned long long")
cpdef long long write_lsns(const long long[::1] values, long long first, long long row, long long rows,
                           unsigned char[::1] out, long long[::1] offsets, long long base) except? -9


@cython.locals(size="long long", rest="unsigned long long", location="long long")
cdef long long write_upper_hex(unsigned long long number, unsigned char[::1] out,
                               long long at) except? -9 nogil


@cython.locals(at="long long", written="long long")
cpdef long long write_strings(const int[::1] ends, const unsigned char[::1] data, const unsigned char[::1] valid,
                              long long valid_at, long long first, long long row, long long rows,
                              unsigned char[::1] out, long long[::1] offsets, long long base) except? -9


@cython.locals(at="long long", location="long long", size="long long", last="unsigned char", sign="unsigned char")
cpdef long long write_numeric_texts(const int[::1] ends, const unsigned char[::1] data,
                                    const unsigned char[::1] valid, long long valid_at, long long first,
                                    long long row, long long rows, unsigned char[::1] out, long long[::1] offsets,
                                    long long base) except? -9


@cython.locals(at="long long", location="long long", end="long long", left="long long", b0="unsigned int",
               b1="unsigned int", b2="unsigned int")
cpdef long long write_base64(const int[::1] ends, const unsigned char[::1] data, const unsigned char[::1] valid,
                             long long valid_at, long long first, long long row, long long rows,
                             unsigned char[::1] out, long long[::1] offsets, long long base) except? -9


@cython.locals(at="long long", location="long long", end="long long", b0="unsigned int")
cpdef long long write_hex(const int[::1] ends, const unsigned char[::1] data, const unsigned char[::1] valid,
                          long long valid_at, long long first, long long row, long long rows, unsigned char[::1] out,
                          long long[::1] offsets, long long base) except? -9


@cython.locals(shifted="long long", era="long long", day="long long", year="long long", month="long long")
cdef long long write_day(long long days, int has_sign, unsigned char[::1] out, long long at) except? -9 nogil


@cython.locals(at="long long", value="long long", day_units="long long", days="long long", rest="long long",
               seconds="long long", known_days="long long", day_at="long long", day_size="long long")
cpdef long long write_instants(const long long[::1] values, long long second, long long digits, int zoned,
                               const unsigned char[::1] valid, long long valid_at, long long first, long long row,
                               long long rows, unsigned char[::1] out, long long[::1] offsets,
                               long long base) except? -9


@cython.locals(coefficient=u128, groups=u128, top=u128, start="long long", size="long long",
               index="long long", zeros="long long")
cdef long long write_decimal(unsigned long long low, unsigned long long high, long long scale, unsigned char[::1] out,
                             long long at) except? -9 nogil


@cython.locals(at="long long")
cpdef long long write_decimals(const unsigned long long[::1] values, long long scale, const unsigned char[::1] valid,
                               long long valid_at, long long first, long long row, long long rows,
                               unsigned char[::1] out, long long[::1] offsets, long long base) except? -9
