# The types of datum_text.py. Offsets in buffers are signed (so that their differences are), bytes unsigned.

cimport cython

cdef long long ALL_DONE, IS_ODD, AS_SIGNED, AS_UNSIGNED, AS_WORD, AS_LETTER, AS_TEXT, AS_DATE, AS_TIMESTAMP
cdef long long AS_TIMESTAMP_ZONED, AS_NUMERIC, AS_UUID, AS_SINGLE, AS_DOUBLE, AT_EXTERNAL, FULL, BAD, VALUE_BYTES
cdef long long DATE_END, DATE_BEGIN, INSTANT_END, INSTANT_BEGIN, EPOCH_DAYS, FIRST_DAY, USECS_A_DAY, USECS_A_SECOND
cdef long long FIXED_FROM, SINGLE_FIXED_BELOW, DOUBLE_FIXED_BELOW, SINGLE_MANTISSA, DOUBLE_MANTISSA
cdef unsigned long long SINGLE_EXPONENT, DOUBLE_EXPONENT
cdef unsigned long long WORD_ONE
cdef const unsigned char[::1] WORD_NULL, WORD_UNCHANGED, WORD_TRUE, WORD_FALSE, WORD_NAN, WORD_INFINITY
cdef const unsigned char[::1] WORD_MINUS_INFINITY, WORD_END, WORD_BEGIN, WORD_BC, WORD_UTC, HEX


@cython.locals(number="unsigned long long", byte="unsigned long long", index="long long")
cdef unsigned long long read_unsigned(const unsigned char[::1] data, long long location,
                                      long long size) except? 0xF7F7F7F7 nogil


@cython.locals(number="unsigned long long", sign="unsigned long long", magnitude="long long")
cdef long long read_signed(const unsigned char[::1] data, long long location, long long size) except? -9 nogil


@cython.locals(value="long long", magnitude="unsigned long long")
cdef long long write_signed(const unsigned char[::1] data, long long location, long long size, unsigned char[::1] out,
                            long long at) except? -9 nogil


@cython.locals(days="long long")
cdef long long write_date(long long value, unsigned char[::1] out, long long at) except? -9 nogil


@cython.locals(seconds="long long")
cdef long long write_clock(long long usecs, unsigned char[::1] out, long long at) except? -9 nogil


@cython.locals(days="long long", usecs="long long")
cdef long long write_instant(long long value, int zoned, unsigned char[::1] out, long long at) except? -9 nogil


@cython.locals(end="long long")
cdef long long write_number(unsigned long long bits, long long mantissa_bits, unsigned long long exponent_max,
                            long long fixed_below, const unsigned long long[::1] powers, unsigned char[::1] out,
                            long long at) except? -9 nogil


@cython.locals(index="long long", byte="unsigned char")
cdef long long write_hex(const unsigned char[::1] data, long long location, long long size, unsigned char[::1] out,
                         long long at) except? -9 nogil


@cython.locals(index="long long")
cdef long long write_uuid(const unsigned char[::1] data, long long location, unsigned char[::1] out,
                          long long at) except? -9 nogil


@cython.locals(index="long long", byte="unsigned char")
cdef long long write_text(const unsigned char[::1] data, long long location, long long size, unsigned char[::1] out,
                          long long at) except? -9 nogil


@cython.locals(byte="unsigned char", bits="unsigned long long")
cdef long long write_datum(const unsigned char[::1] data, long long location, long long size, long long width,
                           long long form, const unsigned long long[::1] powers, unsigned char[::1] out,
                           long long at) except? -9 nogil


@cython.locals(at="long long", location="long long", size="long long")
cpdef long long write_datums(const unsigned char[::1] data, const long long[::1] locations, const long long[::1] sizes,
                             long long column_at, long long width, long long form, int quoted, int shows_nulls,
                             const unsigned char[::1] label, const unsigned long long[::1] powers, long long row,
                             long long rows, unsigned char[::1] out,
                             long long[::1] offsets, long long base) except? -9
