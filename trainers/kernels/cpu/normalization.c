/* Batch normalisation's passes over float32 rows of channels, for trainers/kernels/cpu/compiled_normalization.py, which says what
 * they compute. No Python headers: ctypes loads this. A group is cut into parts that depend on its size alone, and their
 * sums are added in a fixed order: the bits are the same on any number of threads. */

#include "passes.h"

#ifdef HAS_PASSES

#define TOGETHER 4 /* rows processed in one loop over the channels */

typedef const float *restrict given;

/* What is the same in all calls on arrays (groups, rows, channels). */
struct shape {
    int64_t groups, rows, channels, parts; /* parts of each group */
    parallel_t parallel;
};

struct pass {
    struct shape of;
    unsigned threads;
    const float *x, *plus, *gy, *y;             /* (groups, rows, channels) */
    float *out, *counted;                       /* the same */
    const float *mean, *inv_std, *gamma, *beta; /* (groups, channels) */
    double *sums;                               /* (groups, parts, 2, channels) */
    float *about, *times, *slope, *level;       /* (groups, channels) */
    int relu;
    void (*run)(const struct pass *, int64_t group, int64_t part, int64_t first, int64_t last);
};

#define EACH(c) (int64_t c = 0; c < channels; c++)
#define AT(array) (p->array + (group * p->of.rows + row) * p->of.channels)
#define OF(array) (p->array + group * p->of.channels)
#define SUMS (p->sums + group * p->of.parts * 2 * p->of.channels)

/* memory: float64 (2 * parts + 2, groups, channels). scales, or null: see whole_scales. */
static struct pass pass_of(const struct shape *of, unsigned threads, const float *x, const float *scales, double *memory) {
    int64_t size = of->groups * of->channels, sums = of->parts * 2 * size;
    struct pass p = {.of = *of, .threads = threads, .x = x, .sums = memory};
    p.about = (float *)(memory + sums), p.times = p.about + size, p.slope = p.times + size, p.level = p.slope + size;
    if (!scales) return p;
    p.mean = scales, p.inv_std = scales + size, p.gamma = scales + 2 * size, p.beta = scales + 3 * size;
    for (int64_t n = 0; n < size; n++) p.times[n] = p.gamma[n] * p.inv_std[n];
    return p;
}

static void take_part(const void *data, int64_t number) {
    const struct pass *p = data;
    int64_t group = number / p->of.parts, part = number % p->of.parts;
    p->run(p, group, part, p->of.rows * part / p->of.parts, p->of.rows * (part + 1) / p->of.parts);
}

/* Runs the pass over all parts; backwards, it begins with those that the pass before left in the caches. */
static void go_over(const struct pass *p, int backwards) {
    share(take_part, p, p->of.groups * p->of.parts, backwards, p->of.parallel, p->threads);
}

/* Adds the sums of each group's parts into those of its first part. */
static void add_parts(const struct pass *p) {
    int64_t width = 2 * p->of.channels;
    for (int64_t group = 0; group < p->of.groups; group++)
        for (int64_t part = 1; part < p->of.parts; part++)
            for (int64_t n = 0; n < width; n++) SUMS[n] += SUMS[part * width + n];
}

/* Two sums over a part's rows, `one` and `other`: `add` adds a few rows from `row` on, summed in float32. */
#define SUM(add)                                                                                            \
    int64_t channels = p->of.channels, row = first;                                                         \
    double *restrict one = p->sums + (group * p->of.parts + part) * 2 * channels, *restrict other = one + channels; \
    for EACH(c) one[c] = other[c] = 0;                                                                      \
    for (; row + TOGETHER <= last; row += TOGETHER) add(p, group, row, TOGETHER, one, other);               \
    for (; row < last; row++) add(p, group, row, 1, one, other);

INLINE void add_moments(const struct pass *p, int64_t group, int64_t row, int rows, double *restrict one,
                        double *restrict other) {
    int64_t channels = p->of.channels;
    given x = AT(x), about = OF(about);
    for EACH(c) {
        float sum = 0, squares = 0;
        for (int r = 0; r < rows; r++) {
            float away = x[r * channels + c] - about[c];
            sum += away;
            squares += away * away;
        }
        one[c] += sum;
        other[c] += squares;
    }
}

PASS void moments(const struct pass *p, int64_t group, int64_t part, int64_t first, int64_t last) { SUM(add_moments) }

/* Moments are taken about an estimate of the mean, from a few rows all over the group, to lose little in squares. */
PASS void guess_means(const struct pass *p) {
    int64_t channels = p->of.channels, count = p->of.rows < 16 ? p->of.rows : 16;
    for (int64_t group = 0; group < p->of.groups; group++) {
        float *restrict about = OF(about);
        for EACH(c) about[c] = 0;
        for (int64_t n = 0; n < count; n++) {
            int64_t row = p->of.rows * n / count + n * 7919 % (p->of.rows / count); /* not one pixel of all images */
            given x = AT(x);
            for EACH(c) about[c] += x[c] / count;
        }
    }
}

/* Into the sums, (groups, parts, 2, channels): in the first part of each group its mean and biased variance. */
FAST void mean_and_variance(const struct shape *of, unsigned threads, const float *x, double *memory) {
    struct pass pass = pass_of(of, threads, x, 0, memory), *p = &pass;
    int64_t channels = of->channels;
    guess_means(p);
    pass.run = moments;
    go_over(p, 0);
    add_parts(p);
    for (int64_t group = 0; group < p->of.groups; group++) {
        double *restrict mean = SUMS, *restrict var = mean + channels;
        given about = OF(about);
        for EACH(c) {
            double away = mean[c] / p->of.rows, left = var[c] / p->of.rows - away * away;
            mean[c] = about[c] + away;
            var[c] = left < 0 ? 0 : left; /* NaN stays NaN */
        }
    }
}

/* scales, (4, groups, channels): mean, 1 / deviation, gamma, beta. seen, or null: as norm_statistics.Seen has it; what each group
 * adds goes `apart` numbers after that of the group before, with 0 into the same sums. */
FAST void whole_scales(const struct shape *of, unsigned threads, const float *x, given gamma, given beta, double eps,
                       float *scales, const double *weights, double *seen, int64_t apart, double factor, double *memory) {
    struct pass pass = pass_of(of, threads, x, 0, memory), *p = &pass;
    int64_t channels = of->channels, size = of->groups * channels;
    mean_and_variance(of, threads, x, memory);
    for (int64_t group = 0; group < of->groups; group++) {
        const double *restrict mean = SUMS, *restrict var = mean + channels;
        float *restrict out = scales + group * channels, least = eps;
        for EACH(c) out[c] = mean[c];
        for EACH(c) out[size + c] = 1 / __builtin_sqrtf((float)var[c] + least);
        for EACH(c) out[2 * size + c] = gamma[c];
        for EACH(c) out[3 * size + c] = beta[c];
        if (!seen) continue;
        double weight = weights[group], *restrict sums = seen + group * apart + 1;
        sums[-1] += weight;
        for EACH(c) sums[c] += weight * mean[c];
        for EACH(c) sums[channels + c] += weight * (factor * var[c]);
        for EACH(c) sums[2 * channels + c] += weight * (mean[c] * mean[c]);
    }
}

PASS void normalize(const struct pass *p, int64_t group, int64_t part, int64_t first, int64_t last) {
    int64_t channels = p->of.channels;
    given mean = OF(mean), times = OF(times), beta = OF(beta);
    float least = p->relu ? 0 : -__builtin_inff();
    (void)part;
    for (int64_t row = first; row < last; row++) {
        given x = AT(x);
        float *restrict out = AT(out);
        if (p->plus) {
            given plus = AT(plus);
            for EACH(c) {
                float value = __builtin_fmaf(x[c] - mean[c], times[c], beta[c]) + plus[c];
                out[c] = value < least ? least : value;
            }
        } else
            for EACH(c) {
                float value = __builtin_fmaf(x[c] - mean[c], times[c], beta[c]);
                out[c] = value < least ? least : value;
            }
    }
}

void normalized(const struct shape *of, unsigned threads, const float *x, const float *scales, const float *plus, int relu,
                float *out, double *memory) {
    struct pass p = pass_of(of, threads, x, scales, memory);
    p.plus = plus, p.relu = relu, p.out = out, p.run = normalize;
    go_over(&p, 1);
}

/* came where y is above 0, else 0; without a branch, so that the compiler vectorises it. */
INLINE float where_above(float y, float came) {
    union {
        float number;
        uint32_t bits;
    } counts = {came};
    counts.bits &= -(uint32_t)(y > 0);
    return counts.number;
}

INLINE void add_all(const struct pass *p, int64_t group, int64_t row, int rows, double *restrict one,
                    double *restrict other) {
    int64_t channels = p->of.channels;
    given x = AT(x), gy = AT(gy), mean = OF(mean);
    for EACH(c) {
        float sum = 0, product = 0;
        for (int r = 0; r < rows; r++) {
            float came = gy[r * channels + c];
            sum += came;
            product += came * (x[r * channels + c] - mean[c]);
        }
        one[c] += sum;
        other[c] += product;
    }
}

/* Adds gy where normalised x is above 0: ReLU's mask, computed again. */
INLINE void add_above(const struct pass *p, int64_t group, int64_t row, int rows, double *restrict one,
                      double *restrict other) {
    int64_t channels = p->of.channels;
    given x = AT(x), gy = AT(gy), mean = OF(mean), times = OF(times), beta = OF(beta);
    for EACH(c) {
        float sum = 0, product = 0;
        for (int r = 0; r < rows; r++) {
            float away = x[r * channels + c] - mean[c];
            float counts = where_above(__builtin_fmaf(away, times[c], beta[c]), gy[r * channels + c]);
            sum += counts;
            product += counts * away;
        }
        one[c] += sum;
        other[c] += product;
    }
}

/* Adds gy where y is above 0, and writes it to counted. */
INLINE void add_where(const struct pass *p, int64_t group, int64_t row, int rows, double *restrict one,
                      double *restrict other) {
    int64_t channels = p->of.channels;
    given x = AT(x), gy = AT(gy), y = AT(y), mean = OF(mean);
    float *restrict counted = AT(counted);
    APART
    for EACH(c) {
        float sum = 0, product = 0;
        for (int r = 0; r < rows; r++) {
            int64_t n = r * channels + c;
            float counts = where_above(y[n], gy[n]);
            counted[n] = counts;
            sum += counts;
            product += counts * (x[n] - mean[c]);
        }
        one[c] += sum;
        other[c] += product;
    }
}

INLINE void add_values(const struct pass *p, int64_t group, int64_t row, int rows, double *restrict one,
                       double *restrict other) {
    int64_t channels = p->of.channels;
    given x = AT(x);
    (void)other;
    for EACH(c) {
        float sum = 0;
        for (int r = 0; r < rows; r++) sum += x[r * channels + c];
        one[c] += sum;
    }
}

PASS void sum_values(const struct pass *p, int64_t group, int64_t part, int64_t first, int64_t last) { SUM(add_values) }

/* Over each group's rows: out, (groups, channels). */
FAST void row_sums(const struct shape *of, unsigned threads, const float *x, float *out, double *memory) {
    struct pass pass = pass_of(of, threads, x, 0, memory), *p = &pass;
    int64_t channels = of->channels;
    pass.run = sum_values;
    go_over(p, 0);
    add_parts(p);
    for (int64_t group = 0; group < of->groups; group++)
        for EACH(c) out[group * channels + c] = SUMS[c];
}

PASS void sum_all(const struct pass *p, int64_t group, int64_t part, int64_t first, int64_t last) { SUM(add_all) }
PASS void sum_above(const struct pass *p, int64_t group, int64_t part, int64_t first, int64_t last) { SUM(add_above) }
PASS void sum_where(const struct pass *p, int64_t group, int64_t part, int64_t first, int64_t last) { SUM(add_where) }

/* gy * times - ((x - mean) * slope + level); where relu, of the gy that sum_above counts. */
PASS void input_gradient(const struct pass *p, int64_t group, int64_t part, int64_t first, int64_t last) {
    int64_t channels = p->of.channels;
    given mean = OF(mean), times = OF(times), beta = OF(beta), slope = OF(slope), level = OF(level);
    (void)part;
    for (int64_t row = first; row < last; row++) {
        given x = AT(x), gy = AT(gy);
        float *restrict out = AT(out);
        if (p->relu)
            for EACH(c) {
                float away = x[c] - mean[c], counts = where_above(__builtin_fmaf(away, times[c], beta[c]), gy[c]);
                out[c] = counts * times[c] - (away * slope[c] + level[c]);
            }
        else
            for EACH(c) out[c] = gy[c] * times[c] - ((x[c] - mean[c]) * slope[c] + level[c]);
    }
}

/* From the sums that `gradients` left in memory, or those of whole groups of `rows` rows that replaced them. */
FAST void input_gradients(const struct shape *of, unsigned threads, const float *gy, const float *x, int relu,
                          const float *scales, double rows, float *gx, double *memory) {
    struct pass pass = pass_of(of, threads, x, scales, memory), *p = &pass;
    int64_t channels = of->channels;
    pass.gy = gy, pass.relu = relu, pass.out = gx, pass.run = input_gradient;
    for (int64_t group = 0; group < of->groups; group++) {
        const double *restrict of_beta = SUMS, *restrict of_gamma = of_beta + channels;
        given inv_std = OF(inv_std), times = OF(times);
        float *restrict slope = OF(slope), *restrict level = OF(level);
        for EACH(c) slope[c] = (double)times[c] * inv_std[c] * inv_std[c] * of_gamma[c] / rows;
        for EACH(c) level[c] = times[c] * of_beta[c] / rows;
    }
    go_over(p, 1);
}

/* of_parameters: each group's gradients of gamma and beta, (groups, 2, channels). gx: null where x has parts of groups. */
FAST void gradients(const struct shape *of, unsigned threads, const float *gy, const float *x, const float *y, int relu,
                    const float *scales, float *counted, float *gx, float *restrict of_parameters, double *memory) {
    struct pass pass = pass_of(of, threads, x, scales, memory), *p = &pass;
    int64_t channels = of->channels;
    pass.gy = gy, pass.y = y, pass.counted = counted, pass.run = y ? sum_where : relu ? sum_above : sum_all;
    go_over(p, 0);
    add_parts(p);
    for (int64_t group = 0; group < of->groups; group++) {
        const double *restrict of_beta = SUMS, *restrict of_gamma = of_beta + channels;
        given inv_std = OF(inv_std);
        float *restrict out = of_parameters + 2 * group * channels;
        for EACH(c) out[c] = of_gamma[c] * inv_std[c];
        for EACH(c) out[channels + c] = of_beta[c];
    }
    if (gx) input_gradients(of, threads, y ? counted : gy, x, relu && !y, scales, (double)of->rows, gx, memory);
}

#endif
