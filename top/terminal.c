/* SPDX-License-Identifier: MIT
 *
 * terminal.c - the terminal: begin, end, and back as it was after a crash.
 *
 * At a normal end, and at a signal that main.c reads, curses puts everything
 * back.  A handler for the signals of a crash may not call curses: it sets the
 * modes that were saved and writes a text that was put together in time.
 */
#include "top.h"

#include <curses.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <term.h>
#include <termios.h>
#include <unistd.h>

static struct termios terminal_modes;
static char terminal_text[256]; /* leaves the alternate screen */
static volatile sig_atomic_t terminal_used;

static void terminal_crash(int signo)
{
    struct sigaction act = {.sa_handler = SIG_DFL};

    if (terminal_used) {
        tcsetattr(STDIN_FILENO, TCSANOW, &terminal_modes);
        if (write(STDOUT_FILENO, terminal_text, strlen(terminal_text)) < 0)
            terminal_used = 0;
    }
    sigaction(signo, &act, NULL);
    raise(signo);
}

static void terminal_add(const char *capability)
{
    const char *text = tigetstr((char *)(uintptr_t)capability);
    size_t len = strlen(terminal_text);

    if (text && text != (char *)-1)
        snprintf(terminal_text + len, sizeof(terminal_text) - len, "%s", text);
}

/* Every signal that would end us and that main.c does not read.  The stack may be
 * what has overflown: so there is another for the handler. */
static void terminal_guard(void)
{
    static const int ends[] = {SIGSEGV, SIGBUS,  SIGILL,    SIGFPE,  SIGABRT,
                               SIGTRAP, SIGSYS,  SIGXCPU,   SIGXFSZ, SIGALRM,
                               SIGUSR1, SIGUSR2, SIGVTALRM, SIGPROF, SIGPIPE,
                               SIGIO,   SIGPWR,  SIGSTKFLT};
    static char room[64 * 1024];
    stack_t stack = {.ss_sp = room, .ss_size = sizeof(room)};
    struct sigaction act = {.sa_handler = terminal_crash,
                            .sa_flags = SA_ONSTACK};

    sigaltstack(&stack, NULL);
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        sigaction(ends[i], &act, NULL);
    for (int sig = SIGRTMIN; sig <= SIGRTMAX; sig++)
        sigaction(sig, &act, NULL);
}

/* Is it known, and can it place the cursor?  "dumb" cannot. */
static bool terminal_can(void)
{
    int known = 0;

    return setupterm(NULL, STDOUT_FILENO, &known) == OK && cursor_address;
}

bool terminal_begin(void)
{
    setlocale(LC_ALL, "");
    if (tcgetattr(STDIN_FILENO, &terminal_modes) || !terminal_can() ||
        !newterm(NULL, stdout, stdin))
        return false;
    terminal_add("sgr0");
    terminal_add("cnorm");
    terminal_add("rmkx");
    terminal_add("rmcup");
    terminal_guard();
    terminal_used = 1;
    cbreak();
    noecho();
    nodelay(stdscr, TRUE);
    keypad(stdscr, TRUE);
    set_escdelay(50);
    curs_set(0);
    if (has_colors() && !getenv("NO_COLOR")) {
        start_color();
        use_default_colors();
        init_pair(1, COLOR_RED, -1);
        init_pair(2, COLOR_YELLOW, -1);
        init_pair(3, COLOR_GREEN, -1);
    }
    return true;
}

void terminal_end(void)
{
    if (terminal_used)
        endwin();
    terminal_used = 0;
}
