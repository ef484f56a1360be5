# The types of deforming.py. Locations and sizes are signed (negative ones have a meaning), wire integers unsigned.

cimport cython

cdef Py_ssize_t COMPRESSED_KIND, MISSING_KIND, EXTERNAL_KIND
cdef long long AHEAD, LINE, AT_NULL, AT_MISSING, AT_EXTERNAL, ALL_DONE
cdef long long PACKED_HEADER, TUPLE_HEADER, EXTERNAL_BYTES, ARRAY_HEADER, ARRAY_DIMENSIONS, ELEMENTS_MAX
cdef unsigned int ATTRIBUTES, HAS_NULLS, EXTERNAL_TAG
cdef int VARLENA


cdef inline int fetch_tuple(const unsigned char[::1] data, long long at, long long length) except -1 nogil


@cython.locals(first="unsigned int", length="long long")
cdef inline long long datum_length(const unsigned char[::1] data, long long at, long long end) except? -2 nogil


@cython.locals(rows="long long", columns="long long", space="long long", row="long long", start="long long",
               end="long long", column="long long", slot="long long", cell="long long")
cpdef long long locate(const unsigned char[::1] data, const long long[::1] tuple_at, const long long[::1] tuple_length,
                       const int[::1] lengths, const int[::1] aligns, const int[::1] slots, long long[::1] locations,
                       long long[::1] sizes, long long[::1] absent, long long[::1] kinds) except? -2


@cython.locals(stored="long long", has_nulls="unsigned int", hoff="long long", base="long long", bitmap="long long",
               bitmap_bytes="long long", at="long long", column="long long", slot="long long", location="long long",
               length="long long", size="long long", first="unsigned int")
cdef inline int locate_row(const unsigned char[::1] data, long long start, long long end, long long row, long long rows,
                           long long columns, const int[::1] lengths, const int[::1] aligns, const int[::1] slots,
                           long long[::1] locations, long long[::1] sizes, long long[::1] absent,
                           long long[::1] kinds) except? -2 nogil


@cython.locals(cells="long long")
cpdef long long next_compressed(const long long[::1] locations, const long long[::1] sizes, long long cell) except? -2


@cython.locals(filled="long long", cell="long long")
cpdef long long fill_missing(long long[::1] locations, long long[::1] sizes, long long first, long long rows,
                             long long location, long long size) except? -2


@cython.locals(rows="long long", width="long long", marked="long long", row="long long", column="long long", found=int)
cpdef long long mark_unchanged(const long long[::1] locations, const long long[::1] tuple_at, long long columns,
                               unsigned char[::1] bitmaps, int[::1] offsets, unsigned char[::1] validity) except? -2


@cython.locals(nulls="long long", row="long long")
cpdef long long present(const long long[::1] locations, long long first, long long rows,
                        unsigned char[::1] validity) except? -2


@cython.locals(total="long long", row="long long", location="long long", size="long long", dimensions="long long",
               count="long long", index="long long")
cpdef long long measure_arrays(const unsigned char[::1] data, const long long[::1] locations,
                               const long long[::1] sizes, long long first, long long rows, int[::1] offsets) except? -2


@cython.locals(row="long long", count="long long", location="long long", origin="long long", end="long long",
               bounds_end="long long", data_offset="long long", bitmap="long long", at="long long", index="long long",
               cell="long long", size="long long", lead="long long", head="unsigned int")
cpdef long long locate_elements(const unsigned char[::1] data, const long long[::1] locations,
                                const long long[::1] sizes, long long first, long long rows, long long length,
                                long long align, const int[::1] offsets, long long[::1] element_locations,
                                long long[::1] element_sizes) except? -2


@cython.locals(row="long long", size="long long", location="long long", bounds_end="long long", at="long long",
               to="long long")
cpdef long long copy_elements(const unsigned char[::1] data, const long long[::1] locations, const long long[::1] sizes,
                              long long first, long long rows, long long length, const int[::1] offsets,
                              unsigned char[::1] out) except? -2
