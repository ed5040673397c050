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
    int prefix;

    if (!PyArg_ParseTuple(args, "O&pO!", to_text, &key, &prefix, &PyList_Type,
                          &user))
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
    Py_RETURN_NONE;
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
