/* Passes over numbers on their way to 16 bits and back, beside trainers/communicators/wire.py, which says what they are
 * for and does without them where they were not compiled or the processor lacks the instructions. No header of Python's:
 * ctypes loads this. */

#include <math.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__)

#include <cpuid.h>
#include <immintrin.h>

#define WIDTH 8
#define BLOCK 32768
#define PASS __attribute__((target("avx2,f16c")))
#define TO_NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

/* Whether the functions below may be called on this processor. */
int serves(void) {
    unsigned a, b, c, d;
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

PASS static __m128i to_float16(__m256 x) { return _mm256_cvtps_ph(x, TO_NEAREST); }

PASS static __m256 from_float16(__m128i x) { return _mm256_cvtph_ps(x); }

PASS static __m128i to_bfloat16(__m256 x) {
    __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    bits = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    bits = _mm256_srli_epi32(bits, 16);
    bits = _mm256_blendv_epi8(bits, _mm256_set1_epi32(0x7FC0), _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
    return _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
}

PASS static __m256 from_bfloat16(__m128i x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}

/* pack: packed <- values; add: values += packed; store: values <- packed. The last numbers go through eight of zero. */
#define PASSES(format)                                                                                            \
    PASS void pack_##format(const float *values, uint16_t *packed, int64_t n) {                                   \
        int64_t i = 0, j;                                                                                         \
        for (; i + WIDTH <= n; i += WIDTH)                                                                        \
            _mm_storeu_si128((__m128i *)(packed + i), to_##format(_mm256_loadu_ps(values + i)));                  \
        float rest[WIDTH] = {0};                                                                                  \
        uint16_t found[WIDTH];                                                                                    \
        for (j = i; j < n; j++) rest[j - i] = values[j];                                                          \
        _mm_storeu_si128((__m128i *)found, to_##format(_mm256_loadu_ps(rest)));                                   \
        for (j = i; j < n; j++) packed[j] = found[j - i];                                                         \
    }                                                                                                             \
    PASS static void unpack_##format(const uint16_t *packed, float *values, int64_t n, int adds) {                \
        int64_t i = 0, j;                                                                                         \
        for (; i + WIDTH <= n; i += WIDTH) {                                                                      \
            __m256 x = from_##format(_mm_loadu_si128((const __m128i *)(packed + i)));                             \
            _mm256_storeu_ps(values + i, adds ? _mm256_add_ps(_mm256_loadu_ps(values + i), x) : x);               \
        }                                                                                                         \
        uint16_t rest[WIDTH] = {0};                                                                               \
        float found[WIDTH];                                                                                       \
        for (j = i; j < n; j++) rest[j - i] = packed[j];                                                          \
        _mm256_storeu_ps(found, from_##format(_mm_loadu_si128((const __m128i *)rest)));                           \
        for (j = i; j < n; j++) values[j] = adds ? values[j] + found[j - i] : found[j - i];                       \
    }                                                                                                             \
    void add_##format(float *values, const uint16_t *packed, int64_t n) { unpack_##format(packed, values, n, 1); } \
    void store_##format(float *values, const uint16_t *packed, int64_t n) { unpack_##format(packed, values, n, 0); }

PASSES(float16)
PASSES(bfloat16)

/* The largest absolute value of these numbers, bits of float32, as such: what is no number is larger than infinity. */
PASS uint32_t largest(const uint32_t *values, int64_t n) {
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t size = values[i] & 0x7FFFFFFF;
        most = size > most ? size : most;
    }
    return most;
}

/* values *= factor; counts: of those finite that are not below the one limit, of those not zero up to the other. */
PASS void scale(float *values, int64_t n, float factor, float infinite_from, float zero_up_to, int64_t *counts) {
    for (int64_t begin = 0; begin < n; begin += BLOCK) {
        int64_t end = begin + BLOCK < n ? begin + BLOCK : n;
        int32_t overflowed = 0, flushed = 0;
        for (int64_t i = begin; i < end; i++) {
            float x = values[i] * factor, size = fabsf(x);
            values[i] = x;
            overflowed += (size >= infinite_from) & (size != INFINITY);
            flushed += (size <= zero_up_to) & (size != 0);
        }
        counts[0] += overflowed;
        counts[1] += flushed;
    }
}

#else

int serves(void) { return 0; }

#endif
