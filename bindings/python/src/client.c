/* SPDX-License-Identifier: MIT
 *
 * client.c - the Client type: opening and closing.
 */
#include "binding.h"

#include <signal.h>
#include <stdatomic.h>

PyTypeObject *client_type;

/* The interpreter ends: no logger is called any more. */
static atomic_bool client_finished;

/* Called by threads of the library, and inside calls of ours, with or without the
 * GIL.  An exception of the caller's stays what it is. */
static void client_log(void *arg, hf_log_level level, const char *text)
{
    PyObject *what, *value, *trace, *ret;
    PyGILState_STATE state;

    if (client_finished || !Py_IsInitialized())
        return;
    state = PyGILState_Ensure();
    PyErr_Fetch(&what, &value, &trace);
    ret = PyObject_CallFunction(arg, "iN", (int)level, from_text(text));
    if (!ret)
        PyErr_WriteUnraisable(arg);
    Py_XDECREF(ret);
    PyErr_Restore(what, value, trace);
    PyGILState_Release(state);
}

static hf_client *client_open(const struct text *url,
                              const struct hf_client_opts *opts)
{
    hf_client *handle = NULL;
    struct hf_error err;
    hf_status st;

    Py_BEGIN_ALLOW_THREADS;
    st = hf_open(url->s, opts, &handle, &err);
    Py_END_ALLOW_THREADS;
    if (st)
        raise_error(&err);
    return handle;
}

static PyObject *client_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    struct text url = {NULL, NULL}, note = {NULL, NULL};
    long long timeout_ms, connect_ms;
    hf_client *handle = NULL;
    struct client *self;
    PyObject *log;
    int level;

    (void)kw;
    if (!PyArg_ParseTuple(args, "O&LO&LOi", to_text_or_none, &url, &timeout_ms,
                          to_text_or_none, &note, &connect_ms, &log, &level))
        return NULL;
    self = PyObject_GC_New(struct client, type);
    if (self) {
        self->log = log == Py_None ? NULL : log;
        Py_XINCREF(self->log);
        self->closing = false;
        lend_init(&self->lend, NULL);
        self->pending = PySet_New(NULL);
        opts.timeout_ms = timeout_ms;
        opts.note = note.s;
        opts.connect_ms = connect_ms;
        opts.log = self->log ? client_log : NULL;
        opts.log_arg = self->log;
        opts.log_level = (hf_log_level)level;
        handle = self->pending ? client_open(&url, &opts) : NULL;
        self->lend.handle = handle;
        PyObject_GC_Track(self);
        if (!handle)
            Py_CLEAR(self);
    }
    text_free(&url);
    text_free(&note);
    return (PyObject *)self;
}

static void client_wake(void *handle)
{
    hf_cancel(handle);
}

/* Another thread closes the client: wait for it, or for a signal handler that
 * raises. */
static int client_closed_by_another(struct client *self)
{
    struct waiter *waiter;
    int ret = 0;

    if (!self->closing || self->lend.forks != lend_forks)
        return 0;
    if (!(waiter = wait_begin(self, NULL)))
        return -1;
    while (!ret && self->closing && waiter->forks == lend_forks) {
        wait_sleep(waiter, -1, -1);
        ret = PyErr_CheckSignals();
    }
    wait_end(waiter);
    return ret;
}

/* Close it, unless it is closed, and return the `user`s of its requests. */
static PyObject *client_close(PyObject *object, PyObject *unused)
{
    struct client *self = (struct client *)object;
    PyObject *requests;
    hf_client *handle;

    (void)unused;
    if (!self->lend.handle)
        return client_closed_by_another(self) ? NULL : PyList_New(0);
    self->closing = true;
    wait_tell(self);
    handle = end_uses(&self->lend, client_wake);
    requests = requests_end(self->pending);
    Py_BEGIN_ALLOW_THREADS;
    hf_close(handle);
    Py_END_ALLOW_THREADS;
    self->closing = false;
    wait_tell(self);
    if (requests)
        requests_users(requests);
    return requests;
}

/* ---- clients that are forgotten ------------------------------------------------ */

/* hf_close() waits for the logger.  The thread that forgets a client may hold
 * what that waits for: the lock of a handler, for instance.  So a client that has
 * a logger is closed in a thread of its own; finish() waits for those. */
struct forgotten {
    hf_client *handle;
    PyObject *log, *requests; /* either may be NULL */
};

static struct {
    int running, forks;
} client_forgotten; /* changed with the GIL held */

static void *client_close_forgotten(void *arg)
{
    struct forgotten *forgotten = arg;
    PyGILState_STATE state;

    hf_close(forgotten->handle);
    state = PyGILState_Ensure();
    Py_XDECREF(forgotten->log);
    Py_XDECREF(forgotten->requests);
    PyMem_Free(forgotten);
    client_forgotten.running--;
    wait_tell(&client_forgotten);
    PyGILState_Release(state);
    return NULL;
}

/* Did a thread take all that is given, and the reference to the logger? */
static bool client_forget(struct client *self, hf_client *handle,
                          PyObject *requests)
{
    struct forgotten *forgotten;
    sigset_t all, before;
    pthread_t thread;
    bool ok = false;

    if (!handle || !self->log || client_finished ||
        self->lend.forks != lend_forks ||
        !(forgotten = PyMem_Malloc(sizeof(*forgotten))))
        return false;
    *forgotten = (struct forgotten){handle, self->log, requests};
    if (client_forgotten.forks != lend_forks) {
        client_forgotten.running = 0; /* those are the parent's */
        client_forgotten.forks = lend_forks;
    }
    client_forgotten.running++;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    ok = !pthread_create(&thread, NULL, client_close_forgotten, forgotten);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (ok) {
        pthread_detach(thread);
        self->log = NULL;
    } else {
        client_forgotten.running--;
        PyMem_Free(forgotten);
    }
    return ok;
}

PyObject *finish(PyObject *module, PyObject *unused)
{
    struct waiter *waiter;

    (void)module;
    (void)unused;
    if (client_forgotten.forks == lend_forks && client_forgotten.running) {
        if (!(waiter = wait_begin(&client_forgotten, NULL)))
            return NULL;
        while (client_forgotten.running)
            wait_sleep(waiter, -1, -1);
        wait_end(waiter);
    }
    client_finished = true;
    Py_RETURN_NONE;
}

/* A client that is forgotten while requests wait is one of a cycle: they refer to
 * it by their `user`s.  There is nothing to clear here: that is done there. */
static int client_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((struct client *)object)->pending);
    Py_VISIT(((struct client *)object)->log);
    return 0;
}

static void client_dealloc(PyObject *object)
{
    struct client *self = (struct client *)object;
    PyTypeObject *type = Py_TYPE(object);
    hf_client *handle = self->lend.handle;
    PyObject *what, *value, *trace, *requests;

    PyObject_GC_UnTrack(object);
    PyErr_Fetch(&what, &value, &trace);
    self->lend.handle = NULL;
    requests = self->pending ? requests_end(self->pending) : NULL;
    if (!client_forget(self, handle, requests)) {
        Py_BEGIN_ALLOW_THREADS;
        hf_close(handle);
        Py_END_ALLOW_THREADS;
        Py_XDECREF(requests);
    }
    lend_fini(&self->lend);
    Py_XDECREF(self->pending);
    Py_XDECREF(self->log);
    PyErr_Clear();
    PyErr_Restore(what, value, trace);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static PyObject *client_cancel(PyObject *object, PyObject *unused)
{
    struct client *self = (struct client *)object;

    (void)unused;
    if (inherited(&self->lend))
        return NULL;
    if (self->lend.handle)
        hf_cancel(self->lend.handle);
    Py_RETURN_NONE;
}

static PyMethodDef client_methods[] = {
    {"close", client_close, METH_NOARGS, NULL},
    {"cancel", client_cancel, METH_NOARGS, NULL},
    {"acquire", client_acquire, METH_VARARGS, NULL},
    {"acquire_all", client_acquire_all, METH_VARARGS, NULL},
    {"acquire_wait", client_acquire_wait, METH_VARARGS, NULL},
    {"acquire_all_wait", client_acquire_all_wait, METH_VARARGS, NULL},
    {"acquire_start", client_acquire_start, METH_VARARGS, NULL},
    {"acquire_all_start", client_acquire_all_start, METH_VARARGS, NULL},
    {"release_start", client_release_start, METH_VARARGS, NULL},
    {"inspect_start", client_inspect_start, METH_VARARGS, NULL},
    {"check_start", client_check_start, METH_VARARGS, NULL},
    {"list_start", client_list_start, METH_VARARGS, NULL},
    {"observe_start", client_observe_start, METH_VARARGS, NULL},
    {"observe_wait", client_observe_wait, METH_VARARGS, NULL},
    {"cancel_requests", client_cancel_requests, METH_NOARGS, NULL},
    {"events", client_events, METH_NOARGS, NULL},
    {"events_fd", client_events_fd, METH_NOARGS, NULL},
    {"attach", client_attach, METH_VARARGS, NULL},
    {"handle_extend", client_handle_extend, METH_VARARGS, NULL},
    {"handle_release", client_handle_release, METH_VARARGS, NULL},
    {"inspect", client_inspect, METH_VARARGS, NULL},
    {"holders", client_holders, METH_VARARGS, NULL},
    {"waiters", client_waiters, METH_VARARGS, NULL},
    {"list", client_list, METH_VARARGS, NULL},
    {"check", client_check, METH_VARARGS, NULL},
    {"break_lock", client_break_lock, METH_VARARGS, NULL},
    {"describe", client_describe, METH_NOARGS, NULL},
    {"collect", client_collect, METH_VARARGS, NULL},
    {"stats", client_stats, METH_NOARGS, NULL},
    {"stats_text", client_stats_text, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL}};

static PyType_Slot client_slots[] = {{Py_tp_new, client_new},
                                     {Py_tp_dealloc, client_dealloc},
                                     {Py_tp_traverse, client_traverse},
                                     {Py_tp_methods, client_methods},
                                     {0, NULL}};

PyType_Spec client_spec = {"holdfast._holdfast.Client", sizeof(struct client),
                           0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                           client_slots};
