# The types of end_times.py. Offsets are signed, so that their differences are; wire integers are not.

cimport cython

cdef unsigned int RM_XACT, OPCODE, COMMIT, ABORT, COMMIT_PREPARED, ABORT_PREPARED, ID_MAIN_SHORT, NO_ORDINARY_TIME
cdef Py_ssize_t RECORD_HEADER, TIME_AT, TIME_END
cdef long long POSTGRES_EPOCH_US, UNREAD


@cython.locals(found=Py_ssize_t, at=Py_ssize_t, begin=Py_ssize_t, length=Py_ssize_t, opcode="unsigned int",
               main=Py_ssize_t, low="long long", high="long long", time="long long")
cpdef Py_ssize_t find_ends(const unsigned char[::1] linear, const unsigned char[::1] rmgrs,
                           const unsigned char[::1] infos, const long long[::1] offsets, const long long[::1] lengths,
                           Py_ssize_t stop, long long[::1] indices, long long[::1] times_us) except -1
