# The compiled form of byte_readers.py, which has the same functions for interpreted kernels. The bodies are here so
# that every kernel inlines them: a function of another extension module is called by a pointer, for each integer.
# Both ends of an integer are checked; the bytes between them need no check.

from libc.string cimport memcpy


cdef inline unsigned int read_u16(const unsigned char[::1] data, Py_ssize_t at) except? 0xFFFFFFFF nogil:
    cdef unsigned int b0 = data[at]
    cdef unsigned int b1 = data[at + 1]
    return b0 | b1 << 8


cdef inline unsigned int read_u32(const unsigned char[::1] data, Py_ssize_t at) except? 0xFFFFFFFF nogil:
    cdef unsigned int value = data[at + 3]
    value = data[at]
    memcpy(&value, &data[at], 4)
    return value


cdef inline unsigned long long read_u64(const unsigned char[::1] data, Py_ssize_t at) except? 0xFFFFFFFF nogil:
    cdef unsigned long long value = data[at + 7]
    value = data[at]
    memcpy(&value, &data[at], 8)
    return value
