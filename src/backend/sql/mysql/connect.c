/* SPDX-License-Identifier: MIT
 *
 * connect.c - a connection, its settings, and what is refused.
 *
 * INVARIANTS
 *  (1) A session is known by a number that it has drawn, and not by that of its
 *      thread: a server that is started again counts its threads from 1, and
 *      the number of one that died is soon that of somebody else.  Each session
 *      holds a lock of GET_LOCK() with its number for as long as it lives, so
 *      the server finds the thread of a session, or finds that it is gone.
 *      On Galera, where each node has threads and locks of its own, and KILL
 *      may reach another node, a session cannot be told.
 *
 * REFUSED  A server that is read only is a replica.  One that logs statements
 *   takes no change of a session that reads what is committed, and ours do: a
 *   lock could never be granted.  On Galera, and in a group
 *   of MySQL with several primaries, a row lock is known to one node only, so
 *   strategy=row is refused there; lease and version go by what is certified at
 *   commit: of two nodes that grant at once, one is told of a deadlock and asks
 *   again.
 */
#include "mysql.h"

#include <fcntl.h>

#include "base/alloc.h"

#include "base/banned.h"

/* The library's own: the server wants a way to log in that is not on our
 * list. */
#define MY_NOT_ALLOWED 5010

#define MY_SETTINGS_MAX 1536

/* Whatever others have set, every row that was asked for comes. */
#define MY_ALL_ROWS                                                            \
    "sql_select_limit=18446744073709551615,sql_big_selects=1," MY_CHARACTERS

/* And it comes in the characters in which it is read. */
#define MY_CHARACTERS                                                          \
    "character_set_client=utf8mb4,character_set_results=utf8mb4,"              \
    "collation_connection=utf8mb4_general_ci"

/* An idle session stays: when it is needed for a renewal the server may have no
 * room for another. */
#define MY_IDLE_SECONDS "28800"

/* The longest statement renews many locks at once; what is left is for the head
 * of its packet. */
#define MY_STATEMENT_MAX (SQL_MANY_TEXT + SQL_MANY_FRAME + 1024)

/* ---- parameters -------------------------------------------------------- */

/* A certificate or an authority says that there shall be TLS, too. */
static hf_status param_tls(struct my_conn *mc, const struct hfi_url *url,
                           struct hf_error *err)
{
    bool files = hfi_url_param(url, "ssl_ca", NULL) ||
                 hfi_url_param(url, "ssl_cert", NULL) ||
                 hfi_url_param(url, "ssl_key", NULL);
    hf_status st = HF_OK;

    mc->tls = mc->verify = true;
    if (strcmp(hfi_url_param(url, "ssl", ""), "required") != 0) {
        mc->tls = files;
        st = hfi_url_bool(url, "ssl", &mc->tls, err);
    }
    if (!st && files && !mc->tls)
        st = hfi_fail(err, HF_INVALID,
                      "url: ssl=no goes with no ssl_ca, ssl_cert or ssl_key");
    return st ? st : hfi_url_bool(url, "ssl_verify", &mc->verify, err);
}

static hf_status param_check(const struct hfi_url *url, const char *database,
                             struct hf_error *err)
{
    if (url->nhosts > 1)
        return hfi_fail(err, HF_INVALID, "url: mysql: takes one host");
    if (!*database || (url->path[0] != '/' && strpbrk(url->path, "@=")))
        return hfi_fail(err, HF_INVALID,
                        "url: mysql: needs a database, as in mysql://host/db");
    if (url->password && hfi_url_param(url, "password_file", NULL))
        return hfi_fail(err, HF_INVALID,
                        "url: mysql: a password and password_file= are one too "
                        "many");
    return HF_OK;
}

hf_status my_params(struct my_conn *mc, const struct hfi_url *url,
                    struct hf_error *err)
{
    const char *database = url->path[0] == '/' ? url->path + 1 : url->path;
    const char *file = hfi_url_param(url, "password_file", NULL);
    const char *const values[MY_PARAMS] = {
        [MY_HOST] = url->nhosts ? url->hosts[0].name : NULL,
        [MY_USER] = url->user,
        [MY_PASSWORD] =
            url->password || file ? url->password : secure_getenv("MYSQL_PWD"),
        [MY_PASSWORD_FILE] = file,
        [MY_DATABASE] = database,
        [MY_SOCKET] = hfi_url_param(url, "socket", NULL),
        [MY_SSL_CA] = hfi_url_param(url, "ssl_ca", NULL),
        [MY_SSL_CERT] = hfi_url_param(url, "ssl_cert", NULL),
        [MY_SSL_KEY] = hfi_url_param(url, "ssl_key", NULL)};
    hf_status st = param_check(url, database, err);
    int i;

    if (!st)
        st = param_tls(mc, url, err);
    if (st)
        return st;
    mc->port = url->nhosts ? (unsigned)url->hosts[0].port : 0;
    for (i = 0; i < MY_PARAMS; i++) {
        mc->params[i] = hfi_strdup(values[i]);
        if (values[i] && !mc->params[i])
            return hfi_nomem(err);
    }
    return HF_OK;
}

void my_params_free(struct my_conn *mc)
{
    int i;

    for (i = 0; i < MY_PARAMS; i++) {
        if (mc->params[i])
            explicit_bzero(mc->params[i], strlen(mc->params[i]));
        hfi_free(mc->params[i]);
        mc->params[i] = NULL;
    }
}

/* ---- connecting -------------------------------------------------------- */

/* How the server may ask for the password; the library sends it in any way that
 * a server names.  Those that prove it without showing it are always good.  The
 * two with "sha" encrypt it, with a key that the server has just sent, so they
 * are for this machine and for TLS; mysql_clear_password needs to know whom it
 * speaks to.  Not among them: dialog, which would ask at the terminal. */
static const char *my_plugins(const struct my_conn *mc)
{
#define MY_PLUGINS                                                             \
    "mysql_native_password,client_ed25519,parsec,auth_gssapi_client"
#define MY_SHA ",caching_sha2_password,sha256_password"
    if (mc->tls && mc->verify)
        return MY_PLUGINS MY_SHA ",mysql_clear_password";
    if (mc->tls || !mc->params[MY_HOST] || hfi_url_is_here(mc->params[MY_HOST]))
        return MY_PLUGINS MY_SHA;
    return MY_PLUGINS;
}

static void my_options(struct my_conn *mc, MYSQL *my)
{
    unsigned seconds = (unsigned)(mc->sql.timeout_ms / 1000 + 1);
    unsigned long packet = MY_PACKET_MAX;
    my_bool yes = 1, no = 0;

    mysql_options(my, MYSQL_OPT_NONBLOCK, NULL);
    mysql_options(my, MYSQL_OPT_CONNECT_TIMEOUT, &seconds);
    mysql_options(my, MYSQL_SET_CHARSET_NAME, "utf8mb4");
    mysql_options(my, MYSQL_OPT_LOCAL_INFILE, &(unsigned){0});
    mysql_options(my, MYSQL_OPT_MAX_ALLOWED_PACKET, &packet);
    mysql_optionsv(my, MARIADB_OPT_RESTRICTED_AUTH, my_plugins(mc));
    if (mc->params[MY_HOST] && mc->port) /* "localhost" would mean a socket. */
        mysql_options(my, MYSQL_OPT_PROTOCOL, &(unsigned){MYSQL_PROTOCOL_TCP});
    if (mc->tls)
        mysql_options(my, MYSQL_OPT_SSL_ENFORCE, &yes);
    mysql_options(my, MYSQL_OPT_SSL_VERIFY_SERVER_CERT,
                  mc->tls && mc->verify ? &yes : &no);
    if (mc->params[MY_SSL_CA])
        mysql_options(my, MYSQL_OPT_SSL_CA, mc->params[MY_SSL_CA]);
    if (mc->params[MY_SSL_CERT])
        mysql_options(my, MYSQL_OPT_SSL_CERT, mc->params[MY_SSL_CERT]);
    if (mc->params[MY_SSL_KEY])
        mysql_options(my, MYSQL_OPT_SSL_KEY, mc->params[MY_SSL_KEY]);
}

/* One statement, which the library runs while it connects a later session.  It
 * sets whatever of the server's own settings could end a session that holds a
 * row, or change what a statement means.  On
 * Galera a session also waits until its node has caught up with what others
 * have committed: it may have come to another node than the one before it. */
static void my_settings(const struct my_session *ms, char *buf, size_t size)
{
    const struct my_conn *mc = (const struct my_conn *)ms->base.conn;
    long long seconds = (long long)mc->sql.timeout_ms / 1000 + 1;
    const char *kind =
        mc->mariadb && mc->version < 110100 ? "tx" : "transaction";
    char limits[192] = ",max_execution_time=0";
    char own[64] = ",wsrep_sync_wait=7";

    if (!mc->galera) /* connect.c (1) */
        snprintf(own, sizeof(own), ",@holdfast=GET_LOCK('" MY_OWN "%lld',0)",
                 (long long)ms->number);
    if (mc->mariadb)
        snprintf(limits, sizeof(limits), ",max_statement_time=%lld%s", seconds,
                 mc->version < 100300 ? ""
                                      : ",idle_transaction_timeout=0,"
                                        "idle_readonly_transaction_timeout=0,"
                                        "idle_write_transaction_timeout=0");
    snprintf(buf, size,
             "SET SESSION %s_isolation='READ-COMMITTED',%s_read_only=0,"
             "completion_type=0,autocommit=1,time_zone='+00:00',"
             "wait_timeout=" MY_IDLE_SECONDS ",unique_checks=1," MY_ALL_ROWS
             ",sql_safe_updates=0,sql_mode='STRICT_TRANS_TABLES,"
             "NO_ENGINE_SUBSTITUTION',innodb_lock_wait_timeout=%lld%s%s",
             kind, kind, seconds, limits, own);
}

static void my_library(void)
{
    mysql_library_init(0, NULL, NULL);
}

/* The password, read anew for each connection: it may have been changed.  A
 * file that is missing for a moment is no reason to give up a lock. */
static hf_status my_password(const struct my_conn *mc, bool first, char *ret,
                             size_t size, struct hf_error *err)
{
    const char *given = mc->params[MY_PASSWORD];
    hf_status st;

    if (mc->params[MY_PASSWORD_FILE]) {
        st = hfi_url_secret(mc->params[MY_PASSWORD_FILE], "password_file=", ret,
                            size, err);
        return st && !first ? hfi_restate(err, HF_UNAVAILABLE) : st;
    }
    if (given && strlen(given) >= size)
        return hfi_fail(err, HF_INVALID, "url: the password is too long");
    snprintf(ret, size, "%s", given ? given : "");
    return HF_OK;
}

/* How it went, after the library has ended its attempt. */
static hf_status my_dialed(struct my_session *ms, const MYSQL *ret,
                           struct hf_error *err)
{
    hf_status st;

    explicit_bzero(ms->password, sizeof(ms->password));
    if (ret) {
        fcntl(mysql_get_socket(ms->my), F_SETFD, FD_CLOEXEC);
        return HF_OK;
    }
    st = my_error(ms, err);
    if (mysql_errno(ms->my) == MY_NOT_ALLOWED)
        return hfi_fail(err, HF_DENIED,
                        "the server asks for the password in a way that shows "
                        "it: use verified TLS (ssl_ca=FILE); %.100s",
                        mysql_error(ms->my));
    return st == HF_UNCERTAIN ? HF_UNAVAILABLE : st;
}

/* The library reads the password until it is connected. */
static hf_status my_dial(struct my_session *ms, int64_t deadline,
                         struct hf_error *err)
{
    struct my_conn *mc = (struct my_conn *)ms->base.conn;
    MYSQL *ret = NULL;
    int ready;

    if (!ms->dial)
        ms->dial = mysql_real_connect_start(
            &ret, ms->my, mc->params[MY_HOST], mc->params[MY_USER],
            ms->password, mc->params[MY_DATABASE], mc->port,
            mc->params[MY_SOCKET], CLIENT_FOUND_ROWS | CLIENT_MULTI_STATEMENTS);
    while (ms->dial) {
        /* The library does not, and there is no earlier moment. */
        fcntl(mysql_get_socket(ms->my), F_SETFD, FD_CLOEXEC);
        ready = my_wait(ms->my, ms->dial, deadline);
        if (!ready)
            return HF_BUSY;
        ms->dial = mysql_real_connect_cont(&ret, ms->my, ready);
        ms->base.heard_at = hfi_now();
    }
    return my_dialed(ms, ret, err);
}

hf_status my_connect(struct my_session *ms, bool first, int64_t deadline,
                     struct hf_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct my_conn *mc = (struct my_conn *)ms->base.conn;
    char settings[MY_SETTINGS_MAX];
    hf_status st;

    if (ms->my)
        return my_dial(ms, deadline, err);
    pthread_once(&once, my_library); /* Two at once are not safe. */
    ms->my = mysql_init(NULL);
    if (!ms->my)
        return hfi_nomem(err);
    hfi_random(&ms->number, sizeof(ms->number));
    ms->number = (ms->number & INT64_MAX) | 1;
    my_options(mc, ms->my);
    if (!first) {
        my_settings(ms, settings, sizeof(settings));
        mysql_options(ms->my, MYSQL_INIT_COMMAND, settings);
    }
    st = my_password(mc, first, ms->password, sizeof(ms->password), err);
    return st ? st : my_dial(ms, deadline, err);
}

/* ---- what is refused --------------------------------------------------- */

struct judged {
    bool read_only, galera, lazy;
    bool logs, statements; /* has a binary log; and that of statements */
    bool primaries;        /* of MySQL Group Replication: more than one */
    int64_t packet;        /* the longest that the server takes */
};

static bool judge_is(const struct sql_cell *cell, const char *text)
{
    return cell->data && cell->len == strlen(text) &&
           !strncasecmp(cell->data, text, cell->len);
}

static void judge_row(struct sql_answer *answer, const struct sql_cell *cells,
                      int n)
{
    struct judged *judged = answer->arg;

    if (n != 2)
        return;
    if (judge_is(&cells[0], "read_only"))
        judged->read_only = !judge_is(&cells[1], "OFF");
    else if (judge_is(&cells[0], "wsrep_on"))
        judged->galera = judge_is(&cells[1], "ON");
    else if (judge_is(&cells[0], "innodb_flush_log_at_trx_commit"))
        judged->lazy = !judge_is(&cells[1], "1");
    else if (judge_is(&cells[0], "group_replication_single_primary_mode"))
        judged->primaries = judge_is(&cells[1], "OFF");
    else if (judge_is(&cells[0], "log_bin"))
        judged->logs = judge_is(&cells[1], "ON");
    else if (judge_is(&cells[0], "binlog_format"))
        judged->statements = judge_is(&cells[1], "STATEMENT");
    else if (judge_is(&cells[0], "max_allowed_packet"))
        judged->packet = cells[1].num;
}

static hf_status my_judge(struct my_session *ms, int64_t deadline,
                          struct hf_error *err)
{
    struct sql_conn *conn = ms->base.conn;
    struct judged judged = {0};
    struct sql_answer answer = {.row = judge_row, .arg = &judged};
    hf_status st = my_exec(ms,
                           "SHOW GLOBAL VARIABLES WHERE Variable_name IN "
                           "('read_only','wsrep_on','max_allowed_packet',"
                           "'group_replication_single_primary_mode',"
                           "'log_bin','binlog_format',"
                           "'innodb_flush_log_at_trx_commit')",
                           &answer, deadline, err);

    if (st)
        return st;
    if (judged.read_only)
        return hfi_fail(err, HF_UNSUPPORTED,
                        "this server is read only, as a replica is: name the "
                        "primary");
    if (judged.logs && judged.statements)
        return hfi_fail(err, HF_UNSUPPORTED,
                        "binlog_format of this server is STATEMENT, which "
                        "takes no change at READ COMMITTED: set it to ROW or "
                        "MIXED");
    if (judged.packet && judged.packet < MY_STATEMENT_MAX)
        return hfi_fail(err, HF_UNSUPPORTED,
                        "max_allowed_packet of this server is %lld, too little "
                        "to renew many locks at once: set it to 128K or more",
                        (long long)judged.packet);
    if ((judged.galera || judged.primaries) && conn->strategy == SQL_ROW)
        return hfi_fail(err, HF_UNSUPPORTED,
                        "strategy=row: on %s a row lock excludes nobody on the "
                        "other nodes; use lease or version",
                        judged.galera ? "Galera"
                                      : "a group of several primaries");
    ((struct my_conn *)conn)->galera = judged.galera;
    ((struct my_conn *)conn)->several = judged.galera || judged.primaries;
    if (judged.galera && conn->strategy == SQL_LEASE)
        snprintf(
            conn->base.warning, sizeof(conn->base.warning),
            "Galera: a lease goes by the clock of the node that is asked, "
            "so the nodes' clocks must agree; strategy=version needs none");
    else if (judged.lazy)
        snprintf(conn->base.warning, sizeof(conn->base.warning),
                 "innodb_flush_log_at_trx_commit is not 1: a crash of the "
                 "server may forget grants of the last second");
    return HF_OK;
}

/* The database as a string, so that verify.sql opens one table there and not
 * all that the server has: MariaDB does not look into DATABASE() before. */
static void my_home(struct my_conn *mc)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyz0123456789_-$"
                                "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    const char *name = mc->params[MY_DATABASE];

    if (!strchr(mc->sql.table, '.') && !name[strspn(name, plain)] &&
        strlen(name) < sizeof(mc->sql.home) - 2)
        snprintf(mc->sql.home, sizeof(mc->sql.home), "'%s'", name);
}

/* The first session: what the server is, and settings. */
hf_status my_settle(struct my_session *ms, int64_t deadline,
                    struct hf_error *err)
{
    struct my_conn *mc = (struct my_conn *)ms->base.conn;
    char settings[MY_SETTINGS_MAX];
    hf_status st = my_exec(ms, "SET SESSION " MY_ALL_ROWS, NULL, deadline, err);

    if (!st)
        st = my_judge(ms, deadline, err);
    mc->mariadb = strstr(mysql_get_server_info(ms->my), "MariaDB") != NULL;
    mc->version = mysql_get_server_version(ms->my);
    mc->skips = !mc->mariadb && mc->version >= 80001;
    my_home(mc);
    my_settings(ms, settings, sizeof(settings));
    return st ? st : my_exec(ms, settings, NULL, deadline, err);
}
