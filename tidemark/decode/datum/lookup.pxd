# The types of lookup.py. Slots are signed, so that their differences are signed.

cimport cython


# NB: Cython 3.3 generates invalid C for a final class with a method that returns `long long` and an exception value.
@cython.final
cdef class IntegerMap:
    cdef public Py_ssize_t slots, used
    cdef unsigned long long[::1] keys
    cdef long long[::1] values
    cdef unsigned long long latest_key
    cdef long long latest_value

    cpdef put(self, unsigned long long key, long long value)

    cdef inline int has_space(self) except -1 nogil

    @cython.locals(slot=Py_ssize_t)
    cdef int enter(self, unsigned long long key, long long value) except -1 nogil

    cdef Py_ssize_t get(self, unsigned long long key) except? -0x7FFFFFFF nogil  # NB: small negative numbers are values

    @cython.locals(low="unsigned long long", high="unsigned long long")
    cdef inline Py_ssize_t home(self, unsigned long long key) except? -2 nogil

    @cython.locals(slot=Py_ssize_t)
    cdef inline Py_ssize_t find(self, unsigned long long key) except? -2 nogil

    @cython.locals(last=Py_ssize_t, gap=Py_ssize_t)
    cdef int forget(self, Py_ssize_t slot) except -1 nogil

    @cython.locals(keys="unsigned long long[::1]", values="long long[::1]", count=Py_ssize_t, slot=Py_ssize_t)
    cpdef grow(self)
