/* Passes that convert numbers to 16 bits and back, for trainers/communicators/wire.py, which says what they compute and
 * uses NumPy where they were not compiled or the processor lacks instructions. No Python headers: ctypes loads this. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)

#include <cpuid.h>
#include <immintrin.h>

#define WIDTH 8
#define BLOCK 32768
#define PASS __attribute__((target("avx2,f16c")))
#define EIGHT PASS __attribute__((always_inline)) static inline
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

/* A factor, the limits of what is counted as in `scale`, and eight counters each, to which a counted number adds -1. */
typedef struct {
    __m256 factor, infinite_from, zero_up_to;
    __m256i overflowed, flushed;
} pass;

EIGHT __m256 scaled(pass *p, const float *values) {
    __m256 x = _mm256_mul_ps(_mm256_loadu_ps(values), p->factor), size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
    __m256 finite = _mm256_cmp_ps(size, _mm256_set1_ps(INFINITY), _CMP_NEQ_OQ);
    __m256 something = _mm256_cmp_ps(size, _mm256_setzero_ps(), _CMP_NEQ_OQ);
    __m256 large = _mm256_cmp_ps(size, p->infinite_from, _CMP_GE_OQ);
    __m256 small = _mm256_cmp_ps(size, p->zero_up_to, _CMP_LE_OQ);
    p->overflowed = _mm256_add_epi32(p->overflowed, _mm256_castps_si256(_mm256_and_ps(large, finite)));
    p->flushed = _mm256_add_epi32(p->flushed, _mm256_castps_si256(_mm256_and_ps(small, something)));
    return x;
}

PASS static int64_t counted(__m256i sums) {
    int32_t parts[WIDTH];
    int64_t total = 0;
    _mm256_storeu_si256((__m256i *)parts, sums);
    for (int i = 0; i < WIDTH; i++) total -= parts[i];
    return total;
}

/* pack: packed <- values * factor; add: values <- values * factor + packed; both count.
 * store: values <- packed * factor. */
#define EIGHTS(format)                                                                                            \
    EIGHT void pack_##format(pass *p, float *values, uint16_t *packed) {                                          \
        _mm_storeu_si128((__m128i *)packed, to_##format(scaled(p, values)));                                      \
    }                                                                                                             \
    EIGHT void add_##format(pass *p, float *values, uint16_t *packed) {                                           \
        __m256 received = from_##format(_mm_loadu_si128((__m128i *)packed));                                      \
        _mm256_storeu_ps(values, _mm256_add_ps(scaled(p, values), received));                                     \
    }                                                                                                             \
    EIGHT void store_##format(pass *p, float *values, uint16_t *packed) {                                         \
        __m256 received = from_##format(_mm_loadu_si128((__m128i *)packed));                                      \
        _mm256_storeu_ps(values, _mm256_mul_ps(received, p->factor));                                             \
    }

EIGHTS(float16)
EIGHTS(bfloat16)

/* One of these over n values; the last n % 8 go through a block of eight padded with zeros. */
#define SCALED(way)                                                                                               \
    PASS void scaled_##way(float *values, uint16_t *packed, int64_t n, float factor, float infinite_from,         \
                           float zero_up_to, int64_t *counts) {                                                   \
        pass p = {_mm256_set1_ps(factor), _mm256_set1_ps(infinite_from), _mm256_set1_ps(zero_up_to),              \
                  _mm256_setzero_si256(), _mm256_setzero_si256()};                                                \
        int64_t whole = n - n % WIDTH, rest = n - whole;                                                          \
        for (int64_t i = 0; i < whole; i += WIDTH) way(&p, values + i, packed + i);                               \
        float few[WIDTH] = {0};                                                                                   \
        uint16_t few_packed[WIDTH] = {0};                                                                         \
        memcpy(few, values + whole, rest * sizeof *few);                                                          \
        memcpy(few_packed, packed + whole, rest * sizeof *few_packed);                                            \
        way(&p, few, few_packed);                                                                                 \
        memcpy(values + whole, few, rest * sizeof *few);                                                          \
        memcpy(packed + whole, few_packed, rest * sizeof *few_packed);                                            \
        counts[0] += counted(p.overflowed);                                                                       \
        counts[1] += counted(p.flushed);                                                                          \
    }

SCALED(pack_float16)
SCALED(add_float16)
SCALED(store_float16)
SCALED(pack_bfloat16)
SCALED(add_bfloat16)
SCALED(store_bfloat16)

/* The largest absolute value of float32 numbers given and returned as bits; compared so, NaN is above infinity. */
PASS uint32_t largest(const uint32_t *values, int64_t n) {
    uint32_t maximum = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t size = values[i] & 0x7FFFFFFF;
        maximum = size > maximum ? size : maximum;
    }
    return maximum;
}

/* values *= factor; adds to counts how many finite ones are at least infinite_from, how many nonzero ones at most
 * zero_up_to, by absolute value. */
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
