/* SPDX-License-Identifier: MIT
 *
 * probe.h - places at which a tracer can look into a running program.
 *
 * With <sys/sdt.h> (package systemtap-sdt-dev) a probe is one instruction that does
 * nothing and a note in the file that says where it is and where its arguments
 * are; bpftrace, perf, SystemTap and gdb read that.  Without it a probe is nothing.
 * doc/tracing.md lists them.
 */
#ifndef HFI_PROBE_H
#define HFI_PROBE_H

#include "config.h"

#ifdef HFI_SDT
#include <sys/sdt.h>
#ifdef __clang__ /* Its macros use what ISO C has not. */
#pragma clang diagnostic ignored "-Wgnu-zero-variadic-macro-arguments"
#endif
#define HFI_PROBE1(name, a)    DTRACE_PROBE1(holdfast, name, a)
#define HFI_PROBE2(name, a, b) DTRACE_PROBE2(holdfast, name, a, b)
#else
#define HFI_PROBE1(name, a)    ((void)(a))
#define HFI_PROBE2(name, a, b) ((void)(a), (void)(b))
#endif

#endif
