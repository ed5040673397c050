/* SPDX-License-Identifier: MIT
 *
 * mutant.h - deliberate bugs, to prove that the tests would find them.
 *
 * HFI_MUTANT(name) is false, and so nothing at all, in every build but one that
 * was configured with -Dmutants=true: there it is true if $HF_MUTANT says that
 * name.  doc/mutants.md lists them, and test/mutants/hunt tries them all.
 */
#ifndef HFI_MUTANT_H
#define HFI_MUTANT_H

#include <stdbool.h>
#include <stdint.h>

#ifdef HFI_MUTANTS
#define HFI_MUTANT(name) hfi_mutant(#name)
bool hfi_mutant(const char *name);

/* Remember a number for somebody, the first only; and take it back. */
void hfi_mutant_note(const void *who, int64_t number);
int64_t hfi_mutant_take(const void *who);
#else
#define HFI_MUTANT(name)          false
#define hfi_mutant_note(who, num) ((void)0)
#define hfi_mutant_take(who)      0
#endif

#endif
