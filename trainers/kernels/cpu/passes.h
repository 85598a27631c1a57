/* What compiled passes share: what they are compiled for, and the threads that work through their parts. */

#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__)

#define HAS_PASSES
#define FAST __attribute__((target("avx2,fma")))
#define PASS FAST static
#define INLINE FAST __attribute__((always_inline)) static inline
#ifdef __clang__ /* before a loop: what it writes does not alias what it reads */
#define APART _Pragma("clang loop vectorize(assume_safety)")
#else
#define APART _Pragma("GCC ivdep")
#endif
#define VERSION 5 /* of the library's interface: as in trainers/kernels/cpu/compiled.py */

/* OpenMP's GOMP_parallel: calls work(data) on so many threads at once, and waits for all. */
typedef void (*parallel_t)(void (*work)(void *), void *data, unsigned threads, unsigned flags);

struct parts {
    void (*work)(const void *of, int64_t number);
    const void *of;
    int64_t count, next;
    int backwards;
};

static void take_parts(void *data) {
    struct parts *p = data;
    int64_t number;
    while ((number = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED)) < p->count)
        p->work(p->of, p->backwards ? p->count - 1 - number : number);
}

/* Calls work(of, number) once with each number below count, on so many threads; returns when all is done. */
static void share(void (*work)(const void *of, int64_t number), const void *of, int64_t count, int backwards,
                  parallel_t parallel, unsigned threads) {
    struct parts parts = {.work = work, .of = of, .count = count, .backwards = backwards};
    if (threads > 1 && parallel && count > 1)
        parallel(take_parts, &parts, threads, 0);
    else
        take_parts(&parts);
}

#endif
