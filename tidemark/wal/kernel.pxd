# The types of kernel.py. LSNs and offsets are signed, since their differences are; `page` keeps LSNs below 2^63.
# Of the wire's integers, only a system identifier needs its highest bit; a negative prev or address is invalid.

cimport cython

cdef int BAD_MAGIC, BAD_INFO, BAD_ADDRESS, BAD_TIMELINE, BAD_SYSTEM, BAD_SEGMENT, BAD_BLOCK, BAD_LONG
cdef int BAD_MISSING, BAD_UNEXPECTED, BAD_REM_LEN, BAD_LENGTH, BAD_RMGR, BAD_PREV, BAD_CRC, BAD_OVERWRITTEN, BAD_START
cdef int CRC_IN_LOOP, CRC_INSTRUCTION
cdef Py_ssize_t PAGE, SHORT_HEADER, LONG_HEADER, RECORD_HEADER, CRC_AT, RECORD_MAX, OVERWRITE_BYTES
cdef unsigned int SEGMENT_MIN, SEGMENT_MAX
cdef unsigned int FIRST_IS_CONTRECORD, LONG_PAGE_HEADER, OVERWRITE_CONTRECORD, ALL_PAGE_FLAGS
cdef unsigned int SWITCH_INFO, OVERWRITE_INFO


@cython.final
cdef class Scanner:
    cdef const unsigned char[::1] source
    cdef unsigned char[::1] linear
    cdef readonly unsigned int magic, rmgr_last, rmgr_custom
    cdef public unsigned int segment_bytes, timeline_max, timeline
    cdef public unsigned long long system_identifier
    cdef public long long lsn, skip_to, start_lsn, record_lsn, end_lsn, prev_lsn, overwritten_lsn
    cdef public bint started, start_found, by_instruction
    cdef public Py_ssize_t foreign, used, record, total, found, length
    cdef readonly Py_ssize_t count, left_out, found_bytes
    cdef public const unsigned char[::1] quiet
    cdef public int defect
    cdef public long long defect_lsn

    @cython.locals(size=Py_ssize_t, limit=Py_ssize_t, consumed=Py_ssize_t, at_row=Py_ssize_t,
                   xid="unsigned int", last_xid="unsigned int", rmgr="unsigned char")
    cpdef Py_ssize_t scan(self, const unsigned char[::1] source, Py_ssize_t at, unsigned char[::1] linear,
                          long long[::1] lsns, long long[::1] ends, unsigned int[::1] xids,
                          unsigned char[::1] rmgrs, unsigned char[::1] infos, long long[::1] offsets,
                          long long[::1] lengths) except -1

    @cython.locals(left=Py_ssize_t, ahead=Py_ssize_t, in_page=Py_ssize_t, consumed=Py_ssize_t)
    cdef Py_ssize_t copy_page(self, Py_ssize_t at, Py_ssize_t size) except -1 nogil

    cdef int fail(self, int defect, long long lsn) noexcept nogil

    @cython.locals(magic="unsigned int", info="unsigned int", timeline="unsigned int", address="long long",
                   rem_len="unsigned int", length=Py_ssize_t)
    cdef Py_ssize_t read_page_header(self, Py_ssize_t at,
                                     Py_ssize_t size) except -1 nogil

    @cython.locals(system_identifier="unsigned long long", segment_bytes="unsigned int", block_bytes="unsigned int")
    cdef int check_long_header(self, Py_ssize_t at,
                               Py_ssize_t length) except -1 nogil

    @cython.locals(continued="unsigned int", inside=bint, sound=bint)
    cdef int check_contrecord(self, unsigned int info, Py_ssize_t rem_len) noexcept nogil

    @cython.locals(begin=Py_ssize_t, there=Py_ssize_t, total=Py_ssize_t, aligned=Py_ssize_t, lsn="long long",
                   switched=bint, overwrites=bint, info="unsigned int", rmgr="unsigned int")
    cdef int walk(self) except -1 nogil

    @cython.locals(prev="long long")
    cdef int check_record_header(self, unsigned int rmgr) except -1 nogil

    @cython.locals(named="long long")
    cdef int names_overwritten(self) except -1 nogil

    @cython.locals(total=Py_ssize_t)
    cdef int read_length(self, Py_ssize_t there) except -1 nogil

    @cython.locals(gap="long long")
    cdef int is_start(self) noexcept nogil

    @cython.locals(stored="unsigned int", last=int)
    cdef int check_crc(self) except -1 nogil
