/* head_norm on the GPU, by itself, and with the rope and the kv_append that follow it. */
#include "op/head_norm/head_norm.h"
#include "op/head_norm/norm_turn.h"
#include "op/kv_append/kv_append.h"
#include "op/rope/rope.h"
#include "op/rows_cuda.h"
#include "op/variants.h"

static norm_turn arguments_of(const op_call *calls)
{
    const tensor *t = calls[0].tensors;
    return (norm_turn){.rope = cuda_rope_rows(&calls[1]),
                       .append = cuda_append_rows(&calls[2]),
                       .q_weight = cuda_rows_of(&t[HEAD_NORM_Q_WEIGHT]),
                       .k_weight = cuda_rows_of(&t[HEAD_NORM_K_WEIGHT]),
                       .eps = (float)calls[0].params[HEAD_NORM_EPS]};
}

static bool same_rows(const tensor *a, const tensor *b)
{
    return a->data == b->data && a->type == DTYPE_F32 && b->type == DTYPE_F32 &&
           a->stride[0] == b->stride[0] && a->stride[1] == b->stride[1] &&
           a->shape[1] == b->shape[1];
}

/* Whole heads by halves, of the same tokens, whose fours are at multiples of 16 bytes. */
static bool turns(const cuda_ops *ops, const op_call *calls)
{
    const tensor *norm = calls[0].tensors, *turned = calls[1].tensors;
    const norm_turn run = arguments_of(calls);
    const rope_rows *rope = &run.rope;
    const int32_t head_dim = run.append.head_dim;
    return cuda_rope_is_appended(ops, &calls[1]) &&
           same_rows(&norm[HEAD_NORM_Q], &turned[ROPE_Q]) &&
           same_rows(&norm[HEAD_NORM_K], &turned[ROPE_K]) && calls[0].begin == 0 &&
           calls[1].begin == 0 && calls[0].end == calls[1].end && !rope->interleaved &&
           2 * rope->half == head_dim && (head_dim == 64 || head_dim == NORM_TURN_HEAD) &&
           norm[HEAD_NORM_Q].shape[2] == head_dim && run.append.v.type == DTYPE_F32 &&
           calls[0].end < 65536 && cuda_rows_on_vectors(rope->q) && cuda_rows_on_vectors(rope->k) &&
           cuda_rows_on_vectors(run.append.v) &&
           (rope->q_head | rope->k_head | run.append.v_head) % 16 == 0;
}

static qp_status launch_turn(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                             qp_error *error)
{
    norm_turn run = arguments_of(calls);
    const int heads = 2 * run.rope.n_heads - run.rope.n_q_heads; /* of q, k and v */
    cuda_start start = {.image = "norm_turn",
                        .name = "run_norm_turn",
                        .grid = {(unsigned)((heads + NORM_TURN_WARPS - 1) / NORM_TURN_WARPS),
                                 (unsigned)(calls[0].end - calls[0].begin), 1},
                        .threads = NORM_TURN_WARPS * 32,
                        .cluster = 1};
    (void)forms;
    return cuda_ops_start(ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(run)), error);
}

static const cuda_fusion fusions[] = {
    {.name = "rope, append",
     .with = {OP_ROPE, OP_KV_APPEND},
     .n_with = 2,
     .accepts = turns,
     .launch = launch_turn},
    {0},
};

const cuda_kernel head_norm_cuda[] = {
    {CUDA_UNITS(HEAD_NORM, "head_norm", head_norm, 256, 1, op_call_has_no_f64), .early = true,
     .fusions = fusions},
    {0},
};
