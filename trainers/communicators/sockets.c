/* Send on one socket and receive on another at the same time, for trainers/communicators/tcp_ring.py, which does it in
 * Python where this was not compiled. No Python headers: ctypes loads this. */

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <sys/socket.h>
#include <time.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif
#define LONGEST_MS 100

/* Non-blocking sockets; what is still to be sent and received; when the first bytes arrived, how many they were, and
 * when the last ones arrived. */
typedef struct {
    int32_t out, in, window, low, error;
    const char *sent;
    char *received;
    int64_t num_sent, num_received, num_first;
    double first, last;
} transfer;

enum { DONE, WAITS, OUT_FAILED, IN_FAILED };

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

/* How many bytes were moved, -1 where the connection failed. */
static int64_t num_moved(transfer *t, int64_t count) {
    if (count >= 0) return count;
    t->error = errno;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

static int send_some(transfer *t) {
    int64_t count = num_moved(t, send(t->out, t->sent, t->num_sent, MSG_NOSIGNAL));
    if (count < 0) return OUT_FAILED;
    t->sent += count;
    t->num_sent -= count;
    return DONE;
}

static int receive_some(transfer *t) {
    int64_t result = recv(t->in, t->received, t->num_received, 0), count = num_moved(t, result);
    if (!result) t->error = 0; /* it was closed */
    if (count < 0 || !result) return IN_FAILED;
    if (!count) return DONE;
    t->received += count;
    t->num_received -= count;
    t->last = seconds();
    if (!t->num_first) t->first = t->last, t->num_first = count;
    return DONE;
}

/* DONE; WAITS after LONGEST_MS or a signal, to be called again; or which side failed, with its errno in `error`. */
int send_and_receive(transfer *t) {
    for (;;) {
        int failed = t->num_sent ? send_some(t) : DONE;
        if (!failed && t->num_received) failed = receive_some(t);
        if (failed || (!t->num_sent && !t->num_received)) return failed;
        int32_t low = t->num_received < t->window ? (int32_t)t->num_received : t->window;
        if (low && low != t->low && !setsockopt(t->in, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low)) t->low = low;
        struct pollfd lines[2] = {{t->out, t->num_sent ? POLLOUT : 0, 0}, {t->in, t->num_received ? POLLIN : 0, 0}};
        if (!t->num_sent) lines[0].fd = -1;
        if (!t->num_received) lines[1].fd = -1;
        if (poll(lines, 2, LONGEST_MS) <= 0) return WAITS;
    }
}
