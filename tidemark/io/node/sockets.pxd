# The socket functions that are called without the interpreter lock.

cdef extern from "<sys/socket.h>" nogil:
    enum:
        MSG_PEEK
        MSG_DONTWAIT
    Py_ssize_t recv(int descriptor, void *at, size_t size, int flags)
