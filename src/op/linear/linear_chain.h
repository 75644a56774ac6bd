/* The products of a batch and the operators between them, in one kernel on sm_90a: declarations
 * shared by host and kernel.
 *
 * The kernel's only parameter is a linear_chain, passed by value. Its grid has at most one block
 * per multiprocessor, and all blocks are resident, because they wait for each other between steps.
 * Weights are BF16, as in linear_stream.h; those of another kernel are quantised, linear_packed.h.
 * A product whose weight has few tiles is cut into parts
 * along its rows; the next step adds the parts in their order. Low tiles have half as many rows and
 * need half as many parts.
 */
#pragma once

#include "cuda/exchange.h"
#include "op/linear/linear_packed.h"
#include "op/linear/linear_stream.h"

/* head_dim of attention in the kernels of an image: 64 or 128. Where a chain has no attention, both
 * run it. */
#ifndef CHAIN_HEAD
#define CHAIN_HEAD 64
#endif

enum {
    CHAIN_MAX_STEPS = 76, /* a kernel's parameters are at most 32,764 bytes */
    /* Producer warps: for weights; for x; for places that steps will need; all of them for the
     * cache. */
    CHAIN_FETCHERS = 3,
    CHAIN_THREADS = 256 + 32 * CHAIN_FETCHERS, /* and two warpgroups that multiply */
    CHAIN_ROW = 4096,        /* features of a row that CHAIN_ROWS takes, at most; */
    CHAIN_WIDE_ROW = 8192,   /* in kernels of wide rows */
    CHAIN_MAX_PARTS = 8,     /* of a product's row */
    CHAIN_WORKERS = 256,     /* threads that multiply and add */
    CHAIN_MAX_STAGES = 16,   /* of weights, and of x */
    CHAIN_X_DEPTHS = 2,      /* LINEAR_STREAM_DEPTHs in a stage of x, and in one of a low tile */
    CHAIN_READERS = 8,       /* arrivals that release a stage: one per warp, or more from fewer */
    CHAIN_BEST_AT = 64,      /* their offset among the counters, in units of 8 bytes */
    CHAIN_PLACES = 4,        /* items of a block whose places in the cache are looked up early */
    CHAIN_PACKED_PARTS = 3,  /* matrices of a product of quantised weights: q, k and v */
    CHAIN_PAGES = 3,         /* times 32 sixteens: positions of a sequence in attention, at most */
    CHAIN_WIDEST_HEAD = 256, /* elements, in layers that do not rotate */
    CHAIN_GROUP = 8,         /* heads of q for each of k in attention, at most */
    /* Bytes of the queries, new keys and new values of a block's two items of attention with heads
     * of 128 elements. */
    CHAIN_QUERIES = 2 * (CHAIN_GROUP + 2) * 128 * 2,
};

typedef enum chain_kind {
    CHAIN_PRODUCT,
    CHAIN_ROWS, /* x += parts, and its norm: one row per block */
    /* Norm and rope of q and k, k and v to the cache: a part of a token per block, or no blocks. */
    CHAIN_ROPE,
    /* For one token of each sequence: half of a block's worker threads has a KV head. */
    CHAIN_ATTENTION,
} chain_kind;

typedef enum chain_end {
    CHAIN_PARTS,     /* out (ranks, n_rows, n_features): a part's sums, for the next step */
    CHAIN_PLAIN,     /* out (n_rows, n_features), of one rank */
    CHAIN_SILU,      /* narrowed (n_rows, n_features) = silu(gate) * up in 16 bits, of one rank */
    CHAIN_LIKELIEST, /* the feature of each row's largest sum, of one rank; sums are not stored */
} chain_end;

enum { CHAIN_PACKED_LEVELS = 1, CHAIN_PACKED_IN_F8 };

/* A product's weight in the order of linear_packed.h, in parts one below the other. */
typedef struct chain_packed {
    uint64_t from[CHAIN_PACKED_PARTS];   /* addresses */
    uint64_t scales[CHAIN_PACKED_PARTS]; /* of FP8: those of the scales of rows */
    int32_t first[CHAIN_PACKED_PARTS];   /* group of rows that each begins with; INT32_MAX: none */
    int32_t kind[CHAIN_PACKED_PARTS];
    int32_t n_groups; /* of rows */
} chain_packed;

typedef struct chain_product {
    /* CUtensorMaps: of the weight, five dimensions, or three for low tiles; and of x in BF16,
     * three. Or, in place of the weight's: where it is in its order for chains; or the address of
     * its tiles as stages (tiled_matrix), if it is tiled. */
    union {
        char weight_map[128] __attribute__((aligned(64)));
        chain_packed packed;
        uint64_t tiles;
    };
    char x_map[128] __attribute__((aligned(64)));
    float *out;
    uint16_t *narrowed;
    int64_t out_pitch; /* floats */
    int32_t n_rows, n_features;
    int32_t n_tiles, ranks;                /* items: a tile and a part of its rows */
    int32_t n_depths;                      /* LINEAR_STREAM_DEPTHs of a row */
    int32_t end;                           /* chain_end */
    int32_t weight_dimension, weight_step; /* as linear_stream's */
    int32_t low; /* tiles of LINEAR_STREAM_LOW_ROWS rows, in parts of whole stages */
    int16_t tiled;
    int16_t bf16_x; /* x is in BF16 although weights are in FP8: attention's, which may be another
                       kernel; or what another kernel left */
} chain_product;

/* Rows of the weight in a tile. */
OP_FN int chain_tile_rows(const chain_product *p)
{
    return p->weight_step * (p->weight_dimension == 3 ? 16 : 1);
}

/* The parts of a product: (n_parts, n_rows, n_features), and its bias. */
typedef struct chain_parts {
    const float *data;
    const void *bias; /* (n_features), of bias_type: added to the sum of all parts; or NULL */
    int32_t n_parts, n_rows, n_features;
    int32_t bias_type;
} chain_parts;

typedef struct chain_rows {
    chain_parts parts;     /* n_parts may be 0 */
    const float *residual; /* (parts.n_rows, n_features); or NULL, if reduced: nothing is added */
    float *out;            /* (n_rows, n_features): residual and parts; may be residual; or NULL */
    const int32_t *rows;   /* (n_rows): the residual's row for each row; or NULL: the same */
    const void *table;     /* instead of the residual, without parts: rows of table_type; or NULL */
    const void *weight;    /* (n_features), of weight_type; or NULL: no norm */
    uint16_t *narrowed;    /* (n_rows, n_features): the norm in 16 bits */
    int64_t residual_pitch, out_pitch; /* floats; of a table bytes */
    float eps;
    int32_t weight_type, table_type, n_rows;
    int32_t reduced; /* the sum is over all ranks, of which each adds its own parts */
} chain_rows;

typedef struct chain_rope {
    chain_parts parts; /* q, k and v of a token side by side */
    float *q;          /* (n_tokens, n_q, head_dim) */
    char *k_cache, *v_cache;
    const float *table; /* rows of cosines, then sines: head_dim floats; NULL: nothing is rotated */
    /* (head_dim), of norm_type: weights of the norm of each head of q, and of k, before it is
     * rotated; NULL: heads are not normalised. */
    const void *q_norm, *k_norm;
    const int32_t *table_rows, *positions, *qo_indptr, *kv_indptr, *kv_indices;
    int64_t q_pitch, table_pitch;   /* floats */
    int64_t k_page, k_slot, k_head; /* bytes */
    int64_t v_page, v_slot, v_head;
    int32_t n_tokens, n_sequences, n_q, n_kv, head_dim, page_size;
    int32_t cuts; /* items per token: its parts, or the KV heads that attention's blocks take */
    int32_t interleaved, k_type, v_type;
    int32_t norm_type;
    float eps;
} chain_rope;

/* Sequences of one new token each. A map has four dimensions: elements of a head, heads, positions
 * of a page, pages; a box of it is 16 positions of a head. */
typedef struct chain_attention {
    char k_map[128] __attribute__((aligned(64)));
    char v_map[128] __attribute__((aligned(64)));
    const float *q;     /* (n_sequences, n_kv * group, head_dim) */
    uint16_t *narrowed; /* as q, in BF16, contiguous */
    const int32_t *kv_indptr, *kv_indices, *kv_last_page_len;
    float sm_scale;
    int32_t q_pitch; /* floats */
    int32_t n_sequences, n_kv, page_size;
    int16_t group, type;
} chain_attention;

typedef struct chain_step {
    union {
        chain_attention attention;
        chain_product product;
        chain_rows rows;
        chain_rope rope;
    } of;
    int32_t kind;
    /* Blocks that have a part in the step, the first ones; 0 for rope: attention's blocks do it. */
    int32_t blocks;
} chain_step;

typedef struct linear_chain {
    chain_step steps[CHAIN_MAX_STEPS];
    uint32_t *arrived; /* (CHAIN_MAX_STEPS + 1), zeros before and after */
    uint64_t *best;    /* (n_ids), zeros likewise: see chain_likeliest.cuh */
    int32_t *ids;      /* (n_ids): the result of CHAIN_LIKELIEST */
    int32_t n_ids;     /* 0: the chain has no such step */
    int32_t n_steps;
    int32_t weight_stages, x_stages;
    int32_t in_flight;                /* stages of weights on their way at a time, at most; */
    int32_t first_in_flight, n_first; /* before the first n_first stages of a step */
    int32_t packed;   /* weights of all products are packed: CHAIN_PACKED_...; 0: none is */
    int32_t head;     /* head_dim of attention; 0: there is none */
    int32_t reduces;  /* a step sums rows over ranks */
    int32_t wide;     /* a step has rows of more than CHAIN_ROW features */
    int32_t families; /* a product has a bias, or heads have norms */
    exchange ranks;   /* with them */
} linear_chain;

/* Rows of sums that are transposed together in shared memory, for tiles of this many rows, and
 * floats from row to row. */
#define CHAIN_TURN_ROWS(high)  (4096 / (high))
#define CHAIN_TURN_PITCH(high) ((high) + 4)
/* Memory of the worker threads: rows that will be stored; or a row of CHAIN_ROWS with a float for
 * 256 of its elements; or the warps' parts of attention. It also holds tokens' places and
 * mbarriers. */
#define CHAIN_LOOKED_UP (2 * CHAIN_PLACES * 24 + 5 * 8)
#define CHAIN_SPACE(wide)                                                                          \
    (((wide)                                                                                       \
          ? CHAIN_WIDE_ROW + CHAIN_WIDE_ROW / 256                                                  \
          : CHAIN_TURN_ROWS(LINEAR_STREAM_LOW_ROWS) * CHAIN_TURN_PITCH(LINEAR_STREAM_LOW_ROWS)) *  \
         4 +                                                                                       \
     CHAIN_LOOKED_UP)
#define CHAIN_WEIGHT_BYTES     (LINEAR_STREAM_ROWS * LINEAR_STREAM_DEPTH * 2)
#define CHAIN_X_BYTES(columns) ((columns)*CHAIN_X_DEPTHS * LINEAR_STREAM_DEPTH * 2)
#define CHAIN_SHARED(columns, weight_stages, x_stages, wide)                                       \
    ((weight_stages)*CHAIN_WEIGHT_BYTES + (x_stages)*CHAIN_X_BYTES(columns) +                      \
     4 * 8 * CHAIN_MAX_STAGES + CHAIN_SPACE(wide))
