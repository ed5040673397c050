/* SPDX-License-Identifier: MIT
 *
 * names.c - keys as file names, and back.
 *
 *   deploy        deploy.lock
 *   a/b           a%2Fb.lock
 *   .hidden       %2Ehidden.lock
 *   long...       the first 240 bytes + "~" / the next 240 + "~" / rest.lock
 *
 * The mapping is one to one: what is escaped is escaped in one way only, and
 * neither '~' nor '/' nor '%' ever stands for itself.  So two keys never share
 * a file, and a listing gives back the very keys.
 */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/env.h"
#include "base/escape.h"

#include "base/banned.h"

#define FILE_KEEP "._-+@:=,"

void file_path(char *ret, const char *key)
{
    char name[HF_KEY_MAX * 3 + 4];
    size_t len, at = 0;

    if (*key == '.') { /* No hidden files, no "." and no "..". */
        memcpy(name, "%2E", 3);
        len = 3 + hfi_escape(name + 3, sizeof(name) - 3, key + 1, FILE_KEEP);
    } else {
        len = hfi_escape(name, sizeof(name), key, FILE_KEEP);
    }
    for (; len - at > FILE_PIECE; at += FILE_PIECE) {
        memcpy(ret, name + at, FILE_PIECE);
        memcpy(ret + FILE_PIECE, "~/", 2);
        ret += FILE_PIECE + 2;
    }
    memcpy(ret, name + at, len - at);
    memcpy(ret + len - at, FILE_SUFFIX, sizeof(FILE_SUFFIX));
}

bool file_key(char *path)
{
    size_t len = strlen(path), suffix = sizeof(FILE_SUFFIX) - 1;
    char again[FILE_PATH_MAX], copy[FILE_PATH_MAX];
    char *from, *to;

    if (len <= suffix || len >= sizeof(copy) ||
        strcmp(path + len - suffix, FILE_SUFFIX) != 0)
        return false;
    memcpy(copy, path, len + 1);
    path[len - suffix] = '\0';
    for (from = to = path; *from; from++) {
        if (!strncmp(from, "~/", 2))
            from++;
        else
            *to++ = *from;
    }
    *to = '\0';
    if (!hfi_unescape(path) || !*path || strlen(path) > HF_KEY_MAX)
        return false;
    file_path(again, path); /* Only the one way to write it is ours. */
    return !strcmp(again, copy);
}

/* Open the directory that the last piece is in, making it if that is asked
 * for, one step at a time so that no link is ever followed. */
static int file_open_pieces(int dir_fd, char *path, bool make, char **last)
{
    int fd = dir_fd, next;
    char *end;

    for (; (end = strchr(path, '/')); path = end + 1) {
        *end = '\0';
        if (make && mkdirat(fd, path, 0777) && errno != EEXIST)
            next = -1;
        else
            next = openat(fd, path,
                          O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd != dir_fd) {
            int saved = errno;

            close(fd);
            errno = saved;
        }
        if (next < 0)
            return -1;
        fd = next;
    }
    *last = path;
    return fd;
}

int file_open_lock_dir(int dir_fd, const char *key, char *path, char **name)
{
    file_path(path, key);
    return file_open_pieces(dir_fd, path, false, name);
}

int file_open_below(int dir_fd, const char *below)
{
    char path[FILE_PATH_MAX + 2];
    char *last;

    snprintf(path, sizeof(path), "./%s", below);
    return file_open_pieces(dir_fd, path, false, &last);
}

int file_open_key(int dir_fd, const char *key, int flags)
{
    char path[FILE_PATH_MAX];
    char *name;
    int dir, fd, saved;

    file_path(path, key);
    dir = file_open_pieces(dir_fd, path, flags & O_CREAT, &name);
    if (dir < 0)
        return -1;
    fd = openat(dir, name, flags | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY, 0666);
    fd = hfi_off_stdio(fd);
    if (dir != dir_fd) {
        saved = errno;
        close(dir);
        errno = saved;
    }
    return fd;
}
