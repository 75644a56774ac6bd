/* User-supplied kernels that replace the operators' own kernels, for a whole model.
 *
 * A machine that accepts such kernels runs each kernel in every node of its operator. The kernel
 * must accept the node's types and shapes, both at the program's capacity and with a single token.
 */
#pragma once

#include "op/table.h"
#include "plan/program.h"

struct qp_kernel;

typedef struct kernel_table {
    op_variant of[OP_COUNT]; /* by operator; an empty entry: the operator's own kernel runs */
} kernel_table;

/* Fills a table. QP_INVALID names an operator that does not exist or is given twice, or a kernel
 * that is missing. */
qp_status kernel_table_fill(kernel_table *table, const struct qp_kernel *kernels, size_t n_kernels,
                            qp_error *error);

/* The kernel for calls of an operator; NULL: none, or `table` is NULL. */
const op_variant *kernel_table_find(const kernel_table *table, op_code op);

/* The operator of that name, which a kernel is given for. */
qp_status kernel_table_operator(const char *name, op_code *out, qp_error *error);

/* QP_INVALID: a kernel that none of the program's calls run. Says whether the program has calls of
 * the operator, and of which operators it is made. */
qp_status kernel_table_refuse(const program *program, op_code op, const char *kernel,
                              qp_error *error);
