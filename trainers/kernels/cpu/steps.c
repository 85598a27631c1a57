/* An optimizer's step over float32 tensors, all at once, for trainers/kernels/cpu/compiled.py; formulas and names:
 * trainers/kernels/optimizer_steps.py. No Python headers: ctypes loads this. Tensors are cut into chunks that depend on their sizes
 * alone, and sums of squares are added chunk by chunk: the bits are the same on any number of threads. */

#include "passes.h"

#ifdef HAS_PASSES

#define SHIFT(values) ((values) + first)

/* The library's version where this processor can run it, else 0. */
int serves(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? VERSION : 0;
}

enum { MOMENTUM, ADAM, RMSPROP };

struct step {
    const int64_t *chunks, *firsts;  /* (count, 3): tensor, first and end of its values; the first chunk of each tensor */
    float *const *weights, *const *gradients, *const *one, *const *other; /* of each tensor; one and other: states, or null */
    const double *lambdas;           /* decay of each tensor; below 0: exempt */
    const double *numbers, *trust;   /* of the form; of its trust ratio, or null */
    double *parts, *ratios;          /* memory: (count, 2), (tensors,) */
    uint8_t *finite;                 /* of each chunk */
    double coupled, shrink;
    int64_t count, tensors, form, threads;
    parallel_t parallel;
    void (*run)(const struct step *, int64_t chunk, int64_t tensor, int64_t first, int64_t count);
};

static void take_chunk(const void *data, int64_t number) {
    const struct step *p = data;
    const int64_t *chunk = p->chunks + 3 * number;
    p->run(p, number, chunk[0], chunk[1], chunk[2] - chunk[1]);
}

static void go_over(const struct step *p) { share(take_chunk, p, p->count, 0, p->parallel, (unsigned)p->threads); }

static double decay_of(const struct step *p, int64_t tensor) { return p->lambdas[tensor] > 0 ? p->lambdas[tensor] : 0; }

PASS void step_by_momentum(const struct step *p, int64_t chunk, int64_t tensor, int64_t first, int64_t count) {
    float *restrict w = SHIFT(p->weights[tensor]), *restrict v = p->one ? SHIFT(p->one[tensor]) : 0;
    const float *restrict g = SHIFT(p->gradients[tensor]);
    const float keep = p->numbers[0], within = p->numbers[1], beside = p->numbers[2], ratio = p->ratios[tensor];
    const float more = p->coupled * decay_of(p, tensor), less = p->shrink * decay_of(p, tensor);
    (void)chunk;
    if (!v)
        for (int64_t n = 0; n < count; n++)
            w[n] = w[n] - less * w[n] - beside * (within * (ratio * (g[n] + more * w[n])));
    else if (p->numbers[3])
        for (int64_t n = 0; n < count; n++) {
            float d = within * (ratio * (g[n] + more * w[n]));
            v[n] = keep * v[n] + d;
            w[n] = w[n] - less * w[n] - beside * (keep * v[n] + d);
        }
    else
        for (int64_t n = 0; n < count; n++) {
            v[n] = keep * v[n] + within * (ratio * (g[n] + more * w[n]));
            w[n] = w[n] - less * w[n] - beside * v[n];
        }
}

struct adam {
    float beta1, beta2, rest1, rest2, eps, over_m, over_v, outside, inside; /* decay of w in g, and in the direction */
};

static struct adam adam_of(const struct step *p, int64_t tensor) {
    const double *of = p->numbers;
    float decay = p->coupled * decay_of(p, tensor), inside = of[6] ? decay : 0;
    return (struct adam){of[0], of[1], 1 - of[0], 1 - of[1], of[2], of[4], of[5], decay - inside, inside};
}

#define MOMENTS(a, w, g, m, v)                                                   \
    float slope = g + a.outside * w, mean = a.beta1 * m + a.rest1 * slope;       \
    float square = a.beta2 * v + a.rest2 * (slope * slope);                      \
    float direction = mean * a.over_m / (__builtin_sqrtf(square * a.over_v) + a.eps) + a.inside * w

PASS void step_by_adam(const struct step *p, int64_t chunk, int64_t tensor, int64_t first, int64_t count) {
    float *restrict w = SHIFT(p->weights[tensor]), *restrict m = SHIFT(p->one[tensor]), *restrict v = SHIFT(p->other[tensor]);
    const float *restrict g = SHIFT(p->gradients[tensor]);
    const float by = p->numbers[3] * p->ratios[tensor], less = p->shrink * decay_of(p, tensor);
    const struct adam a = adam_of(p, tensor);
    (void)chunk;
    for (int64_t n = 0; n < count; n++) {
        MOMENTS(a, w[n], g[n], m[n], v[n]);
        m[n] = mean;
        v[n] = square;
        w[n] = w[n] - less * w[n] - by * direction;
    }
}

PASS void step_by_rmsprop(const struct step *p, int64_t chunk, int64_t tensor, int64_t first, int64_t count) {
    float *restrict w = SHIFT(p->weights[tensor]), *restrict m = SHIFT(p->one[tensor]), *restrict v = SHIFT(p->other[tensor]);
    const float *restrict g = SHIFT(p->gradients[tensor]);
    const float mu1 = p->numbers[0], mu2 = p->numbers[1], rest = 1 - p->numbers[1], eps = p->numbers[2];
    const float sgd = p->numbers[3], rmsprop = p->numbers[4], rate = p->numbers[5];
    const float more = p->coupled * decay_of(p, tensor), less = p->shrink * decay_of(p, tensor);
    (void)chunk;
    for (int64_t n = 0; n < count; n++) {
        float slope = g[n] + more * w[n];
        m[n] = mu2 * m[n] + rest * (slope * slope);
        v[n] = mu1 * v[n] - (sgd + rmsprop / (__builtin_sqrtf(m[n]) + eps)) * slope;
        w[n] = w[n] - less * w[n] + rate * v[n];
    }
}

enum { LANES = 16 };

/* Sums of squares of w and of the direction over a chunk, into parts; `direct` computes the direction at value n. */
#define NORMS(direct)                                                            \
    double of_w[LANES] = {0}, of_d[LANES] = {0}, sum_w = 0, sum_d = 0;           \
    for (int64_t begin = 0; begin + LANES <= count; begin += LANES)              \
        for (int lane = 0; lane < LANES; lane++) ADD(direct, begin + lane, lane) \
    for (int64_t n = count - count % LANES; n < count; n++) ADD(direct, n, 0)    \
    for (int lane = 0; lane < LANES; lane++) sum_w += of_w[lane], sum_d += of_d[lane]; \
    p->parts[2 * chunk] = sum_w, p->parts[2 * chunk + 1] = sum_d

#define ADD(direct, place, lane)                         \
    {                                                    \
        int64_t at = place;                              \
        direct(at);                                      \
        of_w[lane] += (double)w[at] * w[at];             \
        of_d[lane] += (double)direction * direction;     \
    }

#define GRADIENT(at) float direction = g[at]
#define MOMENTS_AT(at) MOMENTS(a, w[at], g[at], m[at], v[at])

PASS void norms_of_momentum(const struct step *p, int64_t chunk, int64_t tensor, int64_t first, int64_t count) {
    const float *restrict w = SHIFT(p->weights[tensor]), *restrict g = SHIFT(p->gradients[tensor]);
    NORMS(GRADIENT);
}

PASS void norms_of_adam(const struct step *p, int64_t chunk, int64_t tensor, int64_t first, int64_t count) {
    const float *restrict w = SHIFT(p->weights[tensor]), *restrict g = SHIFT(p->gradients[tensor]);
    const float *restrict m = SHIFT(p->one[tensor]), *restrict v = SHIFT(p->other[tensor]);
    const struct adam a = adam_of(p, tensor);
    NORMS(MOMENTS_AT);
}

/* A tensor's trust ratio from parts; 1 if it is exempt from decay, or a norm is 0. */
static double ratio_of(const struct step *p, int64_t tensor) {
    double of_w = 0, of_d = 0, coefficient = p->trust[0], decay_in_trust = p->trust[1], eps = p->trust[2];
    double clip_rate = p->trust[3], low = p->trust[4], high = p->trust[5];
    for (int64_t chunk = p->firsts[tensor]; chunk < p->firsts[tensor + 1]; chunk++)
        of_w += p->parts[2 * chunk], of_d += p->parts[2 * chunk + 1];
    of_w = __builtin_sqrt(of_w), of_d = __builtin_sqrt(of_d);
    if (p->lambdas[tensor] < 0 || of_w == 0 || of_d == 0) return 1;
    double against = of_d + decay_in_trust * p->lambdas[tensor] * of_w + eps;
    double ratio = coefficient * (of_w < low ? low : of_w > high ? high : of_w) / (against == 0 ? 1 : against);
    if (clip_rate <= 0) return ratio;
    return (ratio > clip_rate ? clip_rate : ratio) / clip_rate;
}

void optimizer_step(struct step *p) {
    if (p->trust) {
        p->run = p->form == ADAM ? norms_of_adam : norms_of_momentum;
        go_over(p);
    }
    for (int64_t tensor = 0; tensor < p->tensors; tensor++) p->ratios[tensor] = p->trust ? ratio_of(p, tensor) : 1;
    p->run = p->form == ADAM ? step_by_adam : p->form == RMSPROP ? step_by_rmsprop : step_by_momentum;
    go_over(p);
}

PASS void look(const struct step *p, int64_t chunk, int64_t tensor, int64_t first, int64_t count) {
    const uint32_t *restrict bits = (const uint32_t *)SHIFT(p->weights[tensor]), exponent = 0x7f800000;
    uint32_t bad = 0;
    for (int64_t n = 0; n < count; n++) bad |= (bits[n] & exponent) == exponent;
    p->finite[chunk] = !bad;
}

/* Whether each chunk of the weights is finite. */
void find_finite(struct step *p) {
    p->run = look;
    go_over(p);
}

#else

int serves(void) { return 0; }

#endif
