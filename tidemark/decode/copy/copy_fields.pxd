# The types of copy_fields.py. Offsets and sizes are signed, so that their differences are signed.

cimport cython

cdef Py_ssize_t DONE, NULL_BYTES, DIGITS, DAY_BYTES, SECOND_END, FRACTION_END, ZONE_BYTES
cdef long long DAY_SECONDS, USECS, NO_DAY, DAYS_TO_1970
cdef unsigned char TAB, NEWLINE, ESCAPE, NULL_LETTER, MINUS, PLUS, POINT, COLON, SPACE, DIGIT_0, DIGIT_9


@cython.locals(at=Py_ssize_t, start=Py_ssize_t, column=Py_ssize_t, field=Py_ssize_t, byte="unsigned char")
cpdef Py_ssize_t find_fields(const unsigned char[::1] lines, Py_ssize_t columns, long long[::1] ends,
                             long long[::1] sizes, unsigned char[::1] escapes) except? -2


@cython.locals(nulls=Py_ssize_t, row=Py_ssize_t, field=Py_ssize_t, start=Py_ssize_t)
cpdef Py_ssize_t find_nulls(const unsigned char[::1] lines, const long long[::1] ends, Py_ssize_t columns,
                            Py_ssize_t column, Py_ssize_t rows, unsigned char[::1] valid) except? -2


cdef inline int is_null(const unsigned char[::1] lines, Py_ssize_t start, Py_ssize_t size) except -1 nogil


@cython.locals(used=Py_ssize_t, row=Py_ssize_t, field=Py_ssize_t, start=Py_ssize_t, size=Py_ssize_t)
cpdef Py_ssize_t fill_texts(const unsigned char[::1] lines, const long long[::1] ends, Py_ssize_t columns,
                            Py_ssize_t column, Py_ssize_t rows, int has_escapes, int[::1] offsets,
                            unsigned char[::1] out) except? -2


@cython.locals(row=Py_ssize_t, field=Py_ssize_t, start=Py_ssize_t, stop=Py_ssize_t, at=Py_ssize_t, point=Py_ssize_t,
               is_negative=Py_ssize_t, value="long long")
cpdef Py_ssize_t fill_numbers(const unsigned char[::1] lines, const long long[::1] ends, Py_ssize_t columns,
                              Py_ssize_t column, Py_ssize_t rows, Py_ssize_t scale, long long limit,
                              Py_ssize_t words, long long[::1] out, int[::1] halves) except? -2


cdef inline int put_number(long long value, Py_ssize_t row, Py_ssize_t words, long long[::1] out,
                           int[::1] halves) except -1 nogil


@cython.locals(at=Py_ssize_t, byte="unsigned char")
cdef inline long long read_digits(const unsigned char[::1] lines, Py_ssize_t start, Py_ssize_t stop,
                                  long long value) except? -2 nogil


@cython.locals(row=Py_ssize_t, field=Py_ssize_t, start=Py_ssize_t, stop=Py_ssize_t, day="long long",
               second="long long", fraction="long long", digit=Py_ssize_t)
cpdef Py_ssize_t fill_instants(const unsigned char[::1] lines, const long long[::1] ends, Py_ssize_t columns,
                               Py_ssize_t column, Py_ssize_t rows, int has_zone, long long[::1] out) except? -2


@cython.locals(year="long long", month="long long", day="long long")
cdef inline long long read_day(const unsigned char[::1] lines, Py_ssize_t at) except? -2 nogil


@cython.locals(hour="long long", minute="long long", second="long long")
cdef inline long long read_second(const unsigned char[::1] lines, Py_ssize_t at) except? -2 nogil


@cython.locals(first="unsigned char", last="unsigned char")
cdef inline int copy_bytes(const unsigned char[::1] lines, Py_ssize_t start, Py_ssize_t size,
                           unsigned char[::1] out, Py_ssize_t to) except -1 nogil


@cython.locals(used=Py_ssize_t, at=Py_ssize_t, is_escaped=int, byte="unsigned char")
cdef Py_ssize_t copy_plain(const unsigned char[::1] lines, Py_ssize_t start, Py_ssize_t size,
                           unsigned char[::1] out, Py_ssize_t to) except -1 nogil


cdef unsigned char plain_byte(unsigned char byte) noexcept nogil
