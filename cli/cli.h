/* SPDX-License-Identifier: MIT
 *
 * cli.h - what the files of the command share.
 *
 * The command is a user of holdfast.h like any other: nothing here reaches into
 * the library.  commands.c has one table of commands, opts.c fills one struct
 * from one table of options, out.c is the only file that formats for people and
 * for programs.  The files of `run` have a header of their own, run.h.
 */
#ifndef CLI_H
#define CLI_H

#include "holdfast.h"

#include <stdio.h>

/* The exit statuses.  A command that was run adds its own, and 128+n. */
enum cli_exit {
    CLI_OK = 0,
    CLI_FREE = 1,         /* of status, leader: nobody holds it */
    CLI_USAGE = 64,       /* the command line makes no sense */
    CLI_UNAVAILABLE = 69, /* the service could not be reached */
    CLI_BUSY = 75,        /* somebody else holds it; -E changes this one */
    CLI_DENIED = 77,      /* the service or the system refused */
    CLI_CONFIG = 78,      /* a URL that is wrong or cannot do what is asked */
    CLI_LOST = 79,        /* the lock is not, or no longer, yours */
    CLI_MAX_HOLD = 124,   /* --max-hold is over */
    CLI_FAILED = 125,     /* holdfast itself failed */
    CLI_NOT_EXEC = 126,   /* the command cannot be executed */
    CLI_NOT_FOUND = 127   /* the command does not exist */
};

/* ---- commands.c ---------------------------------------------------------- */

struct cli_opts;

struct cli_cmd {
    const char *name;
    const char *args;    /* as the usage line shows them */
    const char *summary; /* one line */
    const char *text;    /* what `holdfast help NAME` adds */
    unsigned bit;        /* enum cli_in: which options it takes */
    int (*run)(struct cli_opts *);
};

const struct cli_cmd *cli_commands(size_t *count);
const struct cli_cmd *cli_command_find(const char *name);

/* Print how one command, or the whole, is used. */
int cli_help(const struct cli_cmd *cmd);
int cli_overview(void);

/* The exit status for a status of the library: the one place that decides. */
int cli_exit_of(hf_status st);

/* Say what went wrong (with a hint where there is one) and return the exit
 * status for it. */
int cli_fail(const struct hf_error *err);

/* Is the service out of reach, perhaps only for a while? */
bool cli_is_away(const struct hf_error *err);

/* Open the service that the options name.  CLI_OK, or the exit status after
 * having said why.  A warning of the service is said once.  If -w gives a time,
 * a service that cannot be reached is tried again until then; elect, watch and
 * leader --wait do that for ever. */
int cli_open(const struct cli_opts *opts, hf_client **ret,
             struct hf_service *svc);

/* Close it, without waiting long for a service that does not answer. */
void cli_close(hf_client *client);
void cli_close_within(hf_client *client, int64_t ms);

/* Say what has become doubtful since cli_open() or the last call. */
void cli_warn_again(const struct cli_opts *opts, hf_client *client,
                    struct hf_service *svc);

/* ---- opts.c -------------------------------------------------------------- */

/* One bit for each command, so that an option can name where it is allowed. */
enum cli_in {
    IN_RUN = 1 << 0,
    IN_ACQUIRE = 1 << 1,
    IN_RENEW = 1 << 2,
    IN_RELEASE = 1 << 3,
    IN_CHECK = 1 << 4,
    IN_STATUS = 1 << 5,
    IN_LS = 1 << 6,
    IN_BREAK = 1 << 7,
    IN_WATCH = 1 << 8,
    IN_DOCTOR = 1 << 9,
    IN_ELECT = 1 << 10,
    IN_LEADER = 1 << 11,
    IN_GC = 1 << 12,
    IN_SERVICE = (1 << 13) - 1,    /* all that talk to a service */
    IN_PLAIN = 1 << 13,            /* completion and help */
    IN_COMMAND = IN_RUN | IN_ELECT /* those that run a command */
};

#define CLI_AND_MAX 63

struct cli_opts {
    const struct cli_cmd *cmd;
    const char *url;   /* NULL: the embedded default */
    bool url_from_env; /* $HOLDFAST_URL, and not -u */
    bool quiet;
    bool verbose;
    bool json;
    bool help;
    bool nonblock;
    int64_t wait_ms; /* -1: for ever */
    int busy_exit;
    bool shared;
    bool close_fds; /* accepted for flock(1)'s sake */
    bool no_fork;   /* the same */
    bool unlock;    /* of flock(1), refused */
    bool fair;
    bool poll;
    bool wait_group;
    const char *shell; /* -c */
    int64_t ttl_ms;    /* 0: the library's default */
    int64_t max_hold_ms;
    const char *on_lost;
    int64_t grace_ms;
    int64_t retry_ms;
    const char *note;
    const char *owner;
    const char *and[CLI_AND_MAX]; /* more keys */
    int nand;
    int permits; /* 0: a plain lock */
    int64_t min_hold_ms;
    const char *report;
    uint64_t fence;
    bool has_fence;
    bool force;
    bool all;         /* of doctor: every service */
    bool forever;     /* of elect: also after the command has ended */
    const char *heir; /* of elect: the next leader, by its value */
    bool wait_leader; /* of leader: until there is one */
    bool prefix;      /* of watch: all keys that begin so */
    const char *exec; /* of watch: a command for each change */
    int64_t older_ms; /* of gc; -1: the default */
    bool dry_run;
    const char *args[2]; /* positional arguments in front of the command */
    int nargs;
    char **command; /* to be run; NULL-terminated, empty if there is none */
    bool dashes;    /* it came after -- */
};

enum cli_kind {
    OPT_FLAG,
    OPT_CLEAR,
    OPT_TEXT,
    OPT_WORD, /* a text that is not empty */
    OPT_TIME,
    OPT_CODE,
    OPT_COUNT,
    OPT_AND,
    OPT_FENCE
};

struct cli_opt {
    char letter; /* 0: none */
    const char *name;
    const char *arg; /* NULL: takes none */
    unsigned in;     /* enum cli_in */
    enum cli_kind kind;
    size_t at;        /* offset in struct cli_opts */
    const char *help; /* NULL: not shown */
};

const struct cli_opt *cli_options(size_t *count);

/* Fill *ret from argv[1..]; CLI_OK, or CLI_USAGE after having said why.
 * ret->cmd stays NULL if no command was named. */
int cli_parse(int argc, char **argv, struct cli_opts *ret);

/* "500ms", "30s", "1.5" (seconds) into milliseconds. */
bool cli_parse_ms(const char *text, int64_t *ret);

/* Say that there is no such command; returns CLI_USAGE. */
int cli_no_command(const char *word);

/* Say what is wrong with the command line; returns CLI_USAGE. */
/* Is it a KEY?  CLI_OK, or CLI_USAGE, having said what is wrong with `the` KEY. */
int cli_key(const struct cli_opts *o, const char *the, const char *key);

int cli_usage(const struct cli_cmd *cmd, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- guess.c ------------------------------------------------------------- */

#define GUESS_TEXT 64

struct guess {
    const char *word; /* what was typed */
    const char *best; /* the nearest word, or NULL if none is near */
    int far;
};

void guess_try(struct guess *guess, const char *name);

/* "; did you mean 'MARKbest'?", or nothing. */
const char *guess_text(const struct guess *guess, const char *mark,
                       char ret[GUESS_TEXT]);

/* ---- log.c --------------------------------------------------------------- */

/* Options for hf_open(), with a callback if $HOLDFAST_LOG wants messages. */
const struct hf_client_opts *log_opts(void);

/* ---- url.c --------------------------------------------------------------- */

/* What a service is called before it says so itself: scheme and hosts, or a path.
 * It ends with a colon if there is neither. */
void cli_url_name(const char *url, char *ret, size_t size);

/* A word of the command line for a message, in quotes; what may be a URL is shown
 * without its password, or not at all. */
#define CLI_WORD 256
const char *cli_word(const char *word, char ret[CLI_WORD]);

/* Does the URL hold a secret: user:password@, or a parameter named so? */
bool cli_url_secret(const char *url);

/* Hide a URL of the command line that holds a secret, or cannot be read and so may
 * hold one, from ps(1): all behind its scheme is overwritten.  cli_url_hide()
 * returns a copy that stays, or `word` if that may be seen. */
void cli_url_wipe(char *word);
const char *cli_url_hide(char *word);

/* ---- out.c --------------------------------------------------------------- */

/* One line on stderr, "holdfast: ...", in one write, free of control bytes.
 * Never blocks after say_start(). */
void cli_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Copy `text` so that a terminal shows it and obeys nothing in it; always ends
 * it with NUL. */
void cli_clean(const char *text, char *ret, size_t size);

/* The same of a key, a note or an owner id: no two look the same. */
void cli_show(const char *text, char *ret, size_t size);

/* Hide what stands between :// and @ in a URL, and all of its options.  `all`
 * looks for the @ to the end of the text, otherwise only to the next blank. */
void cli_mask(char *text, bool all);

/* "350ms", "8s", "4m12s", "2h03m". */
const char *cli_ago(int64_t ms, char ret[32]);

/* `text` as one word of a POSIX shell. */
void cli_shell_word(FILE *out, const char *text);

/* One JSON object, member by member; the names need no escaping. */
struct cli_json {
    FILE *out;
    bool more; /* a member has been written */
};

void cli_json_text(FILE *out, const char *text);
void cli_json_open(struct cli_json *json, FILE *out);
void cli_json_str(struct cli_json *json, const char *name, const char *value);
void cli_json_num(struct cli_json *json, const char *name, int64_t value);
void cli_json_fence(struct cli_json *json, uint64_t fence);
void cli_json_opt(struct cli_json *json, const char *name, int64_t value);
void cli_json_bool(struct cli_json *json, const char *name, bool value);
void cli_json_info(struct cli_json *json, const char *key,
                   const struct hf_info *info);
void cli_json_close(struct cli_json *json);

/* Flush stdout; CLI_FAILED, having said so, if not all of it was written. */
int cli_done(void);

/* Milliseconds on CLOCK_BOOTTIME.  Async-signal-safe. */
int64_t cli_now(void);

/* ---- say.c --------------------------------------------------------------- */

/* From now on messages are written by a thread of its own, so that nobody waits
 * for a stderr that is not read.  False if there is no thread. */
bool say_start(void);

/* Put text, which may be part of a line, on stderr as it is. */
void say_text(const char *text);

/* Whether something that was said is not yet written. */
bool say_behind(void);

/* Wait until all that was said is written, but at most so long. */
void say_flush(int64_t ms);

/* ---- peek.c -------------------------------------------------------------- */

struct cli_peek {
    hf_status st;
    struct hf_info info;
    struct hf_error err;
};

/* Look at a lock in a thread of its own, unless a look is under way; `key` must
 * stay valid.  False if no thread can be had. */
bool peek_start(hf_client *client, const char *key);
int peek_fd(void);                    /* readable when the look is over */
bool peek_take(struct cli_peek *ret); /* the result, once */
void peek_settle(void);               /* wait for the look's end */

/* ---- end.c --------------------------------------------------------------- */

#define END_MS     2000 /* so long the end waits for the service */
#define END_SAY_MS 1000 /* and for whoever reads stderr */

/* Call `fn` and wait for it, but at most so long.  False if it goes on; then
 * `arg` must stay valid and no other call of this client may follow. */
bool end_within(int64_t ms, void (*fn)(void *), void *arg);

/* The last call of the process; returns `code` or ends the process with it. */
int end_process(int code);

/* ---- handle.c ------------------------------------------------------------ */

/* What `acquire` prints and `renew` and `release` take. */
struct cli_handle {
    struct hf_handle hf;
    char key[HF_KEY_MAX + 1];
    char owner[HF_OWNER_MAX + 1]; /* "" if there is no owner id */
    int64_t ttl_ms;
    bool shared;
    int32_t permits; /* 0: a plain lock */
};

/* Room for a handle as one word: every byte may need three. */
#define CLI_HANDLE_MAX 4096

void cli_handle_encode(const struct cli_handle *handle,
                       char ret[CLI_HANDLE_MAX]);
bool cli_handle_decode(const char *word, struct cli_handle *ret);

/* ---- look.c -------------------------------------------------------------- */

/* One line about one lock, for people or as JSON. */
void look_line(const struct cli_opts *opts, const char *key,
               const struct hf_info *info);

/* ---- program.c ----------------------------------------------------------- */

/* If argv[0] is "torture", "serve" or "top", become that program, with the arguments
 * from argv[1] on; argv ends with NULL.  Returns an exit status if there is no
 * such program, and -1 for any other word. */
int cli_program(char **argv);

/* ---- the commands -------------------------------------------------------- */

int cmd_run(struct cli_opts *opts);
int cmd_elect(struct cli_opts *opts);
int cmd_leader(struct cli_opts *opts);
int cmd_gc(struct cli_opts *opts);
int cmd_acquire(struct cli_opts *opts);
int cmd_renew(struct cli_opts *opts);
int cmd_release(struct cli_opts *opts);
int cmd_check(struct cli_opts *opts);
int cmd_status(struct cli_opts *opts);
int cmd_ls(struct cli_opts *opts);
int cmd_break(struct cli_opts *opts);
int cmd_watch(struct cli_opts *opts);
int cmd_doctor(struct cli_opts *opts);
int cmd_serve(struct cli_opts *opts);
int cmd_top(struct cli_opts *opts);
int cmd_torture(struct cli_opts *opts);
int cmd_completion(struct cli_opts *opts);
int cmd_help(struct cli_opts *opts);

#endif
