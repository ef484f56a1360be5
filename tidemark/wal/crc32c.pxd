# CRC-32C of a whole record by the processor's own instruction, for the kernel. Where there is none, `page` asks the
# library: a call of it costs more than the sum over a short record, but works anywhere.

cdef extern from *:
    """
    #if defined(__x86_64__) && defined(__GNUC__)
    __attribute__((target("sse4.2")))
    static unsigned int tidemark_crc32c(unsigned int crc, const unsigned char *at, Py_ssize_t count)
    {
        unsigned long long sum = crc, word;
        for (; count >= 8; at += 8, count -= 8) {
            memcpy(&word, at, 8);
            sum = __builtin_ia32_crc32di(sum, word);
        }
        crc = (unsigned int) sum;
        for (; count > 0; at++, count--)
            crc = __builtin_ia32_crc32qi(crc, *at);
        return crc;
    }
    static int tidemark_has_crc32c(void)
    {
        __builtin_cpu_init();
        return __builtin_cpu_supports("sse4.2") ? 1 : 0;
    }
    #else
    static unsigned int tidemark_crc32c(unsigned int crc, const unsigned char *at, Py_ssize_t count)
    {
        (void) at; (void) count;
        return crc;
    }
    static int tidemark_has_crc32c(void) { return 0; }
    #endif
    """
    # Goes on with the inverted CRC over `count` bytes.
    unsigned int instruction_crc "tidemark_crc32c"(unsigned int crc, const unsigned char *at,
                                                   Py_ssize_t count) noexcept nogil
    int has_instruction "tidemark_has_crc32c"() noexcept nogil
