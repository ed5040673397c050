/* SPDX-License-Identifier: MIT
 *
 * net_tell.c - the words of net.h, one table of verbs.
 */
#include "net_link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum verb {
    V_PASS,
    V_DELAY,
    V_THROTTLE,
    V_SLICE,
    V_CUT,
    V_DROP,
    V_REPLY,
    V_LIE_RESET,
    V_LIE_HTTP,
    V_LIE_GRPC,
    V_HOLD,
    V_HALF,
    V_RESET,
    V_CLOSE,
    V_REFUSE,
    V_ACCEPT
};

static const struct {
    const char *name;
    enum verb verb;
    int least, most; /* how many numbers follow */
} verbs[] = {
    {"pass", V_PASS, 0, 0},         {"delay", V_DELAY, 1, 2},
    {"throttle", V_THROTTLE, 1, 1}, {"slice", V_SLICE, 0, 0},
    {"cut", V_CUT, 1, 1},           {"drop", V_DROP, 0, 0},
    {"drop-reply", V_REPLY, 1, 1},  {"hold", V_HOLD, 0, 0},
    {"half", V_HALF, 0, 0},         {"reset", V_RESET, 0, 0},
    {"close", V_CLOSE, 0, 0},       {"refuse", V_REFUSE, 0, 0},
    {"accept", V_ACCEPT, 0, 0},     {"lie-reset", V_LIE_RESET, 1, 1},
    {"lie-http", V_LIE_HTTP, 1, 1}, {"lie-grpc", V_LIE_GRPC, 1, 1},
};

struct order {
    enum { S_ALL, S_PORT, S_CONN } scope;
    int64_t number; /* of the scope */
    bool dir[2];
    enum verb verb;
    int64_t args[2];
};

static bool say(char *answer, size_t size, const char *text, const char *word)
{
    snprintf(answer, size, "error: %s%s%s", text, *word ? ": " : "", word);
    return false;
}

static bool order_number(const char *word, int64_t *ret)
{
    char *end;

    errno = 0;
    *ret = strtoll(word, &end, 10);
    return *word && !*end && !errno && *ret >= 0;
}

/* The next word of the line, cut off in place; "" at the end. */
static const char *order_word(char **line)
{
    char *word = *line + strspn(*line, " \t\r\n");

    *line = word + strcspn(word, " \t\r\n");
    if (**line)
        *(*line)++ = '\0';
    return word;
}

static bool order_scope(char **line, struct order *ret, char *answer,
                        size_t size)
{
    const char *word = order_word(line);

    if (!strcmp(word, "all"))
        ret->scope = S_ALL;
    else if (!strcmp(word, "port"))
        ret->scope = S_PORT;
    else if (!strcmp(word, "conn"))
        ret->scope = S_CONN;
    else
        return say(answer, size, "all, port N or conn N comes first", word);
    if (ret->scope != S_ALL &&
        (!order_number(order_word(line), &ret->number) || !ret->number))
        return say(answer, size, "a number from 1 on must follow", word);
    return true;
}

static bool order_parse(char *line, struct order *ret, char *answer,
                        size_t size)
{
    const size_t count = sizeof(verbs) / sizeof(verbs[0]);
    const char *word;
    size_t at = 0;
    int n = 0;

    if (!order_scope(&line, ret, answer, size))
        return false;
    word = order_word(&line);
    ret->dir[NET_UP] = strcmp(word, "down") != 0;
    ret->dir[NET_DOWN] = strcmp(word, "up") != 0;
    if (!strcmp(word, "up") || !strcmp(word, "down") || !strcmp(word, "both"))
        word = order_word(&line);
    while (at < count && strcmp(word, verbs[at].name) != 0)
        at++;
    if (at == count)
        return say(answer, size, "no such verb", word);
    ret->verb = verbs[at].verb;
    for (; *(word = order_word(&line)); n++)
        if (n == verbs[at].most || !order_number(word, &ret->args[n]))
            return say(answer, size, "what is this", word);
    if (n < verbs[at].least)
        return say(answer, size, "a number is missing", verbs[at].name);
    return true;
}

static void rule_set(struct net_rule *rule, const struct order *order)
{
    switch (order->verb) {
    case V_PASS:
        *rule = (struct net_rule){.cut = -1};
        break;
    case V_DELAY:
        rule->delay_us = order->args[0] * 1000;
        rule->jitter_us = order->args[1] * 1000;
        break;
    case V_THROTTLE:
        rule->rate = order->args[0];
        break;
    case V_SLICE:
        rule->slice = true;
        break;
    case V_CUT:
        rule->cut = order->args[0];
        break;
    case V_DROP:
        rule->drop = true;
        break;
    case V_REPLY:
        rule->reply = order->args[0];
        break;
    case V_LIE_RESET:
    case V_LIE_HTTP:
    case V_LIE_GRPC:
        rule->lie = order->verb == V_LIE_RESET  ? LIE_RESET
                    : order->verb == V_LIE_HTTP ? LIE_HTTP
                                                : LIE_GRPC;
        rule->lies = order->args[0];
        break;
    case V_HOLD:
        rule->hold = true;
        break;
    default:
        break; /* happens to connections, not to rules */
    }
}

static void rules_set(struct net_rules *rules, const struct order *order)
{
    for (int dir = 0; dir < 2; dir++)
        if (order->dir[dir])
            rule_set(&rules->dir[dir], order);
}

/* Whether the order is for this connection. */
static bool order_hits(const struct order *order, const struct net_link *link)
{
    return link->fds[0] >= 0 &&
           (order->scope == S_ALL ||
            (order->scope == S_PORT && link->port == order->number - 1) ||
            (order->scope == S_CONN && link->number == order->number));
}

static void order_connections(struct net *net, const struct order *order)
{
    for (int i = 0; i < NET_LINKS; i++) {
        struct net_link *link = &net->links[i];

        if (!order_hits(order, link))
            continue;
        if (order->verb == V_RESET || order->verb == V_CLOSE) {
            net_link_end(link, order->verb == V_RESET);
        } else if (order->verb == V_HALF) {
            for (int dir = 0; dir < 2; dir++)
                if (order->dir[dir])
                    net_link_half(link, dir);
        } else if (order->scope != S_CONN) {
            link->scripted = false; /* the port's word counts again */
        } else {
            if (!link->scripted)
                net_rules_clear(&link->own);
            link->scripted = order->verb != V_PASS;
            rules_set(&link->own, order);
        }
    }
}

/* Whoever may speak again and has lost something is cut off. */
static void order_tear(struct net *net)
{
    for (int i = 0; i < NET_LINKS; i++) {
        struct net_link *link = &net->links[i];

        if (link->fds[0] >= 0 && net_link_is_torn(net, link))
            net_link_end(link, true);
    }
}

/* An order for a connection that is still to come. */
static bool order_future(struct net *net, const struct order *order,
                         char *answer, size_t size)
{
    int i = 0;

    while (i < net->nscripts && net->scripts[i].number != order->number)
        i++;
    if (i == NET_SCRIPTS || order->verb == V_RESET || order->verb == V_CLOSE ||
        order->verb == V_HALF)
        return say(answer, size, "there is no such connection yet", "");
    if (i == net->nscripts) {
        net->scripts[i].number = (int)order->number;
        net_rules_clear(&net->scripts[i].rules);
        net->nscripts++;
    }
    rules_set(&net->scripts[i].rules, order);
    return true;
}

static bool order_obey(struct net *net, const struct order *order, char *answer,
                       size_t size)
{
    int first = 0, end = net->nports;

    if (order->scope == S_PORT) {
        if (order->number > net->nports)
            return say(answer, size, "there is no such port", "");
        first = (int)order->number - 1;
        end = first + 1;
    }
    if (order->scope == S_CONN && order->number > net->accepted)
        return order_future(net, order, answer, size);
    for (int i = first; order->scope != S_CONN && i < end; i++) {
        if (order->verb == V_REFUSE || order->verb == V_ACCEPT)
            net->ports[i].refuse = order->verb == V_REFUSE;
        rules_set(&net->ports[i].rules, order);
    }
    order_connections(net, order);
    order_tear(net);
    return true;
}

static void net_figures(struct net *net, char *answer, size_t size)
{
    int open = 0;

    for (int i = 0; i < NET_LINKS; i++)
        open += net->links[i].fds[0] >= 0;
    snprintf(answer, size,
             "connections %d open %d up %lld down %lld cuts %lld dropped %lld",
             net->accepted, open, (long long)net->bytes[NET_UP],
             (long long)net->bytes[NET_DOWN], (long long)net->cuts,
             (long long)net->dropped);
}

bool net_tell(struct net *net, const char *command, char *answer, size_t size)
{
    struct order order = {0};
    char line[128], none[64];
    uint64_t one = 1;
    bool ok = true;

    if (!answer) {
        answer = none;
        size = sizeof(none);
    }
    snprintf(answer, size, "ok");
    snprintf(line, sizeof(line), "%s", command);
    pthread_mutex_lock(&net->mu);
    if (!strncmp(line, "stat", 4) &&
        strspn(line + 4, " \n") == strlen(line) - 4)
        net_figures(net, answer, size);
    else
        ok = order_parse(line, &order, answer, size) &&
             order_obey(net, &order, answer, size);
    pthread_mutex_unlock(&net->mu);
    if (write(net->wake, &one, sizeof(one)) < 0)
        return ok; /* it is awake already */
    return ok;
}
