/* SPDX-License-Identifier: MIT
 *
 * tty.c - lending the terminal to the command.
 *
 * The command has a process group of its own, so that all of it can be
 * signalled.  On a terminal only the foreground group may read, and only it
 * gets ^C and ^Z; so that group must be the command's.
 *
 *  - If stdin and stdout are our controlling terminal and we are in the
 *    foreground, nobody else of our group can be using it, and the command has
 *    it from the start.
 *  - If one of them is not, we may be one half of a pipeline whose other half
 *    wants the terminal (`holdfast run k -- make | less`).  Then it is lent
 *    when the command really asks for it, that is, when it stops with SIGTTIN
 *    or SIGTTOU.  Until then ^C and ^Z reach us and are passed on.
 *
 * It is taken back when the command stops or ends.  SIGTTOU is blocked all the
 * time (sig.c), so none of this can stop us.
 */
#include "run.h"

#include <fcntl.h>
#include <unistd.h>

void tty_init(struct tty *tty)
{
    tty->fd = -1;
    tty->lent = false;
}

bool tty_ours(const struct tty *tty)
{
    return tty->fd >= 0 && tcgetpgrp(tty->fd) == getpgrp();
}

bool tty_wanted(struct tty *tty)
{
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
        return false;
    tty->fd = STDIN_FILENO;
    return tty_ours(tty);
}

bool tty_on_demand(struct tty *tty)
{
    if (tty->fd < 0)
        tty->fd = open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY);
    return tty_ours(tty);
}

void tty_lend(struct tty *tty, pid_t pgid)
{
    tty->lent = tcsetpgrp(tty->fd, pgid) == 0;
}

void tty_take_back(struct tty *tty)
{
    if (tty->lent)
        tcsetpgrp(tty->fd, getpgrp());
    tty->lent = false;
}
