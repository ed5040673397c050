/* SPDX-License-Identifier: MIT
 *
 * resolve.c - the addresses of the servers.
 *
 * The library resolves names where it stands, for as long as that takes, and
 * once only, or else before each of its steps.  So it is given addresses, and
 * names are resolved by a thread that may outlive the session: getaddrinfo(3)
 * knows no deadline.  What the two share is freed by the last of them.
 */
#include "zk.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"

#include "base/banned.h"

#define FOUND_MAX 4096

struct zk_lookup {
    atomic_int users;
    atomic_bool done;
    int event_fd;          /* readable when it is */
    int result;            /* of the last name that was not found, or 0 */
    char found[FOUND_MAX]; /* "10.0.0.1:2181,[::1]:2181" */
    char lost[80];         /* that name */
    char hosts[];
};

static void lookup_put(struct zk_lookup *lookup)
{
    if (atomic_fetch_sub(&lookup->users, 1) != 1)
        return;
    close(lookup->event_fd);
    hfi_free(lookup);
}

/* Add an address, unless it is there already. */
static void lookup_add(struct zk_lookup *lookup, const struct addrinfo *at,
                       const char *port)
{
    size_t len = strlen(lookup->found);
    char text[NI_MAXHOST], whole[NI_MAXHOST + 16];

    if (getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof(text), NULL, 0,
                    NI_NUMERICHOST))
        return;
    snprintf(whole, sizeof(whole), strchr(text, ':') ? "[%s]:%s" : "%s:%s",
             text, port);
    if (!strstr(lookup->found, whole))
        snprintf(lookup->found + len, FOUND_MAX - len, "%s%s", len ? "," : "",
                 whole);
}

/* One "host:port" or "[host]:port", which is taken apart. */
static void lookup_one(struct zk_lookup *lookup, char *host)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_ADDRCONFIG};
    struct addrinfo *list = NULL, *at;
    char *port = strrchr(host, ':'), *name = host;
    int rc;

    *port++ = '\0';
    if (*name == '[') {
        name++;
        name[strlen(name) - 1] = '\0';
    }
    if (strchr(name, ':') || inet_addr(name) != INADDR_NONE)
        hints.ai_flags = AI_NUMERICHOST;
    rc = getaddrinfo(name, NULL, &hints, &list);
    for (at = rc ? NULL : list; at; at = at->ai_next)
        lookup_add(lookup, at, port);
    if (rc) {
        lookup->result = rc;
        snprintf(lookup->lost, sizeof(lookup->lost), "%.79s", name);
    } else {
        freeaddrinfo(list);
    }
}

static void *lookup_run(void *arg)
{
    struct zk_lookup *lookup = arg;
    const uint64_t one = 1;
    char *host = lookup->hosts, *end;

    for (; host; host = end) {
        end = strchr(host, ',');
        if (end)
            *end++ = '\0';
        lookup_one(lookup, host);
    }
    atomic_store(&lookup->done, true);
    (void)!write(lookup->event_fd, &one, sizeof(one)); /* It is not full. */
    lookup_put(lookup);
    return NULL;
}

/* Begin; the descriptor becomes readable at the end.  NULL: no thread. */
struct zk_lookup *zk_lookup_start(const char *hosts)
{
    size_t len = strlen(hosts) + 1;
    struct zk_lookup *lookup = hfi_alloc(sizeof(*lookup) + len);
    struct hfi_thread thread = {0};

    if (!lookup)
        return NULL;
    memcpy(lookup->hosts, hosts, len);
    atomic_store(&lookup->users, 2);
    lookup->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (lookup->event_fd >= 0 &&
        hfi_thread_start(&thread, lookup_run, lookup)) {
        pthread_detach(thread.id);
        return lookup;
    }
    if (lookup->event_fd >= 0)
        close(lookup->event_fd);
    hfi_free(lookup);
    return NULL;
}

int zk_lookup_fd(const struct zk_lookup *lookup)
{
    return lookup->event_fd;
}

/* The addresses that were found, or NULL: not yet. */
const char *zk_lookup_found(struct zk_lookup *lookup)
{
    return atomic_load(&lookup->done) ? lookup->found : NULL;
}

/* Why a name has none; or that there is no answer. */
void zk_lookup_why(struct zk_lookup *lookup, char *ret, size_t size)
{
    if (atomic_load(&lookup->done))
        snprintf(ret, size, "'%s' does not resolve: %s", lookup->lost,
                 gai_strerror(lookup->result));
    else
        snprintf(ret, size, "the resolver of names does not answer");
}

void zk_lookup_end(struct zk_lookup *lookup)
{
    if (lookup)
        lookup_put(lookup);
}
