/* SPDX-License-Identifier: MIT
 *
 * main.c - `holdfast top`: options, and the loop.
 *
 * The loop waits for keys, signals, answers of the service and the clock, and
 * never for the service itself: listings are events, and what has no event is
 * asked by a thread (job.c).  The last line says when the service is out of
 * reach, and the table stays as it was.
 */
#include "top.h"

#include <curses.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

struct top_opts {
    const char *url;
    bool once, json;
};

static const struct option top_options[] = {
    {"help", no_argument, NULL, 'h'},
    {"interval", required_argument, NULL, 'i'},
    {"json", no_argument, NULL, 'j'},
    {"once", no_argument, NULL, 'o'},
    {"url", required_argument, NULL, 'u'},
    {"version", no_argument, NULL, 'V'},
    {NULL, 0, NULL, 0},
};

static int top_help(void)
{
    puts("Usage: holdfast top [options] [PREFIX]\n"
         "\n"
         "Show the locks that are held and whose key begins with PREFIX.\n"
         "\n"
         "Options:\n"
         "  -u, --url URL        the lock service (else $HOLDFAST_URL, else "
         "file:)\n"
         "  -i, --interval SECS  between two listings (1)\n"
         "      --once           print once and end\n"
         "      --json           the same as JSON\n"
         "  -h, --help           show this help\n"
         "  -V, --version        show the version\n"
         "\n"
         "Keys: arrows, q quit, s sort, / filter, Enter details, b break,\n"
         "p pause, r list now.");
    return CLI_OK;
}

/* Without controls, and without passwords. */
void top_say(const char *text)
{
    char raw[sizeof(((struct hf_error *)0)->text)], line[4 * sizeof(raw)];

    snprintf(raw, sizeof(raw), "%s", text);
    cli_mask(raw, false);
    cli_clean(raw, line, sizeof(line));
    fprintf(stderr, "holdfast-top: %s\n", line);
}

/* The same on the last line of the screen. */
static void top_tell(char ret[512], const char *text)
{
    snprintf(ret, 512, "%s", text);
    cli_mask(ret, false);
}

static int top_wrong(const char *text)
{
    fprintf(stderr, "holdfast-top: %s (see 'holdfast top --help')\n", text);
    return CLI_USAGE;
}

/* getopt() itself would show the value of an option that it does not know. */
static int top_unknown(const char *word)
{
    char name[64], text[CLI_WORD + 64], shown[CLI_WORD];

    if (strncmp(word, "--", 2) != 0)
        return top_wrong("an option is unknown or lacks its value");
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(word, "="), word);
    snprintf(text, sizeof(text), "%s is unknown, or its value is wrong",
             cli_word(name, shown));
    top_say(text);
    return CLI_USAGE;
}

static volatile sig_atomic_t top_signal;

/* ---- listing ------------------------------------------------------------ */

/* Listings take one part in so many of a core at most, unless -i says how often
 * they come. */
#define TOP_PARTS 70

struct top_listing {
    hf_client *client;
    hf_request *request; /* NULL: none is under way */
    int64_t next_at, began;
    int64_t used; /* processor time, when it began */
};

/* Processor time of all threads so far, in ms. */
static int64_t top_used(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void top_list_start(struct top *top, struct top_listing *list)
{
    struct hf_error err;

    if (list->request || (top->paused && list->began) ||
        cli_now() < list->next_at)
        return;
    list->began = cli_now();
    list->next_at = list->began + top->interval;
    list->used = top_used();
    if (hf_list_start(list->client, top->prefix, NULL, &list->request, &err)) {
        list->request = NULL;
        top_tell(top->trouble, err.text);
    }
}

/* Find what was chosen before; else stay where that was. */
static void top_follow(struct top *top)
{
    for (size_t i = 0; top->chosen[0] && i < top->table.shown; i++)
        if (!strcmp(top->table.rows[i].key, top->chosen)) {
            top->at = i;
            return;
        }
    if (top->at >= top->table.shown)
        top->at = top->table.shown ? top->table.shown - 1 : 0;
    if (top->view == VIEW_LIST)
        snprintf(top->chosen, sizeof(top->chosen), "%s",
                 top->table.shown ? top->table.rows[top->at].key : "");
}

static void top_describe(struct top *top, hf_client *client)
{
    struct hf_service svc = {.size = sizeof(svc)};

    if (hf_describe(client, &svc, NULL))
        return;
    snprintf(top->endpoint, sizeof(top->endpoint), "%s", svc.endpoint);
    top->lease = svc.ttl_ms;
}

static void top_listed(struct top *top, struct top_listing *list,
                       const struct hf_event *event)
{
    struct hf_change change = HF_CHANGE_INIT;
    struct top_table fresh = {0};
    int64_t next;

    list->request = NULL;
    if (event->error.status) {
        top_tell(top->trouble, event->error.text);
        return;
    }
    while (hf_list_next(event->request, &change))
        table_add(&fresh, &change);
    table_inherit(&fresh, &top->table);
    table_clear(&top->table);
    top->table = fresh;
    table_arrange(&top->table);
    top_follow(top);
    next = list->began + TOP_PARTS * (top_used() - list->used);
    if (top->paced && next > list->next_at)
        list->next_at = next;
    if (top->view == VIEW_DETAILS)
        job_start(JOB_LOOK, top->chosen, 0);
    top->trouble[0] = '\0';
    if (list->began > top->said_at) /* It knows of what was told. */
        top->message[0] = '\0';
    top_describe(top, list->client);
}

static void top_events(struct top *top, struct top_listing *list)
{
    struct hf_event event = HF_EVENT_INIT;

    while (hf_next_event(list->client, &event))
        if (event.type == HF_ANSWERED && event.request == list->request)
            top_listed(top, list, &event);
}

/* ---- keys --------------------------------------------------------------- */

static void top_move(struct top *top, int64_t by)
{
    int64_t max = top->table.shown ? (int64_t)top->table.shown - 1 : 0;
    int64_t at = (int64_t)top->at + by;

    if (top->view == VIEW_DETAILS) {
        max = details_lines(top) ? details_lines(top) - 1 : 0;
        at = top->line + by;
        top->line = (int)(at < 0 ? 0 : at > max ? max : at);
        return;
    }
    top->at = (size_t)(at < 0 ? 0 : at > max ? max : at);
    snprintf(top->chosen, sizeof(top->chosen), "%s",
             top->table.shown ? top->table.rows[top->at].key : "");
}

static void top_open(struct top *top)
{
    if (top->view != VIEW_LIST || !top->table.shown)
        return;
    top->view = VIEW_DETAILS;
    top->line = 0;
    top->details.key[0] = '\0';
    job_start(JOB_LOOK, top->chosen, 0);
}

/* Do several hold it, or may they? */
static bool top_several(const struct hf_info *info)
{
    return info->shared || info->permits > 0 || info->holders > 1;
}

/* Ask before it is broken, and show which grant is meant (ask.c (3)). */
static void top_ask(struct top *top)
{
    const struct hf_info *info = NULL;
    const char *key = top->chosen;

    if (top->breaking)
        return; /* The one before is not broken yet. */

    if (top->view == VIEW_DETAILS && !strcmp(top->details.key, top->chosen) &&
        top->line < details_holders(&top->details)) {
        info = &top->details.holders[top->line];
    } else if (top->view == VIEW_LIST && top->table.shown) {
        info = &top->table.rows[top->at].info;
        key = top->table.rows[top->at].key;
    }
    if (!info)
        return;
    if (top->view == VIEW_LIST && top_several(info)) {
        top_open(top);
        return;
    }
    top->asking = true;
    top->asked = false;
    snprintf(top->ask_key, sizeof(top->ask_key), "%s", key);
    top->ask_fence = info->fence;
    snprintf(top->ask_who, sizeof(top->ask_who), "%s",
             info->note[0] ? info->note : info->owner);
}

static void top_filter_key(struct top *top, int key)
{
    char *filter = top->table.filter;
    size_t len = strlen(filter), last = len ? len - 1 : 0;

    while (last && ((unsigned char)filter[last] & 0xc0) == 0x80)
        last--; /* where the last character begins */

    if (key == 27)
        filter[0] = '\0';
    if (key == 27 || key == '\n' || key == KEY_ENTER)
        top->filtering = false;
    else if ((key == KEY_BACKSPACE || key == 127 || key == 8) && len)
        filter[last] = '\0';
    else if (key >= ' ' && key < 256 && key != 127 &&
             len + 1 < sizeof(top->table.filter))
        filter[len] = (char)key, filter[len + 1] = '\0';
    table_arrange(&top->table);
    top_follow(top);
}

static void top_answer_key(struct top *top, int key)
{
    top->asking = false;
    if (key != 'y' && key != 'Y')
        return;
    top->breaking = true;
    top->delayed = !job_start(JOB_BREAK, top->ask_key, top->ask_fence);
}

/* Keys that change what is shown; false for q. */
static bool top_list_key(struct top *top, struct top_listing *list, int key)
{
    switch (key) {
    case 'q':
    case 27:
        if (top->view == VIEW_LIST && key == 'q')
            return false;
        if (top->view == VIEW_LIST)
            top_filter_key(top, key);
        top->view = VIEW_LIST;
        break;
    case 's':
        top->table.sort = (top->table.sort + 1) % SORT_COUNT;
        table_arrange(&top->table);
        top_follow(top);
        break;
    case 'p':
    case ' ':
        top->paused = !top->paused;
        break;
    case 'r':
        list->next_at = 0;
        break;
    case '/':
        top->filtering = top->view == VIEW_LIST;
        break;
    case 'b':
        top_ask(top);
        break;
    case '\n':
    case KEY_ENTER:
        top_open(top);
        break;
    default:
        break;
    }
    return true;
}

static bool top_key(struct top *top, struct top_listing *list, int key)
{
    if (key == KEY_RESIZE) {
        clear();
        return true;
    }
    top->message[0] = '\0';
    if (top->asking)
        top_answer_key(top, key);
    else if (top->filtering)
        top_filter_key(top, key);
    else if (key == KEY_DOWN || key == 'j')
        top_move(top, 1);
    else if (key == KEY_UP || key == 'k')
        top_move(top, -1);
    else if (key == KEY_NPAGE)
        top_move(top, (int64_t)screen_rows());
    else if (key == KEY_PPAGE)
        top_move(top, -(int64_t)screen_rows());
    else if (key == KEY_HOME || key == KEY_END)
        top_move(top, key == KEY_HOME ? INT32_MIN : INT32_MAX);
    else
        return top_list_key(top, list, key);
    return true;
}

/* ---- the loop ----------------------------------------------------------- */

static void top_broke(struct top *top, const struct top_job *job)
{
    char text[512];

    top->breaking = false;
    if (!job->st)
        snprintf(text, sizeof(text), "broke fence %" PRIu64 " of '%.200s'",
                 job->fence, job->key);
    else if (job->st == HF_UNCERTAIN)
        snprintf(text, sizeof(text),
                 "it is not known whether '%.200s' is broken: %.250s", job->key,
                 job->err.text);
    else
        snprintf(text, sizeof(text), "'%.200s' is not broken: %.250s", job->key,
                 job->err.text);
    top_tell(top->message, text);
    top->said_at = cli_now();
}

static void top_jobs(struct top *top, struct top_listing *list)
{
    struct top_job job;
    bool taken = job_take(&job);

    if (top->delayed) /* It was said yes to, and goes before another look. */
        top->delayed = !job_start(JOB_BREAK, top->ask_key, top->ask_fence);
    if (!taken)
        return;
    if (job.kind == JOB_BREAK) {
        top_broke(top, &job);
        list->next_at = top->said_at + 500; /* so that it can be read */
        return;
    }
    top->details = job;
    top_move(top, 0); /* There may be fewer now. */
    if (top->view == VIEW_DETAILS && strcmp(job.key, top->chosen) != 0)
        job_start(JOB_LOOK, top->chosen, 0);
}

static int top_signals(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGQUIT);
    sigaddset(&set, SIGWINCH);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* False when it is over. */
static bool top_turn(struct top *top, struct top_listing *list, int signals)
{
    struct pollfd fds[4] = {
        {.fd = signals, .events = POLLIN},
        {.fd = STDIN_FILENO, .events = POLLIN},
        {.fd = hf_events_fd(list->client), .events = POLLIN},
        {.fd = job_fd(), .events = POLLIN}};
    struct signalfd_siginfo info;
    int key;

    top_list_start(top, list);
    if (!screen_draw(top))
        top->asking = false; /* ask.c (1) */
    if (top->asking && !top->asked)
        flushinp(); /* ask.c (2) */
    top->asked = top->asking;
    poll(fds, 4, top->interval < 200 ? (int)top->interval : 200);
    while (read(signals, &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo == SIGWINCH) {
            terminal_resize();
            continue;
        }
        top_signal = (sig_atomic_t)info.ssi_signo;
        return false;
    }
    if (fds[1].revents & (POLLHUP | POLLERR | POLLNVAL))
        return false; /* the terminal is gone */
    top_events(top, list);
    top_jobs(top, list);
    while (top->asking == top->asked && (key = getch()) != ERR)
        if (!top_key(top, list, key))
            return false;
    return true;
}

static int top_screen(struct top *top, hf_client *client)
{
    struct top_listing list = {.client = client};
    int signals;

    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
        return top_wrong("there is no terminal: use --once");
    signals = top_signals();
    if (signals < 0 || !job_open(client) || !terminal_begin()) {
        fprintf(stderr,
                "holdfast-top: the terminal '%s' cannot show a screen: use "
                "--once\n",
                getenv("TERM") ? getenv("TERM") : "");
        return CLI_FAILED;
    }
    top_describe(top, client);
    snprintf(top->trouble, sizeof(top->trouble), "asking the service...");
    while (top_turn(top, &list, signals))
        continue;
    terminal_end();
    return CLI_OK;
}

/* "2" or "0.5", in seconds. */
static bool top_seconds(const char *text, int64_t *ret)
{
    char *end;
    double seconds = strtod(text, &end);

    if (end == text || *end || !(seconds >= 0.1 && seconds <= 3600))
        return false;
    *ret = (int64_t)(seconds * 1000);
    return true;
}

/* -1: go on; else an exit status. */
static int top_parse(int argc, char **argv, struct top_opts *o, struct top *top)
{
    int c;

    opterr = 0;
    while ((c = getopt_long(argc, argv, "hi:u:V", top_options, NULL)) != -1) {
        switch (c) {
        case 'h':
            return top_help();
        case 'V':
            printf("holdfast-top %s\n", hf_version());
            return CLI_OK;
        case 'u':
            o->url = cli_url_hide(optarg);
            break;
        case 'i':
            if (!top_seconds(optarg, &top->interval))
                return top_wrong("--interval takes 0.1 to 3600 seconds");
            top->paced = false;
            break;
        case 'j':
            o->json = true;
            break;
        case 'o':
            o->once = true;
            break;
        default:
            return top_unknown(argv[optind - 1]);
        }
    }
    if (argc - optind > 1)
        return top_wrong("there is one PREFIX at most");
    if (o->json && !o->once)
        return top_wrong("--json goes with --once");
    if (optind < argc && cli_url_secret(argv[optind])) {
        cli_url_wipe(argv[optind]); /* It would be shown, and in ps(1). */
        return top_wrong("PREFIX is a URL with a password: give it with -u");
    }
    if (optind < argc)
        top->prefix = argv[optind];
    return -1;
}

/* End as the signal would have ended us. */
static _Noreturn void top_end(int code)
{
    struct sigaction act = {.sa_handler = SIG_DFL};
    int signo = top_signal;
    sigset_t set;

    fflush(stdout);
    if (signo) {
        sigaction(signo, &act, NULL);
        raise(signo);
        sigemptyset(&set);
        sigaddset(&set, signo);
        sigprocmask(SIG_UNBLOCK, &set, NULL);
    }
    _exit(code); /* a call may still be under way */
}

int main(int argc, char **argv)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    struct top_opts o = {.url = getenv("HOLDFAST_URL")};
    struct top top = {.prefix = "", .interval = 1000, .paced = true};
    struct hf_error err;
    hf_client *client;
    int code = top_parse(argc, argv, &o, &top);

    if (code >= 0)
        return code;
    if (o.once || !isatty(STDERR_FILENO)) /* Else it would go over the table. */
        opts = *log_opts();
    opts.connect_ms = o.once ? 0 : -1;
    if (hf_open(o.url, &opts, &client, &err)) {
        top_say(err.text);
        return err.status == HF_INVALID || err.status == HF_UNSUPPORTED
                   ? CLI_CONFIG
                   : CLI_UNAVAILABLE;
    }
    code = o.once ? top_once(&top, client, o.json) : top_screen(&top, client);
    top_end(code);
}
