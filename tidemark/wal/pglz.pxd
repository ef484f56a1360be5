cimport cython


@cython.locals(size=Py_ssize_t, disk_space=Py_ssize_t, at=Py_ssize_t, filled=Py_ssize_t, length=Py_ssize_t,
               distance=Py_ssize_t, control="unsigned int", first="unsigned int", second="unsigned int",
               extra="unsigned int", bit=int)
cpdef bint expand(const unsigned char[::1] source, unsigned char[::1] target) except *
