# CRC-32C of a whole record, for the kernel: with the processor's instruction in three lanes if it has one, else with
# tables. Lanes are combined as polynomials: the CRC of bytes that n more bytes follow is multiplied by x^(8 n).

cdef extern from *:
    """
    #define TIDEMARK_POLYNOMIAL 0x82F63B78u  /* reflected: the highest bit is x^0 */
    #define TIDEMARK_HEADER 24  /* bytes of a record's header; its CRC is over what follows the header, and then */
    #define TIDEMARK_CRC_AT 20  /* over what comes before the CRC itself (test_kernel_rules compares both) */
    #define TIDEMARK_LANE 128  /* bytes: a sum of three lanes takes about what one takes alone */

    static unsigned int tidemark_tables[8][256];

    static unsigned int tidemark_times_x(unsigned int sum, int times)
    {
        for (; times > 0; times--)
            sum = (sum >> 1) ^ ((sum & 1) ? TIDEMARK_POLYNOMIAL : 0);
        return sum;
    }

    static unsigned int tidemark_by_tables(unsigned int sum, const unsigned char *at, Py_ssize_t count)
    {
        for (; count >= 8; at += 8, count -= 8) {
            sum ^= (unsigned int) at[0] | (unsigned int) at[1] << 8;
            sum ^= (unsigned int) at[2] << 16 | (unsigned int) at[3] << 24;
            sum = tidemark_tables[7][sum & 255] ^ tidemark_tables[6][sum >> 8 & 255] ^
                  tidemark_tables[5][sum >> 16 & 255] ^ tidemark_tables[4][sum >> 24] ^ tidemark_tables[3][at[4]] ^
                  tidemark_tables[2][at[5]] ^ tidemark_tables[1][at[6]] ^ tidemark_tables[0][at[7]];
        }
        for (; count > 0; at++, count--)
            sum = sum >> 8 ^ tidemark_tables[0][(sum ^ *at) & 255];
        return sum;
    }

    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>
    #define TIDEMARK_INSTRUCTION __attribute__((target("sse4.2,pclmul")))

    static unsigned int tidemark_behind_one, tidemark_behind_two;  /* lanes */

    TIDEMARK_INSTRUCTION
    static inline unsigned long long tidemark_word(const unsigned char *at)
    {
        unsigned long long word;
        memcpy(&word, at, 8);
        return word;
    }

    /* The product as a word that the instruction takes in: it multiplies by x^33 what a product of 63 bits holds. */
    TIDEMARK_INSTRUCTION
    static inline unsigned long long tidemark_product(unsigned long long sum, unsigned int power)
    {
        __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long) sum), _mm_cvtsi32_si128((int) power), 0);
        return (unsigned long long) _mm_cvtsi128_si64(product);
    }

    TIDEMARK_INSTRUCTION
    static inline unsigned int tidemark_by_instruction(unsigned int crc, const unsigned char *at, Py_ssize_t count)
    {
        unsigned long long sum = crc, second, third, word;
        unsigned int half;
        unsigned short quarter;
        int step;
        for (; count >= 3 * TIDEMARK_LANE; at += 3 * TIDEMARK_LANE, count -= 3 * TIDEMARK_LANE) {
            second = third = 0;
            for (step = 0; step < TIDEMARK_LANE - 8; step += 8) {
                sum = _mm_crc32_u64(sum, tidemark_word(at + step));
                second = _mm_crc32_u64(second, tidemark_word(at + TIDEMARK_LANE + step));
                third = _mm_crc32_u64(third, tidemark_word(at + 2 * TIDEMARK_LANE + step));
            }
            sum = _mm_crc32_u64(sum, tidemark_word(at + step));
            second = _mm_crc32_u64(second, tidemark_word(at + TIDEMARK_LANE + step));
            word = tidemark_word(at + 2 * TIDEMARK_LANE + step);
            word ^= tidemark_product(sum, tidemark_behind_two) ^ tidemark_product(second, tidemark_behind_one);
            sum = _mm_crc32_u64(third, word);
        }
        for (; count >= 8; at += 8, count -= 8)
            sum = _mm_crc32_u64(sum, tidemark_word(at));
        crc = (unsigned int) sum;
        if (count & 4) {
            memcpy(&half, at, 4);
            crc = _mm_crc32_u32(crc, half);
            at += 4;
        }
        if (count & 2) {
            memcpy(&quarter, at, 2);
            crc = _mm_crc32_u16(crc, quarter);
            at += 2;
        }
        return count & 1 ? _mm_crc32_u8(crc, *at) : crc;
    }

    TIDEMARK_INSTRUCTION
    static unsigned int tidemark_record_by_instruction(const unsigned char *record, Py_ssize_t length)
    {
        unsigned int crc = tidemark_by_instruction(~0u, record + TIDEMARK_HEADER, length - TIDEMARK_HEADER);
        return ~tidemark_by_instruction(crc, record, TIDEMARK_CRC_AT);
    }

    static int tidemark_find_instruction(void)
    {
        tidemark_behind_one = tidemark_times_x(1u << 31, 8 * TIDEMARK_LANE - 33);
        tidemark_behind_two = tidemark_times_x(1u << 31, 16 * TIDEMARK_LANE - 33);
        __builtin_cpu_init();
        return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
    }
    #else
    static int tidemark_find_instruction(void) { return 0; }
    static unsigned int tidemark_record_by_instruction(const unsigned char *record, Py_ssize_t length)
    {
        (void) record; (void) length;
        return 0;
    }
    #endif

    static int tidemark_prepare_crc(void)
    {
        unsigned int byte, table;
        for (byte = 0; byte < 256; byte++) {
            tidemark_tables[0][byte] = tidemark_times_x(byte, 8);
            for (table = 1; table < 8; table++)
                tidemark_tables[table][byte] = tidemark_times_x(tidemark_tables[table - 1][byte], 8);
        }
        return tidemark_find_instruction();
    }

    static unsigned int tidemark_record_crc(const unsigned char *record, Py_ssize_t length, int by_instruction)
    {
        unsigned int crc;
        if (by_instruction)
            return tidemark_record_by_instruction(record, length);
        crc = tidemark_by_tables(~0u, record + TIDEMARK_HEADER, length - TIDEMARK_HEADER);
        return ~tidemark_by_tables(crc, record, TIDEMARK_CRC_AT);
    }
    """
    # Must be called before the other functions; returns whether the processor has the instruction.
    int prepare_crc "tidemark_prepare_crc"() noexcept nogil
    # Of a record with its header, `length` bytes.
    unsigned int record_crc "tidemark_record_crc"(const unsigned char *record, Py_ssize_t length,
                                                  int by_instruction) noexcept nogil
