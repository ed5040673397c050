/* SPDX-License-Identifier: MIT
 *
 * doctor.c - what does this URL promise, and does it work now?
 *
 * The promises are the service's traits in words, both ways: what it does not
 * promise is said as plainly as what it does.  Then a lock is really taken and
 * given back, twice, so that the fence can be seen to rise.  The probe has a
 * key of its own and touches no other.  Exit status 0 if the probe worked.
 *
 * With --all: what can the services do that this build knows, and can their
 * modules be loaded?  No server is asked.  The tables of services in the
 * documents are made from this (scripts/service-table).  Exit status 0 if all
 * modules can be loaded.
 */
#include "cli.h"

#include <inttypes.h>
#include <string.h>

#define DOCTOR_KEY "holdfast.doctor"

static const struct {
    unsigned trait;
    const char *name;
    const char *yes;
    const char *no;
} doctor_traits[] = {
    {HF_TRAIT_PROCESSES, "processes", "excludes between processes",
     "excludes only between the threads of one process"},
    {HF_TRAIT_MACHINES, "machines", "excludes between machines",
     "does not exclude between machines"},
    {HF_TRAIT_FENCED, "fenced", "every grant has a rising number",
     "grants have no rising number"},
    {HF_TRAIT_LEASED, "leased", "a lock that is not renewed lapses",
     "a lock stays for as long as its process lives"},
    {HF_TRAIT_DEATH, "death", "a dead process frees its locks at once",
     "a dead process frees its locks when the lease is over"},
    {HF_TRAIT_QUEUED, "queued", "first come, first served",
     "waiters are served in no order"},
    {HF_TRAIT_NOTIFY, "notify", "waiters are woken", "waiters poll"},
    {HF_TRAIT_SHARED, "shared", "locks can be shared (-s)",
     "locks cannot be shared"},
    {HF_TRAIT_PERMITS, "permits", "several can hold at once (--permits)",
     "there are no permits"},
    {HF_TRAIT_MIN_HOLD, "min_hold", "a minimum hold is kept (--min-hold)",
     "there is no minimum hold"},
    {HF_TRAIT_REENTRANT, "reentrant", "owner ids count across processes",
     "owner ids count within one process only"},
    {HF_TRAIT_DETACH, "detach", "acquire, renew and release work",
     "acquire needs another service; run works"},
    {HF_TRAIT_BREAK, "break", "break works", "break does not work"},
    {HF_TRAIT_NOTED, "noted", "owner id and note are kept with the lock",
     "neither owner id nor note is kept"},
};

#define DOCTOR_TRAITS (sizeof(doctor_traits) / sizeof(doctor_traits[0]))

struct doctor_probe {
    uint64_t fences[2];
    int64_t took_ms;
};

/* Take the probe lock and give it back, twice. */
static hf_status doctor_try(hf_client *client, struct doctor_probe *ret,
                            struct hf_error *err)
{
    struct hf_lock_opts lo = HF_LOCK_OPTS_INIT;
    int64_t start = cli_now();

    lo.ttl_ms = 10000;
    lo.note = "holdfast doctor";
    for (int i = 0; i < 2; i++) {
        hf_status st;
        hf_lock *lock;

        st = hf_acquire(client, DOCTOR_KEY, 5000, &lo, &lock, err);
        if (st)
            return st;
        ret->fences[i] = hf_fence(lock);
        st = hf_release(lock, err);
        if (st)
            return st;
    }
    ret->took_ms = cli_now() - start;
    return HF_OK;
}

static void doctor_json(const struct hf_service *svc, hf_status st,
                        const struct doctor_probe *probe,
                        const struct hf_error *err)
{
    struct cli_json json;

    cli_json_open(&json, stdout);
    cli_json_str(&json, "endpoint", svc->endpoint);
    cli_json_str(&json, "scheme", svc->scheme);
    for (size_t i = 0; i < DOCTOR_TRAITS; i++)
        cli_json_bool(&json, doctor_traits[i].name,
                      svc->traits & doctor_traits[i].trait);
    cli_json_bool(&json, "twice", svc->traits & HF_TRAIT_TWICE);
    cli_json_str(&json, "warning", svc->warning[0] ? svc->warning : NULL);
    cli_json_str(&json, "probe", hf_status_name(st));
    cli_json_str(&json, "error", st ? err->text : NULL);
    cli_json_fence(&json, probe->fences[1]);
    cli_json_num(&json, "took_ms", probe->took_ms);
    cli_json_close(&json);
    putchar('\n');
}

static void doctor_text(const struct hf_service *svc, hf_status st,
                        const struct doctor_probe *probe)
{
    char text[2 * sizeof(svc->warning)];

    cli_clean(svc->endpoint, text, sizeof(text));
    printf("%s\n", text);
    for (size_t i = 0; i < DOCTOR_TRAITS; i++) {
        bool has = svc->traits & doctor_traits[i].trait;

        printf("  %c %s\n", has ? '+' : '-',
               has ? doctor_traits[i].yes : doctor_traits[i].no);
    }
    if (svc->traits & HF_TRAIT_TWICE)
        printf("  ! it may take up to twice the lease until a dead holder's "
               "lock passes on\n");
    cli_clean(svc->warning, text, sizeof(text));
    if (text[0])
        printf("warning: %s\n", text);
    if (!st)
        printf("probe: took and released '%s' twice in %" PRId64
               "ms, fences %" PRIu64 " and %" PRIu64 "\n",
               DOCTOR_KEY, probe->took_ms, probe->fences[0], probe->fences[1]);
}

/* ---- --all --------------------------------------------------------------- */

struct doctor_list {
    bool json;
    int shown;
    int missing;
};

/* "yes", "no", or with an asterisk what depends on the URL or the server. */
static const char *doctor_cell(const struct hf_service_kind *kind,
                               unsigned trait)
{
    if (kind->traits & trait)
        return kind->varies & trait ? "yes*" : "yes";
    return kind->varies & trait ? "opt*" : "-";
}

static const char *doctor_reach(const struct hf_service_kind *kind)
{
    return kind->traits & HF_TRAIT_MACHINES    ? "machines"
           : kind->traits & HF_TRAIT_PROCESSES ? "processes"
                                               : "threads";
}

static const char *doctor_death(const struct hf_service_kind *kind)
{
    if (!(kind->traits & HF_TRAIT_PROCESSES))
        return "-";
    if (kind->traits & HF_TRAIT_DEATH)
        return kind->varies & HF_TRAIT_DEATH ? "at once*" : "at once";
    return kind->traits & HF_TRAIT_TWICE ? "2 leases" : "1 lease";
}

/* A service has TLS if it has an option that says how it is checked. */
static const char *doctor_tls(const struct hf_service_kind *kind)
{
    static const char *const names[] = {" verify ", " sslmode ", " ssl "};
    char options[1024];

    snprintf(options, sizeof(options), " %s ", kind->options);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strstr(options, names[i]))
            return "yes";
    return "-";
}

/* The table has every column of the one in the README; test/cli/look.sh looks. */
static const struct {
    const char *title;
    unsigned trait;
} doctor_columns[] = {
    {"fence", HF_TRAIT_FENCED},      {"lease", HF_TRAIT_LEASED},
    {"order", HF_TRAIT_QUEUED},      {"wake-up", HF_TRAIT_NOTIFY},
    {"shared", HF_TRAIT_SHARED},     {"permits", HF_TRAIT_PERMITS},
    {"min-hold", HF_TRAIT_MIN_HOLD}, {"owners", HF_TRAIT_REENTRANT},
    {"detach", HF_TRAIT_DETACH},     {"break", HF_TRAIT_BREAK},
    {"note", HF_TRAIT_NOTED},
};

#define DOCTOR_COLUMNS (sizeof(doctor_columns) / sizeof(doctor_columns[0]))

static int doctor_width(size_t i)
{
    size_t len = strlen(doctor_columns[i].title);

    return len < 5 ? 5 : (int)len;
}

static void doctor_heading(void)
{
    printf("%-9s %-9s ", "service", "excludes");
    for (size_t i = 0; i < DOCTOR_COLUMNS; i++)
        printf("%-*s ", doctor_width(i), doctor_columns[i].title);
    printf("%-11s %s\n", "after death", "TLS");
}

static void doctor_kind_json(const struct hf_service_kind *kind, bool first)
{
    char varies[256] = "";
    struct cli_json json;

    fputs(first ? "[" : ",\n ", stdout);
    cli_json_open(&json, stdout);
    cli_json_str(&json, "name", kind->name);
    cli_json_str(&json, "schemes", kind->schemes);
    cli_json_str(&json, "module", kind->module[0] ? kind->module : NULL);
    cli_json_str(&json, "missing", kind->missing[0] ? kind->missing : NULL);
    if (!kind->missing[0]) {
        cli_json_str(&json, "options", kind->options);
        cli_json_str(&json, "page", kind->page);
        cli_json_str(&json, "tested", kind->tested);
        for (size_t i = 0; i < DOCTOR_TRAITS; i++) {
            size_t len = strlen(varies);

            cli_json_bool(&json, doctor_traits[i].name,
                          kind->traits & doctor_traits[i].trait);
            if (kind->varies & doctor_traits[i].trait)
                snprintf(varies + len, sizeof(varies) - len, "%s%s",
                         len ? " " : "", doctor_traits[i].name);
        }
        cli_json_bool(&json, "twice", kind->traits & HF_TRAIT_TWICE);
        cli_json_str(&json, "varies", varies);
    }
    cli_json_close(&json);
}

static void doctor_kind_text(const struct hf_service_kind *kind)
{
    char why[1024];

    if (kind->missing[0]) {
        cli_clean(kind->missing, why, sizeof(why));
        printf("%-9s cannot be used: %s\n", kind->name, why);
        return;
    }
    printf("%-9s %-9s ", kind->name, doctor_reach(kind));
    for (size_t i = 0; i < DOCTOR_COLUMNS; i++)
        printf("%-*s ", doctor_width(i),
               doctor_cell(kind, doctor_columns[i].trait));
    printf("%-11s %s\n", doctor_death(kind), doctor_tls(kind));
}

static bool doctor_kind(void *arg, const struct hf_service_kind *kind)
{
    struct doctor_list *list = arg;

    if (list->json)
        doctor_kind_json(kind, !list->shown);
    else
        doctor_kind_text(kind);
    list->shown++;
    list->missing += kind->missing[0] != '\0';
    return true;
}

static int doctor_all(const struct cli_opts *opts)
{
    struct doctor_list list = {.json = opts->json};
    struct hf_error err;
    int code;

    if (!opts->json)
        doctor_heading();
    if (hf_services(doctor_kind, &list, &err))
        return cli_fail(&err);
    fputs(opts->json ? "]\n" : "* depends on the URL or the server\n", stdout);
    code = cli_done();
    return !code && list.missing ? CLI_CONFIG : code;
}

int cmd_doctor(struct cli_opts *opts)
{
    struct doctor_probe probe = {{0, 0}, 0};
    struct hf_service svc;
    struct hf_error err;
    hf_client *client;
    hf_status st;
    int code;

    if (opts->nargs)
        return cli_usage(opts->cmd,
                         "'doctor' takes no argument; give the URL with -u");
    if (opts->all && opts->url && !opts->url_from_env)
        return cli_usage(opts->cmd, "'doctor --all' describes every service "
                                    "of this build and opens none: leave out "
                                    "-u, or --all");
    if (opts->all)
        return doctor_all(opts);
    code = cli_open(opts, &client, &svc);
    if (code)
        return code;
    st = doctor_try(client, &probe, &err);
    if (opts->json)
        doctor_json(&svc, st, &probe, &err);
    else
        doctor_text(&svc, st, &probe);
    code = cli_done();
    if (st)
        code = cli_fail(&err);
    if (!code && (svc.traits & HF_TRAIT_FENCED) &&
        probe.fences[1] <= probe.fences[0]) {
        cli_say("the fence did not rise: do not trust this service");
        code = CLI_FAILED;
    }
    cli_close(client);
    return code;
}
