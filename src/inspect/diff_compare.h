/* Comparing what two kernels wrote. */
#ifndef QUIPU_INSPECT_DIFF_COMPARE_H
#define QUIPU_INSPECT_DIFF_COMPARE_H

#include "inspect/diff_run.h"
#include "op/tolerance.h"

/* Kernels of one name: the same bits for the same inputs. */
bool diff_same_kernel(const machine_kernel *a, const machine_kernel *b);

/* The reference with a kernel's roundings; NULL where it has none. */
op_kernel *diff_rounding(const machine_kernel *kernel);

/* What outputs of `type` of two kernels may differ by, from the same inputs: the sum of what each
 * may differ from the exact result by, or from that with its own coarser roundings. A reference
 * rounds once, others have the tolerances of their operator or their own. Exact for the same kernel
 * twice and where the operator is exact. */
op_limits diff_limits(const op_info *op, const op_call *call, dtype type, const machine_kernel *a,
                      const machine_kernel *b);

/* Views of one shape. `found` is compared with expected + (oracle_found - oracle_expected);
 * the oracles may be absent. */
typedef struct diff_views {
    tensor expected, found;
    tensor oracle_expected, oracle_found;
} diff_views;

/* Adds one comparison to a measure. */
void diff_compare(const diff_views *views, const op_limits *limits, int pass, int64_t layer,
                  diff_measure *measure);
/* The largest of n logits, and by how much it leads. */
int64_t diff_likeliest(const float *row, int64_t n, float *margin);

/* Fills the report's rows; they are NULL when memory is out. */
void diff_list_rows(const program *program, const machine *a, const machine *b,
                    const diff_request *request, diff_report *report);

#endif
