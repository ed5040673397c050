/* SPDX-License-Identifier: MIT
 *
 * lock.c - the Lock type: one acquisition.
 *
 * Its key, token, fence, slot and the reason of its loss stay known when the
 * handle has ended.  A lock that is forgotten is released in the background.
 */
#include "binding.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

PyTypeObject *lock_type;

static char *lock_copy(const char *s)
{
    size_t size = strlen(s) + 1;
    char *ret = PyMem_Malloc(size);

    return ret ? memcpy(ret, s, size) : NULL;
}

PyObject *lock_new(hf_lock *handle, struct request *request)
{
    struct lock *self = PyObject_GC_New(struct lock, lock_type);

    if (!self) {
        hf_release_start(handle, NULL, NULL);
        return NULL;
    }
    lend_init(&self->lend, handle);
    self->fence = hf_fence(handle);
    self->slot = hf_slot(handle);
    self->loss = HF_LOSS_NONE;
    self->key = lock_copy(hf_key(handle));
    self->token = lock_copy(hf_token(handle));
    self->request = request;
    Py_XINCREF((PyObject *)request);
    if (!self->key || !self->token) {
        Py_DECREF((PyObject *)self);
        return PyErr_NoMemory();
    }
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

/* There is nothing to clear: the request stays until the handle has ended, and
 * what is behind it can be cleared there. */
static int lock_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)((struct lock *)object)->request);
    return 0;
}

hf_lock *lock_end(struct lock *self)
{
    hf_lock *handle = self->lend.handle;

    if (handle)
        self->loss = hf_lost_reason(handle);
    wait_tell(self);
    handle = end_uses(&self->lend, NULL);
    if (handle)
        self->loss = hf_lost_reason(handle);
    if (!handle)
        raise_text(HF_INVALID, "the lock is not held");
    return handle;
}

/* After the handle has ended no event names the request: binding.h (3). */
void lock_ended(struct lock *self)
{
    Py_CLEAR(self->request);
}

static void lock_dealloc(PyObject *object)
{
    struct lock *self = (struct lock *)object;
    PyTypeObject *type = Py_TYPE(object);
    hf_lock *handle = self->lend.handle;
    PyObject *what, *value, *trace;

    PyObject_GC_UnTrack(object);
    if (handle) {
        self->lend.handle = NULL;
        PyErr_Fetch(&what, &value, &trace);
        if (hf_held(handle) &&
            PyErr_WarnFormat(PyExc_ResourceWarning, 1,
                             "a held lock was forgotten, and is released: '%s'",
                             self->key ? self->key : ""))
            PyErr_Clear();
        hf_release_start(handle, NULL, NULL);
        PyErr_Restore(what, value, trace);
    }
    lend_fini(&self->lend);
    Py_XDECREF((PyObject *)self->request);
    PyMem_Free(self->key);
    PyMem_Free(self->token);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* ---- what ends the handle --------------------------------------------------- */

static PyObject *lock_release(PyObject *object, PyObject *unused)
{
    struct lock *self = (struct lock *)object;
    hf_lock *handle = lock_end(self);
    struct hf_error err;
    hf_status st;

    (void)unused;
    if (!handle)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    st = hf_release(handle, &err);
    Py_END_ALLOW_THREADS;
    lock_ended(self);
    if (st)
        return raise_error(&err);
    Py_RETURN_NONE;
}

static PyObject *lock_detach(PyObject *object, PyObject *unused)
{
    struct lock *self = (struct lock *)object;
    hf_lock *handle = lock_end(self);
    struct hf_handle ret = HF_HANDLE_INIT;
    struct hf_error err;
    hf_status st;

    (void)unused;
    if (!handle)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    st = hf_detach(handle, &ret, &err);
    Py_END_ALLOW_THREADS;
    lock_ended(self);
    if (st)
        return raise_error(&err);
    return Py_BuildValue("NNK", from_text(ret.token), from_text(ret.ref),
                         (unsigned long long)ret.fence);
}

/* ---- what uses it ----------------------------------------------------------- */

static PyObject *lock_extend(PyObject *object, PyObject *args)
{
    struct lock *self = (struct lock *)object;
    long long ttl_ms;
    struct hf_error err;
    hf_lock *handle;
    hf_status st;

    if (!PyArg_ParseTuple(args, "L", &ttl_ms) ||
        !(handle = begin_use(&self->lend, "lock")))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    st = hf_extend(handle, ttl_ms, &err);
    Py_END_ALLOW_THREADS;
    end_use(&self->lend);
    if (st)
        return raise_error(&err);
    Py_RETURN_NONE;
}

static PyObject *lock_downgrade(PyObject *object, PyObject *unused)
{
    struct lock *self = (struct lock *)object;
    struct hf_error err;
    hf_lock *handle;
    hf_status st;

    (void)unused;
    if (!(handle = begin_use(&self->lend, "lock")))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    st = hf_downgrade(handle, &err);
    Py_END_ALLOW_THREADS;
    end_use(&self->lend);
    if (st)
        return raise_error(&err);
    Py_RETURN_NONE;
}

static PyObject *lock_transfer(PyObject *object, PyObject *args)
{
    struct lock *self = (struct lock *)object;
    struct text heir = {NULL, NULL};
    struct hf_error err;
    hf_lock *handle;
    hf_status st = HF_INVALID;

    if (!PyArg_ParseTuple(args, "O&", to_text, &heir))
        return NULL;
    handle = begin_use(&self->lend, "lock");
    if (handle) {
        Py_BEGIN_ALLOW_THREADS;
        st = hf_transfer(handle, heir.s, &err);
        Py_END_ALLOW_THREADS;
        end_use(&self->lend);
    }
    text_free(&heir);
    if (!handle)
        return NULL;
    if (st)
        return raise_error(&err);
    Py_RETURN_NONE;
}

/* The descriptor is the library's; the caller duplicates what it keeps. */
static PyObject *lock_lost_fd(PyObject *object, PyObject *unused)
{
    struct lock *self = (struct lock *)object;
    int fd = self->lend.handle ? hf_lost_fd(self->lend.handle) : -1;

    (void)unused;
    if (fd < 0)
        return raise_text(HF_SYSTEM, "no descriptor for the loss of a lock");
    return PyLong_FromLong(fd);
}

static bool lock_is_lost(const struct lock *self)
{
    return (self->lend.handle ? hf_lost_reason(self->lend.handle)
                              : self->loss) != HF_LOSS_NONE;
}

/* Sleep until the descriptor says that the lock is lost, the lock ends, or the
 * time is over.  -1: with an exception. */
static int lock_sleep(struct lock *self, int fd, int64_t until)
{
    struct waiter *waiter;
    int ret = 0;

    if (!(waiter = wait_begin(self, NULL)))
        return -1;
    while (!ret && self->lend.handle && waiter->forks == lend_forks &&
           !wait_over(until))
        ret = wait_sleep(waiter, fd, until) ? 1 : PyErr_CheckSignals();
    wait_end(waiter);
    return ret;
}

/* Wait for the loss; false if the lock ends before, or the time is over.  The
 * handle ends with the GIL held, so its descriptor is there to be duplicated. */
static PyObject *lock_wait_lost(PyObject *object, PyObject *args)
{
    struct lock *self = (struct lock *)object;
    long long ms;
    int fd, ret;

    if (!PyArg_ParseTuple(args, "L", &ms) || inherited(&self->lend))
        return NULL;
    if (self->lend.handle && !lock_is_lost(self)) {
        fd = fcntl(hf_lost_fd(self->lend.handle), F_DUPFD_CLOEXEC, 0);
        if (fd < 0)
            return raise_text(HF_SYSTEM,
                              "no descriptor for the loss of a lock");
        ret = lock_sleep(self, fd, wait_until(ms));
        close(fd);
        if (ret < 0)
            return NULL;
    }
    return PyBool_FromLong(lock_is_lost(self));
}

/* ---- properties: they do not block, and are used with the GIL held ---------- */

static PyObject *lock_get_held(PyObject *object, void *unused)
{
    struct lock *self = (struct lock *)object;

    (void)unused;
    return PyBool_FromLong(self->lend.handle && hf_held(self->lend.handle));
}

static PyObject *lock_get_remaining(PyObject *object, void *unused)
{
    struct lock *self = (struct lock *)object;

    (void)unused;
    if (!self->lend.handle)
        return PyLong_FromLong(0);
    return PyLong_FromLongLong(hf_remaining_ms(self->lend.handle));
}

static PyObject *lock_get_loss(PyObject *object, void *unused)
{
    struct lock *self = (struct lock *)object;
    hf_loss loss = self->loss;

    (void)unused;
    if (self->lend.handle)
        loss = hf_lost_reason(self->lend.handle);
    if (loss == HF_LOSS_NONE)
        Py_RETURN_NONE;
    return from_text(hf_loss_name(loss));
}

static PyObject *lock_get_fence(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(((struct lock *)object)->fence);
}

static PyObject *lock_get_slot(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromLong(((struct lock *)object)->slot);
}

static PyObject *lock_get_key(PyObject *object, void *unused)
{
    (void)unused;
    return from_text(((struct lock *)object)->key);
}

static PyObject *lock_get_token(PyObject *object, void *unused)
{
    (void)unused;
    return from_text(((struct lock *)object)->token);
}

static PyObject *lock_get_open(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((struct lock *)object)->lend.handle != NULL);
}

static PyMethodDef lock_methods[] = {
    {"release", lock_release, METH_NOARGS, NULL},
    {"detach", lock_detach, METH_NOARGS, NULL},
    {"extend", lock_extend, METH_VARARGS, NULL},
    {"downgrade", lock_downgrade, METH_NOARGS, NULL},
    {"transfer", lock_transfer, METH_VARARGS, NULL},
    {"lost_fd", lock_lost_fd, METH_NOARGS, NULL},
    {"wait_lost", lock_wait_lost, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef lock_getset[] = {
    {"open", lock_get_open, NULL, NULL, NULL},
    {"held", lock_get_held, NULL, NULL, NULL},
    {"remaining_ms", lock_get_remaining, NULL, NULL, NULL},
    {"loss", lock_get_loss, NULL, NULL, NULL},
    {"fence", lock_get_fence, NULL, NULL, NULL},
    {"slot", lock_get_slot, NULL, NULL, NULL},
    {"key", lock_get_key, NULL, NULL, NULL},
    {"token", lock_get_token, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot lock_slots[] = {{Py_tp_new, no_new},
                                   {Py_tp_dealloc, lock_dealloc},
                                   {Py_tp_traverse, lock_traverse},
                                   {Py_tp_methods, lock_methods},
                                   {Py_tp_getset, lock_getset},
                                   {0, NULL}};

PyType_Spec lock_spec = {"holdfast._holdfast.Lock", sizeof(struct lock), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, lock_slots};
