# The types of pending_children.py. Xids, slots and cells are signed: -1 means none.

cimport cython

cdef long long NOTHING


cdef class PendingChildren:
    cdef long long[::1] xids, following, latest, counts
    cdef long long free

    cdef int has_space(self) except -1 nogil

    @cython.locals(cell="long long")
    cdef int add(self, long long slot, long long xid) except -1 nogil

    cdef long long count(self, long long slot) except -1 nogil

    @cython.locals(before="long long", cell="long long")
    cdef int remove(self, long long slot, long long xid) except -1 nogil

    @cython.locals(cell="long long")
    cdef long long pop(self, long long slot) except -1 nogil

    cdef int release(self, long long slot, long long cell) except -1 nogil
