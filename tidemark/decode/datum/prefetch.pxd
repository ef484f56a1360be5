# Prefetches bytes that will be read soon: rows are too far apart for the processor's own prefetching.

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define tidemark_prefetch(at) __builtin_prefetch(at)
    #else
    #define tidemark_prefetch(at) ((void) (at))
    #endif
    """
    void prefetch "tidemark_prefetch"(const void *at) noexcept nogil


# Starts to load the value of `cell`, or of `last` if `cell` is after it.
# NB: the offset of an empty value can be the end of the buffer.
cdef inline int fetch(const unsigned char[::1] data, const long long[::1] locations, long long cell,
                      long long last) except -1 nogil:
    cdef long long location = locations[min(cell, last)]
    if 0 <= location < len(data):
        prefetch(&data[location])
    return 0
