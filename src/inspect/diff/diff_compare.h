/* Compares the outputs of two kernels. */
#pragma once

#include "inspect/diff/diff_run.h"
#include "op/tolerance.h"

/* Whether both are the same kernel, which must give the same bits for the same inputs. */
bool diff_same_kernel(const machine_kernel *a, const machine_kernel *b);

/* The reference with a kernel's roundings; NULL if there is none. */
op_kernel *diff_rounding(const machine_kernel *kernel);

/* The tolerance for outputs of `type` of two kernels with the same inputs: the sum of the
 * tolerances of both. Each kernel's is its distance from the exact result, or from the result with
 * its own coarser roundings. A reference rounds once; other kernels have their own tolerance or
 * their operator's. Exact if both kernels are the same, or if the operator is exact. */
op_limits diff_limits(const op_info *op, const op_call *call, dtype type, const machine_kernel *a,
                      const machine_kernel *b);

/* Compares views of the same shape: `found` with expected + (oracle_found - oracle_expected). The
 * oracles may be absent. */
typedef struct diff_views {
    tensor expected, found;
    tensor oracle_expected, oracle_found;
} diff_views;

/* Adds one comparison to a measure. */
void diff_compare(const diff_views *views, const op_limits *limits, int pass,
                  diff_measure *measure);

/* Index of the largest of n logits, and its lead over the second. */
int64_t diff_likeliest(const float *row, int64_t n, float *margin);

/* Allocates the report's rows; NULL when memory is out. */
void diff_list_rows(const program *program, const machine *a, const machine *b,
                    const diff_request *request, diff_report *report);
