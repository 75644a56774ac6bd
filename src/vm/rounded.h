/* The references with the roundings of another machine's kernels: what that machine would compute
 * if its kernels had no other error. It is not one of the types that --exec takes; `quipu diff`
 * opens it.
 */
#pragma once

#include "vm/machine.h"

/* Reads the kernels of `like`, which may be closed afterwards. machine_close() the result, also
 * after a failure. */
qp_status machine_open_rounded(const machine *like, const machine_setup *setup, machine *out,
                               qp_error *error);
