/* Attention in tiles: the fast kernels that ragged prefill, paged prefill and paged decode share.
 *
 * A tile is a number of queries of one sequence: in prefill, heads of several tokens that read the
 * same KV head; in decode, heads of one token, of as many KV heads as there is room for. Keys and
 * values are converted to float32 once per tile, in blocks of ATTENTION_BLOCK positions counted
 * from 0. All KV heads of the tile process a block before the next block begins, because this is
 * the order of a page in memory, and memory is fast only when it is read in order.
 *
 * The arithmetic of one query does not depend on the other queries of its tile: a score is summed
 * over head_dim in order, a block's maximum is taken over the positions that the query sees, an
 * output element is summed over positions in order and rescaled between blocks. Every segment of
 * ATTENTION_SEGMENT positions has sums of its own, a state, and states are added in order. So a
 * token's output has the same bits however a prompt, a slice or the batch is cut, and if several
 * workers compute segments of one token. Every variant gives the same bits.
 */
#pragma once

#include "op/attention/attention.h"
#include "op/op.h"
#include "op/variants.h"

enum {
    ATTENTION_BLOCK = 64,    /* positions between two updates of the maximum */
    ATTENTION_SEGMENT = 512, /* positions of a state, counted from 0 */
    ATTENTION_TILE = 48,     /* the most queries of a tile */
    ATTENTION_MAX_HEAD_DIM = 512
};

/* One head of one token. */
typedef struct attention_query {
    const void *q; /* (head_dim) */
    void *out;     /* (head_dim); may be q */
    float *lse;    /* or NULL */
    float *states; /* [segments][attention_state_floats()]; NULL with ATTENTION_WHOLE */
    int64_t kv_head;
    attention_range range; /* the positions that are seen */
} attention_query;

/* What is computed: the outputs; only the state of one segment; the outputs from the states of
 * segments [0, n_segments). The second and then the third give the bits of the first. */
typedef enum attention_task { ATTENTION_WHOLE, ATTENTION_STATE, ATTENTION_MERGE } attention_task;

typedef struct attention_tile {
    const attention_source *source;
    attention_task task;
    int64_t segment, n_segments; /* of the last two tasks */
    int64_t head_dim;
    dtype q_type, out_type;
    float scale;    /* of the scores, times log2 e */
    float soft_cap; /* of these scores; 0: none */
    int n_queries;
    attention_query queries[ATTENTION_TILE]; /* in rising order of KV heads */
} attention_tile;

/* Computes a tile; scratch: attention_tile_scratch(head_dim). */
typedef void attention_kernel(const attention_tile *tile, void *scratch);
#define ATTENTION_DECLARE(level, features, name) attention_kernel name##_##level;
SIMD_LEVELS(ATTENTION_DECLARE, attention_tile)

/* Floats of a query's state. */
int64_t attention_state_floats(int64_t head_dim);

/* Also enough for attention_compute(). */
size_t attention_tile_scratch(int64_t head_dim);

/* A slice of units, token * n_heads + head, and what is the same for all of them. */
typedef struct attention_slice {
    const tensor *q, *out; /* (n, n_heads, head_dim) */
    const tensor *lse;     /* (n, n_heads), any strides; rank 0: not wanted */
    double sm_scale;       /* 0: 1 / sqrt(head_dim) */
    double soft_cap;       /* 0: none */
    int64_t begin, end;
    int64_t first_head, end_head; /* of every token, only those; end_head 0: all */
    attention_kernel *kernel;
    void *scratch;
    attention_task task;
    int64_t segment, n_segments;
    float *states; /* [units][n_segments][attention_state_floats()] */
} attention_slice;

/* Computes the part of the slice that lies in tokens [first, first + count) of one sequence: token
 * first + i sees attention_range_of(rule, i, count, kv_length). */
void attention_sequence(const attention_slice *slice, const attention_source *source, int64_t first,
                        int64_t count, int64_t kv_length, const attention_rule *rule);

/* Computes the heads [first_head, end_head) of one token that sees a range of the source's
 * positions. */
void attention_token(const attention_slice *slice, const attention_source *source, int64_t token,
                     const attention_range *range);

/* An operator's table of variants, from its run_tiles(call, kernel) and accepts(). */
#define ATTENTION_RUN(level, features, op)                                                         \
    static void op##_##level(const op_call *call)                                                  \
    {                                                                                              \
        run_tiles(call, attention_tile_##level);                                                   \
    }
#define ATTENTION_KERNELS(op)                                                                      \
    SIMD_LEVELS(ATTENTION_RUN, op)                                                                 \
    static const op_variant variants[] = {SIMD_LEVELS(SIMD_ROW, op, .accepts = accepts){0}};
