/* SPDX-License-Identifier: MIT
 *
 * net_link.c - one connection through the net, and what happens to its bytes.
 *
 * What is read on one side becomes pieces, each with a time before which it may
 * not leave; they leave in order.  Delay, rate and slices only decide how the
 * pieces are cut and dated, so they can be combined.
 */
#include "net_link.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* More than this is not read before some of it has left. */
#define FLOW_MAX (256 * 1024)

/* Between two single bytes: enough for the reader to see them apart. */
#define SLICE_US 100

/* A slow line moves in steps of this length. */
#define STEP_US 20000

void net_rules_clear(struct net_rules *rules)
{
    *rules = (struct net_rules){.dir = {{.cut = -1}, {.cut = -1}}};
}

struct net_rules *net_link_rules(struct net *net, struct net_link *link)
{
    return link->scripted ? &link->own : &net->ports[link->port].rules;
}

static void flow_clear(struct net_flow *flow)
{
    struct net_piece *piece;

    while ((piece = flow->head)) {
        flow->head = piece->next;
        free(piece);
    }
    *flow = (struct net_flow){0};
}

void net_link_end(struct net_link *link, bool reset)
{
    struct linger hard = {.l_onoff = 1};

    for (int side = 0; side < 2; side++) {
        if (link->fds[side] >= 0 && reset)
            setsockopt(link->fds[side], SOL_SOCKET, SO_LINGER, &hard,
                       sizeof(hard));
        if (link->fds[side] >= 0)
            close(link->fds[side]);
        link->fds[side] = -1;
        flow_clear(&link->flow[side]);
    }
}

/* This direction is over: the receiver sees the end, now. */
void net_link_half(struct net_link *link, int dir)
{
    flow_clear(&link->flow[dir]);
    link->flow[dir].ended = link->flow[dir].shut = true;
    shutdown(link->fds[!dir], SHUT_WR);
}

/* Would what comes next take the place of what was dropped?  No network does
 * that: it sends again, or gives up. */
bool net_link_is_torn(struct net *net, struct net_link *link)
{
    const struct net_rules *rules = net_link_rules(net, link);

    return (link->flow[NET_UP].hole && !rules->dir[NET_UP].drop) ||
           (link->flow[NET_DOWN].hole && !rules->dir[NET_DOWN].drop);
}

static int link_dial(const struct addrinfo *to)
{
    struct timeval limit = {.tv_sec = 2}; /* for connect(2), too */
    int one = 1, fd;

    for (; to; to = to->ai_next) {
        fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
        if (connect(fd, to->ai_addr, to->ai_addrlen) == 0) {
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
            return fd;
        }
        close(fd);
    }
    return -1;
}

/* The command that was said beforehand for the connection of this number. */
static void link_script(struct net *net, struct net_link *link)
{
    for (int i = 0; i < net->nscripts; i++) {
        if (net->scripts[i].number != link->number)
            continue;
        link->own = net->scripts[i].rules;
        link->scripted = true;
        net->scripts[i] = net->scripts[--net->nscripts];
        return;
    }
}

void net_link_accept(struct net *net, int port)
{
    int fd = accept4(net->ports[port].listener, NULL, NULL, SOCK_CLOEXEC);
    struct net_link *link = net->links;
    int one = 1, free_at = 0;

    if (fd < 0)
        return;
    while (free_at < NET_LINKS && net->links[free_at].fds[0] >= 0)
        free_at++;
    if (free_at == NET_LINKS) {
        close(fd);
        return;
    }
    link += free_at;
    if (free_at >= net->top)
        net->top = free_at + 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    *link = (struct net_link){
        .fds = {fd, -1}, .port = port, .number = ++net->accepted};
    link_script(net, link);
    net_lie_start(link);
    if (!net->ports[port].refuse)
        link->fds[1] = link_dial(net->ports[port].to);
    if (link->fds[1] < 0)
        net_link_end(link, true);
}

bool net_link_wants(struct net *net, struct net_link *link, int dir)
{
    const struct net_flow *flow = &link->flow[dir];

    return link->fds[0] >= 0 && !flow->ended && !link->finished &&
           flow->queued < FLOW_MAX && !net_link_rules(net, link)->dir[dir].hold;
}

static bool flow_add(struct net_flow *flow, const char *data, size_t len,
                     int64_t due)
{
    struct net_piece *piece = malloc(sizeof(*piece) + len);

    if (!piece)
        return false;
    *piece = (struct net_piece){.len = len, .due = due};
    memcpy(piece->data, data, len);
    if (flow->tail && flow->head)
        flow->tail->next = piece;
    else
        flow->head = piece;
    flow->tail = piece;
    flow->queued += len;
    return true;
}

static int64_t link_jitter(struct net *net, int64_t most)
{
    net->chance = net->chance * 1664525 + 1013904223;
    return most ? net->chance % (uint32_t)most : 0;
}

/* Cut what was read into pieces and date them. */
static bool link_queue(struct net *net, struct net_link *link, int dir,
                       const char *data, size_t len)
{
    const struct net_rule *rule = &net_link_rules(net, link)->dir[dir];
    struct net_flow *flow = &link->flow[dir];
    int64_t now = net_now(), due = now + rule->delay_us, gap = 0;
    size_t step = len, part;

    due += link_jitter(net, rule->jitter_us);
    if (flow->head && flow->tail->due > due)
        due = flow->tail->due;
    if (rule->rate) {
        step = (size_t)(rule->rate * STEP_US / 1000000);
        step = step ? step : 1;
    }
    if (rule->slice) {
        step = 1;
        gap = SLICE_US;
    }
    if (flow->idle_at < due)
        flow->idle_at = due;
    for (; len; data += part, len -= part) {
        part = len < step ? len : step;
        if (rule->rate)
            gap = (int64_t)part * 1000000 / rule->rate;
        if (!flow_add(flow, data, part, due))
            return false;
        flow->idle_at += gap;
        due = gap ? flow->idle_at : due;
    }
    return true;
}

/* Is this part of an answer that must vanish?  Counts answers. */
static bool link_swallows(struct net *net, struct net_link *link, int dir)
{
    struct net_rule *rule = &net_link_rules(net, link)->dir[NET_DOWN];

    if (dir == NET_UP) {
        link->last = NET_UP;
        link->swallow = false;
        return false;
    }
    if (link->last == NET_UP) {
        link->last = NET_DOWN;
        link->swallow = rule->reply == 1;
        if (rule->reply)
            rule->reply--;
        if (link->swallow)
            net->dropped++;
    }
    return link->swallow;
}

/* Is this the beginning or a part of an answer that another takes the place of?
 * Then that one has been sent, or the connection is over. */
static bool link_lies(struct net *net, struct net_link *link, int dir)
{
    const struct net_rule *rule = &net_link_rules(net, link)->dir[NET_DOWN];
    char text[2048];
    size_t len;

    if (dir == NET_UP) {
        link->lied = false;
        return false;
    }
    if (link->lied)
        return true;
    if (!rule->lie || link_jitter(net, 100) >= rule->lies)
        return false;
    link->lied = true;
    net->dropped++;
    len = net_lie_text(link, rule->lie, text, sizeof(text));
    if (!len || !flow_add(&link->flow[NET_DOWN], text, len, net_now()))
        net_link_end(link, true);
    else
        link->finished = true; /* what was left out cannot be put back */
    return true;
}

/* What of `len` bytes may still pass; sets `finished` where the end is. */
static size_t link_cut(struct net *net, struct net_link *link, int dir,
                       size_t len)
{
    struct net_rule *rule = &net_link_rules(net, link)->dir[dir];

    if (rule->cut < 0)
        return len;
    if ((int64_t)len <= rule->cut) {
        rule->cut -= (int64_t)len;
        return len;
    }
    len = (size_t)rule->cut;
    rule->cut = -1;
    net->cuts++;
    link->finished = true;
    return len;
}

/* Take what one side has said. */
void net_link_read(struct net *net, struct net_link *link, int dir)
{
    const struct net_rule *rule = &net_link_rules(net, link)->dir[dir];
    char buf[16384];
    ssize_t got = recv(link->fds[dir], buf, sizeof(buf), MSG_DONTWAIT);
    size_t len;

    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got < 0) {
        net_link_end(link, true);
        return;
    }
    if (got == 0) {
        link->flow[dir].ended = true;
        return;
    }
    net->bytes[dir] += got;
    if (link_lies(net, link, dir))
        return;
    net_lie_follow(link, dir, buf, (size_t)got);
    if (link_swallows(net, link, dir) || rule->drop) {
        link->flow[dir].hole = true;
        return;
    }
    if (link->flow[dir].hole) { /* No network delivers what follows a gap. */
        net_link_end(link, true);
        return;
    }
    len = link_cut(net, link, dir, (size_t)got);
    if (!link_queue(net, link, dir, buf, len))
        net_link_end(link, true);
}

/* The flow is empty: pass on the end, if this is it. */
static void link_settle(struct net_link *link, int dir)
{
    struct net_flow *flow = &link->flow[dir];

    if (flow->ended && !flow->shut) {
        flow->shut = true;
        shutdown(link->fds[!dir], SHUT_WR);
    }
    if ((link->finished && !link->flow[0].head && !link->flow[1].head) ||
        (link->flow[0].shut && link->flow[1].shut))
        net_link_end(link, false);
}

/* Send what is due; when more will be, in us, or INT64_MAX. */
int64_t net_link_write(struct net *net, struct net_link *link, int dir,
                       int64_t now)
{
    struct net_flow *flow = &link->flow[dir];
    struct net_piece *piece;
    ssize_t done;

    if (link->fds[0] < 0 || net_link_rules(net, link)->dir[dir].hold)
        return INT64_MAX;
    while ((piece = flow->head)) {
        if (piece->due > now)
            return piece->due;
        done = send(link->fds[!dir], piece->data + piece->done,
                    piece->len - piece->done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (done < 0 && errno == EAGAIN)
            return now + 1000;
        if (done < 0) {
            net_link_end(link, true);
            return INT64_MAX;
        }
        piece->done += (size_t)done;
        flow->queued -= (size_t)done;
        if (piece->done < piece->len)
            continue;
        flow->head = piece->next;
        free(piece);
    }
    link_settle(link, dir);
    return INT64_MAX;
}
