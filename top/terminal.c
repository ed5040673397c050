/* SPDX-License-Identifier: MIT
 *
 * terminal.c - the terminal: begin, end, and back as it was after a crash.
 *
 * At a normal end, and at a signal that main.c reads, curses puts everything
 * back.  A handler for the signals of a crash may not call curses: it sets the
 * modes that were saved and writes a text that was put together in time.
 *
 * A terminal may say any size, and curses keeps three copies of all of it.  So at
 * most TERMINAL_ROWS and TERMINAL_COLUMNS are used, the upper left part: more than
 * a screen has.  Curses would look at the size by itself when it begins and when
 * it changes; therefore it is told the first by the environment, and SIGWINCH is
 * read by main.c.
 */
#include "top.h"

#include <curses.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <term.h>
#include <termios.h>
#include <unistd.h>

#define TERMINAL_ROWS    300
#define TERMINAL_COLUMNS 1000

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

/* What is used of it; false if it does not say how large it is. */
static bool terminal_size(int *height, int *width)
{
    struct winsize size;

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) || !size.ws_row || !size.ws_col)
        return false;
    *height = size.ws_row < TERMINAL_ROWS ? size.ws_row : TERMINAL_ROWS;
    *width = size.ws_col < TERMINAL_COLUMNS ? size.ws_col : TERMINAL_COLUMNS;
    return true;
}

static void terminal_tell_size(void)
{
    int height, width;
    char text[16];

    if (!terminal_size(&height, &width))
        return;
    snprintf(text, sizeof(text), "%d", height);
    setenv("LINES", text, 1);
    snprintf(text, sizeof(text), "%d", width);
    setenv("COLUMNS", text, 1);
}

void terminal_resize(void)
{
    int height, width;

    if (terminal_size(&height, &width) && resizeterm(height, width) == OK)
        clear();
}

bool terminal_begin(void)
{
    setlocale(LC_ALL, "");
    terminal_tell_size();
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
