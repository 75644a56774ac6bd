/* merge_state on the GPU: by eights where heads are aligned for it, else a head per warp. */
#include "op/merge_state/merge_rows.h"
#include "op/merge_state/merge_state.h"
#include "op/rows_cuda.h"
#include "op/variants.h"

enum {
    WARP = 32,
    HEADS = 8,            /* of a block, if a warp has a head */
    MOST_UNITS = 1 << 24, /* and MOST_HEADS: a unit's token is exact by the inverse of n_heads */
    MOST_HEADS = 256,
};

static merge_rows rows_of(const op_call *call)
{
    const tensor *t = call->tensors;
    uint32_t n_heads = (uint32_t)t[MERGE_STATE_S].shape[1];
    return (merge_rows){.v_a = cuda_rows_of(&t[MERGE_STATE_V_A]),
                        .v_b = cuda_rows_of(&t[MERGE_STATE_V_B]),
                        .v = cuda_rows_of(&t[MERGE_STATE_V]),
                        .s_a = cuda_rows_of(&t[MERGE_STATE_S_A]),
                        .s_b = cuda_rows_of(&t[MERGE_STATE_S_B]),
                        .s = cuda_rows_of(&t[MERGE_STATE_S]),
                        .a_head = t[MERGE_STATE_V_A].stride[1],
                        .b_head = t[MERGE_STATE_V_B].stride[1],
                        .v_head = t[MERGE_STATE_V].stride[1],
                        .n_heads = n_heads,
                        .inverse = n_heads > 1 ? UINT32_MAX / n_heads + 1 : 0};
}

/* Sets what depends on the number of a head's eights, which then are lanes of one warp. */
static bool set_eights(const op_call *call, merge_rows *rows)
{
    int64_t head_dim = call->tensors[MERGE_STATE_V].shape[2];
    while (CUDA_ROWS_EIGHT << rows->shift < head_dim)
        rows->shift++;
    if (CUDA_ROWS_EIGHT << rows->shift != head_dim || 1 << rows->shift > WARP ||
        call->end > MOST_UNITS || rows->n_heads > MOST_HEADS)
        return false;
    rows->begin = (uint32_t)call->begin << rows->shift;
    rows->end = (uint32_t)call->end << rows->shift;
    return cuda_rows_on_vectors(rows->v_a) && cuda_rows_on_vectors(rows->v_b) &&
           cuda_rows_on_vectors(rows->v) && (rows->a_head | rows->b_head | rows->v_head) % 16 == 0;
}

static qp_status launch(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                        const cuda_forms *forms, qp_error *error)
{
    merge_rows rows = rows_of(call);
    (void)kernel, (void)forms;
    if (!set_eights(call, &rows))
        return cuda_launch_plainly(ops, "run_merge_state", call, HEADS, error);
    bool bf16 =
        rows.v_a.type == DTYPE_BF16 && rows.v_b.type == DTYPE_BF16 && rows.v.type == DTYPE_BF16;
    return cuda_ops_start_early(ops, bf16 ? "run_merge_state_bf16" : "run_merge_state_vectors",
                                (rows.end - rows.begin + MERGE_THREADS - 1) / MERGE_THREADS, 1,
                                MERGE_THREADS, CUDA_ARGUMENTS(CUDA_ARGUMENT(rows)), error);
}

const cuda_kernel merge_state_cuda[] = {
    {CUDA_ROW(MERGE_STATE, "cuda"), .accepts = op_call_has_no_f64, .launch = launch},
    {0},
};
