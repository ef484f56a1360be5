# The types of line_text.py. Offsets in buffers are signed (so that their differences are), bytes unsigned.

cimport cython

from tidemark.decode.render.value_text cimport u128

cdef long long ALL_DONE, IS_COLUMN, FLOAT_BYTES, POWER_LEAST
cdef unsigned long long WORD_ONE
cdef u128 ONE, MASK
cdef const unsigned char[::1] WORD_NULL, WORD_NAN, WORD_INFINITY, WORD_MINUS_INFINITY


cdef long long log2_of_power(long long exponent) noexcept nogil


@cython.locals(product=u128, upper=u128, word="unsigned long long")
cdef unsigned long long rounded_to_odd(unsigned long long low, unsigned long long high,
                                       unsigned long long number) noexcept nogil


@cython.locals(mantissa="unsigned long long", biased="unsigned long long", negative="int", closer="int",
               power="long long", odd="unsigned long long", exponent="long long", shift="long long",
               index="long long", low="unsigned long long", high="unsigned long long", middle="unsigned long long",
               least="unsigned long long", most="unsigned long long", digits="unsigned long long",
               shorter="unsigned long long", below="int", above="int", half="unsigned long long")
cdef long long write_float(unsigned long long bits, long long mantissa_bits, unsigned long long exponent_max,
                           long long fixed_from, long long fixed_below, long long exponent_digits, int inside,
                           const unsigned long long[::1] powers, unsigned char[::1] out,
                           long long at) except? -9 nogil


@cython.locals(end="long long", size="long long", first="long long", index="long long", zeros="long long")
cdef long long lay_out(unsigned long long digits, long long exponent, long long fixed_from, long long fixed_below,
                       long long exponent_digits, unsigned char[::1] out, long long at) except? -9 nogil


@cython.locals(at="long long")
cpdef long long write_floats(const unsigned long long[::1] bits, long long mantissa_bits,
                             unsigned long long exponent_max, long long fixed_from, long long fixed_below,
                             long long exponent_digits, const unsigned long long[::1] powers,
                             const unsigned char[::1] valid, long long valid_at, long long first, long long row,
                             long long rows, unsigned char[::1] out, long long[::1] offsets,
                             long long base) except? -9


@cython.locals(at="long long", start="long long", begin="long long", end="long long", index="long long")
cpdef long long write_lists(const int[::1] ends, long long elements, const unsigned char[::1] valid,
                            long long valid_at, long long first, long long row, long long rows,
                            unsigned char[::1] out, long long[::1] offsets, long long base) except? -9


@cython.locals(row="long long", begin="long long", size="long long", against="long long", index="long long")
cpdef long long mark_different(const unsigned char[::1] text, const long long[::1] offsets, long long one,
                               long long other, long long rows, unsigned char[::1] out) except? -9


@cython.locals(at="long long", index="long long", row="long long", variant="long long", piece="long long",
               size="long long", location="long long", end="long long", first="unsigned char", last="unsigned char")
cpdef long long write_lines(const unsigned char[::1] text, const long long[::1] offsets, const long long[::1] pieces,
                            const long long[::1] begins, const long long[::1] variants, const long long[::1] rows,
                            const long long[::1] order, long long line, long long lines, unsigned char[::1] out,
                            long long[::1] used, long long[::1] ends) except? -9
