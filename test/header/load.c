/* SPDX-License-Identifier: MIT
 *
 * load LIBRARY URL - open the library as bindings and plug-ins do, with its
 * symbols hidden from everybody else, and take and release one lock.
 */
#include "holdfast.h"

#include <dlfcn.h>
#include <stdio.h>

/* ISO C knows no conversion from an object pointer to a function. */
union symbol {
    void *data;
    hf_status (*open)(const char *, const struct hf_client_opts *, hf_client **,
                      struct hf_error *);
    hf_status (*acquire)(hf_client *, const char *, int64_t,
                         const struct hf_lock_opts *, hf_lock **,
                         struct hf_error *);
    hf_status (*release)(hf_lock *, struct hf_error *);
    void (*close)(hf_client *);
};

static union symbol find(void *library, const char *name)
{
    union symbol symbol;

    symbol.data = dlsym(library, name);
    return symbol;
}

int main(int argc, char **argv)
{
    struct hf_error err = {HF_OK, 0, ""};
    hf_client *client;
    hf_lock *lock;
    void *library;

    if (argc != 3)
        return 64;
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    if (find(library, "hf_open").open(argv[2], NULL, &client, &err) ||
        find(library, "hf_acquire")
            .acquire(client, "k", 0, NULL, &lock, &err) ||
        find(library, "hf_release").release(lock, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    find(library, "hf_close").close(client);
    return 0;
}
