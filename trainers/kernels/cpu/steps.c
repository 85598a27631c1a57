/* An optimizer's step over float32 tensors, all at once, for trainers/kernels/cpu/compiled.py. No Python headers: ctypes
 * loads this. Tensors are cut into chunks that depend on their sizes alone, and sums of squares are added chunk by chunk:
 * the bits are the same on any number of threads. */

#include "passes.h"

#ifdef HAS_PASSES

typedef float A;
#define root __builtin_sqrtf
#include "../step_formulas.h"

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
    const float momentum = p->numbers[0], gradient_scale = p->numbers[1], step_scale = p->numbers[2];
    const float ratio = p->ratios[tensor], coupled = p->coupled * decay_of(p, tensor), shrink = p->shrink * decay_of(p, tensor);
    const int nesterov = p->numbers[3] != 0;
    (void)chunk;
#define MOMENTUM(v, nesterov) momentum_formula(w[n], v, g[n], coupled, shrink, ratio, momentum, gradient_scale, step_scale, nesterov)
    if (!v)
        for (int64_t n = 0; n < count; n++) w[n] = MOMENTUM(0, 0).w;
    else
        for (int64_t n = 0; n < count; n++) {
            struct moved now = MOMENTUM(v[n], nesterov);
            w[n] = now.w, v[n] = now.one;
        }
}

struct adam {
    float coupled, beta1, beta2, rest1, rest2, eps, m_scale, v_scale;
    int decay_in_direction;
};

static struct adam adam_of(const struct step *p, int64_t tensor) {
    const double *of = p->numbers;
    return (struct adam){p->coupled * decay_of(p, tensor), of[0], of[1], 1 - of[0], 1 - of[1], of[2], of[4], of[5], of[6] != 0};
}

#define MOMENTS(n, decay_in_direction) adam_moments(w[n], m[n], v[n], g[n], a.coupled, a.beta1, a.beta2, a.rest1, a.rest2, \
                                                    a.eps, a.m_scale, a.v_scale, decay_in_direction)
#define EACH(decay_in_direction)                                                              \
    for (int64_t n = 0; n < count; n++) {                                                     \
        struct moved now = adam_formula(w[n], MOMENTS(n, decay_in_direction), shrink, rate);  \
        w[n] = now.w, m[n] = now.one, v[n] = now.other;                                       \
    }

PASS void step_by_adam(const struct step *p, int64_t chunk, int64_t tensor, int64_t first, int64_t count) {
    float *restrict w = SHIFT(p->weights[tensor]), *restrict m = SHIFT(p->one[tensor]), *restrict v = SHIFT(p->other[tensor]);
    const float *restrict g = SHIFT(p->gradients[tensor]);
    const float rate = p->numbers[3] * p->ratios[tensor], shrink = p->shrink * decay_of(p, tensor);
    const struct adam a = adam_of(p, tensor);
    (void)chunk;
    if (a.decay_in_direction) /* two loops, which compilers vectorise */
        EACH(1)
    else
        EACH(0)
}

PASS void step_by_rmsprop(const struct step *p, int64_t chunk, int64_t tensor, int64_t first, int64_t count) {
    float *restrict w = SHIFT(p->weights[tensor]), *restrict m = SHIFT(p->one[tensor]), *restrict v = SHIFT(p->other[tensor]);
    const float *restrict g = SHIFT(p->gradients[tensor]);
    const float mu1 = p->numbers[0], mu2 = p->numbers[1], rest = 1 - p->numbers[1], eps = p->numbers[2];
    const float sgd = p->numbers[3], rmsprop = p->numbers[4], rate = p->numbers[5];
    const float coupled = p->coupled * decay_of(p, tensor), shrink = p->shrink * decay_of(p, tensor);
    (void)chunk;
    for (int64_t n = 0; n < count; n++) {
        struct moved now = rmsprop_formula(w[n], m[n], v[n], g[n], coupled, shrink, mu1, mu2, rest, eps, sgd, rmsprop, rate);
        w[n] = now.w, m[n] = now.one, v[n] = now.other;
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
#define ADAM(at) float direction = MOMENTS(at, 0).direction
#define LAMB(at) float direction = MOMENTS(at, 1).direction

PASS void norms_of_momentum(const struct step *p, int64_t chunk, int64_t tensor, int64_t first, int64_t count) {
    const float *restrict w = SHIFT(p->weights[tensor]), *restrict g = SHIFT(p->gradients[tensor]);
    NORMS(GRADIENT);
}

PASS void norms_of_adam(const struct step *p, int64_t chunk, int64_t tensor, int64_t first, int64_t count) {
    const float *restrict w = SHIFT(p->weights[tensor]), *restrict g = SHIFT(p->gradients[tensor]);
    const float *restrict m = SHIFT(p->one[tensor]), *restrict v = SHIFT(p->other[tensor]);
    const struct adam a = adam_of(p, tensor);
    if (a.decay_in_direction) {
        NORMS(LAMB);
    } else {
        NORMS(ADAM);
    }
}

FAST static double ratio_of(const struct step *p, int64_t tensor) {
    double of_w = 0, of_d = 0;
    const double *trust = p->trust;
    for (int64_t chunk = p->firsts[tensor]; chunk < p->firsts[tensor + 1]; chunk++)
        of_w += p->parts[2 * chunk], of_d += p->parts[2 * chunk + 1];
    return trust_ratio(__builtin_sqrt(of_w), __builtin_sqrt(of_d), p->lambdas[tensor], trust[0], trust[1], trust[2], trust[3],
                       trust[4], trust[5]);
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
