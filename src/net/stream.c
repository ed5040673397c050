/* SPDX-License-Identifier: MIT
 *
 * stream.c - connections that keep to their deadlines; see stream.h.
 *
 * A plain socket is read with a blocking recv(2) and a receive timeout: one
 * system call for an answer that is awaited, where poll and read would be two.
 * The timeout is set to a power of two below the time left, so that it is
 * almost never set again.  TLS needs poll(2), because OpenSSL must not sit in a
 * read while another thread wants to write.
 *
 * getaddrinfo(3) knows no deadline, so names are resolved in a thread that may
 * outlive the call.  Addresses are told apart first and need none.
 */
#include "stream.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/env.h"
#include "tls.h"

#include "base/banned.h"

const char *hfi_endpoint_name(const struct hfi_endpoint *to, char *buf,
                              size_t size)
{
    if (to->port)
        snprintf(buf, size, strchr(to->host, ':') ? "[%s]:%d" : "%s:%d",
                 to->host, to->port);
    else
        snprintf(buf, size, "%s", to->host);
    return buf;
}

/* ---- names ------------------------------------------------------------- */

/* Shared by the caller and the resolving thread; the last one frees it. */
struct lookup {
    pthread_mutex_t mu;
    struct hfi_cond cond;
    int users;
    bool done;
    int result;
    struct addrinfo *found;
    char host[256], port[8];
};

static void lookup_put(struct lookup *lookup)
{
    bool last;

    pthread_mutex_lock(&lookup->mu);
    last = --lookup->users == 0;
    pthread_mutex_unlock(&lookup->mu);
    if (!last)
        return;
    if (lookup->found)
        freeaddrinfo(lookup->found);
    hfi_cond_fini(&lookup->cond);
    pthread_mutex_destroy(&lookup->mu);
    hfi_free(lookup);
}

static int lookup_now(struct lookup *lookup, int flags, struct addrinfo **ret)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = flags | AI_NUMERICSERV};

    return getaddrinfo(lookup->host, lookup->port, &hints, ret);
}

static void *lookup_run(void *arg)
{
    struct lookup *lookup = arg;
    struct addrinfo *found = NULL;
    int result = lookup_now(lookup, AI_ADDRCONFIG, &found);

    pthread_mutex_lock(&lookup->mu);
    lookup->result = result;
    lookup->found = found;
    lookup->done = true;
    hfi_cond_wake(&lookup->cond);
    pthread_mutex_unlock(&lookup->mu);
    lookup_put(lookup);
    return NULL;
}

static void lookup_wait(struct lookup *lookup, int64_t deadline)
{
    struct hfi_thread thread = {0};

    lookup->users++;
    if (!hfi_thread_start(&thread, lookup_run, lookup)) {
        lookup->users--;
        lookup->result = EAI_AGAIN;
        lookup->done = true;
        return;
    }
    pthread_detach(thread.id);
    pthread_mutex_lock(&lookup->mu);
    while (!lookup->done && hfi_left_ms(deadline))
        hfi_cond_wait(&lookup->cond, &lookup->mu, deadline);
    pthread_mutex_unlock(&lookup->mu);
}

/* ---- connecting -------------------------------------------------------- */

/* Wait for `events`; false and errno at the deadline. */
static bool stream_poll(int fd, short events, int64_t deadline)
{
    struct pollfd one = {.fd = fd, .events = events};
    int64_t left;
    int n;

    do {
        left = hfi_left_ms(deadline);
        n = poll(&one, 1, left > 60000 ? 60000 : (int)left);
    } while ((n < 0 && errno == EINTR) || (n == 0 && left > 60000));
    if (n == 0)
        errno = ETIMEDOUT;
    return n > 0;
}

/* A peer that vanished is noticed within the lease, not after hours. */
static void stream_tune(int fd, int64_t alive_ms)
{
    int on = 1, user = alive_ms > INT32_MAX ? INT32_MAX : (int)alive_ms;
    int idle = user / 3000 > 0 ? user / 3000 : 1, count = 2;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user, sizeof(user));
}

/* A connected descriptor, or -1 and errno. */
static int stream_connect(int family, const struct sockaddr *to, socklen_t len,
                          int64_t deadline)
{
    int fd = hfi_off_stdio(
        socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    int bad = 0;
    socklen_t size = sizeof(bad);

    if (fd < 0)
        return -1;
    if (connect(fd, to, len) && errno != EINPROGRESS && errno != EINTR)
        bad = errno;
    else if (!stream_poll(fd, POLLOUT, deadline))
        bad = errno;
    else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &bad, &size))
        bad = errno;
    if (!bad)
        return fd;
    close(fd);
    errno = bad;
    return -1;
}

static int stream_connect_unix(const char *path, int64_t deadline)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};

    if (strlen(path) >= sizeof(to.sun_path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(to.sun_path, path, strlen(path) + 1);
    return stream_connect(AF_UNIX, (struct sockaddr *)&to, sizeof(to),
                          deadline);
}

/* Each address in turn, sharing the time that is left. */
static int stream_connect_any(const struct addrinfo *list, int64_t deadline)
{
    const struct addrinfo *at;
    int64_t now, limit;
    int fd = -1, rest = 0;

    for (at = list; at; at = at->ai_next)
        rest++;
    for (at = list; at && fd < 0; at = at->ai_next, rest--) {
        now = hfi_now();
        limit = now + (deadline - now) / rest;
        fd = stream_connect(at->ai_family, at->ai_addr, at->ai_addrlen, limit);
    }
    return fd;
}

static hf_status stream_connect_tcp(const struct hfi_endpoint *to,
                                    int64_t deadline, int *ret,
                                    struct hf_error *err)
{
    struct lookup *lookup = hfi_alloc(sizeof(*lookup));
    hf_status st = HF_OK;
    int result;

    if (!lookup)
        return hfi_nomem(err);
    pthread_mutex_init(&lookup->mu, NULL);
    hfi_cond_init(&lookup->cond);
    lookup->users = 1;
    snprintf(lookup->host, sizeof(lookup->host), "%s", to->host);
    snprintf(lookup->port, sizeof(lookup->port), "%d", to->port);
    lookup->done = !lookup_now(lookup, AI_NUMERICHOST, &lookup->found);
    if (!lookup->done)
        lookup_wait(lookup, deadline);
    pthread_mutex_lock(&lookup->mu);
    result = lookup->done ? lookup->result : EAI_AGAIN;
    pthread_mutex_unlock(&lookup->mu);
    if (result)
        st = hfi_fail(err, HF_UNAVAILABLE, "cannot find the host '%s': %s",
                      to->host, gai_strerror(result));
    else if ((*ret = stream_connect_any(lookup->found, deadline)) < 0)
        st = hfi_fail_errno(err, HF_UNAVAILABLE, errno, "cannot connect");
    lookup_put(lookup);
    return st;
}

/* ---- TLS --------------------------------------------------------------- */

/* Wait for what OpenSSL wants after a call that returned `result`. */
static bool tls_wait(struct hfi_stream *s, int why, int64_t deadline)
{
    if (why == SSL_ERROR_WANT_READ)
        return stream_poll(s->fd, POLLIN, deadline);
    if (why == SSL_ERROR_WANT_WRITE)
        return stream_poll(s->fd, POLLOUT, deadline);
    if (why == SSL_ERROR_SYSCALL && errno)
        return false;
    errno = ECONNRESET;
    return false;
}

static hf_status tls_start(struct hfi_stream *s, const struct hfi_endpoint *to,
                           int64_t deadline, struct hf_error *err)
{
    long verdict;
    int result, why;

    s->ssl = hfi_tls_begin(to->tls, s->fd, to->host);
    if (!s->ssl)
        return hfi_nomem(err);
    for (;;) {
        ERR_clear_error();
        result = SSL_connect(s->ssl);
        if (result == 1)
            return HF_OK;
        why = SSL_get_error(s->ssl, result);
        verdict = SSL_get_verify_result(s->ssl);
        /* A handshake goes on with any certificate if none is asked for. */
        if (why == SSL_ERROR_SSL && verdict != X509_V_OK)
            return hfi_fail(err, HF_DENIED,
                            "tls: the server's certificate is refused: %s",
                            X509_verify_cert_error_string(verdict));
        /* What does not speak TLS refuses nobody, it only answers or not. */
        if (why == SSL_ERROR_SSL &&
            ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_WRONG_VERSION_NUMBER)
            return hfi_tls_fail(err, HF_UNAVAILABLE, "handshake");
        if (why == SSL_ERROR_SSL)
            return hfi_tls_fail(err, HF_DENIED, "handshake");
        if (!tls_wait(s, why, deadline))
            return hfi_fail_errno(err, HF_UNAVAILABLE, errno, "tls: handshake");
    }
}

/* ---- the stream -------------------------------------------------------- */

hf_status hfi_stream_open(struct hfi_stream *s, const struct hfi_endpoint *to,
                          int64_t deadline, struct hf_error *err)
{
    hf_status st = HF_OK;

    *s = (struct hfi_stream){.fd = -1, .traffic = to->traffic};
    pthread_mutex_init(&s->ssl_mu, NULL);
    if (to->port) {
        st = stream_connect_tcp(to, deadline, &s->fd, err);
    } else {
        s->fd = stream_connect_unix(to->host, deadline);
        if (s->fd < 0)
            st = hfi_fail_errno(err, HF_UNAVAILABLE, errno, "cannot connect");
    }
    if (!st)
        stream_tune(s->fd, to->alive_ms);
    if (!st && to->tls)
        st = tls_start(s, to, deadline, err);
    else if (!st)
        fcntl(s->fd, F_SETFL, 0); /* so that recv(2) may block */
    if (st)
        hfi_stream_close(s);
    return st;
}

void hfi_stream_close(struct hfi_stream *s)
{
    if (s->ssl)
        SSL_free(s->ssl);
    if (s->fd >= 0) {
        close(s->fd);
        pthread_mutex_destroy(&s->ssl_mu);
    }
    s->ssl = NULL;
    s->fd = -1;
}

static ssize_t tls_read(struct hfi_stream *s, void *buf, size_t size,
                        int64_t deadline)
{
    int result, why;

    for (;;) {
        pthread_mutex_lock(&s->ssl_mu);
        ERR_clear_error();
        errno = 0;
        result =
            SSL_read(s->ssl, buf, size > INT32_MAX ? INT32_MAX : (int)size);
        why = SSL_get_error(s->ssl, result);
        pthread_mutex_unlock(&s->ssl_mu);
        if (result > 0)
            return result;
        if (why == SSL_ERROR_ZERO_RETURN)
            return 0;
        if (!deadline && why == SSL_ERROR_WANT_READ) {
            errno = EAGAIN;
            return -1;
        }
        if (!tls_wait(s, why, deadline))
            return -1;
    }
}

/* The largest power of two that is not more than the time left, so that calls
 * with about the same limit need to set it only once. */
static void stream_limit(struct hfi_stream *s, int64_t deadline)
{
    int64_t left = hfi_left_ms(deadline), ms = 1;
    struct timeval tv;

    while (ms * 2 <= left && ms < 65536)
        ms *= 2;
    if (ms == s->receive_ms)
        return;
    s->receive_ms = ms;
    tv.tv_sec = ms / 1000;
    tv.tv_usec = ms % 1000 * 1000;
    setsockopt(s->fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
}

static ssize_t stream_read(struct hfi_stream *s, void *buf, size_t size,
                           int64_t deadline)
{
    ssize_t got;

    if (s->ssl)
        return tls_read(s, buf, size, deadline);
    for (;;) {
        if (deadline)
            stream_limit(s, deadline);
        got = recv(s->fd, buf, size, deadline ? 0 : MSG_DONTWAIT);
        if (got >= 0 || !deadline)
            return got;
        if (errno != EINTR && errno != EAGAIN)
            return -1;
        if (!hfi_left_ms(deadline)) {
            errno = ETIMEDOUT;
            return -1;
        }
    }
}

ssize_t hfi_stream_read(struct hfi_stream *s, void *buf, size_t size,
                        int64_t deadline)
{
    ssize_t got = stream_read(s, buf, size, deadline);

    if (got > 0 && s->traffic)
        hfi_traffic_add(&s->traffic->received, (uint64_t)got);
    return got;
}

/* One write, of as much as there is room for. */
static ssize_t stream_write_some(struct hfi_stream *s, const char *from,
                                 size_t len, int64_t deadline)
{
    int result, why;
    ssize_t done;

    if (!s->ssl) {
        done = send(s->fd, from, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (done < 0 && errno == EAGAIN &&
            stream_poll(s->fd, POLLOUT, deadline))
            return 0;
        return done < 0 && errno == EINTR ? 0 : done;
    }
    pthread_mutex_lock(&s->ssl_mu);
    ERR_clear_error();
    errno = 0;
    result = SSL_write(s->ssl, from, len > INT32_MAX ? INT32_MAX : (int)len);
    why = SSL_get_error(s->ssl, result);
    pthread_mutex_unlock(&s->ssl_mu);
    if (result > 0)
        return result;
    return tls_wait(s, why, deadline) ? 0 : -1;
}

bool hfi_stream_write(struct hfi_stream *s, const void *buf, size_t len,
                      int64_t deadline)
{
    const char *from = buf;
    ssize_t done;

    if (s->traffic)
        hfi_traffic_add(&s->traffic->sent, len);
    while (len > 0) {
        done = stream_write_some(s, from, len, deadline);
        if (done < 0)
            return false;
        from += done;
        len -= (size_t)done;
    }
    return true;
}

bool hfi_stream_is_unheard(const struct hfi_stream *s)
{
    struct tcp_info info = {.tcpi_retransmits = 0};
    socklen_t size = sizeof(info);

    return !getsockopt(s->fd, IPPROTO_TCP, TCP_INFO, &info, &size) &&
           info.tcpi_retransmits > 0;
}

bool hfi_stream_is_stale(const struct hfi_stream *s)
{
    char c;

    return recv(s->fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 ||
           (errno != EAGAIN && errno != EINTR);
}
