/* SPDX-License-Identifier: MIT
 *
 * binding.h - the C part of the Python package, which the files here share.
 *
 * `holdfast._holdfast` gives Python the functions of holdfast.h and nothing
 * else: handles are objects, statuses are exceptions, milliseconds are integers.
 * What is idiomatic is written in Python, in ../holdfast.  It is built against
 * the limited API of CPython 3.9, so that one file serves every later version.
 *
 * RULES
 *  (1) Every call that can block lets go of the GIL.
 *  (2) The library wants no call on a handle during or after the one that ends
 *      it.  Python has no such rule, so an object lends its handle: begin_use()
 *      counts who uses it, and end_uses(), which takes it away first, waits for
 *      the last of them.  The counts change with the GIL held.  So a fork, which
 *      happens with the GIL held, finds them consistent; in the child nobody is
 *      left to wait for.
 *  (3) A pointer that the library returns as `user` is that of an object that is
 *      alive.  An observer is stopped by the end of its object.  To a request
 *      `pending` of its client refers to it until its last event is taken,
 *      and then the locks that it got do, until they are released.
 *  (4) A thread waits inside one call of C (wait.c).  A signal handler of Python
 *      runs at one place of it, where the thread has nothing in hand that others
 *      wait for, and the call undoes what it began if the handler raises.  So no
 *      exception can come at a moment at which it does harm.  There is no role to
 *      hand on either: every thread that waits polls the descriptor of events and
 *      one of its own.  Who takes events tells those that they are for.  Who
 *      waits is noted with the GIL held, and a forked child begins with nobody.
 */
#ifndef BINDING_H
#define BINDING_H

#define Py_LIMITED_API 0x03090000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <holdfast.h>
#include <pthread.h>

/* ---- handles that are lent (lend.c) -------------------------------------- */

struct lend {
    void *handle; /* NULL: ended */
    int users;
    int forks; /* of the process whose threads the users are */
    pthread_mutex_t mu;
    pthread_cond_t unused;
};

/* How many forks this process is away from the one that began. */
extern int lend_forks;

/* Once, before all others; 0 if it went well. */
int lend_begin(void);
void lend_init(struct lend *lend, void *handle);
void lend_fini(struct lend *lend);
/* Is it the parent's, and this a forked child?  Then with an exception.  The
 * library itself says so of every call that has an error to tell it in. */
bool inherited(const struct lend *lend);
/* The handle, or NULL with an exception that calls it `what`. */
void *begin_use(struct lend *lend, const char *what);
void end_use(struct lend *lend);
/* Would end_uses() wait? */
bool in_use(const struct lend *lend);
/* Take the handle away and wait for its users; NULL if it was gone.  `wake` is
 * called again and again while there are any. */
void *end_uses(struct lend *lend, void (*wake)(void *handle));

/* ---- threads that wait (wait.c) ------------------------------------------- */

struct waiter {
    struct waiter *next;
    const void *owner, *what; /* who is told of either wakes it */
    pthread_t thread;
    int forks;
    int fd;
};

void wait_forked(void);
/* The end of a wait of so many milliseconds; -1 is for ever. */
int64_t wait_until(long long ms);
bool wait_over(int64_t until);
/* NULL with an exception. */
struct waiter *wait_begin(const void *owner, const void *what);
void wait_end(struct waiter *waiter);
/* Wake the other threads that wait for this object. */
void wait_tell(const void *whom);
/* Sleep until it is told, the descriptor is readable (1), a signal came, the time
 * is over, or a while has passed. */
int wait_sleep(struct waiter *waiter, int fd, int64_t until);

/* ---- objects -------------------------------------------------------------- */

struct client {
    PyObject_HEAD struct lend lend;
    PyObject *pending; /* set of requests: (3) */
    PyObject *log;     /* what is called for each line, or NULL */
    bool closing;      /* close() is under way */
};

struct lock {
    PyObject_HEAD struct lend lend;
    struct request *request; /* that it comes from, or NULL: (3) */
    uint64_t fence;          /* these outlive the handle */
    int32_t slot;
    hf_loss loss;
    char *key, *token;
};

struct request {
    PyObject_HEAD hf_request *handle;
    bool ended; /* its event was taken */
    PyObject *user;
    hf_lock **locks; /* of several keys, else NULL */
    Py_ssize_t n;
    bool lists;          /* what hf_list_next() gives */
    struct hf_info info; /* if `looks`: what hf_inspect_start() writes */
    bool looks;
};

struct options {
    PyObject_HEAD struct hf_lock_opts opts;
    char *owner, *note;
};

struct observer {
    PyObject_HEAD hf_observer *handle; /* NULL: stopped */
    PyObject *user;
};

extern PyTypeObject *client_type, *lock_type, *request_type, *options_type,
    *observer_type;
extern PyType_Spec client_spec, lock_spec, request_spec, options_spec,
    observer_spec;

/* The methods of a client, which several files share. */
#define METHOD(name) PyObject *client_##name(PyObject *self, PyObject *args)
METHOD(acquire);
METHOD(acquire_all);
METHOD(acquire_wait);
METHOD(acquire_all_wait);
METHOD(attach);
METHOD(handle_extend);
METHOD(handle_release);
METHOD(acquire_start);
METHOD(acquire_all_start);
METHOD(release_start);
METHOD(inspect_start);
METHOD(check_start);
METHOD(list_start);
METHOD(observe_start);
METHOD(observe_wait);
METHOD(cancel_requests);
METHOD(events);
METHOD(events_fd);
METHOD(inspect);
METHOD(holders);
METHOD(waiters);
METHOD(list);
METHOD(check);
METHOD(break_lock);
METHOD(describe);
METHOD(collect);
METHOD(stats);
METHOD(stats_text);

PyObject *services(PyObject *module, PyObject *unused);

/* The constructor of types whose objects others make. */
PyObject *no_new(PyTypeObject *type, PyObject *args, PyObject *kw);
/* Take the handle from a lock object for the call that ends it, and tell when
 * that has been done. */
hf_lock *lock_end(struct lock *self);
void lock_ended(struct lock *self);
/* A lock object for the handle, which it owns even if there is none. */
PyObject *lock_new(hf_lock *handle, struct request *request);
PyObject *info_new(const struct hf_info *info);
PyObject *locks_new(hf_lock **locks, Py_ssize_t n, struct request *request);
struct request *request_new(struct client *client, PyObject *user,
                            Py_ssize_t n);
struct request *request_failed(struct client *client, struct request *request,
                               const struct hf_error *err);
/* Tell the list of an observer that there are changes. */
int observer_event(struct observer *observer, PyObject *told);
/* Wait until ready() is not 0, which it is asked whenever the list was told of an
 * event, or the time is over (0).  -1: with an exception, for instance of a signal
 * handler, if `handlers` may run. */
int wait_for(struct client *client, PyObject *list, int64_t until,
             bool handlers, int (*ready)(void *arg), void *arg);
/* Before a client is closed: forget all requests, which must outlive that, and
 * return them; then make of that list one of their `user`s. */
PyObject *requests_end(PyObject *pending);
void requests_users(PyObject *requests);
/* Wait for the clients that were forgotten, and call no logger from now on. */
PyObject *finish(PyObject *module, PyObject *unused);

/* ---- values (value.c) ----------------------------------------------------- */

/* The exception for a status, as an object, and raised. */
PyObject *error_new(hf_status st, const char *text, int sys_errno);
PyObject *raise_error(const struct hf_error *err);
PyObject *raise_text(hf_status st, const char *text);

/* For PyArg_ParseTuple("O&"): UTF-8 without NUL, whose owner is the bytes object;
 * bytes that are no UTF-8 come and go as lone surrogates.  None is NULL where it
 * is said so. */
struct text {
    PyObject *bytes;
    const char *s;
};
int to_text(PyObject *object, void *text);
int to_text_or_none(PyObject *object, void *text);
void text_free(struct text *text);
PyObject *from_text(const char *s);

/* For PyArg_ParseTuple("O&"): a fence as unsigned long long, never cut. */
int to_fence(PyObject *object, void *fence);

/* For PyArg_ParseTuple("O&"): a bool, and nothing that only counts as one: the text
 * "no" would. */
int to_flag(PyObject *object, void *flag);

/* For PyArg_ParseTuple("O&"): an Options, or None for NULL. */
int to_options(PyObject *object, void *opts);

#endif
