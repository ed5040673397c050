/* SPDX-License-Identifier: MIT
 *
 * fault_net.c - what the nemesis does to the network of one process.
 *
 * Every fault is one that a real network can have.  Bytes that vanish from a TCP
 * stream never come back, so a direction that was dropped ends with a reset: no
 * client could tell the answer to one question from that to another otherwise.
 */
#include "torture.h"

#include <stdio.h>
#include <string.h>

void net_pass(struct run *run, int target)
{
    route_heal(run, target);
}

void net_part(struct run *run, int target)
{
    route_tell(run, target, 0, "hold");
}

/* Away from one server only, where there are several. */
void net_lone(struct run *run, int target)
{
    route_tell(run, target, 1 + (int)run_chance(run, (uint64_t)run->hosts),
               "hold");
}

void net_lose_answers(struct run *run, int target)
{
    route_tell(run, target, 0, "down drop");
}

void net_lose_requests(struct run *run, int target)
{
    route_tell(run, target, 0, "up drop");
}

void net_reset(struct run *run, int target)
{
    route_tell(run, target, 0, "reset");
}

void net_half(struct run *run, int target)
{
    route_tell(run, target, 0, "down half");
}

void net_after_half(struct run *run, int target)
{
    route_tell(run, target, 0, "reset");
    route_heal(run, target);
}

void net_refuse(struct run *run, int target)
{
    route_tell(run, target, 0, "refuse");
    route_tell(run, target, 0, "reset");
}

void net_accept(struct run *run, int target)
{
    route_tell(run, target, 0, "accept");
}

void net_slow(struct run *run, int target)
{
    char words[64];
    int64_t ttl = run->plan.ttl_ms;

    snprintf(words, sizeof(words), "down delay %lld %lld",
             (long long)ttl / 10 + (long long)run_chance(run, (uint64_t)ttl),
             (long long)ttl / 10);
    route_tell(run, target, 0, words);
}

void net_slice(struct run *run, int target)
{
    route_tell(run, target, 0, "slice");
}

void net_trickle(struct run *run, int target)
{
    route_tell(run, target, 0, "throttle 2000");
}

void net_trunc(struct run *run, int target)
{
    char words[64];

    snprintf(words, sizeof(words), "down cut %lld",
             (long long)run_chance(run, 400));
    route_tell(run, target, 0, words);
}

/* The server does what it was asked, and a proxy before it says that it did not:
 * in its own words where the protocol has some, by a reset elsewhere. */
void net_lie(struct run *run, int target)
{
    const char *url = run->plan.url;
    const char *verb = !strncmp(url, "consul:", 7) ? "lie-http"
                       : !strncmp(url, "etcd:", 5) ? "lie-grpc"
                                                   : "lie-reset";
    char words[64];

    snprintf(words, sizeof(words), "down %s %lld", verb,
             5 + (long long)run_chance(run, 60));
    route_tell(run, target, 0, words);
}
