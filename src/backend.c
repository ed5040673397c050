/* SPDX-License-Identifier: MIT
 *
 * backend.c - from a URL's scheme to its backend.
 *
 * `mem:` and `file:` are inside.  Every other backend is a module, a shared
 * object named holdfast-NAME.so that exports hfi_backend_NAME and is loaded
 * when a URL first asks for it.  So `holdfast run` on files does not spend
 * its first milliseconds on loading the client libraries of a dozen services.
 * A module is never unloaded: threads of its libraries may still run.
 *
 * Modules are looked for in $HOLDFAST_MODULE_DIR, which a set-user-id program
 * ignores; in the folder `holdfast` next to the library, so that a tree can be
 * moved; and where they were installed.
 *
 * A module uses the symbols of what loads it.  A program that has opened the
 * library with RTLD_LOCAL, as bindings and plug-ins do, hides them; so the
 * library first makes its own symbols, which are hf_* and hfi_* only, global.
 */
#include "backend.h"

#include <dlfcn.h>
#include <unistd.h>

#include "config.h"

#include "banned.h"

#define X(name) extern const struct hfi_backend hfi_backend_##name;
HFI_BACKENDS
#undef X

static const struct hfi_backend *const backend_table[] = {
#define X(name) &hfi_backend_##name,
    HFI_BACKENDS
#undef X
};

/* Which module serves which scheme; ends with NULL. */
static const struct {
    const char *scheme, *module;
} backend_modules[] = {
#define Y(scheme, module) {scheme, module},
    HFI_MODULES
#undef Y
    {NULL, NULL}};

#define BACKENDS (sizeof(backend_table) / sizeof(backend_table[0]))

/* The file that this code is in: the library, or a program. */
static const char *backend_home(void)
{
    Dl_info info;

    return dladdr(&backend_table, &info) && info.dli_fname ? info.dli_fname
                                                           : "";
}

/* Let modules see the symbols of the library, however it was loaded.  For a
 * program there is nothing to do, and nothing happens. */
static void backend_show_symbols(void)
{
    void *self = dlopen(backend_home(), RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);

    if (self)
        dlclose(self); /* It stays as visible as it was made. */
}

/* Where the module is. */
static void backend_path(const char *module, char *ret, size_t size)
{
    const char *dir = secure_getenv("HOLDFAST_MODULE_DIR");
    const char *home = backend_home(), *slash = strrchr(home, '/');

    if (!dir && slash) {
        snprintf(ret, size, "%.*s/holdfast/holdfast-%s.so", (int)(slash - home),
                 home, module);
        if (!access(ret, F_OK))
            return;
    }
    snprintf(ret, size, "%s/holdfast-%s.so", dir ? dir : HFI_MODULE_DIR,
             module);
}

static hf_status backend_load(const char *module,
                              const struct hfi_backend **ret,
                              struct hf_error *err)
{
    char path[4096], symbol[64];
    void *handle;

    backend_path(module, path, sizeof(path));
    snprintf(symbol, sizeof(symbol), "hfi_backend_%s", module);
    backend_show_symbols();
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle)
        *ret = dlsym(handle, symbol);
    if (handle && *ret)
        return HF_OK;
    return hfi_fail(err, HF_UNSUPPORTED, "url: the module for %s: %s", module,
                    dlerror());
}

hf_status hfi_backend_find(const char *scheme, const struct hfi_backend **ret,
                           struct hf_error *err)
{
    const char *const *name;
    char known[160];
    size_t i;

    for (i = 0; i < BACKENDS; i++)
        for (name = backend_table[i]->schemes; *name; name++)
            if (!strcmp(*name, scheme)) {
                *ret = backend_table[i];
                return HF_OK;
            }
    for (i = 0; backend_modules[i].scheme; i++)
        if (!strcmp(backend_modules[i].scheme, scheme))
            return backend_load(backend_modules[i].module, ret, err);
    hfi_backend_names(known, sizeof(known));
    return hfi_fail(err, HF_INVALID,
                    "url: unknown scheme '%.32s:'; this build knows %s", scheme,
                    known);
}

/* One more name if it fits whole; else dots, for this and all that follow. */
static void names_add(char *buf, size_t size, size_t *len, const char *name)
{
    size_t end = *len, more = strlen(name) + strlen(", :");

    if (end >= 3 && !strcmp(buf + end - 3, "..."))
        return;
    if (end + more + sizeof(", ...") <= size)
        snprintf(buf + end, size - end, "%s%s:", end ? ", " : "", name);
    else
        snprintf(buf + end, size - end, ", ...");
    *len += strlen(buf + end);
}

void hfi_backend_names(char *buf, size_t size)
{
    const char *const *name;
    size_t i, len = 0;

    buf[0] = '\0';
    for (i = 0; i < BACKENDS; i++)
        for (name = backend_table[i]->schemes; *name; name++)
            names_add(buf, size, &len, *name);
    for (i = 0; backend_modules[i].scheme; i++)
        names_add(buf, size, &len, backend_modules[i].scheme);
}
