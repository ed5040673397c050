/* SPDX-License-Identifier: MIT
 *
 * echo.c - see echo.h.
 */
#include "echo.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Answer what stands in the line: "a5" is answered with "aaaaa". */
static bool serve_line(int fd, char *line)
{
    char text[65536];
    size_t len = (size_t)strtoul(line + 1, NULL, 10);

    memset(text, line[0], len);
    return send(fd, text, len, MSG_NOSIGNAL) == (ssize_t)len;
}

static bool serve(int fd)
{
    char line[64] = "";
    size_t len = 0;

    while (recv(fd, line + len, 1, 0) == 1) {
        if (line[len++] != '\n')
            continue;
        line[len - 1] = '\0';
        return serve_line(fd, line);
    }
    return false;
}

static void *server_run(void *arg)
{
    struct scene *s = arg;
    struct pollfd fds[34] = {{.fd = s->stop[0], .events = POLLIN},
                             {.fd = s->listener, .events = POLLIN}};
    nfds_t n = 2;

    while (poll(fds, n, -1) >= 0 && !fds[0].revents) {
        for (nfds_t i = n; i-- > 2;)
            if (fds[i].revents && !serve(fds[i].fd)) {
                close(fds[i].fd);
                fds[i] = fds[--n];
            }
        if (fds[1].revents)
            fds[n++] = (struct pollfd){
                .fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC),
                .events = POLLIN};
    }
    while (n-- > 2)
        close(fds[n].fd);
    return NULL;
}

void server_start(struct scene *s, char *port, size_t size)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);

    s->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(bind(s->listener, (struct sockaddr *)&at, len), 0);
    CHECK_EQ(listen(s->listener, 16), 0);
    CHECK_EQ(getsockname(s->listener, (struct sockaddr *)&at, &len), 0);
    snprintf(port, size, "%d", ntohs(at.sin_port));
    CHECK_EQ(pipe(s->stop), 0);
    CHECK_EQ(pthread_create(&s->thread, NULL, server_run, s), 0);
}

void server_stop(struct scene *s)
{
    CHECK_EQ(write(s->stop[1], "x", 1), 1);
    pthread_join(s->thread, NULL);
    close(s->listener);
    close(s->stop[0]);
    close(s->stop[1]);
}
