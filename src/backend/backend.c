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
 * Modules are looked for in $HOLDFAST_MODULE_DIR; in the folder `holdfast` next
 * to the library; where they are as seen from the command, so that an installed
 * tree can be moved; and where they were installed.  A set-user-id program looks
 * only there.
 *
 * A module uses the symbols of what loads it.  A program that has opened the
 * library with RTLD_LOCAL, as bindings and plug-ins do, hides them; so the
 * library first makes its own symbols, which are hf_* and hfi_* only, global.
 */
#include "backend.h"

#include <dlfcn.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "config.h"

#include "base/banned.h"

#define X(name) extern const struct hfi_backend hfi_backend_##name;
HFI_BACKENDS
#undef X

static const struct hfi_backend *const backend_table[] = {
#define X(name) &hfi_backend_##name,
    HFI_BACKENDS
#undef X
};

/* Which module serves which scheme, and which package of a distribution has it;
 * ends with NULL. */
struct backend_module {
    const char *scheme, *module, *package;
};

static const struct backend_module backend_modules[] = {
#define Y(scheme, module, package) {scheme, module, package},
    HFI_MODULES
#undef Y
    {NULL, NULL, NULL}};

#define SCHEME_MAX 32
#define PATH_ROOM  4096
#define WORDS_ROOM 1024 /* for all schemes, or all options, of a service */

#define BACKENDS (sizeof(backend_table) / sizeof(backend_table[0]))

hf_status hfi_fail_use(struct hf_error *err, const struct hfi_claim *claim,
                       int32_t permits)
{
    char key[HFI_QUOTE_MAX];

    hfi_quote(key, sizeof(key), claim->key);
    if (!permits)
        return hfi_fail(err, HF_INVALID,
                        "'%s' is in use as a plain lock, not with %d permits",
                        key, (int)claim->permits);
    if (!claim->permits)
        return hfi_fail(err, HF_INVALID,
                        "'%s' is in use with %d permits, not as a plain lock",
                        key, (int)permits);
    return hfi_fail(err, HF_INVALID, "'%s' is in use with %d permits, not %d",
                    key, (int)permits, (int)claim->permits);
}

hf_status hfi_fail_other_mode(struct hf_error *err,
                              const struct hfi_claim *claim)
{
    char key[HFI_QUOTE_MAX], owner[HFI_QUOTE_MAX];

    hfi_quote(key, sizeof(key), claim->key);
    hfi_quote(owner, sizeof(owner), claim->owner);
    if (claim->shared)
        return hfi_fail(err, HF_INVALID,
                        "'%s' is held exclusively by the same owner '%s': use "
                        "hf_downgrade() to share it",
                        key, owner);
    return hfi_fail(err, HF_INVALID,
                    "'%s' is held shared by the same owner '%s': release the "
                    "shared lock first",
                    key, owner);
}

hf_status hfi_fail_joined(struct hf_error *err, const struct hfi_claim *claim)
{
    char key[HFI_QUOTE_MAX];

    return hfi_fail(err, HF_INVALID,
                    "'%s' was acquired more than once: its other holders count "
                    "on being alone",
                    hfi_quote(key, sizeof(key), claim->key));
}

hf_status hfi_fail_heir(struct hf_error *err, const struct hfi_claim *claim,
                        const char *heir)
{
    char key[HFI_QUOTE_MAX], name[HFI_QUOTE_MAX];

    hfi_quote(key, sizeof(key), claim->key);
    return hfi_fail(err, HF_INVALID, "'%s': nobody called '%s' waits for it",
                    key, hfi_quote(name, sizeof(name), heir));
}

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

/* Put the path of `module` into `ret` if it is in `dir`, as seen from the
 * directory of the file `home`. */
static bool backend_beside(const char *home, const char *dir,
                           const char *module, char *ret, size_t size)
{
    const char *slash = strrchr(home, '/');

    if (!slash)
        return false;
    snprintf(ret, size, "%.*s/%s/holdfast-%s.so", (int)(slash - home), home,
             dir, module);
    return !access(ret, F_OK);
}

/* Where the module is.  The caller of a set-user-id program chooses the name
 * that it goes by, so that one looks only where modules were installed. */
static void backend_path(const char *module, char *ret, size_t size)
{
    const char *dir = secure_getenv("HOLDFAST_MODULE_DIR");
    char program[PATH_ROOM] = "";

    if (!dir && !getauxval(AT_SECURE)) {
        /* A program that was found in $PATH does not know its place. */
        if (readlink("/proc/self/exe", program, sizeof(program) - 1) < 0)
            program[0] = '\0';
        if (backend_beside(backend_home(), "holdfast", module, ret, size) ||
            backend_beside(program, HFI_MODULE_FROM_BIN, module, ret, size))
            return;
    }
    snprintf(ret, size, "%s/holdfast-%s.so", dir ? dir : HFI_MODULE_DIR,
             module);
}

/* The backend in the module at `path`, or NULL; then dlerror() tells why. */
static const struct hfi_backend *backend_open(const char *module,
                                              const char *path)
{
    char symbol[64];
    void *handle;

    snprintf(symbol, sizeof(symbol), "hfi_backend_%s", module);
    backend_show_symbols();
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    return handle ? dlsym(handle, symbol) : NULL;
}

/* Why there is no backend in the module, now that backend_open() has failed. */
static const char *backend_why(const struct backend_module *module,
                               const char *path, char *ret, size_t size)
{
    const char *why = dlerror();

    if (!access(path, F_OK))
        return why ? why : "it is not a module of this version";
    snprintf(ret, size, "not installed; install the package %s (no file %s)",
             module->package, path);
    return ret;
}

static hf_status backend_load(const struct backend_module *module,
                              const struct hfi_backend **ret,
                              struct hf_error *err)
{
    char path[PATH_ROOM], why[PATH_ROOM + 128];

    backend_path(module->module, path, sizeof(path));
    *ret = backend_open(module->module, path);
    if (*ret)
        return HF_OK;
    return hfi_fail(err, HF_UNSUPPORTED, "url: the module for %s: %s",
                    module->module,
                    backend_why(module, path, why, sizeof(why)));
}

/* ---- names ------------------------------------------------------------- */

/* The i-th scheme of this build, built in or of a module, or NULL; *module is
 * which module serves it. */
static const char *backend_scheme(size_t i, const char **module)
{
    const char *const *name;
    size_t at;

    for (at = 0; at < BACKENDS; at++)
        for (name = backend_table[at]->schemes; *name; name++)
            if (!i--) {
                *module = backend_table[at]->schemes[0];
                return *name;
            }
    *module = backend_modules[i].module;
    return backend_modules[i].scheme;
}

/* How many letters must be changed, added, left out or swapped with the next
 * to make one word of the other. */
static size_t backend_distance(const char *a, const char *b)
{
    size_t rows[3][SCHEME_MAX + 1], len = strlen(b), i, j;

    for (j = 0; j <= len; j++)
        rows[0][j] = j;
    for (i = 1; a[i - 1]; i++) {
        size_t *row = rows[i % 3], *last = rows[(i + 2) % 3];

        row[0] = i;
        for (j = 1; j <= len; j++) {
            size_t best = last[j - 1] + (a[i - 1] != b[j - 1]);

            if (last[j] + 1 < best)
                best = last[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] &&
                a[i - 2] == b[j - 1] && rows[(i + 1) % 3][j - 2] + 1 < best)
                best = rows[(i + 1) % 3][j - 2] + 1;
            row[j] = best;
        }
    }
    return rows[(i - 1) % 3][len];
}

/* The scheme that was meant, if it is plain; else NULL. */
static const char *backend_guess(const char *scheme)
{
    const char *name, *module, *ret = NULL;
    size_t i, far, best = 1 + (strlen(scheme) > 3);

    if (strlen(scheme) > SCHEME_MAX)
        return NULL;
    for (i = 0; (name = backend_scheme(i, &module)); i++) {
        far = backend_distance(scheme, name);
        if (far > best || (ret && far == best))
            continue;
        best = far;
        ret = name;
    }
    return ret;
}

static hf_status backend_unknown(const char *scheme, struct hf_error *err)
{
    const char *guess = backend_guess(scheme);
    char known[160];

    if (guess)
        return hfi_fail(err, HF_INVALID,
                        "url: unknown scheme '%.32s:': did you mean '%s:'?",
                        scheme, guess);
    hfi_backend_names(known, sizeof(known));
    return hfi_fail(err, HF_INVALID,
                    "url: unknown scheme '%.32s:'; this build knows %s", scheme,
                    known);
}

hf_status hfi_backend_find(const char *scheme, const struct hfi_backend **ret,
                           struct hf_error *err)
{
    const char *const *name;
    size_t i;

    for (i = 0; i < BACKENDS; i++)
        for (name = backend_table[i]->schemes; *name; name++)
            if (!strcmp(*name, scheme)) {
                *ret = backend_table[i];
                return HF_OK;
            }
    for (i = 0; backend_modules[i].scheme; i++)
        if (!strcmp(backend_modules[i].scheme, scheme))
            return backend_load(&backend_modules[i], ret, err);
    return backend_unknown(scheme, err);
}

void hfi_backend_names(char *buf, size_t size)
{
    const char *name, *module, *last = "";
    size_t i, len = 0;

    buf[0] = '\0';
    for (i = 0; (name = backend_scheme(i, &module)); i++) {
        if (strcmp(module, last) != 0 && len < size)
            len += (size_t)snprintf(buf + len, size - len,
                                    "%s%s:", len ? ", " : "", name);
        last = module;
    }
}

/* ---- every kind of service --------------------------------------------- */

/* Add a word to a list; one that has no room is left out. */
static void backend_add_word(char list[WORDS_ROOM], const char *word)
{
    size_t len = strlen(list), more = strlen(word);

    if (len + more + 2 <= WORDS_ROOM)
        snprintf(list + len, WORDS_ROOM - len, "%s%s", len ? " " : "", word);
}

/* Describe one service.  `be` is NULL if its module cannot be loaded. */
static bool backend_show(const struct hfi_backend *be,
                         const struct hf_service_kind *known,
                         hf_services_fn *fn, void *arg)
{
    struct hf_service_kind kind = *known;
    char options[WORDS_ROOM] = "", page[64] = "";
    const char *const *word;

    for (word = be ? be->options : NULL; word && *word; word++)
        backend_add_word(options, *word);
    if (be) {
        snprintf(page, sizeof(page), "holdfast-%s", be->page);
        kind.traits = (be->traits | be->usual) & HFI_TRAITS_PUBLIC;
        kind.varies = (be->varies | be->usual) & HFI_TRAITS_PUBLIC;
    }
    kind.options = options;
    kind.page = page;
    kind.tested = be && be->tested ? be->tested : "";
    return fn(arg, &kind);
}

/* Load the module of the i-th scheme and show it. */
static bool backend_show_module(size_t i, const char *schemes,
                                hf_services_fn *fn, void *arg)
{
    const struct backend_module *module = &backend_modules[i];
    const struct hfi_backend *be;
    struct hf_service_kind kind = {.size = sizeof(kind),
                                   .name = module->module,
                                   .schemes = schemes,
                                   .missing = ""};
    char path[PATH_ROOM], why[PATH_ROOM + 128];

    backend_path(module->module, path, sizeof(path));
    be = backend_open(module->module, path);
    kind.module = path;
    if (!be)
        kind.missing = backend_why(module, path, why, sizeof(why));
    return backend_show(be, &kind, fn, arg);
}

void hfi_backend_each(hf_services_fn *fn, void *arg)
{
    char schemes[WORDS_ROOM];
    const char *const *word;
    bool more = true;
    size_t i;

    for (i = 0; more && i < BACKENDS; i++) {
        struct hf_service_kind kind = {.size = sizeof(kind),
                                       .name = backend_table[i]->schemes[0],
                                       .schemes = schemes,
                                       .module = "",
                                       .missing = ""};

        schemes[0] = '\0';
        for (word = backend_table[i]->schemes; *word; word++)
            backend_add_word(schemes, *word);
        more = backend_show(backend_table[i], &kind, fn, arg);
    }
    schemes[0] = '\0';
    for (i = 0; more && backend_modules[i].scheme; i++) {
        backend_add_word(schemes, backend_modules[i].scheme);
        if (backend_modules[i + 1].scheme &&
            !strcmp(backend_modules[i].module, backend_modules[i + 1].module))
            continue;
        more = backend_show_module(i, schemes, fn, arg);
        schemes[0] = '\0';
    }
}
