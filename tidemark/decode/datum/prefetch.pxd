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
