# Operations on contiguous bytes, many bytes at once: a loop in Cython reads each byte and checks its index.
# NB: nothing is checked here. The caller must have checked the indexes of the first and last byte.

cdef extern from *:
    """
    #include <string.h>

    #define TIDEMARK_BYTES(byte) (0x0101010101010101ull * (byte))
    #define TIDEMARK_HIGH_BITS TIDEMARK_BYTES(0x80)
    #define TIDEMARK_SHORT 16  /* bytes: copied as fast as one */

    /* Report if no byte has its highest bit set. */
    static inline int tidemark_is_ascii(const unsigned char *at, Py_ssize_t count)
    {
        unsigned long long words[4], seen[4] = {0, 0, 0, 0};
        unsigned int rest = 0;
        for (; count >= 32; at += 32, count -= 32) {
            memcpy(words, at, 32);
            for (int word = 0; word < 4; word++)
                seen[word] |= words[word];
        }
        for (; count > 0; at++, count--)
            rest |= *at;
        return ((seen[0] | seen[1] | seen[2] | seen[3]) & TIDEMARK_HIGH_BITS) == 0 && (rest & 0x80) == 0;
    }

    /* Return how many of `count` bytes come before the first one that JSON escapes: a control character, a quote, a
       backslash. There are `space` to read, which may be more. */
    static inline Py_ssize_t tidemark_plain_bytes(const unsigned char *at, Py_ssize_t count, Py_ssize_t space)
    {
        Py_ssize_t plain = 0;
        unsigned long long word, quote, backslash;
        for (; plain < count && space - plain >= 8; plain += 8) {
            memcpy(&word, at + plain, 8);
            if (count - plain < 8)  /* what follows is none of them */
                word = (word & ~(~0ull << (count - plain) * 8)) | TIDEMARK_BYTES('x') << (count - plain) * 8;
            quote = word ^ TIDEMARK_BYTES('"');
            backslash = word ^ TIDEMARK_BYTES('\\\\');
            if ((((word - TIDEMARK_BYTES(0x20)) & ~word) | ((quote - TIDEMARK_BYTES(1)) & ~quote) |
                 ((backslash - TIDEMARK_BYTES(1)) & ~backslash)) & TIDEMARK_HIGH_BITS)
                break;
        }
        while (plain < count && at[plain] >= 0x20 && at[plain] != '"' && at[plain] != '\\\\')
            plain++;
        return plain < count ? plain : count;
    }

    /* Copy bytes; there are `from_space` to read and `to_space` to write, which may be more. */
    static inline void tidemark_copy(unsigned char *to, Py_ssize_t to_space, const unsigned char *from,
                                     Py_ssize_t from_space, Py_ssize_t count)
    {
        if (count <= TIDEMARK_SHORT && from_space >= TIDEMARK_SHORT && to_space >= TIDEMARK_SHORT) {
            unsigned char bytes[TIDEMARK_SHORT];
            memcpy(bytes, from, TIDEMARK_SHORT);
            memcpy(to, bytes, TIDEMARK_SHORT);
        } else {
            memcpy(to, from, (size_t) count);
        }
    }

    /* Four bytes to eight hexadecimal digits: nibbles are spread, and those over 9 moved on to the letters. */
    static inline void tidemark_hex(char *to, const unsigned char *from)
    {
        unsigned int four;
        unsigned long long word;
        memcpy(&four, from, 4);
        word = four;
        word = (word | word << 16) & 0x0000FFFF0000FFFFull;
        word = (word | word << 8) & 0x00FF00FF00FF00FFull;
        word = (word >> 4 & 0x000F000F000F000Full) | (word & 0x000F000F000F000Full) << 8;
        word += TIDEMARK_BYTES('0') + ((word + TIDEMARK_BYTES(6)) >> 4 & TIDEMARK_BYTES(1)) * ('a' - '9' - 1);
        memcpy(to, &word, 8);
    }

    /* Write 16 bytes as the 36 of a UUID's text. */
    static inline void tidemark_uuid(unsigned char *to, const unsigned char *from)
    {
        char digits[32];
        for (int four = 0; four < 4; four++)
            tidemark_hex(digits + four * 8, from + four * 4);
        memcpy(to, digits, 8);
        memcpy(to + 9, digits + 8, 4);
        memcpy(to + 14, digits + 12, 4);
        memcpy(to + 19, digits + 16, 4);
        memcpy(to + 24, digits + 20, 12);
        to[8] = to[13] = to[18] = to[23] = '-';
    }
    """
    int every_ascii "tidemark_is_ascii"(const unsigned char *at, Py_ssize_t count) noexcept nogil
    Py_ssize_t plain_bytes "tidemark_plain_bytes"(const unsigned char *at, Py_ssize_t count,
                                                  Py_ssize_t space) noexcept nogil
    void copy_within "tidemark_copy"(unsigned char *to, Py_ssize_t to_space, const unsigned char *source,
                                     Py_ssize_t from_space, Py_ssize_t count) noexcept nogil
    void uuid_text "tidemark_uuid"(unsigned char *to, const unsigned char *source) noexcept nogil
