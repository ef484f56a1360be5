# Tells the processor which bytes will be read soon: rows lie too far apart for it to find out by itself.

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define tidemark_prefetch(at) __builtin_prefetch(at)
    #else
    #define tidemark_prefetch(at) ((void) (at))
    #endif
    """
    void prefetch "tidemark_prefetch"(const void *at) noexcept nogil


# Starts to load the value of `cell`, or of the `last` one where `cell` is behind it.
# NB: the place of a value without bytes can be behind all bytes.
cdef inline int fetch(const unsigned char[::1] data, const long long[::1] locations, long long cell,
                      long long last) except -1 nogil:
    cdef long long place = locations[min(cell, last)]
    if 0 <= place < len(data):
        prefetch(&data[place])
    return 0
