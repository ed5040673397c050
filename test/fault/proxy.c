/* SPDX-License-Identifier: MIT
 *
 * proxy.c - the network of torture/net.h as a program of its own.
 *
 *     proxy HOST:PORT...
 *
 * One port for each server; the first lines printed are their numbers, in that
 * order.  Then each line on stdin is a command of net.h, and each gets one line
 * back.  It ends with stdin.
 *
 *     $ proxy 127.0.0.1:6379
 *     listening 40123
 *     conn 2 down cut 17
 *     ok
 */
#include "net.h"

#include <stdio.h>
#include <string.h>

static int fail(const char *what, const char *which)
{
    fprintf(stderr, "proxy: %s%s\n", what, which);
    return 64;
}

int main(int argc, char **argv)
{
    char host[256], line[256], answer[256], *colon;
    struct net *net = net_new();
    int i, number;

    if (!net)
        return fail("no memory, threads or descriptors", "");
    if (argc < 2)
        return fail("usage: proxy HOST:PORT...", "");
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (i = 1; i < argc; i++) {
        snprintf(host, sizeof(host), "%s", argv[i]);
        colon = strrchr(host, ':');
        if (!colon)
            return fail("not HOST:PORT: ", argv[i]);
        *colon = '\0';
        number = net_port(net, host, colon + 1);
        if (number < 0)
            return fail("cannot lead to ", argv[i]);
        printf("listening %d\n", number);
    }
    while (fgets(line, sizeof(line), stdin)) {
        net_tell(net, line, answer, sizeof(answer));
        puts(answer);
    }
    net_free(net);
    return 0;
}
