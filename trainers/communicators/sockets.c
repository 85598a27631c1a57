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
} passing;

enum { DONE, WAITS, OUT_FAILED, IN_FAILED };

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

/* How many bytes were moved, -1 where the connection failed. */
static int64_t tried(passing *p, int64_t count) {
    if (count >= 0) return count;
    p->error = errno;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

static int send_some(passing *p) {
    int64_t count = tried(p, send(p->out, p->sent, p->num_sent, MSG_NOSIGNAL));
    if (count < 0) return OUT_FAILED;
    p->sent += count;
    p->num_sent -= count;
    return DONE;
}

static int receive_some(passing *p) {
    int64_t found = recv(p->in, p->received, p->num_received, 0), count = tried(p, found);
    if (!found) p->error = 0; /* it was closed */
    if (count < 0 || !found) return IN_FAILED;
    if (!count) return DONE;
    p->received += count;
    p->num_received -= count;
    p->last = seconds();
    if (!p->num_first) p->first = p->last, p->num_first = count;
    return DONE;
}

/* DONE; WAITS after LONGEST_MS or a signal, to be called again; or which side failed, with its errno in `error`. */
int pass_on(passing *p) {
    for (;;) {
        int failed = p->num_sent ? send_some(p) : DONE;
        if (!failed && p->num_received) failed = receive_some(p);
        if (failed || (!p->num_sent && !p->num_received)) return failed;
        int32_t low = p->num_received < p->window ? (int32_t)p->num_received : p->window;
        if (low && low != p->low && !setsockopt(p->in, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low)) p->low = low;
        struct pollfd lines[2] = {{p->out, p->num_sent ? POLLOUT : 0, 0}, {p->in, p->num_received ? POLLIN : 0, 0}};
        if (!p->num_sent) lines[0].fd = -1;
        if (!p->num_received) lines[1].fd = -1;
        if (poll(lines, 2, LONGEST_MS) <= 0) return WAITS;
    }
}
