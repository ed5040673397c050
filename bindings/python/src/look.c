/* SPDX-License-Identifier: MIT
 *
 * look.c - looking at locks of others, breaking them, and detached ones.
 *
 * hf_holders() and hf_list() call back in the caller's thread, which has let go
 * of the GIL; so what they show is copied, and made into objects afterwards.
 */
#include "binding.h"

#include <stdlib.h>
#include <string.h>

PyObject *info_new(const struct hf_info *info)
{
    return Py_BuildValue(
        "NNKLLiiNNLNNii", PyBool_FromLong(info->held),
        PyBool_FromLong(info->shared), (unsigned long long)info->fence,
        (long long)info->left_ms, (long long)info->since_ms, (int)info->holders,
        (int)info->waiters, from_text(info->owner), from_text(info->note),
        (long long)info->takeover_ms, PyBool_FromLong(info->broken),
        PyBool_FromLong(info->kept), (int)info->permits, (int)info->slot);
}

METHOD(inspect)
{
    struct client *client = (struct client *)self;
    struct hf_info info = HF_INFO_INIT;
    struct text key = {NULL, NULL};
    struct hf_error err;
    hf_client *handle;
    hf_status st = HF_INVALID;

    if (!PyArg_ParseTuple(args, "O&", to_text, &key))
        return NULL;
    handle = begin_use(&client->lend, "client");
    if (handle) {
        Py_BEGIN_ALLOW_THREADS;
        st = hf_inspect(handle, key.s, &info, &err);
        Py_END_ALLOW_THREADS;
        end_use(&client->lend);
    }
    text_free(&key);
    if (!handle)
        return NULL;
    return st ? raise_error(&err) : info_new(&info);
}

/* ---- listings --------------------------------------------------------------- */

struct entry {
    char key[HF_KEY_MAX + 1];
    struct hf_info info;
};

struct listing {
    struct entry *entries;
    size_t n, room;
    bool full; /* out of memory */
};

static bool look_collect(void *arg, const char *key, const struct hf_info *info)
{
    struct listing *listing = arg;
    struct entry *more;

    if (listing->n == listing->room) {
        listing->room = listing->room ? 2 * listing->room : 16;
        more = realloc(listing->entries, listing->room * sizeof(*more));
        if (!more) {
            listing->full = true;
            return false;
        }
        listing->entries = more;
    }
    more = &listing->entries[listing->n++];
    PyOS_snprintf(more->key, sizeof(more->key), "%s", key);
    more->info = *info;
    return true;
}

static bool look_collect_holder(void *arg, const struct hf_info *holder)
{
    return look_collect(arg, "", holder);
}

/* A list of (key, info); frees the listing. */
static PyObject *look_entries(struct listing *listing)
{
    PyObject *ret = listing->full ? PyErr_NoMemory() : PyList_New(0), *item;

    for (size_t i = 0; ret && i < listing->n; i++) {
        item = Py_BuildValue("NN", from_text(listing->entries[i].key),
                             info_new(&listing->entries[i].info));
        if (!item || PyList_Append(ret, item))
            Py_CLEAR(ret);
        Py_XDECREF(item);
    }
    free(listing->entries);
    return ret;
}

static PyObject *look_list(PyObject *self, PyObject *args, bool holders)
{
    struct client *client = (struct client *)self;
    struct listing listing = {NULL, 0, 0, false};
    struct text key = {NULL, NULL};
    struct hf_error err;
    hf_client *handle;
    hf_status st = HF_INVALID;

    if (!PyArg_ParseTuple(args, "O&", to_text, &key))
        return NULL;
    handle = begin_use(&client->lend, "client");
    if (handle) {
        Py_BEGIN_ALLOW_THREADS;
        if (holders)
            st = hf_holders(handle, key.s, look_collect_holder, &listing, &err);
        else
            st = hf_list(handle, key.s, look_collect, &listing, &err);
        Py_END_ALLOW_THREADS;
        end_use(&client->lend);
    }
    text_free(&key);
    if (handle && !st)
        return look_entries(&listing);
    free(listing.entries);
    return handle ? raise_error(&err) : NULL;
}

METHOD(holders)
{
    return look_list(self, args, true);
}

METHOD(list)
{
    return look_list(self, args, false);
}

/* A list of (place, permits, shared, since, left, owner, note); the callback holds
 * no GIL, so it only copies. */
struct waiting {
    struct hf_waiter *waiters;
    size_t n;
    bool full; /* out of memory */
};

static bool look_collect_waiter(void *arg, const struct hf_waiter *waiter)
{
    struct waiting *all = arg;
    struct hf_waiter *more =
        realloc(all->waiters, (all->n + 1) * sizeof(*more));

    all->full = !more;
    if (!more)
        return false;
    all->waiters = more;
    more[all->n++] = *waiter;
    return true;
}

static PyObject *look_waiters(const struct waiting *all)
{
    PyObject *ret = all->full ? PyErr_NoMemory() : PyList_New(0), *item;

    for (size_t i = 0; ret && i < all->n; i++) {
        const struct hf_waiter *w = &all->waiters[i];

        item = Py_BuildValue("iiNLLNN", (int)w->place, (int)w->permits,
                             PyBool_FromLong(w->shared), (long long)w->since_ms,
                             (long long)w->left_ms, from_text(w->owner),
                             from_text(w->note));
        if (!item || PyList_Append(ret, item))
            Py_CLEAR(ret);
        Py_XDECREF(item);
    }
    return ret;
}

METHOD(waiters)
{
    struct client *client = (struct client *)self;
    struct waiting all = {NULL, 0, false};
    struct text key = {NULL, NULL};
    PyObject *ret = NULL;
    struct hf_error err;
    hf_client *handle;
    hf_status st;

    if (!PyArg_ParseTuple(args, "O&", to_text, &key))
        return NULL;
    handle = begin_use(&client->lend, "client");
    if (handle) {
        Py_BEGIN_ALLOW_THREADS;
        st = hf_waiters(handle, key.s, look_collect_waiter, &all, &err);
        Py_END_ALLOW_THREADS;
        end_use(&client->lend);
        ret = st ? raise_error(&err) : look_waiters(&all);
    }
    free(all.waiters);
    text_free(&key);
    return ret;
}

/* ---- by key and fence --------------------------------------------------------- */

typedef hf_status look_fn(hf_client *, const char *, uint64_t,
                          struct hf_error *);

static PyObject *look_by_fence(struct client *client, struct text *key,
                               unsigned long long fence, look_fn *fn)
{
    struct hf_error err;
    hf_client *handle = begin_use(&client->lend, "client");
    hf_status st = HF_INVALID;

    if (handle) {
        Py_BEGIN_ALLOW_THREADS;
        st = fn(handle, key->s, fence, &err);
        Py_END_ALLOW_THREADS;
        end_use(&client->lend);
    }
    text_free(key);
    if (!handle)
        return NULL;
    if (st)
        return raise_error(&err);
    Py_RETURN_NONE;
}

METHOD(check)
{
    struct text key = {NULL, NULL};
    unsigned long long fence;

    if (!PyArg_ParseTuple(args, "O&O&", to_text, &key, to_fence, &fence))
        return NULL;
    return look_by_fence((struct client *)self, &key, fence, hf_check);
}

METHOD(break_lock)
{
    struct text key = {NULL, NULL};
    unsigned long long fence;
    bool force;

    if (!PyArg_ParseTuple(args, "O&O&O&", to_text, &key, to_fence, &fence,
                          to_flag, &force))
        return NULL;
    return look_by_fence((struct client *)self, &key, fence,
                         force ? hf_break_force : hf_break);
}

/* ---- detached locks ------------------------------------------------------------ */

struct detached {
    struct text key, token, ref;
    struct hf_handle handle;
    const struct hf_lock_opts *opts;
};

static void look_detached_free(struct detached *d)
{
    text_free(&d->key);
    text_free(&d->token);
    text_free(&d->ref);
}

/* Parse (key, token, ref, fence, options); false with an exception. */
static bool look_detached(PyObject *args, struct detached *d)
{
    unsigned long long fence;

    memset(d, 0, sizeof(*d));
    d->handle.size = sizeof(d->handle);
    if (!PyArg_ParseTuple(args, "O&O&O&O&O&", to_text, &d->key, to_text,
                          &d->token, to_text, &d->ref, to_fence, &fence,
                          to_options, &d->opts))
        return false;
    if (strlen(d->token.s) >= sizeof(d->handle.token) ||
        strlen(d->ref.s) >= sizeof(d->handle.ref)) {
        look_detached_free(d);
        raise_text(HF_INVALID, "not a handle of a detached lock");
        return false;
    }
    strcpy(d->handle.token, d->token.s);
    strcpy(d->handle.ref, d->ref.s);
    d->handle.fence = fence;
    return true;
}

METHOD(attach)
{
    struct client *client = (struct client *)self;
    hf_client *handle;
    hf_lock *lock = NULL;
    struct hf_error err;
    struct detached d;
    hf_status st = HF_INVALID;

    if (!look_detached(args, &d))
        return NULL;
    handle = begin_use(&client->lend, "client");
    if (handle) {
        Py_BEGIN_ALLOW_THREADS;
        st = hf_attach(handle, d.key.s, &d.handle, d.opts, &lock, &err);
        Py_END_ALLOW_THREADS;
        end_use(&client->lend);
    }
    look_detached_free(&d);
    if (!handle)
        return NULL;
    return st ? raise_error(&err) : lock_new(lock, NULL);
}

static PyObject *look_by_handle(PyObject *self, PyObject *args, bool extend)
{
    struct client *client = (struct client *)self;
    hf_client *handle;
    struct hf_error err;
    struct detached d;
    hf_status st = HF_INVALID;

    if (!look_detached(args, &d))
        return NULL;
    handle = begin_use(&client->lend, "client");
    if (handle) {
        Py_BEGIN_ALLOW_THREADS;
        if (extend)
            st = hf_handle_extend(handle, d.key.s, &d.handle, d.opts, &err);
        else
            st = hf_handle_release(handle, d.key.s, &d.handle, d.opts, &err);
        Py_END_ALLOW_THREADS;
        end_use(&client->lend);
    }
    look_detached_free(&d);
    if (!handle)
        return NULL;
    if (st)
        return raise_error(&err);
    Py_RETURN_NONE;
}

METHOD(handle_extend)
{
    return look_by_handle(self, args, true);
}

METHOD(handle_release)
{
    return look_by_handle(self, args, false);
}
