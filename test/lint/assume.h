/* SPDX-License-Identifier: MIT
 *
 * assume.h - what an analyzer, which sees one file at a time, cannot know.
 *
 * A function that fails by `return hfi_fail(...)` never returns HF_OK from there.
 * Included before each file but those that define these functions.
 */
#include "base/error.h"
#include "cli/cli.h"

#define hfi_fail(err, st, ...) (hfi_fail(err, st, __VA_ARGS__), (st))
#define hfi_fail_errno(err, st, ...)                                           \
    (hfi_fail_errno(err, st, __VA_ARGS__), (st))
#define hfi_wrap(err, st, ...) (hfi_wrap(err, st, __VA_ARGS__), (st))
#define hfi_restate(err, st)   (hfi_restate(err, st), (st))
#define hfi_nomem(err)         (hfi_nomem(err), HF_NOMEM)
#define cli_fail(err)          (cli_fail(err), CLI_FAILED)
#define cli_usage(...)         (cli_usage(__VA_ARGS__), CLI_USAGE)
