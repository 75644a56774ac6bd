/* Call layout of norm_qkv_rope: indices of its tensors and parameters. */
#pragma once

#include "op/norm_qkv_rope/pairs.h"
#include "op/op.h"

enum {
    NORM_QKV_ROPE_X,
    NORM_QKV_ROPE_NORM_WEIGHT,
    NORM_QKV_ROPE_Q_WEIGHT,
    NORM_QKV_ROPE_K_WEIGHT,
    NORM_QKV_ROPE_V_WEIGHT,
    NORM_QKV_ROPE_Q_BIAS,
    NORM_QKV_ROPE_K_BIAS,
    NORM_QKV_ROPE_V_BIAS,
    NORM_QKV_ROPE_Q_NORM,
    NORM_QKV_ROPE_K_NORM,
    NORM_QKV_ROPE_ROPE_ROWS,
    NORM_QKV_ROPE_COS_SIN,
    NORM_QKV_ROPE_POSITIONS,
    NORM_QKV_ROPE_QO_INDPTR,
    NORM_QKV_ROPE_KV_INDPTR,
    NORM_QKV_ROPE_KV_INDICES,
    NORM_QKV_ROPE_KV_LAST_PAGE_LEN,
    NORM_QKV_ROPE_K_CACHE,
    NORM_QKV_ROPE_V_CACHE,
    NORM_QKV_ROPE_Q,
};
enum { NORM_QKV_ROPE_EPS, NORM_QKV_ROPE_INTERLEAVED, NORM_QKV_ROPE_TURNS };

op_kernel norm_qkv_rope_reference;

/* norm_qkv_rope_variants.c */
extern const op_variant norm_qkv_rope_variants[];

/* The pairs [begin, end) of one head. */
typedef struct pair_run {
    int kind;
    int64_t head, begin, end;
} pair_run;

/* The first run of the units [unit, end); the next run begins at unit + run.end - run.begin. */
pair_run norm_qkv_rope_run(const op_call *call, int64_t unit, int64_t end);

/* Whether heads of a kind are normalised before they turn. */
bool norm_qkv_rope_norms(const op_call *call, int kind);

/* head_norm of `heads`, (n_tokens, heads, head_dim), which are of a kind that has a norm. */
op_call norm_qkv_rope_norm_heads(const op_call *call, int kind, tensor heads);
