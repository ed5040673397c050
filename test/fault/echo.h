/* SPDX-License-Identifier: MIT
 *
 * echo.h - the server of the fault tests: it answers a request of a letter and
 * a number, "a5\n", with the letter so many times, "aaaaa".
 */
#ifndef ECHO_H
#define ECHO_H

#include "net.h"
#include "t.h"

#include <pthread.h>

struct scene {
    struct net *net;
    int listener, port; /* the server's, and that of the net */
    int stop[2];
    pthread_t thread;
};

void server_start(struct scene *s, char *port, size_t size);
void server_stop(struct scene *s);

#endif
