/* SPDX-License-Identifier: MIT
 *
 * http.c - the listener, and who answers.
 *
 *   GET  /             the page; it has no data, so it needs no token
 *   GET  /events       the table and its changes (stream.c)
 *   GET  /api/locks    the table, once
 *   GET  /api/holders  ?service=N&key=K: every holder of one lock, and
 *                      who waits for it
 *   POST /api/break    ?run=R&service=N&endpoint=E&key=K&fence=F, with
 *                      --allow-break
 *   GET  /metrics      for Prometheus
 *   GET  /healthz      200 if every service answers, else 503
 *
 * Who may ask is decided in gate.c.
 *
 * INVARIANT  Connections, their memory and their time are limited: one on which
 * nothing moves is closed after HTTP_QUIET_S, and of those that are slow none keeps
 * others out (door.c).
 */
#include "serve.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "page.h"

#define HTTP_CONNECTIONS 256u
#define HTTP_PER_ADDRESS 128u
#define HTTP_QUIET_S     10u
#define HTTP_MEMORY      (96 * 1024) /* of each */
#define HTTP_ARGUMENTS   64

static struct MHD_Daemon *http_daemon;
static const struct serve_opts *http_opts;

struct http_answer {
    struct MHD_Response *response;
    unsigned status;
};

static struct http_answer http_text(unsigned status, const char *type,
                                    const char *text, size_t len)
{
    struct http_answer ret = {.status = status};

    ret.response = MHD_create_response_from_buffer(len, (void *)(uintptr_t)text,
                                                   MHD_RESPMEM_MUST_COPY);
    if (ret.response)
        MHD_add_response_header(ret.response, "Content-Type", type);
    return ret;
}

static struct http_answer http_refuse(unsigned status, const char *text)
{
    return http_text(status, "text/plain; charset=utf-8", text, strlen(text));
}

/* ---- who answers --------------------------------------------------------- */

/* The page, with a word that its own script and style carry and nobody else can
 * guess. */
static struct http_answer http_page(void)
{
    unsigned char random[16] = {0};
    char nonce[2 * sizeof(random) + 1], policy[256], *text = NULL;
    const char *at = serve_page, *mark;
    struct http_answer ret;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);

    if (!out || getrandom(random, sizeof(random), 0) != sizeof(random)) {
        if (out)
            fclose(out);
        free(text);
        return http_refuse(MHD_HTTP_INTERNAL_SERVER_ERROR, "no randomness\n");
    }
    for (size_t i = 0; i < sizeof(random); i++)
        snprintf(nonce + 2 * i, 3, "%02x", random[i]);
    for (; (mark = strstr(at, "@NONCE@")); at = mark + 7)
        fprintf(out, "%.*s%s", (int)(mark - at), at, nonce);
    fputs(at, out);
    fclose(out);
    snprintf(policy, sizeof(policy),
             "default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; "
             "connect-src 'self'; base-uri 'none'; form-action 'none'; "
             "frame-ancestors 'none'",
             nonce, nonce);
    ret = http_text(MHD_HTTP_OK, "text/html; charset=utf-8", text, len);
    if (ret.response)
        MHD_add_response_header(ret.response, "Content-Security-Policy",
                                policy);
    free(text);
    return ret;
}

static struct http_answer http_locks(void)
{
    struct http_answer ret = {serve_snapshot(http_opts->allow_break),
                              MHD_HTTP_OK};

    return ret.response
               ? ret
               : http_refuse(MHD_HTTP_SERVICE_UNAVAILABLE, "out of memory\n");
}

static struct http_answer http_metrics(void)
{
    struct http_answer ret = {.status = MHD_HTTP_OK};
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);

    if (!out)
        return http_refuse(MHD_HTTP_SERVICE_UNAVAILABLE, "out of memory\n");
    serve_metrics(out, http_opts);
    fclose(out);
    ret.response =
        MHD_create_response_from_buffer(len, text, MHD_RESPMEM_MUST_FREE);
    if (ret.response)
        MHD_add_response_header(ret.response, "Content-Type",
                                "text/plain; version=0.0.4; charset=utf-8");
    else
        free(text);
    return ret;
}

static struct http_answer http_health(void)
{
    bool up = true;

    pthread_mutex_lock(&serve_table.mu);
    for (int i = 0; i < serve_table.nservices; i++)
        up = up && serve_table.services[i].up;
    pthread_mutex_unlock(&serve_table.mu);
    return up ? http_refuse(MHD_HTTP_OK, "ok\n")
              : http_refuse(MHD_HTTP_SERVICE_UNAVAILABLE,
                            "a service does not answer\n");
}

static const char *http_query(struct MHD_Connection *connection,
                              const char *name)
{
    return MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, name);
}

/* A number that is nothing but digits. */
static bool http_number(const char *text, uint64_t *ret)
{
    char *end;

    if (!text || !*text || strspn(text, "0123456789") != strlen(text))
        return false;
    errno = 0;
    *ret = strtoull(text, &end, 10);
    return !errno;
}

/* The key of a query, any bytes but NUL; NULL if it is none. */
static const char *http_key(struct MHD_Connection *connection)
{
    static const char name[] = "key";
    const char *key = NULL;
    size_t len = 0;

    MHD_lookup_connection_value_n(connection, MHD_GET_ARGUMENT_KIND, name,
                                  sizeof(name) - 1, &key, &len);
    return key && len > 0 && len <= HF_KEY_MAX && !memchr(key, 0, len) ? key
                                                                       : NULL;
}

/* Begin what asks a service; the answer comes when the connection goes on. */
static struct http_answer http_act(struct MHD_Connection *connection,
                                   bool breaks, void **state)
{
    const char *key = http_key(connection);
    uint64_t service = 0, fence = 0;
    struct serve_act *act;

    if (breaks && !http_opts->allow_break)
        return http_refuse(MHD_HTTP_FORBIDDEN,
                           "start holdfast serve with --allow-break\n");
    if (breaks && !serve_gate_origin(connection))
        return http_refuse(MHD_HTTP_FORBIDDEN,
                           "this request does not come from our page\n");
    if (!key || !http_number(http_query(connection, "service"), &service) ||
        service >= (uint64_t)http_opts->services ||
        (breaks &&
         (!http_number(http_query(connection, "fence"), &fence) || fence == 0)))
        return http_refuse(MHD_HTTP_BAD_REQUEST,
                           "service, key or fence is missing or wrong\n");
    if (http_opts->prefix &&
        strncmp(key, http_opts->prefix, strlen(http_opts->prefix)) != 0)
        return http_refuse(MHD_HTTP_NOT_FOUND,
                           "this key is not shown here: see --prefix\n");
    if (!serve_gate_service(connection, (int)service, breaks))
        return http_refuse(MHD_HTTP_CONFLICT,
                           "this is not the service that was shown: look "
                           "again\n");
    act = serve_act_new(connection, (int)service, key, fence, breaks);
    if (act) {
        *state = act; /* Otherwise this request is still to be answered. */
        return (struct http_answer){.response = NULL};
    }
    return http_refuse(MHD_HTTP_SERVICE_UNAVAILABLE,
                       "too many requests at once; try again\n");
}

static struct http_answer http_route(struct MHD_Connection *connection,
                                     const char *path, const char *method,
                                     void **state)
{
    bool head = !strcmp(method, MHD_HTTP_METHOD_HEAD); /* has no body */
    bool get = head || !strcmp(method, MHD_HTTP_METHOD_GET);

    if (!serve_gate_host(connection, http_opts))
        return http_refuse(MHD_HTTP_MISDIRECTED_REQUEST,
                           "unknown host name; see --host in "
                           "holdfast-serve(1)\n");
    if (get && !strcmp(path, "/"))
        return http_page();
    if (get && !strcmp(path, "/healthz"))
        return http_health();
    if (!serve_gate_token(connection, http_opts))
        return http_refuse(MHD_HTTP_UNAUTHORIZED, "a token is needed\n");
    if (head && !strcmp(path, "/events"))
        return http_text(MHD_HTTP_OK, "text/event-stream", "", 0);
    if (get && !strcmp(path, "/events")) {
        struct http_answer ret = {
            serve_stream(connection, http_opts->allow_break), MHD_HTTP_OK};

        serve_door_reads(connection, ret.response != NULL);
        return ret.response ? ret
                            : http_refuse(MHD_HTTP_SERVICE_UNAVAILABLE,
                                          "too many streams\n");
    }
    if (get && !strcmp(path, "/api/locks"))
        return http_locks();
    if (get && !strcmp(path, "/metrics"))
        return http_metrics();
    if (get && !strcmp(path, "/api/holders"))
        return http_act(connection, false, state);
    if (!strcmp(method, MHD_HTTP_METHOD_POST) && !strcmp(path, "/api/break"))
        return http_act(connection, true, state);
    if (!get && strcmp(method, MHD_HTTP_METHOD_POST))
        return http_refuse(MHD_HTTP_METHOD_NOT_ALLOWED, "not allowed\n");
    return http_refuse(MHD_HTTP_NOT_FOUND, "there is nothing here\n");
}

static enum MHD_Result http_send(struct MHD_Connection *connection,
                                 struct http_answer answer)
{
    static const char *const headers[][2] = {
        {"X-Content-Type-Options", "nosniff"},
        {"Referrer-Policy", "no-referrer"},
        {"Cache-Control", "no-store"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
        {"X-Frame-Options", "DENY"},
    };
    enum MHD_Result ret;

    if (!answer.response)
        return MHD_NO;
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++)
        MHD_add_response_header(answer.response, headers[i][0], headers[i][1]);
    if (answer.status == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(answer.response, "WWW-Authenticate", "Bearer");
    if (answer.status == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(answer.response, "Allow", "GET, HEAD, POST");
    ret = MHD_queue_response(connection, answer.status, answer.response);
    MHD_destroy_response(answer.response);
    return ret;
}

static char http_seen; /* the state of a request whose body is being read */

/* The library calls this when the headers are there, for each part of a body,
 * and when a suspended connection goes on. */
static enum MHD_Result http_answer(void *cls, struct MHD_Connection *connection,
                                   const char *path, const char *method,
                                   const char *version, const char *body,
                                   size_t *body_len, void **state)
{
    struct http_answer answer;

    (void)cls, (void)version, (void)body;
    if (!*state && !serve_gate_heads(connection)) {
        answer = http_refuse(MHD_HTTP_BAD_REQUEST, "malformed headers\n");
        if (answer.response)
            MHD_add_response_header(answer.response, "Connection", "close");
        return http_send(connection, answer);
    }
    if (!*state) {
        *state = &http_seen;
        return MHD_YES;
    }
    if (*body_len) {
        *body_len = 0; /* Nobody wants a body. */
        return MHD_YES;
    }
    if (*state != &http_seen) {
        answer.response = serve_act_answer(*state, &answer.status);
        return http_send(connection, answer);
    }
    serve_door_reads(connection, false);
    answer = http_route(connection, path, method, state);
    if (*state != &http_seen)
        return MHD_YES; /* An act is under way. */
    *state = NULL;
    return http_send(connection, answer);
}

/* The library asks for memory for each argument, and where there is none left it
 * does not answer.  So a request with more than anybody means is answered here, when
 * only its first line was read. */
static void *http_uri(void *cls, const char *uri,
                      struct MHD_Connection *connection)
{
    static const char answer[] =
        "HTTP/1.1 414 URI Too Long\r\nConnection: close\r\n"
        "Content-Length: 19\r\n\r\ntoo many arguments\n";
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    int count = 0;

    (void)cls;
    for (const char *at = uri; (at = strchr(at, '&')); at++)
        count++;
    if (count < HTTP_ARGUMENTS)
        return NULL;
    if (send(info->connect_fd, answer, sizeof(answer) - 1,
             MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        errno = 0; /* Nobody wants to hear it. */
    serve_door_closes(connection);
    return NULL;
}

static void http_done(void *cls, struct MHD_Connection *connection,
                      void **state, enum MHD_RequestTerminationCode why)
{
    (void)cls, (void)why;
    serve_door_asks(connection);
    if (*state != &http_seen)
        serve_act_free(*state);
    *state = NULL;
}

static void http_notify(void *cls, struct MHD_Connection *connection,
                        void **context,
                        enum MHD_ConnectionNotificationCode code)
{
    (void)cls;
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        serve_door_begin(connection, context);
    else
        serve_door_end(context);
}

/* ---- start and end ------------------------------------------------------- */

int serve_http_start(const struct serve_opts *opts)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICHOST};
    const char *colon = strrchr(opts->listen, ':');
    const union MHD_DaemonInfo *info;
    struct addrinfo *found = NULL;
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME;
    char host[256];

    http_opts = opts;
    snprintf(host, sizeof(host), "%.*s", (int)(colon - opts->listen),
             opts->listen);
    if (host[0] == '[') {
        memmove(host, host + 1, strlen(host));
        host[strcspn(host, "]")] = '\0';
    }
    if (getaddrinfo(host, colon + 1, &hints, &found) || !found)
        return 64;
    if (found->ai_family == AF_INET6)
        flags |= MHD_USE_IPv6;
    http_daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, http_answer, NULL, MHD_OPTION_SOCK_ADDR,
        found->ai_addr, MHD_OPTION_CONNECTION_LIMIT, HTTP_CONNECTIONS,
        MHD_OPTION_PER_IP_CONNECTION_LIMIT, HTTP_PER_ADDRESS,
        MHD_OPTION_CONNECTION_TIMEOUT, HTTP_QUIET_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HTTP_MEMORY,
        MHD_OPTION_URI_LOG_CALLBACK, http_uri, NULL,
        MHD_OPTION_NOTIFY_COMPLETED, http_done, NULL,
        MHD_OPTION_NOTIFY_CONNECTION, http_notify, NULL, MHD_OPTION_END);
    freeaddrinfo(found);
    if (!http_daemon) {
        fprintf(stderr, "holdfast-serve: cannot listen on %s: %s\n",
                opts->listen, strerror(errno));
        return 71;
    }
    info = MHD_get_daemon_info(http_daemon, MHD_DAEMON_INFO_BIND_PORT);
    printf("listening on http://%.*s:%u/\n", (int)(colon - opts->listen),
           opts->listen, info ? (unsigned)info->port : 0);
    fflush(stdout);
    return 0;
}

void serve_http_stop(void)
{
    serve_act_stop();
    serve_stream_stop();
    MHD_stop_daemon(http_daemon);
}
