/* Custom kernels for the machine `cuda`: see custom_kernels.h. */
#include "vm/cuda/custom_kernels.h"

#include "op/attention/attention_cuda.h"
#include "op/paged_prefill/paged_prefill.h"
#include "quipu.h"
#include "vm/kernel_table.h"

#include <string.h>

qp_status custom_kernels_fill(cuda_kernel *table, const qp_cuda_kernel *kernels, size_t n_kernels,
                              qp_error *error)
{
    memset(table, 0, OP_COUNT * sizeof *table);
    for (size_t i = 0; i < n_kernels; i++) {
        const qp_cuda_kernel *given = &kernels[i];
        op_code op;
        TRY(kernel_table_operator(given->op, &op, error));
        if (table[op].name)
            return error_set(error, QP_INVALID, "two kernels for a GPU are given for %s",
                             given->op);
        if (!given->launch)
            return error_set(error, QP_INVALID, "the kernel for a GPU given for %s has no function",
                             given->op);
        table[op] = (cuda_kernel){.op = op,
                                  .name = given->name ? given->name : "candidate",
                                  .accepts = given->accepts,
                                  .workspace = given->scratch_bytes,
                                  .launch = cuda_launch_custom,
                                  .custom_launch = given->launch};
    }
    return QP_OK;
}

/* ---- what they have to do ------------------------------------------------------------------ */

/* Whether a kernel runs a node in batches of these sizes. Attention of sequences that decode side
 * by side is paged_decode (the rule decode). */
static bool runs_node(const cuda_kernel *table, const program *p, op_code op, int node,
                      const program_sizes *sizes)
{
    const op_code own = p->nodes[node].op;
    op_call call;
    if (program_is_noop(p, node)) return false;
    program_bind(p, node, NULL, sizes->of, &call);
    if (own == op) return cuda_ops_custom(table, op, &call);
    if (op != OP_PAGED_DECODE || own != OP_PAGED_PREFILL || p->options.max_sequences < 2)
        return false;
    call.tensors[PAGED_PREFILL_Q].shape[0] = p->options.max_sequences;
    call = cuda_decode_of_prefill(&call);
    return cuda_decode_accepts(&call) && cuda_ops_custom(table, op, &call);
}

/* The sizes of a batch of one token. */
static program_sizes single_sizes(const program *p)
{
    program_sizes sizes = p->capacity;
    program_set_outputs(sizes.of, 1);
    sizes.of[AXIS_TOKENS] = sizes.of[AXIS_SEQUENCES] = 1;
    sizes.of[AXIS_SEQUENCE_ENDS] = 2;
    return sizes;
}

static bool has_work(const cuda_kernel *table, const program *p, op_code op)
{
    const program_sizes single = single_sizes(p);
    if (op == OP_ARGMAX) return true; /* the likeliest token of each row, after the program */
    for (int n = 0; n < p->n_nodes; n++)
        if (runs_node(table, p, op, n, &p->capacity) || runs_node(table, p, op, n, &single))
            return true;
    return false;
}

qp_status custom_kernels_check(const cuda_kernel *table, const program *program, qp_error *error)
{
    for (int op = 0; table && op < OP_COUNT; op++)
        if (table[op].name && !has_work(table, program, (op_code)op))
            return kernel_table_refuse(program, (op_code)op, table[op].name, error);
    return QP_OK;
}
