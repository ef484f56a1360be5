# The types of file_versions.py. OIDs are unsigned; entries can be negative.

cimport cython

from tidemark.decode.datum.lookup cimport IntegerMap


# NB: Cython 3.3 generates invalid C for a final class with a method that returns `long long` and an exception value.
@cython.final
cdef class FileVersions:
    cdef IntegerMap versions, tablespaces, passed, catalogs, catalog_tablespaces
    cdef IntegerMap own_versions, own_databases, own_tablespaces

    cpdef set(self, unsigned int spc, unsigned long long db, unsigned long long rel, long long value)

    cpdef set_own(self, unsigned long long top, unsigned int spc, unsigned int db, unsigned long long rel,
                  long long value)

    cpdef set_passed(self, unsigned int spc, unsigned long long db, unsigned long long rel)

    cpdef set_catalog(self, unsigned int spc, unsigned long long db, unsigned long long rel, long long number)

    @cython.locals(key="unsigned long long", value="long long")
    cdef Py_ssize_t of(self, long long spc, unsigned long long db, unsigned long long rel) except? -0x7FFFFFFF nogil

    @cython.locals(key="unsigned long long", value="long long", is_same=bint)
    cdef Py_ssize_t of_own(self, unsigned long long top, long long spc, unsigned long long db,
                           unsigned long long rel) except? -0x7FFFFFFF nogil

    cdef int is_passed(self, long long spc, unsigned long long db, unsigned long long rel) except -1 nogil

    @cython.locals(key="unsigned long long", value="long long")
    cdef Py_ssize_t catalog(self, long long spc, unsigned long long db,
                            unsigned long long rel) except? -0x7FFFFFFF nogil
