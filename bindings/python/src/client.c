/* SPDX-License-Identifier: MIT
 *
 * client.c - the Client type: opening, closing, and calls that wait.
 */
#include "binding.h"

PyTypeObject *client_type;

/* Called by threads of the library, and inside calls of ours, with or without the
 * GIL.  An exception of the caller's stays what it is. */
static void client_log(void *arg, hf_log_level level, const char *text)
{
    PyObject *what, *value, *trace, *ret;
    PyGILState_STATE state;

    if (!Py_IsInitialized())
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

/* Close it, unless it is closed, and return the `user`s of its requests. */
static PyObject *client_close(PyObject *object, PyObject *unused)
{
    struct client *self = (struct client *)object;
    hf_client *handle = end_uses(&self->lend, client_wake);

    (void)unused;
    Py_BEGIN_ALLOW_THREADS;
    hf_close(handle);
    Py_END_ALLOW_THREADS;
    return requests_close(self->pending);
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
    PyObject *what, *value, *trace;

    PyObject_GC_UnTrack(object);
    PyErr_Fetch(&what, &value, &trace);
    self->lend.handle = NULL;
    Py_BEGIN_ALLOW_THREADS;
    hf_close(handle);
    Py_END_ALLOW_THREADS;
    lend_fini(&self->lend);
    if (self->pending)
        Py_XDECREF(requests_close(self->pending));
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
    if (self->lend.handle)
        hf_cancel(self->lend.handle);
    Py_RETURN_NONE;
}

METHOD(acquire)
{
    struct client *client = (struct client *)self;
    const struct hf_lock_opts *opts;
    struct text key = {NULL, NULL};
    hf_lock *lock = NULL;
    hf_client *handle;
    struct hf_error err;
    long long wait_ms;
    hf_status st = HF_INVALID;

    if (!PyArg_ParseTuple(args, "O&LO&", to_text, &key, &wait_ms, to_options,
                          &opts))
        return NULL;
    handle = begin_use(&client->lend, "client");
    if (handle) {
        Py_BEGIN_ALLOW_THREADS;
        st = hf_acquire(handle, key.s, wait_ms, opts, &lock, &err);
        Py_END_ALLOW_THREADS;
        end_use(&client->lend);
    }
    text_free(&key);
    if (!handle)
        return NULL;
    return st ? raise_error(&err) : lock_new(lock, NULL);
}

/* ---- several keys ----------------------------------------------------------- */

/* What keeps the texts of a sequence of keys. */
struct keys {
    Py_ssize_t n;
    struct text *texts;
    const char **s;
    hf_lock **locks;
};

static void client_keys_free(struct keys *keys)
{
    for (Py_ssize_t i = 0; keys->texts && i < keys->n; i++)
        text_free(&keys->texts[i]);
    PyMem_Free(keys->texts);
    PyMem_Free(keys->s);
    PyMem_Free(keys->locks);
}

/* 0, or -1 with an exception; client_keys_free() in either case. */
static int client_keys(PyObject *sequence, struct keys *keys)
{
    Py_ssize_t n = PySequence_Size(sequence);
    size_t room = n > 0 ? (size_t)n : 1;
    PyObject *item;
    int ok;

    if (n < 0)
        return -1;
    keys->texts = PyMem_Calloc(room, sizeof(*keys->texts));
    keys->s = PyMem_Calloc(room, sizeof(*keys->s));
    keys->locks = PyMem_Calloc(room, sizeof(*keys->locks));
    if (!keys->texts || !keys->s || !keys->locks) {
        PyErr_NoMemory();
        return -1;
    }
    for (keys->n = 0; keys->n < n; keys->n++) {
        item = PySequence_GetItem(sequence, keys->n);
        ok = item && to_text(item, &keys->texts[keys->n]);
        Py_XDECREF(item);
        if (!ok)
            return -1;
        keys->s[keys->n] = keys->texts[keys->n].s;
    }
    return 0;
}

METHOD(acquire_all)
{
    struct client *client = (struct client *)self;
    struct keys keys = {0, NULL, NULL, NULL};
    const struct hf_lock_opts *opts;
    PyObject *sequence, *ret = NULL;
    struct hf_error err;
    hf_client *handle;
    long long wait_ms;
    hf_status st;

    if (!PyArg_ParseTuple(args, "OLO&", &sequence, &wait_ms, to_options, &opts))
        return NULL;
    if (!client_keys(sequence, &keys) &&
        (handle = begin_use(&client->lend, "client"))) {
        Py_BEGIN_ALLOW_THREADS;
        st = hf_acquire_all(handle, keys.s, (size_t)keys.n, wait_ms, opts,
                            keys.locks, &err);
        Py_END_ALLOW_THREADS;
        end_use(&client->lend);
        ret = st ? raise_error(&err) : locks_new(keys.locks, keys.n, NULL);
    }
    client_keys_free(&keys);
    return ret;
}

/* With a list as the last argument this thread does the work for what it begins:
 * request_work(). */
METHOD(acquire_start)
{
    struct client *client = (struct client *)self;
    const struct hf_lock_opts *opts;
    struct text key = {NULL, NULL};
    struct request *request = NULL;
    PyObject *user, *begun = NULL, *ret = NULL;
    hf_client *handle;
    struct hf_error err;
    long long wait_ms;
    hf_status st;

    if (!PyArg_ParseTuple(args, "O&LO&O!|O!", to_text, &key, &wait_ms,
                          to_options, &opts, &PyList_Type, &user, &PyList_Type,
                          &begun))
        return NULL;
    handle = begin_use(&client->lend, "client");
    request = handle ? request_new(client, user, 0) : NULL;
    if (request) {
        Py_BEGIN_ALLOW_THREADS;
        if (begun)
            hf_lend(handle);
        st = hf_acquire_start(handle, key.s, wait_ms, opts, request,
                              &request->handle, &err);
        Py_END_ALLOW_THREADS;
        if (st)
            request = request_failed(client, request, &err);
        ret = begun ? request_work(client, handle, request, begun)
                    : (PyObject *)request;
    }
    if (handle)
        end_use(&client->lend);
    text_free(&key);
    return ret;
}

METHOD(acquire_all_start)
{
    struct client *client = (struct client *)self;
    struct keys keys = {0, NULL, NULL, NULL};
    const struct hf_lock_opts *opts;
    PyObject *sequence, *user, *begun = NULL, *ret = NULL;
    struct request *request = NULL;
    hf_client *handle = NULL;
    struct hf_error err;
    long long wait_ms;
    hf_status st;

    if (!PyArg_ParseTuple(args, "OLO&O!|O!", &sequence, &wait_ms, to_options,
                          &opts, &PyList_Type, &user, &PyList_Type, &begun))
        return NULL;
    if (!client_keys(sequence, &keys) &&
        (handle = begin_use(&client->lend, "client")))
        request = request_new(client, user, keys.n);
    if (request) {
        Py_BEGIN_ALLOW_THREADS;
        if (begun)
            hf_lend(handle);
        st = hf_acquire_all_start(handle, keys.s, (size_t)keys.n, wait_ms, opts,
                                  request->locks, request, &request->handle,
                                  &err);
        Py_END_ALLOW_THREADS;
        if (st)
            request = request_failed(client, request, &err);
        ret = begun ? request_work(client, handle, request, begun)
                    : (PyObject *)request;
    }
    if (handle)
        end_use(&client->lend);
    client_keys_free(&keys);
    return ret;
}

static PyMethodDef client_methods[] = {
    {"close", client_close, METH_NOARGS, NULL},
    {"cancel", client_cancel, METH_NOARGS, NULL},
    {"acquire", client_acquire, METH_VARARGS, NULL},
    {"acquire_all", client_acquire_all, METH_VARARGS, NULL},
    {"acquire_start", client_acquire_start, METH_VARARGS, NULL},
    {"acquire_all_start", client_acquire_all_start, METH_VARARGS, NULL},
    {"release_start", client_release_start, METH_VARARGS, NULL},
    {"inspect_start", client_inspect_start, METH_VARARGS, NULL},
    {"check_start", client_check_start, METH_VARARGS, NULL},
    {"list_start", client_list_start, METH_VARARGS, NULL},
    {"observe_start", client_observe_start, METH_VARARGS, NULL},
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
