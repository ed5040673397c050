/* SPDX-License-Identifier: MIT
 *
 * gate.c - who may ask, and whether they mean what we would do.
 *
 * INVARIANTS
 *  (1) A request whose Host is not one of our names is refused, so that a page
 *      of another site whose name leads here (DNS rebinding) reads nothing.
 *  (2) With a token, everything wants it, compared in constant time, but the page
 *      and /healthz, which tells one bit to those who watch over servers.
 *  (3) A break wants a header that no other site can send without asking first
 *      (X-Holdfast), and no Origin but our own, so no other site can cause one.
 *  (4) A request that a proxy may read in another way than we do is refused before
 *      its body is read, and its connection is closed: one with two Hosts, lengths,
 *      Origins or tokens, with a length and a coding, with a coding that is not
 *      "chunked", or with a blank in the name of a header.
 *  (5) A break names what was shown (serve.h (4)): the number of the service, the
 *      run of the program in which it has this number, and its endpoint.
 */
#include "serve.h"

#include <microhttpd.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

char serve_run[33];

bool serve_run_init(void)
{
    unsigned char random[(sizeof(serve_run) - 1) / 2];

    if (getrandom(random, sizeof(random), 0) != sizeof(random))
        return false;
    for (size_t i = 0; i < sizeof(random); i++)
        snprintf(serve_run + 2 * i, 3, "%02x", random[i]);
    return true;
}

/* Does "name", "name:port" or "[address]:port" name `host`? */
static bool gate_is_host(const char *value, const char *host)
{
    size_t len = strlen(host);

    return !strncasecmp(value, host, len) &&
           (!value[len] ||
            (value[len] == ':' &&
             strspn(value + len + 1, "0123456789") == strlen(value + len + 1)));
}

struct gate_heads {
    int hosts, lengths, codings, origins, tokens;
    bool odd;
};

static enum MHD_Result gate_head(void *cls, enum MHD_ValueKind kind,
                                 const char *name, const char *value)
{
    struct gate_heads *heads = cls;

    (void)kind;
    heads->hosts += !strcasecmp(name, MHD_HTTP_HEADER_HOST);
    heads->lengths += !strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH);
    heads->origins += !strcasecmp(name, MHD_HTTP_HEADER_ORIGIN);
    heads->tokens += !strcasecmp(name, MHD_HTTP_HEADER_AUTHORIZATION);
    if (!strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING)) {
        heads->codings++;
        heads->odd = heads->odd || !value || strcasecmp(value, "chunked");
    }
    heads->odd = heads->odd || !*name || strpbrk(name, " \t");
    return MHD_YES;
}

/* (4) */
bool serve_gate_heads(struct MHD_Connection *connection)
{
    struct gate_heads heads = {0};

    MHD_get_connection_values(connection, MHD_HEADER_KIND, gate_head, &heads);
    return heads.hosts <= 1 && heads.lengths + heads.codings <= 1 &&
           heads.origins <= 1 && heads.tokens <= 1 && !heads.odd;
}

bool serve_gate_host(struct MHD_Connection *connection,
                     const struct serve_opts *opts)
{
    const char *host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND,
                                                   MHD_HTTP_HEADER_HOST);
    char own[256];

    if (!host)
        return false;
    if (opts->loopback &&
        (gate_is_host(host, "localhost") || gate_is_host(host, "127.0.0.1") ||
         gate_is_host(host, "[::1]")))
        return true;
    snprintf(own, sizeof(own), "%.*s",
             (int)(strrchr(opts->listen, ':') - opts->listen), opts->listen);
    if (gate_is_host(host, own))
        return true;
    for (int i = 0; i < opts->nhosts; i++)
        if (gate_is_host(host, opts->hosts[i]))
            return true;
    return false;
}

bool serve_gate_token(struct MHD_Connection *connection,
                      const struct serve_opts *opts)
{
    static const char bearer[] = "Bearer ";
    const char *value = MHD_lookup_connection_value(
        connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    size_t len, i;
    volatile unsigned char differ = 0;

    if (!opts->token)
        return true;
    if (!value || strncasecmp(value, bearer, sizeof(bearer) - 1))
        return false;
    value += sizeof(bearer) - 1;
    len = strlen(opts->token);
    if (strlen(value) != len)
        return false;
    for (i = 0; i < len; i++)
        differ |= (unsigned char)(value[i] ^ opts->token[i]);
    return !differ;
}

/* (3) */
bool serve_gate_origin(struct MHD_Connection *connection)
{
    const char *origin = MHD_lookup_connection_value(
        connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_ORIGIN);
    const char *host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND,
                                                   MHD_HTTP_HEADER_HOST);
    const char *mark =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "X-Holdfast");

    if (!mark || strcmp(mark, "break") || !host)
        return false;
    if (!origin)
        return true;
    origin = strstr(origin, "://");
    return origin && !strcasecmp(origin + 3, host);
}

/* Does the query have this text under this name?  `without`: the answer if it has
 * none. */
static bool gate_names(struct MHD_Connection *connection, const char *name,
                       const char *text, bool without)
{
    const char *value = NULL;
    size_t len = 0;

    if (!MHD_lookup_connection_value_n(connection, MHD_GET_ARGUMENT_KIND, name,
                                       strlen(name), &value, &len))
        return without;
    return value && len == strlen(text) && !memcmp(value, text, len);
}

/* Is the number of the service from this run, and does it mean what was shown?
 * (5) */
bool serve_gate_service(struct MHD_Connection *connection, int service,
                        bool breaks)
{
    bool ret;

    pthread_mutex_lock(&serve_table.mu);
    ret = gate_names(connection, "run", serve_run, !breaks) &&
          gate_names(connection, "endpoint",
                     serve_table.services[service].endpoint, !breaks);
    pthread_mutex_unlock(&serve_table.mu);
    return ret;
}
