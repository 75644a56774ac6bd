/* User-supplied kernels that replace the operators' own kernels, for a whole model.
 *
 * A machine that accepts such kernels runs each kernel in every node of its operator. The kernel
 * must accept the node's types and shapes, both at the program's capacity and with a single token.
 */
#ifndef QUIPU_VM_KERNEL_TABLE_H
#define QUIPU_VM_KERNEL_TABLE_H

#include "op/table.h"
#include "quipu.h"

typedef struct kernel_table {
    op_variant of[OP_COUNT]; /* by operator; an empty entry: the operator's own kernel runs */
} kernel_table;

/* Fills a table. QP_INVALID names an operator that does not exist or is given twice, or a kernel
 * that is missing. */
qp_status kernel_table_fill(kernel_table *table, const qp_kernel *kernels, size_t n_kernels,
                            qp_error *error);

/* The kernel for calls of an operator; NULL: none, or `table` is NULL. */
const op_variant *kernel_table_find(const kernel_table *table, op_code op);

#endif
