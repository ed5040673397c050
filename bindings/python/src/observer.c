/* SPDX-License-Identifier: MIT
 *
 * observer.c - the Observer type: changes of a lock, or of all with a prefix.
 */
#include "binding.h"

PyTypeObject *observer_type;

METHOD(observe_start)
{
    struct client *client = (struct client *)self;
    struct text key = {NULL, NULL};
    struct observer *observer = NULL;
    PyObject *user;
    hf_client *handle;
    struct hf_error err;
    hf_status st;
    bool prefix;

    if (!PyArg_ParseTuple(args, "O&O&O!", to_text, &key, to_flag, &prefix,
                          &PyList_Type, &user))
        return NULL;
    handle = begin_use(&client->lend, "client");
    if (handle && (observer = PyObject_New(struct observer, observer_type))) {
        observer->handle = NULL;
        observer->user = user;
        Py_INCREF(user);
        Py_BEGIN_ALLOW_THREADS;
        st = hf_observe_start(handle, key.s, prefix ? HF_PREFIX : 0, observer,
                              &observer->handle, &err);
        Py_END_ALLOW_THREADS;
        if (st) {
            Py_CLEAR(observer);
            raise_error(&err);
        }
    }
    if (handle)
        end_use(&client->lend);
    text_free(&key);
    return (PyObject *)observer;
}

/* The list says only that there is something: (CHANGED, None). */
int observer_event(struct observer *observer, PyObject *told)
{
    PyObject *item = Py_BuildValue("iO", (int)HF_CHANGED, Py_None);
    int ret = -1;

    if (item && !PyList_Append(observer->user, item))
        ret = PyList_Append(told, observer->user);
    wait_tell(observer->user);
    Py_XDECREF(item);
    return ret;
}

/* (key, info), or None if there is no change. */
static PyObject *observer_next(PyObject *object, PyObject *unused)
{
    struct observer *self = (struct observer *)object;
    struct hf_change change = HF_CHANGE_INIT;

    (void)unused;
    if (!self->handle || !hf_observer_next(self->handle, &change))
        Py_RETURN_NONE;
    return Py_BuildValue("NN", from_text(change.key), info_new(&change.info));
}

static PyObject *observer_stop(PyObject *object, PyObject *unused)
{
    struct observer *self = (struct observer *)object;
    hf_observer *handle = self->handle;

    (void)unused;
    self->handle = NULL;
    if (handle)
        hf_observe_stop(handle);
    wait_tell(self->user);
    Py_RETURN_NONE;
}

/* What observe_wait() waits for. */
struct change {
    PyObject *observer;
    PyObject *found; /* a reference: what observer_next() gave */
};

static int observer_ready(void *arg)
{
    struct change *change = arg;
    struct observer *observer = (struct observer *)change->observer;

    PyList_SetSlice(observer->user, 0, PyList_Size(observer->user), NULL);
    Py_XDECREF(change->found); /* None, of last time */
    change->found = observer_next(change->observer, NULL);
    if (!change->found)
        return -1;
    return change->found != Py_None || !observer->handle;
}

/* The next change, or None when the time is over or the observer is stopped.  If
 * others wait for the same one there may be more for them. */
METHOD(observe_wait)
{
    struct change change = {NULL, NULL};
    PyObject *list;
    long long ms;

    if (!PyArg_ParseTuple(args, "O!L", observer_type, &change.observer, &ms) ||
        inherited(&((struct client *)self)->lend))
        return NULL;
    list = ((struct observer *)change.observer)->user;
    if (wait_for((struct client *)self, list, wait_until(ms), true,
                 observer_ready, &change) < 0)
        Py_CLEAR(change.found);
    wait_tell(list);
    return change.found;
}

static void observer_dealloc(PyObject *object)
{
    struct observer *self = (struct observer *)object;
    PyTypeObject *type = Py_TYPE(object);

    if (self->handle)
        hf_observe_stop(self->handle);
    Py_DECREF(self->user);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMethodDef observer_methods[] = {
    {"next", observer_next, METH_NOARGS, NULL},
    {"stop", observer_stop, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL}};

static PyType_Slot observer_slots[] = {{Py_tp_new, no_new},
                                       {Py_tp_dealloc, observer_dealloc},
                                       {Py_tp_methods, observer_methods},
                                       {0, NULL}};

PyType_Spec observer_spec = {"holdfast._holdfast.Observer",
                             sizeof(struct observer), 0, Py_TPFLAGS_DEFAULT,
                             observer_slots};
