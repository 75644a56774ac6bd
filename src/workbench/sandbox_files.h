/* The files that a sandboxed process may open: rules of Landlock. */
#pragma once

#include "workbench/sandbox.h"

/* The version of the kernel's Landlock; 0: it has none. */
int sandbox_landlock(void);

/* From now on this process, which must be able to gain no privileges, opens only what `box` allows.
 * False: errno says why. */
bool sandbox_restrict_files(const sandbox *box);
