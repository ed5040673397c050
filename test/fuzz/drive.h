/* SPDX-License-Identifier: MIT
 *
 * drive.h - a backend with a liar at the other end.
 *
 * The target stands in for the connection and hands out what the fuzzer has
 * made up; fuzz_drive() asks everything of the backend that the core would ask,
 * and aborts where it breaks the rules of backend.h.  Time is a counter, so that
 * a run does the same each time and nothing waits.
 */
#ifndef FUZZ_DRIVE_H
#define FUZZ_DRIVE_H

#include "backend/backend.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

/* What is left of the input. */
struct fuzz_input {
    const uint8_t *at;
    size_t left;
};

extern struct fuzz_input fuzz_input;

/* One byte of it, 0 at the end; and all up to the byte `end` or the end. */
uint8_t fuzz_byte(void);
struct fuzz_input fuzz_until(uint8_t end);

/* The first byte chooses the URL and one allocation that fails, or none. */
void fuzz_drive(const struct hfi_backend *, const char *const *urls,
                const uint8_t *bytes, size_t len);

/* A wrong answer of the backend's. */
void fuzz_wrong(const char *what);

#endif
