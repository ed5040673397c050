/* SPDX-License-Identifier: MIT
 *
 * run_c.c - run the scripts of test/bindings/spec with the C library.
 *
 *     run_c URL FILE...
 *     run_c --child PREFIX URL
 *
 * spec/README.md defines the language, and this is its reference.  Everything
 * that has a name is a struct thing.  `start` and what follows it use events,
 * as a binding would; one dispatcher takes the events of all clients and notes
 * what they say in the thing they are about.
 */
#include <holdfast.h>

#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 32, THINGS = 64, SEVERAL = 8, PATIENCE_MS = 30000 };

struct thing {
    char name[32];
    char key[256]; /* of a lock: with the prefix */
    hf_client *client;
    hf_lock *lock;
    uint64_t fence; /* these two outlive the lock */
    int32_t slot;
    bool gone, at_risk;

    hf_request *request; /* not ended yet */
    hf_client *of;       /* the client of the request */
    hf_lock *locks[SEVERAL];
    struct thing *parts[SEVERAL];
    int n;
    struct hf_error end; /* of the request */

    struct hf_handle handle;
    hf_observer *observer;

    pid_t pid;
    FILE *to, *from;
};

static struct thing things[THINGS];
static int n_things;
static const char *program, *url;
static char prefix[64];
static char result[1024]; /* of the line: words, and perhaps a text behind */
static char text[256];
static const char *want; /* what is expected of the line */

/* ---- results ------------------------------------------------------------ */

__attribute__((format(printf, 1, 2))) static void say(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(result, sizeof(result), fmt, ap);
    va_end(ap);
}

static void say_status(hf_status st, const struct hf_error *err)
{
    say("%s", hf_status_name(st));
    snprintf(text, sizeof(text), "%s", st && err ? err->text : "");
}

static void say_yes(bool yes)
{
    say("%s", yes ? "yes" : "no");
}

static _Noreturn void die(const char *what)
{
    printf("Bail out! %s\n", what);
    exit(1);
}

static int64_t now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_BOOTTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* ---- names and words ---------------------------------------------------- */

static struct thing *named(const char *name)
{
    int i;

    for (i = 0; i < n_things; i++)
        if (!strcmp(things[i].name, name))
            return &things[i];
    if (n_things == THINGS || strlen(name) >= sizeof(things[0].name))
        die("too many names, or a long one");
    memset(&things[n_things], 0, sizeof(things[0]));
    snprintf(things[n_things].name, sizeof(things[0].name), "%s", name);
    return &things[n_things++];
}

static hf_client *client_of(const char *name)
{
    hf_client *client = named(name)->client;

    if (!client)
        die("no such client");
    return client;
}

static const char *full_key(const char *key)
{
    static char buf[SEVERAL][256];
    static int turn;

    turn = (turn + 1) % SEVERAL;
    snprintf(buf[turn], sizeof(buf[0]), "%s%s", prefix,
             strcmp(key, "*") != 0 ? key : "");
    return buf[turn];
}

/* Cut `list` at its commas, in place. */
static int split(char *list, char **parts)
{
    char *save;
    int n = 0;

    for (list = strtok_r(list, ",", &save); list && n < SEVERAL;
         list = strtok_r(NULL, ",", &save))
        parts[n++] = list;
    return n;
}

/* The value of NAME=VALUE if `word` is that. */
static const char *value(const char *word, const char *name)
{
    size_t len = strlen(name);

    return !strncmp(word, name, len) && word[len] == '=' ? word + len + 1
                                                         : NULL;
}

static struct hf_lock_opts options(char **words, int64_t *wait_ms)
{
    struct hf_lock_opts o = HF_LOCK_OPTS_INIT;
    struct {
        const char *name;
        int64_t *ms;
    } times[] = {
        {"wait", wait_ms},
        {"ttl", &o.ttl_ms},
        {"retry", &o.retry_ms},
        {"linger", &o.linger_ms},
        {"max_hold", &o.max_hold_ms},
        {"min_hold", &o.min_hold_ms},
    };
    const char *flags[] = {"manual", "fair", "shared", "poll"};
    const char *v;
    size_t i;

    *wait_ms = 0;
    for (; *words; words++) {
        bool known = true;

        if ((v = value(*words, "permits")))
            o.permits = atoi(v);
        else if ((v = value(*words, "tries")))
            o.max_tries = atoi(v);
        else if ((v = value(*words, "owner")))
            o.owner = v;
        else if ((v = value(*words, "note")))
            o.note = v;
        else
            known = false;
        for (i = 0; i < sizeof(times) / sizeof(times[0]); i++)
            if ((v = value(*words, times[i].name))) {
                *times[i].ms = atoll(v);
                known = true;
            }
        for (i = 0; i < 4; i++)
            if (!strcmp(*words, flags[i])) {
                o.flags |= 1u << i;
                known = true;
            }
        if (!known)
            die(*words);
    }
    return o;
}

/* ---- events ------------------------------------------------------------- */

static void thing_held(struct thing *t, hf_lock *lock)
{
    t->lock = lock;
    t->fence = hf_fence(lock);
    t->slot = hf_slot(lock);
    t->gone = t->at_risk = false;
    snprintf(t->key, sizeof(t->key), "%s", hf_key(lock));
}

static void event_of(struct thing *t, const struct hf_event *event)
{
    int i;

    switch (event->type) {
    case HF_GRANTED:
        t->request = NULL;
        t->end.status = HF_OK;
        if (t->n == 0)
            thing_held(t, event->lock);
        for (i = 0; i < t->n; i++)
            thing_held(t->parts[i], t->locks[i]);
        break;
    case HF_FAILED:
        t->request = NULL;
        t->end = event->error;
        break;
    case HF_AT_RISK:
        t->at_risk = true;
        break;
    case HF_GONE:
        t->gone = true;
        break;
    default:
        break;
    }
}

/* Wait up to `ms` for events of any client, and note what they say. */
static void dispatch(int ms)
{
    struct pollfd fds[THINGS];
    struct hf_event event = HF_EVENT_INIT;
    int i, k, n = 0;

    for (i = 0; i < n_things; i++)
        if (things[i].client)
            fds[n++] =
                (struct pollfd){hf_events_fd(things[i].client), POLLIN, 0};
    poll(fds, (nfds_t)n, ms);
    for (i = 0; i < n_things; i++)
        while (things[i].client && hf_next_event(things[i].client, &event))
            for (k = 0; k < n_things; k++)
                if (event.type <= HF_FAILED
                        ? things[k].request == event.request
                        : things[k].lock && things[k].lock == event.lock) {
                    event_of(&things[k], &event);
                    break;
                }
}

/* Dispatch until *flag is true. */
static bool await(const bool *flag)
{
    int64_t end = now_ms() + PATIENCE_MS;

    dispatch(0);
    while (!*flag && now_ms() < end)
        dispatch(100);
    return *flag;
}

/* ---- verbs -------------------------------------------------------------- */

static void do_open(char **w)
{
    struct thing *t = named(w[0]);
    struct hf_error err;

    say_status(hf_open(w[1] ? value(w[1], "url") : url, NULL, &t->client, &err),
               &err);
}

/* The requests of a client end with it. */
static void do_close(char **w)
{
    struct thing *t = named(w[0]);
    int i;

    dispatch(0);
    for (i = 0; i < n_things; i++)
        if (things[i].request && things[i].of == t->client) {
            things[i].request = NULL;
            things[i].end.status = HF_CANCELED;
        }
    hf_close(t->client);
    t->client = NULL;
}

static void do_lock(char **w)
{
    struct thing *t = named(w[1]);
    struct hf_error err;
    hf_lock *lock;
    int64_t wait_ms;
    struct hf_lock_opts opts = options(w + 3, &wait_ms);
    hf_status st = hf_acquire(client_of(w[0]), full_key(w[2]), wait_ms, &opts,
                              &lock, &err);

    if (!st)
        thing_held(t, lock);
    say_status(st, &err);
}

static void do_all(char **w)
{
    const char *keys[SEVERAL];
    char *names[SEVERAL], *parts[SEVERAL];
    hf_lock *locks[SEVERAL];
    int n = split(w[1], names), i, m = split(w[2], parts);
    struct hf_error err;
    int64_t wait_ms;
    struct hf_lock_opts opts = options(w + 3, &wait_ms);
    hf_status st;

    for (i = 0; i < m; i++)
        keys[i] = full_key(parts[i]);
    st = hf_acquire_all(client_of(w[0]), keys, (size_t)m, wait_ms, &opts, locks,
                        &err);
    for (i = 0; !st && i < n; i++)
        thing_held(named(names[i]), locks[i]);
    say_status(st, &err);
}

static void do_start(char **w)
{
    struct thing *t = named(w[1]);
    struct hf_error err;
    int64_t wait_ms;
    struct hf_lock_opts opts = options(w + 3, &wait_ms);

    t->of = client_of(w[0]);
    t->n = 0;
    say_status(hf_acquire_start(t->of, full_key(w[2]), wait_ms, &opts, NULL,
                                &t->request, &err),
               &err);
}

static void do_startall(char **w)
{
    const char *keys[SEVERAL];
    char *names[SEVERAL], *parts[SEVERAL];
    int n = split(w[1], names), i, m = split(w[2], parts);
    struct hf_error err;
    int64_t wait_ms;
    struct hf_lock_opts opts = options(w + 3, &wait_ms);
    struct thing *t = named(names[0]);

    for (i = 0; i < n && i < m; i++) {
        keys[i] = full_key(parts[i]);
        t->parts[i] = named(names[i]);
    }
    t->n = i;
    t->of = client_of(w[0]);
    say_status(hf_acquire_all_start(t->of, keys, (size_t)t->n, wait_ms, &opts,
                                    t->locks, NULL, &t->request, &err),
               &err);
}

static void do_cancel(char **w)
{
    if (named(w[0])->request)
        hf_request_cancel(named(w[0])->request);
}

static void do_pending(char **w)
{
    dispatch(0);
    say_yes(named(w[0])->request != NULL);
}

static void do_wait(char **w)
{
    struct thing *t = named(w[0]);
    int64_t end = now_ms() + PATIENCE_MS;

    dispatch(0);
    while (t->request && now_ms() < end)
        dispatch(100);
    if (t->request)
        say("pending");
    else
        say_status(t->end.status, &t->end);
}

static void do_release(char **w)
{
    struct thing *t = named(w[0]);
    struct hf_error err;

    say_status(hf_release(t->lock, &err), &err);
    t->lock = NULL;
}

static void do_extend(char **w)
{
    struct hf_error err;

    say_status(hf_extend(named(w[0])->lock,
                         w[1] ? atoll(value(w[1], "ttl")) : 0, &err),
               &err);
}

static void do_downgrade(char **w)
{
    struct hf_error err;

    say_status(hf_downgrade(named(w[0])->lock, &err), &err);
}

static void do_held(char **w)
{
    say_yes(named(w[0])->lock && hf_held(named(w[0])->lock));
}

static void do_lost(char **w)
{
    struct thing *t = named(w[0]);

    if (!await(&t->gone))
        say("silence");
    else if (hf_held(t->lock))
        say("held");
    else
        say("%s", hf_loss_name(hf_lost_reason(t->lock)));
}

static void do_risk(char **w)
{
    if (!await(&named(w[0])->at_risk))
        say("silence");
}

static void do_fences(char **w)
{
    char *names[SEVERAL];
    int n = split(w[0], names), i;
    bool rise = true, same = true;

    for (i = 1; i < n; i++) {
        rise = rise && named(names[i])->fence > named(names[i - 1])->fence;
        same = same && named(names[i])->fence == named(names[i - 1])->fence;
    }
    if (!named(names[0])->fence)
        say("unfenced");
    else
        say("%s", rise ? "rise" : same ? "same" : "no");
}

static void do_slots(char **w)
{
    char *names[SEVERAL];
    int n = split(w[0], names), i;
    unsigned seen = 0;

    for (i = 0; i < n; i++)
        if (named(names[i])->slot >= 0 && named(names[i])->slot < n)
            seen |= 1u << named(names[i])->slot;
    say_yes(seen == (1u << n) - 1);
}

/* A word about a key for each of `w`. */
static void say_info(const struct hf_info *info, char **w)
{
    char *at = result;
    size_t left = sizeof(result);

    for (*at = 0; *w; w++) {
        char one[HF_NOTE_MAX + 1];
        int len;

        if (!strcmp(*w, "held"))
            snprintf(one, sizeof(one), "%s", info->held ? "held" : "free");
        else if (!strcmp(*w, "mode"))
            snprintf(one, sizeof(one), "%s",
                     info->shared ? "shared" : "exclusive");
        else if (!strcmp(*w, "note"))
            snprintf(one, sizeof(one), "%s", info->note);
        else if (!strcmp(*w, "kept") || !strcmp(*w, "broken"))
            snprintf(one, sizeof(one), "%s",
                     (**w == 'k' ? info->kept : info->broken) ? "yes" : "no");
        else
            snprintf(one, sizeof(one), "%d",
                     !strcmp(*w, "holders")   ? info->holders
                     : !strcmp(*w, "permits") ? info->permits
                                              : info->waiters);
        len = snprintf(at, left, "%s%s", at == result ? "" : " ", one);
        at += len;
        left -= (size_t)len;
    }
}

static void do_inspect(char **w)
{
    struct hf_info info = HF_INFO_INIT;
    struct hf_error err;
    hf_status st = hf_inspect(client_of(w[0]), full_key(w[1]), &info, &err);

    if (st)
        say_status(st, &err);
    else
        say_info(&info, w + 2);
}

static bool count_holder(void *arg, const struct hf_info *holder)
{
    *(int *)arg += holder->held;
    return true;
}

static void do_holders(char **w)
{
    struct hf_error err;
    int n = 0;
    hf_status st =
        hf_holders(client_of(w[0]), full_key(w[1]), count_holder, &n, &err);

    if (st)
        say_status(st, &err);
    else
        say("%d", n);
}

struct found {
    char *keys[THINGS];
    int n;
};

static bool collect_key(void *arg, const char *key, const struct hf_info *info)
{
    struct found *found = arg;

    if (found->n < THINGS && info->held)
        found->keys[found->n++] = strdup(key + strlen(prefix));
    return true;
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void do_list(char **w)
{
    struct found found = {.n = 0};
    struct hf_error err;
    size_t len = 0;
    int i;
    hf_status st =
        hf_list(client_of(w[0]), full_key(w[1]), collect_key, &found, &err);

    qsort(found.keys, (size_t)found.n, sizeof(char *), compare);
    say("none");
    for (i = 0; i < found.n; i++) {
        len += (size_t)snprintf(result + len, sizeof(result) - len, "%s%s",
                                i ? "," : "", found.keys[i]);
        free(found.keys[i]);
    }
    if (st)
        say_status(st, &err);
}

static void do_waiters(char **w)
{
    int64_t end = now_ms() + PATIENCE_MS;
    struct hf_info info = HF_INFO_INIT;

    for (;;) {
        struct hf_error err;
        hf_status st = hf_inspect(client_of(w[0]), full_key(w[1]), &info, &err);

        if (st)
            say_status(st, &err);
        else if (info.waiters < 0 || info.waiters == atoi(w[2]))
            return;
        else if (now_ms() >= end)
            say("%d", info.waiters);
        else {
            dispatch(10);
            continue;
        }
        return;
    }
}

static void do_check(char **w)
{
    struct thing *t = named(w[1]);
    struct hf_error err;

    say_status(hf_check(client_of(w[0]), t->key, t->fence, &err), &err);
}

static void do_break(char **w)
{
    struct thing *t = named(w[1]);
    struct hf_error err;

    say_status((w[2] ? hf_break_force : hf_break)(client_of(w[0]), t->key,
                                                  t->fence, &err),
               &err);
}

static void do_detach(char **w)
{
    struct thing *t = named(w[0]);
    struct hf_error err;

    named(w[1])->handle = (struct hf_handle)HF_HANDLE_INIT;
    say_status(hf_detach(t->lock, &named(w[1])->handle, &err), &err);
    t->lock = NULL;
}

static void do_attach(char **w)
{
    struct hf_error err;
    hf_lock *lock;
    int64_t wait_ms;
    struct hf_lock_opts opts = options(w + 4, &wait_ms);
    hf_status st = hf_attach(client_of(w[0]), full_key(w[2]),
                             &named(w[3])->handle, &opts, &lock, &err);

    if (!st)
        thing_held(named(w[1]), lock);
    say_status(st, &err);
}

static void by_handle(char **w, bool extend)
{
    struct hf_error err;
    int64_t wait_ms;
    struct hf_lock_opts opts = options(w + 3, &wait_ms);

    say_status((extend ? hf_handle_extend
                       : hf_handle_release)(client_of(w[0]), full_key(w[1]),
                                            &named(w[2])->handle, &opts, &err),
               &err);
}

static void do_extendhandle(char **w)
{
    by_handle(w, true);
}

static void do_releasehandle(char **w)
{
    by_handle(w, false);
}

static void do_collect(char **w)
{
    struct hf_collected done = HF_COLLECTED_INIT;
    struct hf_error err;
    hf_status st =
        hf_collect(client_of(w[0]), atoll(w[1]), w[2] != NULL, &done, &err);

    if (st)
        say_status(st, &err);
    else
        say("%s", done.looked_at ? "some" : "none");
}

/* ---- counters ----------------------------------------------------------- */

static uint64_t counter(const struct hf_stats *s, const char *name)
{
    const struct {
        const char *name;
        uint64_t n;
    } all[] = {
        {"granted", s->granted},  {"busy", s->busy},
        {"timeout", s->timeout},  {"canceled", s->canceled},
        {"held", s->held},        {"waiting", s->waiting},
        {"waits", s->wait.count}, {"holds", s->hold.count},
        {"renewed", s->renewed},
    };
    uint64_t lost = 0;
    size_t i;

    for (i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (!strcmp(name, all[i].name))
            return all[i].n;
    if (strcmp(name, "lost") != 0)
        die(name);
    for (i = 0; i < sizeof(s->lost) / sizeof(s->lost[0]); i++)
        lost += s->lost[i];
    return lost;
}

static void do_stats(char **w)
{
    struct hf_stats stats = HF_STATS_INIT;
    struct hf_error err;
    size_t len = 0;
    hf_status st = hf_stats(client_of(w[0]), &stats, &err);

    for (w++; !st && *w; w++)
        len += (size_t)snprintf(result + len, sizeof(result) - len, "%s%llu",
                                len ? " " : "",
                                (unsigned long long)counter(&stats, *w));
    if (st)
        say_status(st, &err);
}

/* Is the text whole, and does it say what hf_stats() says? */
static void do_metrics(char **w)
{
    hf_client *client = client_of(w[0]);
    struct hf_stats stats = HF_STATS_INIT;
    char *buf, sample[64];
    const char *at;
    size_t need = 0;

    if (hf_stats(client, &stats, NULL) ||
        hf_stats_text(client, NULL, 0, &need, NULL))
        return;
    buf = malloc(need);
    if (!buf || hf_stats_text(client, buf, need, &need, NULL))
        die("no text");
    snprintf(sample, sizeof(sample), "result=\"granted\"} %llu\n",
             (unsigned long long)stats.granted);
    at = strstr(buf, "# EOF\n");
    say_yes(at && !at[6] && strstr(buf, sample));
    free(buf);
}

/* ---- observers ---------------------------------------------------------- */

static bool expected(void);

static void do_observe(char **w)
{
    struct hf_error err;

    say_status(hf_observe_start(client_of(w[0]), full_key(w[2]),
                                w[3] ? HF_PREFIX : 0, NULL,
                                &named(w[1])->observer, &err),
               &err);
}

/* Take changes until one is as expected. */
static void do_change(char **w)
{
    struct hf_change change = HF_CHANGE_INIT;
    int64_t end = now_ms() + PATIENCE_MS;

    say("silence");
    while (now_ms() < end) {
        while (hf_observer_next(named(w[0])->observer, &change)) {
            say_info(&change.info, w + 1);
            if (expected())
                return;
        }
        dispatch(100);
    }
}

static void do_unobserve(char **w)
{
    hf_observe_stop(named(w[0])->observer);
    named(w[0])->observer = NULL;
}

static void do_transfer(char **w)
{
    struct hf_error err;

    say_status(hf_transfer(named(w[0])->lock, w[1], &err), &err);
}

/* ---- processes ---------------------------------------------------------- */

static void do_process(char **w)
{
    struct thing *t = named(w[0]);
    int down[2], up[2];

    if (pipe(down) || pipe(up))
        die("no pipe");
    t->pid = fork();
    if (!t->pid) {
        dup2(down[0], 0);
        dup2(up[1], 1);
        close(down[1]);
        close(up[0]);
        execl(program, program, "--child", prefix, url, (char *)NULL);
        _exit(127);
    }
    close(down[0]);
    close(up[1]);
    t->to = fdopen(down[1], "w");
    t->from = fdopen(up[0], "r");
}

static void process_send(struct thing *t, const char *line)
{
    fprintf(t->to, "%s\n", line);
    fflush(t->to);
}

static void process_answer(struct thing *t)
{
    char line[sizeof(result)];

    if (!fgets(line, sizeof(line), t->from))
        snprintf(line, sizeof(line), "%s is gone", t->name);
    line[strcspn(line, "\n")] = 0;
    say("%s", line);
}

static void process_end(struct thing *t)
{
    if (!t->pid)
        return;
    kill(t->pid, SIGKILL);
    waitpid(t->pid, NULL, 0);
    fclose(t->to);
    fclose(t->from);
    t->pid = 0;
}

static const char *server_file(const char *name)
{
    static char path[512];

    snprintf(path, sizeof(path), "%s/1/%s", getenv("HF_TEST_MEMBERS"), name);
    return path;
}

static void server_signal(int sig)
{
    FILE *file = fopen(server_file("pid"), "r");
    int pid;

    if (file && fscanf(file, "%d", &pid) == 1)
        kill((pid_t)pid, sig);
    if (file)
        fclose(file);
}

static void signal_to(char **w, int sig)
{
    if (!strcmp(w[0], "server"))
        server_signal(sig);
    else if (sig == SIGKILL)
        process_end(named(w[0]));
    else
        kill(named(w[0])->pid, sig);
}

static void do_freeze(char **w)
{
    signal_to(w, SIGSTOP);
}

static void do_thaw(char **w)
{
    signal_to(w, SIGCONT);
}

static void do_kill(char **w)
{
    signal_to(w, SIGKILL);
}

static void do_restart(char **w)
{
    (void)w;
    if (system(server_file("run")))
        say("failed");
}

/* ---- scripts ------------------------------------------------------------ */

static const struct {
    const char *name;
    int least; /* arguments */
    void (*fn)(char **words);
} verbs[] = {
    {"open", 1, do_open},
    {"close", 1, do_close},
    {"lock", 3, do_lock},
    {"all", 3, do_all},
    {"start", 3, do_start},
    {"startall", 3, do_startall},
    {"cancel", 1, do_cancel},
    {"pending", 1, do_pending},
    {"wait", 1, do_wait},
    {"release", 1, do_release},
    {"extend", 1, do_extend},
    {"downgrade", 1, do_downgrade},
    {"held", 1, do_held},
    {"lost", 1, do_lost},
    {"risk", 1, do_risk},
    {"fences", 1, do_fences},
    {"slots", 1, do_slots},
    {"inspect", 3, do_inspect},
    {"holders", 2, do_holders},
    {"list", 2, do_list},
    {"waiters", 3, do_waiters},
    {"check", 2, do_check},
    {"break", 2, do_break},
    {"detach", 2, do_detach},
    {"attach", 4, do_attach},
    {"process", 1, do_process},
    {"freeze", 1, do_freeze},
    {"thaw", 1, do_thaw},
    {"kill", 1, do_kill},
    {"restart", 1, do_restart},
    {"observe", 3, do_observe},
    {"change", 2, do_change},
    {"unobserve", 1, do_unobserve},
    {"transfer", 2, do_transfer},
    {"stats", 2, do_stats},
    {"metrics", 1, do_metrics},
    {"collect", 2, do_collect},
    {"extendhandle", 3, do_extendhandle},
    {"releasehandle", 3, do_releasehandle},
};

/* Run a line without its `=>`, and set `result`. */
static void run_line(char *line)
{
    char copy[512], *words[WORDS + 1], *save, *word;
    int n = 0;
    size_t i, len;

    say("ok");
    text[0] = 0;
    snprintf(copy, sizeof(copy), "%s", line);
    for (word = strtok_r(copy, " \t\n", &save); word && n < WORDS;
         word = strtok_r(NULL, " \t\n", &save))
        words[n++] = word;
    words[n] = NULL;
    len = strlen(words[0]);
    if (strchr(":&.", words[0][len - 1])) {
        char mark = words[0][len - 1];
        struct thing *t;

        words[0][len - 1] = 0;
        t = named(words[0]);
        if (mark != '.')
            process_send(t, strstr(line, words[1]));
        if (mark != '&')
            process_answer(t);
        return;
    }
    for (i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
        if (!strcmp(words[0], verbs[i].name) && n > verbs[i].least) {
            verbs[i].fn(words + 1);
            return;
        }
    die(line);
}

/* Is `result` one of the alternatives?  Words of a text may follow it. */
static bool expected(void)
{
    const char *one;
    size_t len;

    for (one = want;; one += len + 1) {
        len = strcspn(one, "|");
        if (!strncmp(result, one, len) && (!result[len] || result[len] == ' '))
            return true;
        if (!one[len])
            return false;
    }
}

/* Does the service lack one of the traits? */
static bool lacks(char *list)
{
    static const char *const names[] = {
        "fenced",    "leased", "queued", "notify",    "shared",
        "reentrant", "detach", "break",  "processes", "machines",
        "death",     "twice",  "noted",  "permits",   "min_hold"};
    struct hf_service service = {.size = sizeof(service)};
    hf_client *client;
    struct hf_error err;
    bool lacking = false;
    char *save, *word;
    unsigned i;

    if (hf_open(url, NULL, &client, &err) ||
        hf_describe(client, &service, &err))
        die(err.text);
    hf_close(client);
    for (word = strtok_r(list, " \n", &save); word;
         word = strtok_r(NULL, " \n", &save)) {
        bool has = !strcmp(word, "server") && getenv("HF_TEST_MEMBERS");

        for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
            has = has || (!strcmp(word, names[i]) && service.traits & 1u << i);
        lacking = lacking || !has;
    }
    return lacking;
}

/* End everything that a script left behind. */
static void clean_up(void)
{
    int i;

    if (getenv("HF_TEST_MEMBERS"))
        server_signal(SIGCONT);
    for (i = 0; i < n_things; i++)
        process_end(&things[i]);
    for (i = 0; i < n_things; i++)
        if (things[i].lock)
            hf_release(things[i].lock, NULL);
    for (i = 0; i < n_things; i++)
        if (things[i].observer)
            hf_observe_stop(things[i].observer);
    for (i = 0; i < n_things; i++)
        hf_close(things[i].client);
    n_things = 0;
}

/* Run a script: 0, 1 for a failure, 2 if it was skipped. */
static int run_script(FILE *file)
{
    char line[512], *arrow, *end;
    int number = 0;

    while (fgets(line, sizeof(line), file)) {
        want = "ok";
        number++;
        line[strcspn(line, "\n")] = 0;
        if (!line[0] || line[0] == '#')
            continue;
        if (!strncmp(line, "needs ", 6)) {
            if (lacks(line + 6))
                return 2;
            continue;
        }
        arrow = strstr(line, " => ");
        if (arrow) {
            want = arrow + 4;
            for (end = arrow; end > line && *end == ' '; end--)
                *end = 0;
        }
        run_line(line);
        if (expected())
            continue;
        printf("# line %d: %s\n# expected %s, got %s%s%s\n", number, line, want,
               result, text[0] ? ": " : "", text);
        return 1;
    }
    return 0;
}

static int run_child(void)
{
    char line[512];

    while (fgets(line, sizeof(line), stdin)) {
        run_line(line);
        printf("%s %s\n", result, text);
        fflush(stdout);
    }
    clean_up();
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const ends[] = {"", "",
                                       " # SKIP the service has it not"};
    int i, how, failed = 0;

    program = argv[0];
    signal(SIGPIPE, SIG_IGN);
    if (argc == 4 && !strcmp(argv[1], "--child")) {
        snprintf(prefix, sizeof(prefix), "%s", argv[2]);
        url = argv[3];
        return run_child();
    }
    if (argc < 3)
        return fprintf(stderr, "usage: run_c URL FILE...\n"), 64;
    url = argv[1];
    printf("1..%d\n", argc - 2);
    for (i = 2; i < argc; i++) {
        const char *name = strrchr(argv[i], '/');
        FILE *file = fopen(argv[i], "r");

        if (!file)
            die(argv[i]);
        snprintf(prefix, sizeof(prefix), "spec-%d-%d-", (int)getpid(), i);
        how = run_script(file);
        failed += how == 1;
        fclose(file);
        clean_up();
        printf("%sok %d - %s%s\n", how == 1 ? "not " : "", i - 1,
               name ? name + 1 : argv[i], ends[how]);
        fflush(stdout);
    }
    return failed > 0;
}
