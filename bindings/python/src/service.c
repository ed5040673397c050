/* SPDX-License-Identifier: MIT
 *
 * service.c - what a service can do, which there are, cleaning one up, and what
 * a client has counted.
 */
#include "binding.h"

METHOD(describe)
{
    struct client *client = (struct client *)self;
    struct hf_service service = HF_SERVICE_INIT;
    struct hf_error err;
    hf_client *handle = begin_use(&client->lend, "client");
    hf_status st;

    (void)args;
    if (!handle)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    st = hf_describe(handle, &service, &err);
    Py_END_ALLOW_THREADS;
    end_use(&client->lend);
    if (st)
        return raise_error(&err);
    return Py_BuildValue(
        "NNNIL", from_text(service.scheme), from_text(service.endpoint),
        from_text(service.warning), service.traits, (long long)service.ttl_ms);
}

METHOD(collect)
{
    struct client *client = (struct client *)self;
    struct hf_collected done = HF_COLLECTED_INIT;
    long long older_ms;
    struct hf_error err;
    hf_client *handle;
    hf_status st;
    bool dry_run;

    if (!PyArg_ParseTuple(args, "LO&", &older_ms, to_flag, &dry_run) ||
        !(handle = begin_use(&client->lend, "client")))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    st = hf_collect(handle, older_ms, dry_run, &done, &err);
    Py_END_ALLOW_THREADS;
    end_use(&client->lend);
    if (st)
        return raise_error(&err);
    return Py_BuildValue("KKK", (unsigned long long)done.looked_at,
                         (unsigned long long)done.removed,
                         (unsigned long long)done.kept);
}

/* (count, sum, [buckets]) */
static PyObject *service_histogram(const struct hf_histogram *h)
{
    size_t n = sizeof(h->buckets) / sizeof(h->buckets[0]);
    PyObject *list = PyList_New((Py_ssize_t)n);

    for (size_t i = 0; list && i < n; i++)
        if (PyList_SetItem(list, (Py_ssize_t)i,
                           PyLong_FromUnsignedLongLong(h->buckets[i])))
            Py_CLEAR(list);
    return Py_BuildValue("KKN", (unsigned long long)h->count,
                         (unsigned long long)h->sum_us, list);
}

/* {reason: number}, without those that are 0. */
static PyObject *service_lost(const uint64_t *lost, size_t n)
{
    PyObject *dict = PyDict_New(), *count;

    for (size_t i = 0; dict && i < n; i++) {
        if (!lost[i])
            continue;
        count = PyLong_FromUnsignedLongLong(lost[i]);
        if (!count ||
            PyDict_SetItemString(dict, hf_loss_name((hf_loss)i), count))
            Py_CLEAR(dict);
        Py_XDECREF(count);
    }
    return dict;
}

/* In the order of struct hf_stats.  It asks no service. */
METHOD(stats)
{
    struct client *client = (struct client *)self;
    struct hf_stats s = HF_STATS_INIT;
    hf_client *handle = begin_use(&client->lend, "client");
    struct hf_error err;
    hf_status st;

    (void)args;
    if (!handle)
        return NULL;
    st = hf_stats(handle, &s, &err);
    end_use(&client->lend);
    if (st)
        return raise_error(&err);
#define N(field) (unsigned long long)s.field
    return Py_BuildValue(
        "KKKKKKKNNKKKNNKKKKKKKK", N(granted), N(busy), N(timeout), N(canceled),
        N(unavailable), N(uncertain), N(failed), service_histogram(&s.wait),
        service_histogram(&s.hold), N(renewed), N(renewals_failed),
        N(renewals_late), service_histogram(&s.margin),
        service_lost(s.lost, sizeof(s.lost) / sizeof(s.lost[0])), N(at_risk),
        N(taken_back), N(reconnects), N(requests), N(bytes_sent),
        N(bytes_received), N(held), N(waiting));
#undef N
}

/* Numbers may become longer between the two calls. */
enum { SERVICE_SLACK = 1024 };

METHOD(stats_text)
{
    struct client *client = (struct client *)self;
    hf_client *handle = begin_use(&client->lend, "client");
    PyObject *ret = NULL;
    struct hf_error err;
    size_t need = 0;
    char *buf = NULL;
    hf_status st;

    (void)args;
    if (!handle)
        return NULL;
    st = hf_stats_text(handle, NULL, 0, &need, &err);
    if (!st && !(buf = PyMem_Malloc(need + SERVICE_SLACK)))
        st = HF_NOMEM;
    else if (!st)
        st = hf_stats_text(handle, buf, need + SERVICE_SLACK, &need, &err);
    end_use(&client->lend);
    if (!st)
        ret = from_text(buf);
    else if (st == HF_NOMEM)
        PyErr_NoMemory();
    else
        raise_error(&err);
    PyMem_Free(buf);
    return ret;
}

/* The GIL is held: this is asked once, and asks no server. */
static bool service_add(void *list, const struct hf_service_kind *kind)
{
    PyObject *item = Py_BuildValue(
        "NNNNNNIIN", from_text(kind->name), from_text(kind->schemes),
        from_text(kind->options ? kind->options : ""),
        from_text(kind->tested ? kind->tested : ""),
        from_text(kind->module ? kind->module : ""),
        from_text(kind->missing ? kind->missing : ""), kind->traits,
        kind->varies, from_text(kind->page ? kind->page : ""));
    bool ok = item && !PyList_Append(list, item);

    Py_XDECREF(item);
    return ok;
}

PyObject *services(PyObject *module, PyObject *unused)
{
    PyObject *list = PyList_New(0);
    struct hf_error err;

    (void)module;
    (void)unused;
    if (list && hf_services(service_add, list, &err)) {
        Py_DECREF(list);
        return raise_error(&err);
    }
    if (PyErr_Occurred())
        Py_CLEAR(list);
    return list;
}
