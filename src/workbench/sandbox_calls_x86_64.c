/* Numbers of system calls on x86-64. */
#include "workbench/sandbox_filter.h"

#if defined(__linux__) && defined(__x86_64__)
#include <asm/unistd_64.h>
#include <linux/audit.h>

#define CALL(name, who, rule)     {#name, __NR_##name, SANDBOX_##who, SANDBOX_##rule},
#define OLD_CALL(name, who, rule) CALL(name, who, rule)

static const sandbox_call calls[] = {
#include "workbench/sandbox_calls.def"
};

const sandbox_machine sandbox_x86_64 = {AUDIT_ARCH_X86_64, calls, sizeof calls / sizeof *calls};
#else
const sandbox_machine sandbox_x86_64 = {0};
#endif
