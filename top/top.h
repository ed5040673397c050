/* SPDX-License-Identifier: MIT
 *
 * top.h - `holdfast top`: the locks of a service, live, on a terminal.
 *
 *   main.c     options; the loop
 *   once.c     --once
 *   table.c    what is known of the locks, sorted and filtered
 *   job.c      calls that may wait for the service, in a thread of their own
 *   screen.c   what is drawn: the list
 *   ask.c      the question whether a lock shall be broken
 *   details.c  one lock: all its holders, and the queue behind them
 *   terminal.c the terminal: begin, end, and back as it was after a crash
 */
#ifndef TOP_H
#define TOP_H

#include "../cli/cli.h"

enum top_sort { SORT_AGE, SORT_LEFT, SORT_WAITERS, SORT_KEY, SORT_COUNT };

struct top_row {
    char *key;
    struct hf_info info;
    int64_t at;   /* when that was true */
    int64_t full; /* the most that was ever left of this lease, */
    int64_t ends; /* when it would end, as first seen, */
    bool renewed; /* and whether it was renewed since */
};

struct top_table {
    struct top_row *rows; /* sorted; those that do not match come last */
    size_t count, room;
    size_t shown; /* how many match */
    enum top_sort sort;
    char filter[64];
};

/* table.c */
bool table_add(struct top_table *table, const struct hf_change *change);
void table_inherit(struct top_table *table, const struct top_table *old);
void table_arrange(struct top_table *table);
void table_clear(struct top_table *table);
const char *table_sort_name(enum top_sort sort);
int64_t table_left(const struct top_row *row); /* by now; -1 unknown */
int64_t table_age(const struct top_row *row);  /* the same */

/* How long the whole lease is, as far as that is known; `usual` is that of a lock
 * that asks for none. */
int64_t table_lease(const struct top_row *row, int64_t usual);

/* job.c */
#define JOB_HOLDERS 32
#define JOB_WAITERS 64

enum top_job_kind { JOB_LOOK, JOB_BREAK };

struct top_job {
    enum top_job_kind kind;
    char key[HF_KEY_MAX + 1];
    uint64_t fence; /* of JOB_BREAK */
    hf_status st;
    struct hf_error err;
    struct hf_info holders[JOB_HOLDERS];
    int count;          /* may be more than are kept */
    hf_status queue_st; /* HF_UNSUPPORTED: nobody knows who waits */
    struct hf_error queue_err;
    struct hf_waiter waiters[JOB_WAITERS];
    int nwaiters; /* may be more than are kept */
    int64_t at;
};

bool job_open(hf_client *client);
int job_fd(void);
bool job_start(enum top_job_kind kind, const char *key, uint64_t fence);
bool job_take(struct top_job *ret); /* the result, once */

/* What is on the screen. */
enum top_view { VIEW_LIST, VIEW_DETAILS };

struct top {
    const char *prefix;
    char endpoint[256];
    struct top_table table;
    char chosen[HF_KEY_MAX + 1]; /* stays chosen wherever it moves to */
    size_t at, first;            /* the chosen row, and the first on screen */
    enum top_view view;
    struct top_job details;
    int line; /* the chosen one: a holder, or behind them a waiter */
    bool paused;
    bool filtering; /* the filter is being typed */
    bool asking;    /* shall this be broken?  Listings do not change it: */
    bool asked;     /* the question was drawn */
    bool breaking;  /* yes, and there is no answer of the service yet: */
    bool delayed;   /* it is asked when the look that is under way has ended */
    char ask_key[HF_KEY_MAX + 1];
    uint64_t ask_fence;
    char ask_who[HF_NOTE_MAX + 1];
    char message[512]; /* until a key is pressed */
    int64_t said_at;
    char trouble[512]; /* until the service answers */
    int64_t lease;     /* of a lock that asks for none */
    int64_t interval;
    bool paced; /* nobody has said how often to list */
};

/* main.c */
void top_say(const char *text); /* an error, on stderr */

/* once.c */
int top_once(struct top *top, hf_client *client, bool as_json);

/* terminal.c */
bool terminal_begin(void);
void terminal_resize(void); /* it has another size */
void terminal_end(void);

/* screen.c */
bool screen_draw(struct top *top); /* false: there is no room */
size_t screen_rows(void);          /* of the list */
void screen_text(int y, int x, int width, const char *raw);
void screen_name(int y, int x, int width, const char *raw);
const char *screen_who(const char *note, const char *owner);
const char *screen_fit(const char *text, int width, int *used);
const char *screen_behind(const char *text, int width);

/* ask.c */
void ask_draw(const struct top *top);

/* details.c */
void details_draw(const struct top *top);
int details_lines(const struct top *top); /* that can be chosen */
int details_holders(const struct top_job *job);

#endif
