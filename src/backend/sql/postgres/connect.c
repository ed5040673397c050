/* SPDX-License-Identifier: MIT
 *
 * connect.c - the URL, and a connection.
 *
 * Every option of libpq that a URL names is passed on as it is, so TLS,
 * password files and service files work as everywhere else.
 *
 * HOSTS  libpq goes on to the next host of the URL when one refuses.  One that
 *   is silent, because it is stopped or its machine is gone, it would wait for
 *   without end: connect_timeout counts only where libpq blocks.  So such a
 *   host is given up here, after DIAL_SILENT_MS or its share of the timeout,
 *   and the list is begun anew with the host after the one that it began with.
 */
#include "postgres.h"

#include <poll.h>

#include "base/alloc.h"

#include "base/banned.h"

/* ---- parameters -------------------------------------------------------- */

static bool params_add(struct pg_conn *pc, const char *name, const char *value)
{
    size_t i = pc->params;

    if (!value)
        return true;
    if (i + 2 >= PG_PARAMS_MAX) /* one for the password, and the end */
        return false;
    pc->names[i] = hfi_strdup(name);
    pc->values[i] = hfi_strdup(value);
    if (!pc->names[i] || !pc->values[i])
        return false;
    pc->params++;
    return true;
}

static bool params_hosts(struct pg_conn *pc, const struct hfi_url *url)
{
    char hosts[1024] = "", ports[128] = "";
    size_t i, at = 0, port_at = 0;

    for (i = 0; i < url->nhosts; i++) {
        at += (size_t)snprintf(hosts + at, sizeof(hosts) - at, "%s%s",
                               i ? "," : "", url->hosts[i].name);
        port_at += (size_t)snprintf(ports + port_at, sizeof(ports) - port_at,
                                    "%s%.0d", i ? "," : "", url->hosts[i].port);
        if (at >= sizeof(hosts) || port_at >= sizeof(ports))
            return false;
    }
    return !i ||
           (params_add(pc, "host", hosts) && params_add(pc, "port", ports) &&
            (i < 2 || hfi_url_param(url, "target_session_attrs", NULL) ||
             params_add(pc, "target_session_attrs", "read-write")));
}

static bool params_is_ours(const char *name)
{
    static const char *const ours[] = {
        SQL_OPTIONS, "password_file", "timeout", "ttl", "retry", "wait", NULL};
    int i;

    for (i = 0; ours[i]; i++)
        if (!strcmp(ours[i], name))
            return true;
    return false;
}

/* A number of ms that libpq wants in `unit`s, unless the URL has its own. */
static bool params_time(struct pg_conn *pc, const struct hfi_url *url,
                        const char *name, int64_t ms, int64_t unit)
{
    char text[24];
    int64_t n = ms / unit > 0 ? ms / unit : 1;

    snprintf(text, sizeof(text), "%lld", (long long)n);
    return hfi_url_param(url, name, NULL) || params_add(pc, name, text);
}

/* A connection that listens says nothing for long, so the kernel asks whether
 * the other side is there: a silent cut is noticed within two timeouts. */
static bool params_times(struct pg_conn *pc, const struct hfi_url *url)
{
    int64_t ms = pc->sql.timeout_ms;

    return params_time(pc, url, "tcp_user_timeout", ms, 1) &&
           params_time(pc, url, "keepalives_idle", ms, 1000) &&
           params_time(pc, url, "keepalives_interval", ms / 3, 1000) &&
           params_time(pc, url, "keepalives_count", 3, 1);
}

hf_status pg_params(struct pg_conn *pc, const struct hfi_url *url,
                    struct hf_error *err)
{
    const char *database = url->path[0] == '/' ? url->path + 1 : url->path;
    const char *secret = hfi_url_param(url, "password_file", NULL);
    bool ok = params_hosts(pc, url);
    size_t i;

    /* The server would quote a connection string, with what is in it. */
    if (strpbrk(hfi_url_param(url, "dbname", ""), "=/"))
        return hfi_fail(err, HF_INVALID,
                        "url: dbname= is the name of a database, not a "
                        "connection string");
    if (secret && (url->password || hfi_url_param(url, "password", NULL)))
        return hfi_fail(err, HF_INVALID,
                        "url: give a password or password_file=, not both");
    if (secret) {
        pc->password_file = hfi_strdup(secret);
        ok = ok && pc->password_file;
    }

    ok = ok && params_add(pc, "user", url->user) &&
         params_add(pc, "password", url->password) &&
         (!*database || params_add(pc, "dbname", database));
    for (i = 0; ok && i < url->nparams; i++)
        if (!params_is_ours(url->params[i].name))
            ok = params_add(pc, url->params[i].name, url->params[i].value);
    ok = ok && params_add(pc, "fallback_application_name", "holdfast") &&
         params_times(pc, url);
    return ok ? HF_OK : hfi_fail(err, HF_INVALID, "url: too much in it");
}

void pg_params_free(struct pg_conn *pc)
{
    size_t i;

    for (i = 0; i < PG_PARAMS_MAX; i++) {
        if (pc->values[i])
            explicit_bzero(pc->values[i], strlen(pc->values[i]));
        hfi_free(pc->names[i]);
        hfi_free(pc->values[i]);
        pc->names[i] = pc->values[i] = NULL;
    }
    pc->params = 0;
    hfi_free(pc->password_file);
    pc->password_file = NULL;
}

/* ---- connecting -------------------------------------------------------- */

static void pg_quiet(void *arg, const PGresult *result)
{
    (void)arg;
    (void)result;
}

/* Does the line say that another attempt would end the same way?  libpq keeps
 * no code of a refused connection, so its words must do. */
static bool refused_for_good(const char *line)
{
    static const char *const denied[] = {
        "authentication failed", "no pg_hba.conf entry", "pg_hba.conf rejects",
        "does not exist",        "permission denied",    "not permitted to",
        "no password supplied",  "certificate",          "alert unknown ca",
        "does not support SSL",  "channel binding"};
    size_t i;

    for (i = 0; i < sizeof(denied) / sizeof(denied[0]); i++)
        if (strstr(line, denied[i]))
            return true;
    return false;
}

/* libpq has a line for each address that it tried, and hints that begin with a
 * tab.  The one that says most is the first that is for good, or the last. */
static hf_status pg_refused(PGconn *pg, struct hf_error *err)
{
    hf_status st = PQconnectionNeedsPassword(pg) ? HF_DENIED : HF_UNAVAILABLE;
    const char *at = PQerrorMessage(pg), *best = at;
    char line[200];

    for (; at && *at; at = *at ? at + 1 : at) {
        if (*at != '\t' && *at != '\n') {
            best = at;
            if (refused_for_good(pg_line(line, sizeof(line), at))) {
                st = HF_DENIED;
                break;
            }
        }
        at += strcspn(at, "\n");
    }
    return hfi_fail(err, st, "connect: %s", pg_line(line, sizeof(line), best));
}

/* ---- several hosts ------------------------------------------------------ */

/* The longest that a host may be silent while it is connected to, if there are
 * others. */
#define DIAL_SILENT_MS 1000

#define DIAL_LIST_MAX 1024

static size_t dial_count(const char *list)
{
    size_t n = 1;

    for (; *list; list++)
        n += *list == ',';
    return n;
}

static bool dial_is_list(const char *name)
{
    return !strcmp(name, "host") || !strcmp(name, "hostaddr") ||
           !strcmp(name, "port");
}

/* How many hosts the URL names. */
static size_t dial_hosts(const struct pg_conn *pc)
{
    size_t i, n, most = 1;

    for (i = 0; i < pc->params; i++) {
        n = dial_is_list(pc->names[i]) ? dial_count(pc->values[i]) : 1;
        most = n > most ? n : most;
    }
    return most;
}

/* "a,b,c" as "b,c,a"; one port is that of all hosts. */
static const char *dial_turned(const char *list, size_t hosts, size_t turn,
                               char buf[DIAL_LIST_MAX])
{
    const char *at = list;

    if (dial_count(list) != hosts || strlen(list) >= DIAL_LIST_MAX - 1)
        return list;
    for (turn %= hosts; turn; turn--)
        at = strchr(at, ',') + 1;
    if (at == list)
        return list;
    snprintf(buf, DIAL_LIST_MAX, "%s,%.*s", at, (int)(at - list - 1), list);
    return buf;
}

/* When this host has been silent for too long. */
static int64_t dial_until(const struct pg_session *ps)
{
    struct pg_conn *pc = (struct pg_conn *)ps->base.conn;
    int64_t share, hosts = (int64_t)dial_hosts(pc);

    if (hosts < 2)
        return HFI_NEVER;
    share = pc->sql.timeout_ms / hosts;
    return ps->base.heard_at +
           (share < DIAL_SILENT_MS ? share : DIAL_SILENT_MS);
}

/* Begin, with the password as it is in its file now. */
static hf_status dial_start(struct pg_conn *pc, size_t turn, PGconn **ret,
                            struct hf_error *err)
{
    const char *names[PG_PARAMS_MAX], *values[PG_PARAMS_MAX];
    char secret[1024] = "", lists[PG_LISTS][DIAL_LIST_MAX];
    size_t i, used = 0, hosts = dial_hosts(pc);
    hf_status st = HF_OK;

    memcpy(names, pc->names, sizeof(names));
    memcpy(values, pc->values, sizeof(values));
    for (i = 0; i < pc->params && used < PG_LISTS; i++)
        if (dial_is_list(names[i]))
            values[i] = dial_turned(values[i], hosts, turn, lists[used++]);
    if (pc->password_file) {
        st = hfi_url_secret(pc->password_file, "password_file=", secret,
                            sizeof(secret), err);
        names[pc->params] = "password";
        values[pc->params] = secret;
    }
    if (!st) {
        *ret = PQconnectStartParams(names, values, 0);
        st = *ret ? HF_OK : hfi_nomem(err);
    }
    explicit_bzero(secret, sizeof(secret));
    return st;
}

static hf_status dial_begin(struct pg_session *ps, struct hf_error *err)
{
    struct pg_conn *pc = (struct pg_conn *)ps->base.conn;
    hf_status st;

    ps->turn = atomic_load(&pc->turn);
    st = dial_start(pc, ps->turn, &ps->pg, err);
    if (st)
        return st;
    PQsetNoticeReceiver(ps->pg, pg_quiet, NULL);
    ps->want = PGRES_POLLING_WRITING;
    ps->heard = 0;
    ps->base.heard_at = hfi_now();
    return HF_OK;
}

/* Unless another session has given the same host up. */
static void dial_next(struct pg_session *ps)
{
    struct pg_conn *pc = (struct pg_conn *)ps->base.conn;
    unsigned turn = ps->turn;

    atomic_compare_exchange_strong(&pc->turn, &turn, turn + 1);
    PQfinish(ps->pg);
    ps->pg = NULL;
}

/* What libpq has to say may come over several calls; `heard_at` is when it got
 * on. */
hf_status pg_dial(struct pg_session *ps, int64_t deadline, struct hf_error *err)
{
    hf_status st = HF_OK;

    while (!ps->pg || ps->want != PGRES_POLLING_OK) {
        int64_t until;

        if (!ps->pg && (st = dial_begin(ps, err)))
            return st;
        until = dial_until(ps);
        if (PQstatus(ps->pg) == CONNECTION_BAD ||
            ps->want == PGRES_POLLING_FAILED)
            return pg_refused(ps->pg, err);
        if (!pg_poll(ps->pg,
                     ps->want == PGRES_POLLING_READING ? POLLIN : POLLOUT,
                     until < deadline ? until : deadline)) {
            if (hfi_now() < until)
                return HF_BUSY;
            dial_next(ps);
            continue;
        }
        if (!pg_subscribed(ps->pg, &ps->heard, PG_ANSWER_MAX))
            return hfi_fail(err, HF_PROTOCOL, "connect: this is no PostgreSQL");
        ps->want = PQconnectPoll(ps->pg);
        ps->base.heard_at = hfi_now();
    }
    return PQsetnonblocking(ps->pg, 1) ? hfi_nomem(err) : HF_OK;
}
