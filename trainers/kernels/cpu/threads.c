/* A pool of threads for compiled passes, for callers that have only Python's threads. */

#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER, ended = PTHREAD_COND_INITIALIZER;
static void (*work_at_hand)(void *); /* null: no work */
static void *data_at_hand;
static unsigned places, running, alive; /* threads that may still begin the work; that run it; that exist */

/* A forked child has none of these threads, and must not wait for a lock that another thread held. */
static void begin_anew(void) {
    pthread_mutex_t open = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t fresh = PTHREAD_COND_INITIALIZER;
    lock = open, wake = ended = fresh, work_at_hand = 0, places = running = alive = 0;
}

__attribute__((constructor)) static void once(void) { pthread_atfork(0, 0, begin_anew); }

static void *wait_for_work(void *unused) {
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!places) pthread_cond_wait(&wake, &lock);
        void (*work)(void *) = work_at_hand, *data = data_at_hand;
        places--, running++;
        pthread_mutex_unlock(&lock);
        work(data);
        pthread_mutex_lock(&lock);
        if (!--running) pthread_cond_signal(&ended);
    }
    return unused;
}

/* With all signals blocked: other threads handle them. */
static int begin_thread(void) {
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, 0, wait_for_work, 0);
    pthread_sigmask(SIG_SETMASK, &before, 0);
    if (!failed) pthread_detach(thread);
    return !failed;
}

/* As OpenMP's GOMP_parallel: work(data) here and, where they are free, on threads - 1 others; returns when all are done.
 * work must do all that is left when it is called, however many call it. */
void run_parallel(void (*work)(void *), void *data, unsigned threads, unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    int taken = work_at_hand != 0; /* by another of the caller's threads */
    if (!taken) {
        while (alive + 1 < threads && begin_thread()) alive++;
        work_at_hand = work, data_at_hand = data;
        places = alive + 1 < threads ? alive : threads - 1;
        pthread_cond_broadcast(&wake);
    }
    pthread_mutex_unlock(&lock);
    work(data);
    if (taken) return;
    pthread_mutex_lock(&lock);
    places = 0; /* nothing is left for threads that have not begun */
    while (running) pthread_cond_wait(&ended, &lock);
    work_at_hand = 0;
    pthread_mutex_unlock(&lock);
}
