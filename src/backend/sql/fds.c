/* SPDX-License-Identifier: MIT
 *
 * fds.c - which descriptors a forked child has inherited.
 *
 * A child that keeps the socket of a session keeps the session: the server does
 * not see the parent die.  The child closes its copy, without a word to the
 * server and without asking any structure that a thread of the parent may have
 * been changing at the fork.  So the descriptors stand in a table of slots that
 * never moves.
 *
 * A library may close a socket on its own when the connection fails, and the
 * number is then another file's.  So a slot has the inode of the socket too,
 * and what has another one is left alone.
 */
#include "sql.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"

#include "base/banned.h"

#define FDS_MAX 512

/* `fd` is one more than the descriptor; 0: the slot is free, -1: it is being
 * filled.  Those beyond FDS_MAX are kept by a child. */
struct sql_fd {
    atomic_int fd;
    _Atomic(unsigned long long) inode;
};

bool sql_fds_open(struct sql_conn *conn)
{
    conn->fds = hfi_alloc(FDS_MAX * sizeof(*conn->fds));
    return conn->fds != NULL;
}

void sql_fds_close(struct sql_conn *conn)
{
    hfi_free(conn->fds);
    conn->fds = NULL;
}

void sql_fds_add(struct sql_conn *conn, int fd)
{
    struct stat info;
    int i;

    if (fd < 0 || fstat(fd, &info))
        return;
    for (i = 0; i < FDS_MAX; i++) {
        int none = 0;

        if (!atomic_compare_exchange_strong(&conn->fds[i].fd, &none, -1))
            continue;
        atomic_store(&conn->fds[i].inode, (unsigned long long)info.st_ino);
        atomic_store(&conn->fds[i].fd, fd + 1);
        return;
    }
}

/* Before it is closed. */
void sql_fds_remove(struct sql_conn *conn, int fd)
{
    int i;

    for (i = 0; fd >= 0 && i < FDS_MAX; i++) {
        int mine = fd + 1;

        if (atomic_compare_exchange_strong(&conn->fds[i].fd, &mine, 0))
            return;
    }
}

void sql_after_fork_child(struct hfi_conn *base)
{
    struct sql_conn *conn = (struct sql_conn *)base;
    struct stat info;
    int i, fd;

    for (i = 0; conn->fds && i < FDS_MAX; i++) {
        fd = atomic_load(&conn->fds[i].fd) - 1;
        if (fd >= 0 && !fstat(fd, &info) &&
            atomic_load(&conn->fds[i].inode) == (unsigned long long)info.st_ino)
            close(fd);
    }
}
