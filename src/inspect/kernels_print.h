/* The kernels of a forward pass by module, beside FlashInfer's: `quipu plan --kernels`. */
#pragma once

#include "lower/print.h"

/* The tree of modules of an engine that is made of FlashInfer's operators. Beside each module are
 * the kernels that such an engine runs for it, and the operators of the plan with the variants that
 * this CPU chooses for `tokens` tokens. Layers that are alike are one row. As JSON a list: module,
 * class, layers, step, operator, flashinfer, weights, variant. */
qp_status kernels_print(const plan_print_options *options, strbuf *out, qp_error *error);

/* The operators of the plan: a bit for each op_code. */
qp_status kernels_of_plan(const plan_print_options *options, uint64_t *operators, qp_error *error);
