/* SPDX-License-Identifier: MIT
 *
 * request.c - the Request type, and events.
 *
 * A request can be granted before the call that started it has returned, while
 * another thread takes events.  That is why it is registered before the call
 * (binding.h (3)), and why events() holds the GIL.
 */
#include "binding.h"

PyTypeObject *request_type;

/* A request that `pending` refers to as well, with room for n locks. */
struct request *request_new(struct client *client, PyObject *user, Py_ssize_t n)
{
    struct request *self = PyObject_GC_New(struct request, request_type);

    if (!self)
        return NULL;
    self->handle = NULL;
    self->user = user;
    Py_INCREF(user);
    self->n = n;
    self->ended = self->lists = self->looks = false;
    self->info = (struct hf_info)HF_INFO_INIT;
    self->locks = n ? PyMem_Calloc((size_t)n, sizeof(hf_lock *)) : NULL;
    if ((n && !self->locks) || PySet_Add(client->pending, (PyObject *)self)) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    PyObject_GC_Track(self);
    return self;
}

/* The request did not start: raise its error.  Returns NULL. */
struct request *request_failed(struct client *client, struct request *request,
                               const struct hf_error *err)
{
    PySet_Discard(client->pending, (PyObject *)request);
    Py_DECREF((PyObject *)request);
    raise_error(err);
    return NULL;
}

static int request_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((struct request *)object)->user);
    return 0;
}

static int request_clear(PyObject *object)
{
    Py_CLEAR(((struct request *)object)->user);
    return 0;
}

static void request_dealloc(PyObject *object)
{
    struct request *self = (struct request *)object;
    PyTypeObject *type = Py_TYPE(object);

    PyObject_GC_UnTrack(object);
    request_clear(object);
    PyMem_Free(self->locks);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* Its event may have been taken before its name was known: see above. */
static PyObject *request_cancel(PyObject *object, PyObject *unused)
{
    struct request *self = (struct request *)object;

    (void)unused;
    if (self->handle && !self->ended)
        hf_request_cancel(self->handle);
    Py_RETURN_NONE;
}

static PyObject *request_get_place(PyObject *object, void *unused)
{
    struct request *self = (struct request *)object;
    bool known = self->handle && !self->ended;

    (void)unused;
    return PyLong_FromLong(known ? hf_request_place(self->handle) : 0);
}

/* Cancel all that are pending, and none that begins later. */
METHOD(cancel_requests)
{
    PyObject *requests = PySequence_List(((struct client *)self)->pending);

    (void)args;
    for (Py_ssize_t i = 0; requests && i < PyList_Size(requests); i++)
        Py_XDECREF(request_cancel(PyList_GetItem(requests, i), NULL));
    Py_XDECREF(requests);
    return requests ? Py_BuildValue("") : NULL;
}

PyObject *requests_end(PyObject *pending)
{
    PyObject *requests = PySequence_List(pending);

    for (Py_ssize_t i = 0; requests && i < PyList_Size(requests); i++)
        ((struct request *)PyList_GetItem(requests, i))->ended = true;
    if (requests)
        PySet_Clear(pending);
    return requests;
}

void requests_users(PyObject *requests)
{
    PyObject *user;

    for (Py_ssize_t i = 0; i < PyList_Size(requests); i++) {
        user = ((struct request *)PyList_GetItem(requests, i))->user;
        Py_INCREF(user);
        PyList_SetItem(requests, i, user);
    }
}

/* ---- events ------------------------------------------------------------------ */

/* A list of lock objects; on failure those left are released. */
PyObject *locks_new(hf_lock **locks, Py_ssize_t n, struct request *request)
{
    PyObject *ret = PyList_New(0), *lock;

    for (Py_ssize_t i = 0; i < n; i++) {
        lock = lock_new(locks[i], request);
        if (lock && ret && PyList_Append(ret, lock))
            Py_CLEAR(ret);
        if (!lock)
            Py_CLEAR(ret);
        Py_XDECREF(lock);
    }
    return ret;
}

/* Which of the request's locks it is. */
static Py_ssize_t request_index(const struct request *request,
                                const hf_lock *lock)
{
    Py_ssize_t i = 0;

    while (i < request->n && request->locks[i] != lock)
        i++;
    return i < request->n ? i : 0;
}

/* A list of (key, info): what hf_list_start() has found. */
static PyObject *request_found(struct hf_event *event)
{
    struct hf_change change = HF_CHANGE_INIT;
    PyObject *ret = PyList_New(0), *item;

    while (hf_list_next(event->request, &change)) {
        item = ret ? Py_BuildValue("NN", from_text(change.key),
                                   info_new(&change.info))
                   : NULL;
        if (!item || PyList_Append(ret, item))
            Py_CLEAR(ret);
        Py_XDECREF(item);
    }
    return ret;
}

/* The answer to a request that gets no lock, or the error. */
static PyObject *request_answer(struct request *request, struct hf_event *event)
{
    if (event->error.status)
        return error_new(event->error.status, event->error.text,
                         event->error.sys_errno);
    if (request->looks)
        return info_new(&request->info);
    if (request->lists)
        return request_found(event);
    Py_RETURN_NONE;
}

/* What an event says beside its type: locks, an answer, an error, or which lock. */
static PyObject *request_payload(struct request *request,
                                 struct hf_event *event)
{
    switch (event->type) {
    case HF_GRANTED:
        return locks_new(request->n ? request->locks : &event->lock,
                         request->n ? request->n : 1, request);
    case HF_FAILED:
        return error_new(event->error.status, event->error.text,
                         event->error.sys_errno);
    case HF_ANSWERED:
        return request_answer(request, event);
    default:
        return PyLong_FromSsize_t(request_index(request, event->lock));
    }
}

/* Append (type, payload) to the list that is the request's `user`, and that list
 * to `told`.  No code of Python runs meanwhile, so no exception of a signal
 * handler comes in between and loses an event.  Events of locks that nobody
 * started a request for are left out: they have the descriptor of the lock. */
static int request_event(struct client *client, struct hf_event *event,
                         PyObject *told)
{
    struct request *request = event->user;
    PyObject *item, *payload;
    int ret = -1;

    if (event->type == HF_CHANGED)
        return observer_event(event->user, told);
    if (!request || !request->user)
        return 0;
    payload = request_payload(request, event);
    item = payload ? Py_BuildValue("iO", (int)event->type, payload) : NULL;
    if (item && !PyList_Append(request->user, item))
        ret = PyList_Append(told, request->user);
    wait_tell(request->user);
    Py_XDECREF(item);
    Py_XDECREF(payload);
    if (event->type == HF_GRANTED || event->type == HF_FAILED ||
        event->type == HF_ANSWERED) {
        request->ended = true;
        PySet_Discard(client->pending, (PyObject *)request);
    }
    return ret;
}

METHOD(events)
{
    struct client *client = (struct client *)self;
    PyObject *told = PyList_New(0);
    struct hf_event event = HF_EVENT_INIT;

    (void)args;
    while (told && client->lend.handle &&
           hf_next_event(client->lend.handle, &event))
        if (request_event(client, &event, told))
            Py_CLEAR(told);
    return told;
}

METHOD(events_fd)
{
    struct client *client = (struct client *)self;
    int fd = client->lend.handle ? hf_events_fd(client->lend.handle) : -1;

    (void)args;
    if (fd < 0)
        return raise_text(HF_SYSTEM, "no descriptor for events");
    return PyLong_FromLong(fd);
}

/* ---- requests that get no lock ------------------------------------------------ */

/* Without a list nobody is told of the end.  It never waits: BlockingIOError if
 * another thread uses the lock, which is then as it was. */
METHOD(release_start)
{
    struct client *client = (struct client *)self;
    struct request *request = NULL;
    PyObject *lock, *user;
    hf_lock *handle;

    if (!PyArg_ParseTuple(args, "O!O", lock_type, &lock, &user))
        return NULL;
    if (in_use(&((struct lock *)lock)->lend)) {
        PyErr_SetString(PyExc_BlockingIOError, "the lock is in use");
        return NULL;
    }
    if (user != Py_None && !(request = request_new(client, user, 0)))
        return NULL;
    handle = lock_end((struct lock *)lock);
    if (handle)
        hf_release_start(handle, request, request ? &request->handle : NULL);
    lock_ended((struct lock *)lock);
    if (request && !request->handle) {
        PySet_Discard(client->pending, (PyObject *)request);
        Py_CLEAR(request);
    }
    if (!handle)
        return NULL;
    return request ? (PyObject *)request : Py_BuildValue("");
}

/* A request, registered, and the client that it is for; or NULL. */
static struct request *request_begin(struct client *client, PyObject *user,
                                     hf_client **handle)
{
    struct request *request = NULL;

    *handle = begin_use(&client->lend, "client");
    if (*handle && !(request = request_new(client, user, 0)))
        end_use(&client->lend);
    return request;
}

static PyObject *request_begun(struct client *client, struct request *request,
                               hf_status st, const struct hf_error *err)
{
    end_use(&client->lend);
    if (st)
        request = request_failed(client, request, err);
    return (PyObject *)request;
}

METHOD(inspect_start)
{
    struct client *client = (struct client *)self;
    struct text key = {NULL, NULL};
    struct request *request;
    PyObject *user, *ret = NULL;
    hf_client *handle;
    struct hf_error err;
    hf_status st;

    if (!PyArg_ParseTuple(args, "O&O!", to_text, &key, &PyList_Type, &user))
        return NULL;
    if ((request = request_begin(client, user, &handle))) {
        request->looks = true;
        st = hf_inspect_start(handle, key.s, &request->info, request,
                              &request->handle, &err);
        ret = request_begun(client, request, st, &err);
    }
    text_free(&key);
    return ret;
}

METHOD(check_start)
{
    struct client *client = (struct client *)self;
    struct text key = {NULL, NULL};
    struct request *request;
    PyObject *user, *ret = NULL;
    unsigned long long fence;
    hf_client *handle;
    struct hf_error err;
    hf_status st;

    if (!PyArg_ParseTuple(args, "O&O&O!", to_text, &key, to_fence, &fence,
                          &PyList_Type, &user))
        return NULL;
    if ((request = request_begin(client, user, &handle))) {
        st = hf_check_start(handle, key.s, fence, request, &request->handle,
                            &err);
        ret = request_begun(client, request, st, &err);
    }
    text_free(&key);
    return ret;
}

METHOD(list_start)
{
    struct client *client = (struct client *)self;
    struct text prefix = {NULL, NULL};
    struct request *request;
    PyObject *user, *ret = NULL;
    hf_client *handle;
    struct hf_error err;
    hf_status st;

    if (!PyArg_ParseTuple(args, "O&O!", to_text, &prefix, &PyList_Type, &user))
        return NULL;
    if ((request = request_begin(client, user, &handle))) {
        request->lists = true;
        st = hf_list_start(handle, prefix.s, request, &request->handle, &err);
        ret = request_begun(client, request, st, &err);
    }
    text_free(&prefix);
    return ret;
}

static PyObject *request_get_ended(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((struct request *)object)->ended);
}

static PyMethodDef request_methods[] = {
    {"cancel", request_cancel, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};

static PyGetSetDef request_getset[] = {
    {"place", request_get_place, NULL, NULL, NULL},
    {"ended", request_get_ended, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot request_slots[] = {{Py_tp_new, no_new},
                                      {Py_tp_dealloc, request_dealloc},
                                      {Py_tp_traverse, request_traverse},
                                      {Py_tp_clear, request_clear},
                                      {Py_tp_methods, request_methods},
                                      {Py_tp_getset, request_getset},
                                      {0, NULL}};

PyType_Spec request_spec = {
    "holdfast._holdfast.Request", sizeof(struct request), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, request_slots};
