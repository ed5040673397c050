/* SPDX-License-Identifier: MIT
 *
 * acquire.c - the three ways to take locks: a call that blocks in the library
 * (acquire), a request whose outcome is an event (acquire_start), and a request
 * whose outcome the call waits for while signal handlers run (acquire_wait).
 */
#include "binding.h"

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

static void acquire_keys_free(struct keys *keys)
{
    for (Py_ssize_t i = 0; keys->texts && i < keys->n; i++)
        text_free(&keys->texts[i]);
    PyMem_Free(keys->texts);
    PyMem_Free(keys->s);
    PyMem_Free(keys->locks);
}

/* 0, or -1 with an exception; acquire_keys_free() in either case. */
static int acquire_keys(PyObject *sequence, struct keys *keys)
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
    if (!acquire_keys(sequence, &keys) &&
        (handle = begin_use(&client->lend, "client"))) {
        Py_BEGIN_ALLOW_THREADS;
        st = hf_acquire_all(handle, keys.s, (size_t)keys.n, wait_ms, opts,
                            keys.locks, &err);
        Py_END_ALLOW_THREADS;
        end_use(&client->lend);
        ret = st ? raise_error(&err) : locks_new(keys.locks, keys.n, NULL);
    }
    acquire_keys_free(&keys);
    return ret;
}

/* ---- requests ---------------------------------------------------------------- */

/* Start a request.  With `lend` this thread does the work for it afterwards:
 * acquire_work(). */
static struct request *acquire_begin(struct client *client, const char *key,
                                     struct keys *keys, long long wait_ms,
                                     const struct hf_lock_opts *opts,
                                     PyObject *user, bool lend)
{
    hf_client *handle = begin_use(&client->lend, "client");
    struct request *request = NULL;
    struct hf_error err;
    hf_status st;

    if (handle)
        request = request_new(client, user, keys ? keys->n : 0);
    if (request) {
        Py_BEGIN_ALLOW_THREADS;
        if (lend)
            hf_lend(handle);
        st = keys ? hf_acquire_all_start(handle, keys->s, (size_t)keys->n,
                                         wait_ms, opts, request->locks, request,
                                         &request->handle, &err)
                  : hf_acquire_start(handle, key, wait_ms, opts, request,
                                     &request->handle, &err);
        if (lend)
            hf_work(handle);
        Py_END_ALLOW_THREADS;
        if (st)
            request = request_failed(client, request, &err);
    }
    if (handle)
        end_use(&client->lend);
    return request;
}

METHOD(acquire_start)
{
    const struct hf_lock_opts *opts;
    struct text key = {NULL, NULL};
    struct request *request;
    long long wait_ms;
    PyObject *user;

    if (!PyArg_ParseTuple(args, "O&LO&O!", to_text, &key, &wait_ms, to_options,
                          &opts, &PyList_Type, &user))
        return NULL;
    request = acquire_begin((struct client *)self, key.s, NULL, wait_ms, opts,
                            user, false);
    text_free(&key);
    return (PyObject *)request;
}

METHOD(acquire_all_start)
{
    struct keys keys = {0, NULL, NULL, NULL};
    const struct hf_lock_opts *opts;
    struct request *request = NULL;
    PyObject *sequence, *user;
    long long wait_ms;

    if (!PyArg_ParseTuple(args, "OLO&O!", &sequence, &wait_ms, to_options,
                          &opts, &PyList_Type, &user))
        return NULL;
    if (!acquire_keys(sequence, &keys))
        request = acquire_begin((struct client *)self, NULL, &keys, wait_ms,
                                opts, user, false);
    acquire_keys_free(&keys);
    return (PyObject *)request;
}

/* ---- requests that this thread waits for ------------------------------------- */

static int acquire_ready(void *list)
{
    return PyList_Size(list) > 0;
}

/* Take the event of an acquisition from the list, to which the locks refer: its
 * locks, or NULL with its error. */
static PyObject *acquire_locks(PyObject *list)
{
    PyObject *item = PyList_GetItem(list, 0), *payload;

    if (!item)
        return NULL;
    payload = PyTuple_GetItem(item, 1);
    Py_INCREF(payload);
    PyList_SetSlice(list, 0, 1, NULL);
    if (PyList_Check(payload))
        return payload;
    PyErr_SetObject((PyObject *)Py_TYPE(payload), payload);
    Py_DECREF(payload);
    return NULL;
}

/* Take back what was begun, and release what it got all the same.  The exception
 * stays what it is.  Without a client all of that is done by its close(), and in a
 * forked child it is the parent's. */
static void acquire_withdraw(struct client *client, struct request *request)
{
    PyObject *what, *value, *trace, *locks, *ret;

    PyErr_Fetch(&what, &value, &trace);
    if (client->lend.handle && client->lend.forks == lend_forks) {
        if (!request->ended)
            hf_request_cancel(request->handle);
        wait_for(client, request->user, -1, false, acquire_ready,
                 request->user);
    }
    PyErr_Clear();
    locks = acquire_locks(request->user);
    for (Py_ssize_t i = 0; locks && i < PyList_Size(locks); i++) {
        ret = PyObject_CallMethod(PyList_GetItem(locks, i), "release", NULL);
        Py_XDECREF(ret);
        PyErr_Clear();
    }
    Py_XDECREF(locks);
    PyErr_Clear();
    PyErr_Restore(what, value, trace);
}

/* hf_work() leaves events, and the descriptor may not tell of them: they are
 * taken before any wait. */
static PyObject *acquire_work(struct client *client, struct request *request)
{
    PyObject *list = request->user;
    PyObject *told = client_events((PyObject *)client, NULL);
    int ready = told ? acquire_ready(list) : -1;

    Py_XDECREF(told);
    if (!ready)
        ready = wait_for(client, list, -1, true, acquire_ready, list);
    if (ready > 0)
        return acquire_locks(list);
    acquire_withdraw(client, request);
    return NULL;
}

/* The locks, as a list. */
static PyObject *acquire_wait(struct client *client, const char *key,
                              struct keys *keys, long long wait_ms,
                              const struct hf_lock_opts *opts)
{
    PyObject *user = PyList_New(0), *ret = NULL;
    struct request *request = NULL;

    if (user)
        request = acquire_begin(client, key, keys, wait_ms, opts, user, true);
    if (request)
        ret = acquire_work(client, request);
    Py_XDECREF((PyObject *)request);
    Py_XDECREF(user);
    return ret;
}

METHOD(acquire_wait)
{
    const struct hf_lock_opts *opts;
    struct text key = {NULL, NULL};
    PyObject *locks, *ret = NULL;
    long long wait_ms;

    if (!PyArg_ParseTuple(args, "O&LO&", to_text, &key, &wait_ms, to_options,
                          &opts))
        return NULL;
    locks = acquire_wait((struct client *)self, key.s, NULL, wait_ms, opts);
    if (locks)
        ret = PySequence_GetItem(locks, 0);
    Py_XDECREF(locks);
    text_free(&key);
    return ret;
}

METHOD(acquire_all_wait)
{
    struct keys keys = {0, NULL, NULL, NULL};
    const struct hf_lock_opts *opts;
    PyObject *sequence, *ret = NULL;
    long long wait_ms;

    if (!PyArg_ParseTuple(args, "OLO&", &sequence, &wait_ms, to_options, &opts))
        return NULL;
    if (!acquire_keys(sequence, &keys))
        ret = acquire_wait((struct client *)self, NULL, &keys, wait_ms, opts);
    acquire_keys_free(&keys);
    return ret;
}
