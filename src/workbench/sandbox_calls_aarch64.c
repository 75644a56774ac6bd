/* Numbers of system calls on aarch64: those that Linux gives all newer machines. */
#include "workbench/sandbox_filter.h"

#ifdef __linux__
#define __ARCH_WANT_RENAMEAT
#define __ARCH_WANT_NEW_STAT
#include <asm-generic/unistd.h>
#include <linux/audit.h>

#define CALL(name, who, rule) {#name, __NR_##name, SANDBOX_##who, SANDBOX_##rule},
#define OLD_CALL(name, who, rule)

static const sandbox_call calls[] = {
#include "workbench/sandbox_calls.def"
};

const sandbox_machine sandbox_aarch64 = {AUDIT_ARCH_AARCH64, calls, sizeof calls / sizeof *calls};
#else
const sandbox_machine sandbox_aarch64 = {0};
#endif
