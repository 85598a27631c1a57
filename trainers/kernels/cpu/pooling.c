/* Max pooling of float32 images with their channels last, for trainers/kernels/cpu/pooling.py, which says what it computes.
 * No Python headers: ctypes loads this. An image is computed by one thread: the bits are the same on any number. */

#include "passes.h"

#ifdef HAS_PASSES

struct windows {
    int64_t images, height, width, channels, out_height, out_width;
    int64_t kernel[2], stride[2], pad[2];
    parallel_t parallel;
    unsigned threads;
    const float *x, *gy; /* (images, height, width, channels); of the output: (images, out_height, out_width, channels) */
    float *y, *gx;
    uint8_t *places; /* in its window, of each value of the output */
};

#define LANES 8 /* channels that are computed at once */
typedef float values __attribute__((vector_size(4 * LANES)));
typedef int32_t numbers __attribute__((vector_size(4 * LANES)));
typedef uint8_t bytes __attribute__((vector_size(LANES)));

/* A window's part within the image: its pixels, of which the first is `at`, and place `first` of the window. */
struct part {
    int64_t at, rows, columns, first;
};

INLINE struct part part_of(const struct windows *w, int64_t number, int64_t row, int64_t column) {
    int64_t size[2] = {w->height, w->width}, out[2] = {row, column}, from[2], start[2], count[2];
    for (int axis = 0; axis < 2; axis++) {
        int64_t first = out[axis] * w->stride[axis] - w->pad[axis];
        from[axis] = first < 0 ? 0 : first;
        start[axis] = from[axis] - first;
        int64_t to = first + w->kernel[axis] < size[axis] ? first + w->kernel[axis] : size[axis];
        count[axis] = to - from[axis];
    }
    int64_t at = ((number * w->height + from[0]) * w->width + from[1]) * w->channels;
    return (struct part){at, count[0], count[1], start[0] * w->kernel[1] + start[1]};
}

INLINE numbers where(numbers all_bits, numbers this, numbers other) { return (all_bits & this) | (~all_bits & other); }

/* `count` channels from `c` on, at most LANES, of a window's largest values and their places. */
INLINE void largest_of(const struct windows *w, struct part part, int64_t window, int64_t c, int64_t count) {
    values y = {0};
    numbers places = {0};
    y -= __builtin_inff();
    for (int64_t j = 0; j < part.rows; j++) {
        const float *at = w->x + part.at + j * w->width * w->channels + c;
        int32_t place = part.first + j * w->kernel[1];
        for (int64_t i = 0; i < part.columns; i++, at += w->channels, place++) {
            values x = {0};
            __builtin_memcpy(&x, at, count * sizeof(float));
            numbers more = (x > y) | (x != x), here = {0}; /* NaN stays */
            y = (values)where(more, (numbers)x, (numbers)y);
            places = where(more, here + place, places);
        }
    }
    bytes narrow = __builtin_convertvector(places, bytes);
    __builtin_memcpy(w->y + window + c, &y, count * sizeof(float));
    __builtin_memcpy(w->places + window + c, &narrow, count);
}

/* Adds the gradients of a window, of some channels, where they belong. */
INLINE void add_back(const struct windows *w, struct part part, int64_t window, int64_t c, int64_t count) {
    numbers gy = {0};
    bytes narrow = {0};
    __builtin_memcpy(&gy, w->gy + window + c, count * sizeof(float));
    __builtin_memcpy(&narrow, w->places + window + c, count);
    numbers places = __builtin_convertvector(narrow, numbers);
    for (int64_t j = 0; j < part.rows; j++) {
        float *at = w->gx + part.at + j * w->width * w->channels + c;
        int32_t place = part.first + j * w->kernel[1];
        for (int64_t i = 0; i < part.columns; i++, at += w->channels, place++) {
            values gx = {0};
            __builtin_memcpy(&gx, at, count * sizeof(float));
            gx += (values)((places == place) & gy);
            __builtin_memcpy(at, &gx, count * sizeof(float));
        }
    }
}

#define EACH_WINDOW(call)                                                                          \
    for (int64_t row = 0; row < w->out_height; row++)                                              \
        for (int64_t column = 0; column < w->out_width; column++) {                                \
            struct part part = part_of(w, number, row, column);                                    \
            int64_t c = 0, channels = w->channels;                                                 \
            int64_t window = ((number * w->out_height + row) * w->out_width + column) * channels; \
            for (; c + LANES <= channels; c += LANES) call(w, part, window, c, LANES);             \
            if (c < channels) call(w, part, window, c, channels - c);                              \
        }

PASS void pool(const void *data, int64_t number) {
    const struct windows *w = data;
    EACH_WINDOW(largest_of)
}

PASS void pool_back(const void *data, int64_t number) {
    const struct windows *w = data;
    int64_t size = w->height * w->width * w->channels;
    __builtin_memset(w->gx + number * size, 0, size * sizeof(float));
    EACH_WINDOW(add_back)
}

FAST void max_pooling(const struct windows *w) { share(pool, w, w->images, 0, w->parallel, w->threads); }

FAST void max_pooling_gradient(const struct windows *w) { share(pool_back, w, w->images, 0, w->parallel, w->threads); }

#endif
