# The types of catalog_rows.py.

cimport cython

from tidemark.decode.transactions.record_parts cimport RecordParts

cdef Py_ssize_t SPACE, PACKED_HEADER
cdef long long WHOLE_RECORD
cdef unsigned int RM_HEAP, RM_HEAP2, OPCODE, HEAP_INSERT, HEAP_DELETE, HEAP2_MULTI_INSERT, INIT_PAGE, TUPLE_HEADER


@cython.final
cdef class CatalogRows:
    cdef RecordParts parts
    cdef long long[::1] records, xids, files, tids, starts, lengths
    cdef readonly Py_ssize_t count

    @cython.locals(at=Py_ssize_t, start=Py_ssize_t)
    cpdef list take(self, bytearray linear, list files)

    @cython.locals(opcode="unsigned int", main_length=Py_ssize_t, length=Py_ssize_t)
    cdef int hold_record(self, Py_ssize_t record, long long xid, long long file, unsigned int rmgr,
                         unsigned int info) except -1 nogil

    @cython.locals(tid="long long")
    cdef int hold_row(self, Py_ssize_t record, long long xid, long long file, Py_ssize_t offset_at, Py_ssize_t at,
                      Py_ssize_t length) except -1 nogil

    @cython.locals(count=Py_ssize_t, before=Py_ssize_t, has_offsets=bint, at=Py_ssize_t, stop=Py_ssize_t,
                   item=Py_ssize_t, length=Py_ssize_t, offset="long long")
    cdef int hold_inserts(self, Py_ssize_t record, long long xid, long long file, unsigned int info) except -1 nogil

    @cython.locals(at=Py_ssize_t)
    cdef int hold(self, Py_ssize_t record, long long xid, long long file, long long tid, Py_ssize_t start,
                  Py_ssize_t length) except -1 nogil
