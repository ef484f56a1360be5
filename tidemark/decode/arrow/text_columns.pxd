# The types of text_columns.py. Offsets in buffers are signed (negative ones have a meaning), wire integers unsigned.

cimport cython

cdef long long ALL_DONE, AHEAD, BAD, FULL, FRAME_INTEGERS, STACK_TOP
cdef unsigned int NUMERIC_SPECIAL, NUMERIC_PLUS_INFINITY, NUMERIC_MINUS_INFINITY, NUMERIC_SPECIAL_SIGNS, NUMERIC_SHORT
cdef unsigned int NUMERIC_LONG_NEGATIVE, NUMERIC_LONG_SCALE, NUMERIC_SHORT_NEGATIVE, NUMERIC_SHORT_SCALE
cdef unsigned int NUMERIC_WEIGHT_SIGN, NUMERIC_WEIGHT, GROUP_MAX, ZEROS
cdef unsigned int COUNT_MASK, FORM_OBJECT, FORM_ARRAY, FORM_SCALAR
cdef unsigned int KIND_SHIFT, STRING, NUMERIC, FALSE, TRUE, NULL, CONTAINER
cdef const unsigned char[::1] WORD_FALSE, WORD_TRUE, WORD_NULL, WORD_NAN, WORD_INFINITY, WORD_MINUS_INFINITY
cdef const unsigned char[::1] OPEN, CLOSE


@cython.locals(index="long long")
cdef inline long long write_word(const unsigned char[::1] word, long long length, unsigned char[::1] out,
                                 long long at) except? -9 nogil


@cython.locals(word="unsigned long long", tens="unsigned long long", ones="unsigned long long",
               low="unsigned long long")
cdef inline long long write_group(unsigned long long group, long long zeros, unsigned char[::1] out,
                                  long long at) except? -9 nogil


@cython.locals(head="unsigned int", first="long long", negative="unsigned int", scale="long long", weight="long long",
               groups="long long", start="long long", index="long long", group="unsigned int", zeros="long long",
               left="long long", rest="long long")
cdef inline long long write_numeric(const unsigned char[::1] data, long long location, long long size,
                                    unsigned char[::1] out, long long at) except? -9 nogil


@cython.locals(space="long long", begin="long long", length="long long", byte="unsigned char",
               letter="unsigned char", low="unsigned char")
cdef inline long long write_string(const unsigned char[::1] data, long long location, long long end,
                                   unsigned char[::1] out, long long at) except? -9 nogil


cdef long long write_numeric_value(const unsigned char[::1] data, long long location, long long size,
                                   unsigned char[::1] out, long long at) except? -9 nogil


cdef long long write_string_value(const unsigned char[::1] data, long long location, long long end,
                                  unsigned char[::1] out, long long at) except? -9 nogil


@cython.locals(first="unsigned int", length="long long", header="long long")
cdef inline long long datum_header(const unsigned char[::1] data, long long at, long long end) except? -9 nogil


@cython.locals(first="unsigned int")
cdef inline long long datum_end(const unsigned char[::1] data, long long at) except? -9 nogil


@cython.locals(node="long long", top="long long", opening=int, head="unsigned int", form="unsigned int",
               count="long long", is_object="long long", is_scalar="long long", entries="long long", base="long long",
               index="long long", entry="unsigned int", length="long long", end="long long", child="long long",
               key_at="long long", value_at="long long", start="long long", stop="long long", kind="unsigned int",
               header="long long")
cdef inline long long write_jsonb(const unsigned char[::1] data, long long location, long long size,
                                  unsigned char[::1] out, long long at, long long[::1] stack) except? -9 nogil


@cython.locals(at="long long", location="long long", written="long long")
cpdef long long build_numeric_text(const unsigned char[::1] data, const long long[::1] locations,
                                   const long long[::1] sizes, long long first, long long row, long long rows,
                                   int[::1] offsets, unsigned char[::1] out) except? -9


@cython.locals(at="long long", location="long long", written="long long")
cpdef long long build_jsonb_text(const unsigned char[::1] data, const long long[::1] locations,
                                 const long long[::1] sizes, long long first, long long row, long long rows,
                                 int[::1] offsets, unsigned char[::1] out, long long[::1] stack) except? -9
