/* Call layout of linear_experts: indices of its tensors and parameters, and the rows of each
 * expert.
 */
#pragma once

#include "op/op.h"

enum {
    LINEAR_EXPERTS_X,
    LINEAR_EXPERTS_IDS,
    LINEAR_EXPERTS_WEIGHT,
    LINEAR_EXPERTS_UP_WEIGHT,
    LINEAR_EXPERTS_BIAS,
    LINEAR_EXPERTS_UP_BIAS,
    LINEAR_EXPERTS_SHARES,
    LINEAR_EXPERTS_RESIDUAL,
    LINEAR_EXPERTS_OUT,
};
/* Those of silu_and_mul. */
enum { LINEAR_EXPERTS_ALPHA, LINEAR_EXPERTS_LIMIT, LINEAR_EXPERTS_ADDED, LINEAR_EXPERTS_PARAMS };

/* The choices of a call by expert: choice c is expert ids[c / top_k, c % top_k]. */
typedef struct expert_rows {
    int32_t *first;   /* [n_experts + 1]: where an expert's choices begin among those below */
    int32_t *choices; /* [n_tokens * top_k]: rising within an expert */
    int64_t n_experts, top_k;
} expert_rows;

/* Bytes of the two tables, and the tables in memory of as many. An id that is no expert's is left
 * out. */
size_t expert_rows_bytes(const op_call *call);
expert_rows expert_rows_find(const op_call *call, void *memory);

/* The row of x for a choice, and the row of out: the token's, if outputs are added up. */
const void *expert_rows_x(const op_call *call, const expert_rows *rows, int32_t choice);
void *expert_rows_out(const op_call *call, const expert_rows *rows, int32_t choice);

/* The choice's share, where outputs are added up. */
double expert_rows_share(const op_call *call, const expert_rows *rows, int32_t choice);

op_kernel linear_experts_reference;

/* linear_experts_variants.c */
extern const op_variant linear_experts_variants[];
