# The types of run_index.py. Offsets and row numbers are signed; keys are signed so that -1 can mean no key.

cimport cython

cdef Py_ssize_t TO_HOFF, SHIFT, KEY_BYTES


@cython.locals(total="unsigned long long", row=Py_ssize_t)
cpdef unsigned long long sum_up(const unsigned short[::1] lengths, unsigned long long[::1] ends) except? 1


@cython.locals(row=Py_ssize_t)
cpdef int are_ascending(const unsigned long long[::1] tids) except -1


@cython.locals(at=Py_ssize_t)
cdef inline long long key_at(const unsigned char[::1] run, Py_ssize_t begin, Py_ssize_t end,
                             Py_ssize_t offset) except? -2

cdef inline Py_ssize_t slot_of(long long key, Py_ssize_t slots) except? -2


@cython.locals(slots=Py_ssize_t, count=Py_ssize_t, row=Py_ssize_t, begin=Py_ssize_t, key="long long", slot=Py_ssize_t)
cpdef Py_ssize_t chain_rows(const unsigned char[::1] run, const unsigned long long[::1] ends, Py_ssize_t offset,
                            unsigned int[::1] heads, unsigned int[::1] following) except? -2


@cython.locals(row=Py_ssize_t, begin=Py_ssize_t, found=list)
cpdef list rows_with(const unsigned char[::1] run, const unsigned long long[::1] ends, Py_ssize_t offset,
                     const unsigned int[::1] heads, const unsigned int[::1] following, long long key)
