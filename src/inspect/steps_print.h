/* The steps of a forward pass with their mathematics: `quipu trace --describe`. */
#pragma once

#include "lower/print.h"

/* A table: each step, what happens in it mathematically, the parts that `quipu trace --exec serial`
 * shows of it ("op="), and the module that it belongs to. Layers that are alike are printed once.
 */
qp_status steps_print(const plan_print_options *options, strbuf *out, qp_error *error);
