/* SPDX-License-Identifier: MIT
 *
 * survivor.c - a process that is hard to see: survivor thread|hidden|plain FILE
 *
 * It ignores TERM and keeps FILE locked with flock(2) for as long as it lives,
 * so that others can tell that without /proc.  When it is ready it writes its
 * number into FILE.  It ends by itself after a minute.
 *
 *     thread   its first thread has ended, so /proc shows a zombie
 *     hidden   not dumpable, so a /proc with hidepid=2 does not show it
 *     plain    none of these
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <unistd.h>

static int survivor_fd;

static void *survivor_live(void *arg)
{
    dprintf(survivor_fd, "%d\n", (int)getpid());
    sleep(60);
    _exit(0);
    return arg;
}

int main(int argc, char **argv)
{
    pthread_t thread;

    if (argc != 3)
        return 64;
    signal(SIGTERM, SIG_IGN);
    survivor_fd = open(argv[2], O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (survivor_fd < 0 || flock(survivor_fd, LOCK_EX))
        return 1;
    if (!strcmp(argv[1], "hidden"))
        prctl(PR_SET_DUMPABLE, 0);
    if (strcmp(argv[1], "thread"))
        survivor_live(NULL);
    if (pthread_create(&thread, NULL, survivor_live, NULL))
        return 1;
    pthread_exit(NULL);
}
