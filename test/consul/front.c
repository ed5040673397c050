/* SPDX-License-Identifier: MIT
 *
 * front.c - a load balancer that answers for the agent; see front.h.
 *
 * A thread for each connection carries the bytes to and fro.  It knows as much
 * of HTTP as it must: bytes from the client are a request, which is under way
 * until bytes come back.
 */
#include "front.h"
#include "peer.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static atomic_int mode, answered, alive, to_catch, held, delay;
static atomic_bool gate;
static enum front_how catch_how;
static const char *catch_text;
static int listener = -1;
static pthread_t door;
static struct sockaddr_in agent;

static void answer(int client, int status)
{
    static const char body[] = "rpc error making call: something went wrong";
    char text[256];
    int len = snprintf(text, sizeof(text),
                       "HTTP/1.1 %d Whatever\r\nConnection: close\r\n"
                       "Content-Length: %zu\r\n\r\n%s",
                       status, sizeof(body) - 1, body);

    atomic_fetch_add(&answered, 1);
    if (send(client, text, (size_t)len, MSG_NOSIGNAL) < 0)
        return; /* It has gone away. */
    shutdown(client, SHUT_WR);
    while (recv(client, text, sizeof(text), 0) > 0)
        continue; /* What it still sends would reset the connection. */
}

/* Carry what is there; false: the connection is over. */
static bool carry(int from, int to)
{
    char buf[16384];
    ssize_t n = recv(from, buf, sizeof(buf), 0);

    return n > 0 && send(to, buf, (size_t)n, MSG_NOSIGNAL) == n;
}

/* Carry the first line of an answer, and no more. */
static void carry_line(int from, int to)
{
    char buf[16384];
    ssize_t n = recv(from, buf, sizeof(buf), 0);
    const char *end = n > 0 ? memchr(buf, '\n', (size_t)n) : NULL;

    if (end)
        send(to, buf, (size_t)(end - buf) + 1, MSG_NOSIGNAL);
}

/* Is this request one to be caught? */
static bool is_caught(const char *buf, size_t len)
{
    return atomic_load(&to_catch) > 0 &&
           memmem(buf, len, catch_text, strlen(catch_text)) &&
           atomic_fetch_sub(&to_catch, 1) > 0;
}

/* Carry a request; false: the connection is over, because it was caught too. */
static bool carry_request(int client, int server)
{
    char buf[16384];
    ssize_t n = recv(client, buf, sizeof(buf), 0);
    bool caught = n > 0 && is_caught(buf, (size_t)n);
    bool waits =
        caught && (catch_how == FRONT_HOLD || catch_how == FRONT_PAUSE);
    bool passed = false;

    if (n > 0 && atomic_load(&delay))
        t_sleep_ms(atomic_load(&delay));
    if (waits) {
        atomic_fetch_add(&held, 1);
        t_poll_until(atomic_load(&gate), 60000);
    }
    if (caught && catch_how == FRONT_404)
        answer(client, 404);
    if (caught && (catch_how == FRONT_404 || catch_how == FRONT_DROP))
        return false;
    if (n <= 0 || send(server, buf, (size_t)n, MSG_NOSIGNAL) != n)
        return false;
    if (caught && catch_how == FRONT_CUT)
        carry_line(server, client);
    else if (caught && catch_how == FRONT_PAUSE)
        passed = carry(server, client);
    else if (caught)
        recv(server, buf, sizeof(buf), 0);
    if (waits)
        atomic_fetch_sub(&held, 1);
    return !caught || passed;
}

static void serve(int client, int server)
{
    struct pollfd fds[2] = {{.fd = client, .events = POLLIN},
                            {.fd = server, .events = POLLIN}};
    bool waiting = false;
    int now;

    for (;;) {
        poll(fds, 2, 20);
        now = atomic_load(&mode);
        if (now > 0 && (waiting || fds[0].revents)) {
            answer(client, now);
            return;
        }
        if (fds[0].revents) {
            if (!carry_request(client, server))
                return;
            waiting = true;
        }
        if (fds[1].revents) {
            if (now < 0 && waiting) {
                answer(client, -now);
                return;
            }
            if (!carry(server, client))
                return;
            waiting = false;
        }
    }
}

static void *connection(void *arg)
{
    int client = (int)(intptr_t)arg, server = socket(AF_INET, SOCK_STREAM, 0);

    if (!connect(server, (struct sockaddr *)&agent, sizeof(agent)))
        serve(client, server);
    close(server);
    close(client);
    atomic_fetch_sub(&alive, 1);
    return NULL;
}

static void *front(void *arg)
{
    pthread_t thread;
    int client;

    (void)arg;
    while ((client = accept(listener, NULL, NULL)) >= 0) {
        atomic_fetch_add(&alive, 1);
        CHECK_EQ(
            pthread_create(&thread, NULL, connection, (void *)(intptr_t)client),
            0);
        pthread_detach(thread);
    }
    return NULL;
}

const char *front_url(void)
{
    static char text[64];
    struct sockaddr_in here = {.sin_family = AF_INET};
    socklen_t len = sizeof(here);
    const char *where = out("cat $HF_TEST_DIR/1.addr");

    listener = socket(AF_INET, SOCK_STREAM, 0);
    agent.sin_family = AF_INET;
    agent.sin_port = htons((uint16_t)atoi(strchr(where, ':') + 1));
    agent.sin_addr.s_addr = here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK_EQ(bind(listener, (struct sockaddr *)&here, sizeof(here)), 0);
    CHECK_EQ(listen(listener, 64), 0);
    CHECK_EQ(getsockname(listener, (struct sockaddr *)&here, &len), 0);
    CHECK_EQ(pthread_create(&door, NULL, front, NULL), 0);
    snprintf(text, sizeof(text), "consul://127.0.0.1:%d", ntohs(here.sin_port));
    return text;
}

void front_answer(int status)
{
    atomic_store(&mode, status);
}

void front_catch(const char *text, int n, enum front_how how)
{
    catch_text = text;
    catch_how = how;
    atomic_store(&gate, false);
    atomic_store(&to_catch, n);
}

void front_delay(int ms)
{
    atomic_store(&delay, ms);
}

int front_held(void)
{
    return atomic_load(&held);
}

void front_let_go(void)
{
    atomic_store(&to_catch, 0);
    atomic_store(&gate, true);
    t_poll_until(atomic_load(&held) == 0, 20000);
}

int front_count(void)
{
    return atomic_load(&answered);
}

void front_end(void)
{
    shutdown(listener, SHUT_RDWR);
    CHECK_EQ(pthread_join(door, NULL), 0);
    close(listener);
    t_poll_until(atomic_load(&alive) == 0, 10000);
}
