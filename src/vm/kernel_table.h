/* Kernels from outside of the program that take the place of operators' own, for a whole model.
 *
 * A machine that takes such kernels runs each in every node of its operator, on condition that the
 * kernel accepts the node's types and shapes: at the plan's capacity, and with a single token.
 */
#ifndef QUIPU_VM_KERNEL_TABLE_H
#define QUIPU_VM_KERNEL_TABLE_H

#include "op/op.h"
#include "quipu.h"

typedef struct kernel_table {
    op_variant of[OP_COUNT]; /* by operator; without a kernel: the operator's own run */
} kernel_table;

/* Fills a table. QP_INVALID names an operator that does not exist or is given twice, or a kernel
 * that is missing. */
qp_status kernel_table_fill(kernel_table *table, const qp_kernel *kernels, size_t n_kernels,
                            qp_error *error);

/* The kernel for calls of an operator; NULL: none, or `table` is NULL. */
const op_variant *kernel_table_find(const kernel_table *table, op_code op);

#endif
