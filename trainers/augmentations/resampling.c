/* Bilinear resampling of images for trainers/augmentations/resampling.py, which says what is computed and takes Pillow
 * where this does not serve. No Python headers: ctypes loads this.
 *
 * Weights are whole numbers of 22 bits and sums are exact in 32 bits, so the order of additions is free and a product
 * may be taken apart. AVX-512 multiplies bytes of pixels by the three bytes of a weight, for four neighbours at once;
 * AVX2 multiplies by the two halves of a weight, for two neighbours. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

#define BITS 22
#define HALF (1 << (BITS - 1))
#define TAPS 16     /* weights of a value, at most. Their rounding cannot lift a sum above 255: nothing is clipped */
#define GROUPS 4    /* of four weights */
#define ROWS 4      /* that go through the horizontal pass together */
#define BEYOND 128  /* bytes that a pass reads from a place on */
#define TABLE 64    /* words of a table: see plan_512 and plan_256 */
#define ALIGNED(size) (((int64_t)(size) + 63) / 64 * 64)

#define WITH_AVX512 __attribute__((target("avx512f,avx512bw,avx512vbmi,avx512vnni")))
#define WITH_AVX2 __attribute__((target("avx2")))
#define INLINE __attribute__((always_inline)) static inline

/* The widest passes below that this processor has: 512, 256 or 0. */
int serves(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni"))
        return 512;
    return __builtin_cpu_supports("avx2") ? 256 : 0;
}

INLINE int least(int a, int b) { return a < b ? a : b; }

/* One axis: value i is the sum of weights[i][t] * pixel[firsts[i] + t] over t < counts[i], in units of 2^-22. */
struct axis {
    int from, to, groups; /* of four weights */
    int32_t *firsts, *counts, (*weights)[TAPS];
};

/* A bound: a triangle is twice the scale wide. */
static int64_t most_taps(int64_t from, int64_t to) { return (2 * (from > to ? from : to) + to - 1) / to + 1; }

/* c = (i + 1/2) from / to             the middle of value i, in pixels
 * s = max(1, from / to)
 * w(t) = max(0, 1 - |firsts[i] + t + 1/2 - c| / s), divided by their sum
 *
 * The order of these operations, and so their rounding, is Pillow's. */
static void set_weights(struct axis *a) {
    double scale = (double)a->from / a->to, reach = scale < 1 ? 1 : scale, per_pixel = 1 / reach;
    int most = 1;
    for (int i = 0; i < a->to; i++) {
        double centre = (i + 0.5) * scale, sum = 0, shares[TAPS];
        int first = (int)(centre - reach + 0.5), count = least((int)(centre + reach + 0.5), a->from);
        first = first < 0 ? 0 : first, count -= first;
        for (int t = 0; t < count; t++) {
            double away = fabs((t + first - centre + 0.5) * per_pixel);
            sum += shares[t] = away < 1 ? 1 - away : 0;
        }
        a->firsts[i] = first, a->counts[i] = count, most = count > most ? count : most;
        memset(a->weights[i], 0, sizeof a->weights[i]);
        for (int t = 0; t < count; t++) a->weights[i][t] = (int32_t)(0.5 + shares[t] / sum * (1 << BITS));
    }
    a->groups = (most + 3) / 4;
}

/* Four weights w = b[0] 2^16 + b[1] 2^8 + b[2], each part in -128..127: a word has that part of all four. */
INLINE void to_bytes(const int32_t *weights, int32_t *b) {
    b[0] = b[1] = b[2] = 0;
    for (int t = 0; t < 4; t++) {
        uint32_t w = ((uint32_t)weights[t] + 0x8080) ^ 0x8080;
        for (int part = 0; part < 3; part++) b[part] |= (int32_t)((w >> (16 - 8 * part) & 255) << (8 * t));
    }
}

/* Four weights w = high 2^11 + low: a word has the high parts of two, then of the other two, then the low parts. */
INLINE void to_halves(const int32_t *w, int32_t *h) {
    for (int two = 0; two < 2; two++, w += 2) {
        h[two] = w[0] >> 11 | w[1] >> 11 << 16;
        h[2 + two] = (w[0] & 2047) | (w[1] & 2047) << 16;
    }
}

/* What the horizontal pass does with each row, group by group of four weights, block by block of values. */
struct plan {
    int channels, blocks, groups;
    int wide;         /* whether a block's pixels may lie more than 64 bytes apart */
    int32_t bytes;    /* of a row */
    int32_t *bases;   /* where in a row a group's pixels begin */
    int32_t *tables;
};

/* A block is 16 values, channels side by side. Table: the place of four bytes for each value, behind the base, then
 * each part of their weights. Returns 0 if pixels are too far apart. */
static int plan_512(struct plan *p, const struct axis *a) {
    int channels = p->channels, value = 0, steps = channels * 0x03020100, b[GROUPS][3];
    int32_t *table = p->tables - TABLE * p->groups, *bases = p->bases - p->groups;
    p->wide = 0;
    for (int x = 0; x < a->to; x++) {
        for (int group = 0; group < p->groups; group++) to_bytes(a->weights[x] + 4 * group, b[group]);
        for (int channel = 0; channel < channels; channel++, value++) {
            int lane = value % 16;
            if (lane == 0) {
                table += TABLE * p->groups, bases += p->groups;
                for (int group = 0; group < p->groups; group++)
                    bases[group] = least((a->firsts[x] + 4 * group) * channels, p->bytes);
            }
            for (int group = 0; group < p->groups; group++) {
                int place = (a->firsts[x] + 4 * group) * channels + channel - bases[group];
                int count = least(a->counts[x] - 4 * group, 4), last = count > 0 ? place + (count - 1) * channels : 0;
                if (last >= 128) return 0;
                p->wide |= last >= 64;
                table[TABLE * group + lane] = (place & 127) * 0x01010101 + steps;
                for (int part = 0; part < 3; part++) table[TABLE * group + 16 * (part + 1) + lane] = b[group][part];
            }
        }
    }
    return 1;
}

/* The part of each weight after `sum`, of all groups. */
#define ADD_512(sum, pixels, part)                              \
    for (int group = 0; group < groups; group++)                \
    sum = _mm512_dpbusd_epi32(sum, pixels, part)

WITH_AVX512 INLINE void block_rows_512(const uint8_t *const *from, uint8_t *const *to, const struct plan *p, int groups,
                                       int wide) {
    const int32_t *table = p->tables, *base = p->bases;
    for (int64_t block = 0; block < p->blocks; block++, table += groups * TABLE, base += groups) {
        __m512i pixels[GROUPS][ROWS], sums[ROWS];
        for (int group = 0; group < groups; group++)
            for (int row = 0; row < ROWS; row++) {
                const uint8_t *place = from[row] + base[group];
                __m512i places = _mm512_load_si512(table + TABLE * group), bytes = _mm512_loadu_si512(place);
                pixels[group][row] = wide ? _mm512_permutex2var_epi8(bytes, places, _mm512_loadu_si512(place + 64))
                                          : _mm512_permutexvar_epi8(places, bytes);
            }
        for (int row = 0; row < ROWS; row++) sums[row] = _mm512_set1_epi32(HALF >> 16);
        for (int part = 0; part < 3; part++)
            for (int row = 0; row < ROWS; row++) {
                if (part) sums[row] = _mm512_slli_epi32(sums[row], 8);
                ADD_512(sums[row], pixels[group][row], _mm512_load_si512(table + TABLE * group + 16 * (part + 1)));
            }
        for (int row = 0; row < ROWS; row++)
            _mm_storeu_si128((__m128i *)(to[row] + 16 * block),
                             _mm512_cvtepi32_epi8(_mm512_srli_epi32(sums[row], BITS)));
    }
}

WITH_AVX512 static void horizontal_512(const uint8_t *const *from, uint8_t *const *to, const struct plan *p) {
    if (p->wide) block_rows_512(from, to, p, p->groups, 1);
    else if (p->groups == 1) block_rows_512(from, to, p, 1, 0);
    else if (p->groups == 2) block_rows_512(from, to, p, 2, 0);
    else block_rows_512(from, to, p, p->groups, 0);
}

/* Of 64 columns in four rows, the four bytes of each column side by side: in q 4 columns of each 16. */
WITH_AVX512 INLINE void by_column_512(const uint8_t *const *rows, int64_t place, __m512i *pixels) {
    __m512i r[4], lower[2], upper[2];
    for (int t = 0; t < 4; t++) r[t] = _mm512_load_si512(rows[t] + place);
    for (int two = 0; two < 2; two++) {
        lower[two] = _mm512_unpacklo_epi8(r[2 * two], r[2 * two + 1]);
        upper[two] = _mm512_unpackhi_epi8(r[2 * two], r[2 * two + 1]);
    }
    pixels[0] = _mm512_unpacklo_epi16(lower[0], lower[1]), pixels[1] = _mm512_unpackhi_epi16(lower[0], lower[1]);
    pixels[2] = _mm512_unpacklo_epi16(upper[0], upper[1]), pixels[3] = _mm512_unpackhi_epi16(upper[0], upper[1]);
}

WITH_AVX512 INLINE void columns_512(const uint8_t *const *rows, const int32_t *b, int groups, uint8_t *to,
                                    int64_t values) {
    for (int64_t place = 0; place < values; place += 64) {
        __m512i pixels[GROUPS][4], sums[4];
        for (int group = 0; group < groups; group++) by_column_512(rows + 4 * group, place, pixels[group]);
        for (int q = 0; q < 4; q++) sums[q] = _mm512_set1_epi32(HALF >> 16);
        for (int part = 0; part < 3; part++)
            for (int q = 0; q < 4; q++) {
                if (part) sums[q] = _mm512_slli_epi32(sums[q], 8);
                ADD_512(sums[q], pixels[group][q], _mm512_set1_epi32(b[3 * group + part]));
            }
        for (int q = 0; q < 4; q++) sums[q] = _mm512_srli_epi32(sums[q], BITS);
        __m512i lower = _mm512_packus_epi32(sums[0], sums[1]), upper = _mm512_packus_epi32(sums[2], sums[3]);
        __mmask64 there = values - place >= 64 ? ~0ull : (1ull << (values - place)) - 1;
        _mm512_mask_storeu_epi8(to + place, there, _mm512_packus_epi16(lower, upper));
    }
}

WITH_AVX512 static void vertical_512(const uint8_t *const *rows, const int32_t *b, int groups, uint8_t *to,
                                     int64_t values) {
    if (groups == 1) columns_512(rows, b, 1, to, values);
    else if (groups == 2) columns_512(rows, b, 2, to, values);
    else columns_512(rows, b, groups, to, values);
}

/* A block is four pixels of three channels, of which 0 and 2 are computed side by side, and 1 and 3. Each has a base.
 * Table: each word of `to_halves` for four values of pixel 0, then of pixel 2; the same of 1 and 3. */
static int plan_256(struct plan *p, const struct axis *a) {
    int32_t *base = p->bases, *table = p->tables;
    if (p->channels != 3) return 0;
    for (int block = 0; block < p->blocks; block++)
        for (int group = 0; group < a->groups; group++, table += TABLE)
            for (int pixel = 0; pixel < 4; pixel++) {
                int x = least(4 * block + pixel, a->to - 1), h[4];
                *base++ = least((a->firsts[x] + 4 * group) * 3, p->bytes);
                to_halves(a->weights[x] + 4 * group, h);
                for (int word = 0; word < 16; word++)
                    table[32 * (pixel % 2) + 8 * (word / 4) + 4 * (pixel / 2) + word % 4] = h[word / 4];
            }
    return 1;
}

WITH_AVX2 INLINE __m256i rounded_256(__m256i high, __m256i low) {
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_slli_epi32(high, 11), low), BITS);
}

/* A sum of two products each, added to sums of high and low parts; `h` is two words of `to_halves`, 16 words apart. */
WITH_AVX2 INLINE void add_256(__m256i *high, __m256i *low, __m256i pixels, __m256i h, __m256i l) {
    *high = _mm256_add_epi32(*high, _mm256_madd_epi16(pixels, h));
    *low = _mm256_add_epi32(*low, _mm256_madd_epi16(pixels, l));
}

WITH_AVX2 static void horizontal_256(const uint8_t *const *from, uint8_t *const *to, const struct plan *p) {
    const __m256i first_two = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
    const __m256i other_two = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
    const __m256i three_of_four = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 4, 5, 6, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
    for (int row = 0; row < ROWS; row++) {
        const __m256i *table = (const __m256i *)p->tables;
        const int32_t *base = p->bases;
        for (int64_t block = 0; block < p->blocks; block++) {
            __m256i high[2], low[2];
            for (int two = 0; two < 2; two++) high[two] = _mm256_setzero_si256(), low[two] = _mm256_set1_epi32(HALF);
            for (int group = 0; group < p->groups; group++, table += TABLE / 8, base += 4)
                for (int two = 0; two < 2; two++) {
                    __m128i one = _mm_loadu_si128((const __m128i *)(from[row] + base[two]));
                    __m128i other = _mm_loadu_si128((const __m128i *)(from[row] + base[two + 2]));
                    __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(one), other, 1);
                    const __m256i *t = table + 4 * two;
                    add_256(&high[two], &low[two], _mm256_shuffle_epi8(both, first_two), t[0], t[2]);
                    add_256(&high[two], &low[two], _mm256_shuffle_epi8(both, other_two), t[1], t[3]);
                }
            __m256i words = _mm256_packus_epi32(rounded_256(high[0], low[0]), rounded_256(high[1], low[1]));
            __m256i bytes = _mm256_shuffle_epi8(_mm256_packus_epi16(words, words), three_of_four);
            _mm_storel_epi64((__m128i *)(to[row] + 12 * block), _mm256_castsi256_si128(bytes));
            _mm_storel_epi64((__m128i *)(to[row] + 12 * block + 6), _mm256_extracti128_si256(bytes, 1));
        }
    }
}

WITH_AVX2 static void vertical_256(const uint8_t *const *rows, const int32_t *h, int groups, uint8_t *to,
                                   int64_t values) {
    const __m256i zero = _mm256_setzero_si256();
    for (int64_t place = 0; place < values; place += 32) {
        __m256i high[4], low[4];
        for (int q = 0; q < 4; q++) high[q] = zero, low[q] = _mm256_set1_epi32(HALF);
        for (int two = 0; two < 2 * groups; two++) {
            __m256i one = _mm256_load_si256((const __m256i *)(rows[2 * two] + place));
            __m256i other = _mm256_load_si256((const __m256i *)(rows[2 * two + 1] + place));
            __m256i halves[2] = {_mm256_unpacklo_epi8(one, other), _mm256_unpackhi_epi8(one, other)};
            __m256i high_of = _mm256_set1_epi32(h[4 * (two / 2) + two % 2]);
            __m256i low_of = _mm256_set1_epi32(h[4 * (two / 2) + 2 + two % 2]);
            for (int q = 0; q < 4; q++)
                add_256(&high[q], &low[q],
                        q % 2 ? _mm256_unpackhi_epi8(halves[q / 2], zero) : _mm256_unpacklo_epi8(halves[q / 2], zero),
                        high_of, low_of);
        }
        for (int q = 0; q < 4; q++) low[q] = rounded_256(high[q], low[q]);
        __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(low[0], low[1]), _mm256_packus_epi32(low[2], low[3]));
        if (values - place >= 32)
            _mm256_storeu_si256((__m256i *)(to + place), bytes);
        else {
            uint8_t last[32];
            _mm256_storeu_si256((__m256i *)last, bytes);
            memcpy(to + place, last, values - place);
        }
    }
}

static void *taken(char **memory, int64_t size) {
    char *here = *memory;
    *memory += ALIGNED(size);
    return here;
}

/* An image of height rows, stride bytes apart, of width pixels of so many channels side by side; to another size,
 * without space between rows. By the passes that `serves` named, or narrower ones. Returns 0 if they do not serve the
 * image; then the result holds nothing. */
int resample(const uint8_t *from, int64_t stride, int height, int width, int channels, uint8_t *to, int to_height,
             int to_width, int passes) {
    int64_t most_x = most_taps(width, to_width), most_y = most_taps(height, to_height);
    int64_t values = (int64_t)to_width * channels, bytes = (int64_t)width * channels;
    if (most_x > TAPS || most_y > TAPS || values > 1 << 24 || bytes > 1 << 24) return 0;
    int per_block = passes == 512 ? 16 : 12, slots = most_y + ROWS <= 8 ? 8 : most_y + ROWS <= 16 ? 16 : 32;
    int64_t blocks = (values + per_block - 1) / per_block, groups = (most_x + 3) / 4;
    int64_t pitch = ALIGNED(values + 16), padded = bytes + BEYOND, both = to_width + to_height;
    char *memory = aligned_alloc(64, ALIGNED(2 * both * 4) + ALIGNED(both * TAPS * 4) + ALIGNED(blocks * groups * 16) +
                                         ALIGNED(blocks * groups * TABLE * 4) + slots * pitch + ALIGNED(ROWS * padded));
    if (!memory) return 0;
    char *place = memory;
    int32_t *spans = taken(&place, 2 * both * 4), (*weights)[TAPS] = taken(&place, both * TAPS * 4);
    struct axis x = {width, to_width, 0, spans, spans + to_width, weights};
    struct axis y = {height, to_height, 0, spans + 2 * to_width, spans + both + to_width, weights + to_width};
    set_weights(&x), set_weights(&y);
    struct plan plan = {.channels = channels, .blocks = (int)blocks, .groups = x.groups, .bytes = (int32_t)bytes};
    plan.bases = taken(&place, blocks * groups * 16), plan.tables = taken(&place, blocks * groups * TABLE * 4);
    uint8_t *ring = taken(&place, slots * pitch), *copies = taken(&place, ROWS * padded);
    int planned = passes == 512 ? plan_512(&plan, &x) : plan_256(&plan, &x);

    const uint8_t *end = from + (height - 1) * stride + bytes;
    for (int out = 0, made = 0; planned && out < to_height; out++) {
        for (; made < y.firsts[out] + y.counts[out]; made += ROWS) {
            const uint8_t *before[ROWS];
            uint8_t *after[ROWS];
            for (int row = 0; row < ROWS; row++) {
                int number = least(made + row, height - 1);
                before[row] = from + number * stride, after[row] = ring + (number & (slots - 1)) * pitch;
                if (before[row] + bytes + BEYOND > end) /* nothing is read behind the image */
                    before[row] = memcpy(copies + row * padded, before[row], bytes);
            }
            (passes == 512 ? horizontal_512 : horizontal_256)(before, after, &plan);
        }
        const uint8_t *rows[TAPS];
        int32_t parts[TAPS]; /* three or four words a group */
        for (int t = 0; t < 4 * y.groups; t++)
            rows[t] = ring + ((y.firsts[out] + (t < y.counts[out] ? t : 0)) & (slots - 1)) * pitch;
        for (int group = 0; group < y.groups; group++)
            if (passes == 512) to_bytes(y.weights[out] + 4 * group, parts + 3 * group);
            else to_halves(y.weights[out] + 4 * group, parts + 4 * group);
        (passes == 512 ? vertical_512 : vertical_256)(rows, parts, y.groups, to + out * values, values);
    }
    free(memory);
    return planned;
}

#else

int serves(void) { return 0; }

#endif
