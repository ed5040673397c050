/* SPDX-License-Identifier: MIT
 *
 * route.c - a way to the service for each process, through the net.
 *
 * The hosts of the URL are replaced by ports of the net, other ones for each
 * process, so that one can be cut off while the others are not.  A URL that
 * names no hosts has nothing to cut; one that asks for TLS would not find the
 * name in the certificate; Sentinel and Cluster name other hosts in their
 * answers, which would go round the net.  A scheme that is not in the table has
 * to name the port of each host: nobody can guess it.
 */
#include "torture.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *scheme, *port;
} route_schemes[] = {
    {"redis", "6379"}, {"redlock", "6379"}, {"etcd", "2379"},
    {"zk", "2181"},    {"consul", "8500"},  {"postgres", "5432"},
    {"mysql", "3306"}, {"mariadb", "3306"}, {"postgresql", "5432"},
    {"rediss", NULL},  {"etcds", NULL},     {"consuls", NULL},
};

/* Can it be led through a net at all? */
static bool route_scheme(const char *url, size_t len, const char **port)
{
    *port = NULL;
    for (size_t i = 0; i < sizeof(route_schemes) / sizeof(route_schemes[0]);
         i++)
        if (strlen(route_schemes[i].scheme) == len &&
            !strncmp(url, route_schemes[i].scheme, len)) {
            *port = route_schemes[i].port;
            return *port != NULL;
        }
    return !memchr(url, '+', len);
}

/* The parts of a URL: head "scheme://user@", hosts, and the rest. */
struct route {
    size_t head, hosts;
    const char *port; /* of hosts that name none; NULL: not known */
};

static bool route_parse(const char *url, struct route *ret)
{
    const char *colon = strstr(url, "://"), *at, *end;

    if (!colon)
        return false;
    if (!route_scheme(url, (size_t)(colon - url), &ret->port))
        return false;
    colon += 3;
    end = colon + strcspn(colon, "/?");
    for (at = end; at > colon && at[-1] != '@'; at--)
        continue;
    ret->head = (size_t)(at - url);
    ret->hosts = (size_t)(end - at);
    return ret->hosts > 0;
}

/* One host of the list, "host:port" or "host", as a new port of the net. */
static int route_host(struct run *run, const char *host, size_t len,
                      const char *none)
{
    char name[256], *colon;

    if (len >= sizeof(name) || *host == '[')
        return -1;
    memcpy(name, host, len);
    name[len] = '\0';
    colon = strchr(name, ':');
    if (colon)
        *colon = '\0';
    if (!colon && !none)
        return -1;
    return net_port(run->net, name, colon ? colon + 1 : none);
}

static bool route_member(struct run *run, const struct route *route,
                         struct client_process *m)
{
    const char *url = run->plan.url, *at = url + route->head;
    const char *end = at + route->hosts;
    char hosts[512];
    size_t used = 0;
    int count = 0;

    for (; at < end; count++) {
        size_t len = strcspn(at, ",/?");
        int port = route_host(run, at, len, route->port);

        if (port < 0 || used > sizeof(hosts) - 32)
            return false;
        used += (size_t)snprintf(hosts + used, sizeof(hosts) - used,
                                 "%s127.0.0.1:%d", count ? "," : "", port);
        at += len + 1;
    }
    run->hosts = count;
    return snprintf(m->url, sizeof(m->url), "%.*s%s%s", (int)route->head, url,
                    hosts, end) < (int)sizeof(m->url);
}

bool route_open(struct run *run, char *why, size_t size)
{
    struct route route;

    if (!route_parse(run->plan.url, &route)) {
        snprintf(why, size,
                 "faults of the network need a URL that names all hosts "
                 "and uses no TLS: schemes such as redis://, redlock://, "
                 "etcd://, zk://, consul://, postgres:// or mysql://, not "
                 "file:, sqlite:, Sentinel or Cluster");
        return false;
    }
    run->net = net_new();
    for (int i = 1; run->net && i <= run->plan.processes; i++)
        if (!route_member(run, &route, &run->processes[i])) {
            snprintf(why, size,
                     "faults of the network need each host of the URL as "
                     "NAME:PORT or ADDRESS:PORT (no IPv6 address)");
            net_free(run->net);
            run->net = NULL;
            return false;
        }
    for (int i = 1; run->net && i <= run->plan.processes; i++)
        route_heal(run, i);
    return run->net != NULL;
}

/* Say something about the way of one process to one host (0: to all). */
void route_tell(struct run *run, int process, int host, const char *words)
{
    char command[128];

    for (int i = 1; i <= run->hosts; i++) {
        if (host && i != host)
            continue;
        snprintf(command, sizeof(command), "port %d %s",
                 (process - 1) * run->hosts + i, words);
        net_tell(run->net, command, NULL, 0);
    }
}

/* The way of one process is as it is without a fault. */
void route_heal(struct run *run, int process)
{
    char words[64];

    route_tell(run, process, 0, "pass");
    if (!run->plan.trip_ms)
        return;
    snprintf(words, sizeof(words), "delay %lld",
             (long long)run->plan.trip_ms / 2);
    route_tell(run, process, 0, words);
}
