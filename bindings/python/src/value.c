/* SPDX-License-Identifier: MIT
 *
 * value.c - statuses, texts and options, from C to Python and back.
 */
#include "binding.h"

#include <string.h>

/* ---- errors --------------------------------------------------------------- */

/* holdfast._errors has a list of classes, in the order of hf_status. */
static PyObject *value_error_class(hf_status st)
{
    PyObject *module = PyImport_ImportModule("holdfast._errors"), *list;
    PyObject *ret = NULL;

    if (!module)
        return NULL;
    list = PyObject_GetAttrString(module, "BY_STATUS");
    if (list)
        ret = PySequence_GetItem(list, (Py_ssize_t)st);
    Py_XDECREF(list);
    Py_DECREF(module);
    return ret;
}

PyObject *error_new(hf_status st, const char *text, int sys_errno)
{
    PyObject *class = value_error_class(st), *message, *number, *ret = NULL;

    if (!class)
        return NULL;
    message = from_text(text);
    if (message)
        ret = PyObject_CallFunctionObjArgs(class, message, NULL);
    number = ret && sys_errno ? PyLong_FromLong(sys_errno) : NULL;
    if (number && PyObject_SetAttrString(ret, "errno", number))
        Py_CLEAR(ret);
    Py_XDECREF(number);
    Py_XDECREF(message);
    Py_DECREF(class);
    return ret;
}

static PyObject *value_raise(PyObject *error)
{
    if (error)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    return NULL;
}

PyObject *raise_error(const struct hf_error *err)
{
    return value_raise(error_new(err->status, err->text, err->sys_errno));
}

PyObject *raise_text(hf_status st, const char *text)
{
    return value_raise(error_new(st, text, 0));
}

/* ---- texts ---------------------------------------------------------------- */

int to_text(PyObject *object, void *arg)
{
    struct text *text = arg;
    Py_ssize_t len;
    char *s;

    if (!object) {
        text_free(text);
        return 1;
    }
    if (!PyUnicode_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "expected a str");
        return 0;
    }
    text->bytes = PyUnicode_AsEncodedString(object, "utf-8", "surrogateescape");
    if (!text->bytes || PyBytes_AsStringAndSize(text->bytes, &s, &len)) {
        text_free(text);
        return 0;
    }
    text->s = s;
    if (strlen(s) == (size_t)len)
        return Py_CLEANUP_SUPPORTED;
    text_free(text);
    raise_text(HF_INVALID, "a text contains NUL");
    return 0;
}

int to_text_or_none(PyObject *object, void *arg)
{
    if (object == Py_None)
        return 1;
    return to_text(object, arg);
}

void text_free(struct text *text)
{
    Py_CLEAR(text->bytes);
    text->s = NULL;
}

PyObject *from_text(const char *s)
{
    return PyUnicode_DecodeUTF8(s, (Py_ssize_t)strlen(s), "surrogateescape");
}

int to_fence(PyObject *object, void *arg)
{
    unsigned long long *ret = arg;

    *ret = PyLong_AsUnsignedLongLong(object);
    if (!PyErr_Occurred())
        return 1;
    if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        raise_text(HF_INVALID, "a fence is from 0 to 2^64 - 1");
    }
    return 0;
}

int to_flag(PyObject *object, void *arg)
{
    bool *ret = arg;

    *ret = object == Py_True;
    if (PyBool_Check(object))
        return 1;
    PyErr_SetString(PyExc_TypeError, "expected True or False");
    return 0;
}

/* ---- options -------------------------------------------------------------- */

static int value_copy(const struct text *text, char **ret)
{
    size_t size;

    if (!text->s)
        return 0;
    size = strlen(text->s) + 1;
    *ret = PyMem_Malloc(size);
    if (!*ret) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(*ret, text->s, size);
    return 0;
}

static PyObject *options_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
    long long ttl, retry, linger, max_hold, min_hold;
    struct text owner = {NULL, NULL}, note = {NULL, NULL};
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    struct options *self;
    int tries, turns, permits;

    (void)kw;
    if (!PyArg_ParseTuple(args, "LO&O&IiLLLiiL", &ttl, to_text_or_none, &owner,
                          to_text_or_none, &note, &opts.flags, &tries, &retry,
                          &linger, &max_hold, &turns, &permits, &min_hold))
        return NULL;
    self = PyObject_New(struct options, type);
    if (self) {
        opts.ttl_ms = ttl;
        opts.max_tries = tries;
        opts.retry_ms = retry;
        opts.linger_ms = linger;
        opts.max_hold_ms = max_hold;
        opts.local_turns = turns;
        opts.permits = permits;
        opts.min_hold_ms = min_hold;
        self->owner = self->note = NULL;
        if (value_copy(&owner, &self->owner) || value_copy(&note, &self->note))
            Py_CLEAR(self);
    }
    if (self) {
        opts.owner = self->owner;
        opts.note = self->note;
        self->opts = opts;
    }
    text_free(&owner);
    text_free(&note);
    return (PyObject *)self;
}

static void options_dealloc(PyObject *object)
{
    struct options *self = (struct options *)object;
    PyTypeObject *type = Py_TYPE(object);

    PyMem_Free(self->owner);
    PyMem_Free(self->note);
    PyObject_Free(self);
    Py_DECREF(type);
}

int to_options(PyObject *object, void *arg)
{
    const struct hf_lock_opts **ret = arg;

    if (object == Py_None) {
        *ret = NULL;
        return 1;
    }
    if (!PyObject_TypeCheck(object, options_type)) {
        PyErr_SetString(PyExc_TypeError, "expected Options or None");
        return 0;
    }
    *ret = &((struct options *)object)->opts;
    return 1;
}

static PyType_Slot options_slots[] = {
    {Py_tp_new, options_new}, {Py_tp_dealloc, options_dealloc}, {0, NULL}};

PyType_Spec options_spec = {"holdfast._holdfast.Options",
                            sizeof(struct options), 0, Py_TPFLAGS_DEFAULT,
                            options_slots};
