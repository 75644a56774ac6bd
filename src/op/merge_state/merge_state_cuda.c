/* merge_state on the GPU: by eights where heads are aligned for it, else by elements. */
#include "op/merge_state/merge_rows.h"
#include "op/merge_state/merge_state.h"
#include "op/rows_cuda.h"
#include "op/variants.h"

#include <stdint.h>

enum { WARP = 32, HEADS = 8 /* of a block, by elements */ };

static merge_rows rows_of(const op_call *call)
{
    const tensor *t = call->tensors, *v = &t[MERGE_STATE_V];
    return (merge_rows){.v_a = cuda_rows_of(&t[MERGE_STATE_V_A]),
                        .v_b = cuda_rows_of(&t[MERGE_STATE_V_B]),
                        .v = cuda_rows_of(v),
                        .s_a = cuda_rows_of(&t[MERGE_STATE_S_A]),
                        .s_b = cuda_rows_of(&t[MERGE_STATE_S_B]),
                        .s = cuda_rows_of(&t[MERGE_STATE_S]),
                        .a_head = t[MERGE_STATE_V_A].stride[1],
                        .b_head = t[MERGE_STATE_V_B].stride[1],
                        .head = v->stride[1],
                        .begin = call->begin,
                        .end = call->end,
                        .n_heads = (int32_t)v->shape[1],
                        .eights = (int32_t)(v->shape[2] / CUDA_ROWS_EIGHT)};
}

static bool by_eights(const merge_rows *rows, int64_t head_dim)
{
    return head_dim % CUDA_ROWS_EIGHT == 0 && rows->eights > 0 && rows->eights <= WARP &&
           WARP % rows->eights == 0 && cuda_rows_on_vectors(rows->v_a) &&
           cuda_rows_on_vectors(rows->v_b) && cuda_rows_on_vectors(rows->v) &&
           (rows->a_head | rows->b_head | rows->head) % 16 == 0 &&
           rows->end * rows->eights <= UINT32_MAX - MERGE_THREADS;
}

static qp_status launch(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                        const cuda_forms *forms, qp_error *error)
{
    merge_rows rows = rows_of(call);
    int64_t vectors = (call->end - call->begin) * rows.eights;
    (void)kernel, (void)forms;
    if (!by_eights(&rows, call->tensors[MERGE_STATE_V].shape[2]))
        return cuda_launch_plainly(ops, "run_merge_state", call, HEADS, error);
    return cuda_ops_start_early(ops, "run_merge_state_vectors",
                                (vectors + MERGE_THREADS - 1) / MERGE_THREADS, 1, MERGE_THREADS,
                                CUDA_ARGUMENTS(CUDA_ARGUMENT(rows)), error);
}

const cuda_kernel merge_state_cuda[] = {
    {.op = OP_MERGE_STATE, .name = "cuda", .accepts = op_call_has_no_f64, .launch = launch},
    {0},
};
