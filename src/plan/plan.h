/* The forward pass of one model as data: steps over tensors.
 *
 * A step is a row of the lifetime table ("attn_qkv"); it holds one node (a kernel) or several (a
 * graph); a node is an operator with its operands. Sizes that change from batch to batch are axes,
 * given when a node is bound to memory, so one plan serves prefill and decode. Built by llama.c.
 */
#ifndef QUIPU_PLAN_PLAN_H
#define QUIPU_PLAN_PLAN_H

#include "base/arena.h"
#include "model/model.h"
#include "op/op.h"
#include "plan/program.h"

typedef struct plan_dim {
    const char *symbol; /* "n_tokens", "qkv_hidden_units" */
    const char *brief;  /* the same where space is short: "n", "(nh + 2 nkvh) dh" */
    int64_t size;       /* a constant, or an axis negated */
} plan_dim;

typedef enum plan_kind {
    PLAN_ABSENT,     /* not part of this plan */
    PLAN_INPUT,      /* mapped from the host at every batch */
    PLAN_ACTIVATION, /* lives in the arena, for its lifetime */
    PLAN_OUTPUT,     /* in the arena until the end: the host reads it */
    PLAN_TABLE,      /* made once: the RoPE table */
    PLAN_CACHE,      /* the KV cache of one layer */
    PLAN_STATE,      /* of sequences, by slot: outlives passes */
    PLAN_CARRIED,    /* memory of its own: this pass's sums and the next one's, which change places
                      * from pass to pass */
} plan_kind;

typedef enum plan_tensor_id {
    /* inputs */
    PLAN_TOKEN_IDS,
    PLAN_POSITION_IDS,
    PLAN_ROPE_ROWS,
    PLAN_QO_INDPTR,
    PLAN_KV_INDPTR,
    PLAN_KV_INDICES,
    PLAN_KV_LAST_PAGE_LEN,
    PLAN_OUTPUT_ROWS,
    PLAN_SEEDS,
    PLAN_SAMPLE_POSITIONS,
    PLAN_TEMPERATURES,
    PLAN_TOP_KS,
    PLAN_TOP_PS,
    PLAN_MIN_PS,
    PLAN_LAST,
    PLAN_SLOTS,
    PLAN_USES,
    PLAN_REPETITIONS,
    PLAN_PRESENCES,
    PLAN_FREQUENCIES,
    /* of sequences, for what their requests do to logits */
    PLAN_HISTORY,
    PLAN_BIAS,
    PLAN_ALLOWED,
    /* made once, and the cache */
    PLAN_ROPE_TABLE,
    PLAN_K_CACHE,
    PLAN_V_CACHE,
    /* activations */
    PLAN_X,
    PLAN_SUMS,      /* x in fixed point: every value that it has in a pass */
    PLAN_SUMS_NEXT, /* the same of the next pass, cleared in this one */
    PLAN_X_NORM,
    PLAN_ATTN,
    PLAN_PART_VALUES,
    PLAN_PART_SUMS,
    PLAN_FFN,
    PLAN_X_OUT,
    PLAN_LOGITS,
    PLAN_BLOCK_VALUES,
    PLAN_BLOCK_IDS,
    PLAN_TOP_VALUES,
    PLAN_TOP_IDS,
    PLAN_NEXT,
    PLAN_TENSOR_COUNT
} plan_tensor_id;

typedef struct plan_tensor {
    const char *name; /* the table's: "tokens", "x", "x_", "attn", "ffn" */
    plan_kind kind;
    dtype type;
    int rank;
    plan_dim dims[TENSOR_MAX_RANK];
    size_t bytes;  /* at the plan's capacity; of one layer for a cache */
    size_t offset; /* in the arena, for activations and outputs */
} plan_tensor;

/* What a node reads or writes: a tensor of the plan or a weight, seen through a view. */
typedef struct plan_operand {
    enum { OPERAND_NONE, OPERAND_TENSOR, OPERAND_WEIGHT, OPERAND_BIAS } kind;
    int id;                        /* plan_tensor_id or weight_slot */
    int64_t first_column, columns; /* a part of the innermost dimension; columns 0: all of it */
    int64_t heads; /* the innermost dimension then split in `heads` parts; 0: not split */
    bool flat;     /* the last two dimensions become one */
    bool one_part; /* with heads: a dimension of 1 before the innermost, attention in one part */
    int64_t ranks; /* 0, or the first of a new outermost dimension: the tensor on every rank */
    const char *symbols[2]; /* what the columns (or heads and head size) are called in print */
} plan_operand;

typedef struct plan_node {
    op_code op;
    int64_t layer; /* of its weights and cache; -1: none */
    plan_operand operands[OP_MAX_TENSORS];
    double params[OP_MAX_PARAMS]; /* float32 values: instruction records hold no more */
} plan_node;

typedef struct plan_step {
    const char *name;
    int64_t layer; /* -1: before or after the layers */
    bool graph;    /* several kernels, or an exchange between ranks */
    int first_node, n_nodes;
} plan_step;

typedef struct plan_options {
    int64_t max_tokens;    /* new tokens in one batch, all sequences together */
    int64_t max_sequences; /* sequences in one batch */
    int64_t max_outputs;   /* rows of logits */
    int64_t candidates;    /* that top_k keeps of each row */
    int64_t context;       /* positions a sequence may have */
    int64_t page_size;     /* positions in a page of the KV cache */
    int64_t n_pages;       /* 0: enough for every sequence at full context */
    dtype kv_type;         /* F32, F16 or BF16 */
    int ranks, rank;       /* of tensor parallelism; 1 and 0 without */
    bool fuse;             /* for few tokens: what needs no other worker's result is one operator */
    bool sums; /* fused further, as the megakernel has it: workers add up the residual in
                * fixed point; fuse follows */
    int64_t kv_partitions; /* fused: parts of a sequence's positions that attention is split in, on
                            * which bits depend; 0: 1 */
} plan_options;

typedef struct plan {
    model_config config; /* as one rank sees it: its own heads and its own part of the FFN */
    plan_options options;
    plan_sizes capacity; /* the largest batch */
    plan_tensor tensors[PLAN_TENSOR_COUNT];
    plan_step *steps;
    plan_node *nodes;
    int n_steps, n_nodes;
    size_t arena_bytes;
} plan;

/* The usual options for a model: F16 cache in pages of 16, one sequence at its whole context. */
plan_options plan_default_options(const model_config *config);

/* Whether there is a fused plan for the model: not where q and k have norms of their own. */
bool plan_can_fuse(const model_config *config);

/* Builds the plan, its lifetimes and its arena, and verifies it. plan_free() the result, also after
 * a failure. */
qp_status plan_build(const model_config *config, const plan_options *options, plan *out,
                     qp_error *error);
void plan_free(plan *plan);

/* Index of the step of that name in that layer (-1 for steps outside the layers); -1: none. */
int plan_find_step(const plan *plan, const char *name, int64_t layer);

/* The step that a person names: "embedding", or "5.attn_qkv" for one of layer 5. QP_INVALID names
 * the nearest that there is. */
qp_status plan_parse_step(const plan *plan, const char *text, int *step, qp_error *error);

/* A step's name as plan_parse_step() takes it. */
const char *plan_step_label(const plan *plan, int step, char *text, size_t size);

/* Directions in which a step touches a tensor. */
typedef struct plan_access {
    bool read, write;
} plan_access;
plan_access plan_step_access(const plan *plan, int step, plan_tensor_id id);

/* What an operand that is a tensor sees of it, before the batch's sizes are known. */
typedef struct plan_view {
    size_t offset; /* bytes from the tensor's beginning */
    dtype type;
    int rank;
    int64_t shape[TENSOR_MAX_RANK];  /* a constant, or an axis negated */
    int64_t stride[TENSOR_MAX_RANK]; /* bytes; 0: contiguous behind dimensions that vary */
} plan_view;
plan_view plan_view_operand(const plan *plan, const plan_operand *operand);

/* Where tensors lie when the plan runs. */
typedef struct plan_memory {
    void *data[PLAN_TENSOR_COUNT]; /* inputs, table, and arena address + offset for the rest */
    void *k_cache, *v_cache;       /* [n_layers] caches, one after the other */
    size_t cache_layer_bytes;
    const model *model; /* NULL: weights are bound without data */
    const void *rows;   /* of the embedding, in the order of the token ids; NULL: the model's */
} plan_memory;

/* Views for a node's operands, in the order of its operator's description. */
void plan_bind(const plan *plan, const plan_node *node, const plan_memory *memory,
               const plan_sizes *sizes, op_call *call);

/* The same for one operand; rank 0 where there is none. */
tensor plan_bind_operand(const plan *plan, const plan_node *node, int operand,
                         const plan_memory *memory, const plan_sizes *sizes);

/* Bytes that a run needs, each part exact. */
typedef struct plan_bytes {
    uint64_t weights, arena, sums, kv_cache, rope_table, state, inputs, total;
} plan_bytes;
plan_bytes plan_count_bytes(const plan *plan, uint64_t weight_bytes);

/* The largest context (a multiple of the page size, at most the model's) that fits `available`
 * bytes with everything else as in `options`; 0: none does. */
int64_t plan_largest_context(const model_config *config, const plan_options *options,
                             uint64_t weight_bytes, uint64_t available);

#endif
