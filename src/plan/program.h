/* The program: a forward pass as data, which a plan yields and every machine runs.
 *
 *     areas    where memory lies: a tensor of the plan, one layer's cache, a weight
 *     views    what nodes see of it: element type, shape, strides
 *     nodes    an operator with its operands, which are views by number, and its parameters
 *     steps    rows of the plan: one node (a kernel) or several (a graph)
 *
 * Sizes that change from batch to batch are axes. A shape holds them negated, and a node is bound
 * to a batch by the values of the axes, so one program serves prefill and decode. Nothing in it is
 * an address: program_memory says where tensors and weights lie when it runs. Schedules refer to
 * the program's nodes and views by number.
 */
#pragma once

#include "base/arena.h"
#include "model/config.h"
#include "model/weights.h"
#include "op/table.h"

/* Sizes that the batch decides; as a dimension they are stored negated. */
typedef enum program_axis {
    AXIS_TOKENS = 1,    /* new tokens of all sequences */
    AXIS_SEQUENCES,     /* sequences in the batch */
    AXIS_SEQUENCE_ENDS, /* sequences + 1: an indptr array */
    AXIS_PAGE_REFS,     /* entries of kv_indices */
    AXIS_OUTPUTS,       /* rows whose logits are wanted */
    AXIS_WANTED,        /* rows that the end of the pass works on: those, then rows whose hidden
                         * states are wanted */
    AXIS_PAGES,         /* pages of the KV cache */
    AXIS_POSITIONS,     /* rows of the RoPE table */
    /* Of the form PLAN_FLASHINFER, by program_set_phase(): */
    AXIS_PREFILL_TOKENS, /* tokens if any sequence has several, else 0 */
    AXIS_PREFILL_ENDS,   /* sequences of that batch + 1 */
    AXIS_DECODE_TOKENS,  /* tokens if each sequence has one, else 0 */
    AXIS_DECODE_ENDS,    /* sequences of that batch + 1 */
    AXIS_PAST_REFS,      /* entries of past_indices */
    /* Of the form PLAN_PADDED: */
    AXIS_LONGEST_Q,  /* new tokens of the sequence that has most */
    AXIS_LONGEST_KV, /* cached and new tokens of the longest sequence */
    AXES
} program_axis;

/* Values of the axes, by axis. */
typedef struct program_sizes {
    int64_t of[AXES];
} program_sizes;

/* Rows of logits, where no hidden states are wanted. */
static inline void program_set_outputs(int64_t of[AXES], int64_t rows)
{
    of[AXIS_OUTPUTS] = of[AXIS_WANTED] = rows;
}

/* A batch reads prompts if any sequence has several tokens, else it decodes. */
static inline void program_set_phase(program_sizes *sizes)
{
    int64_t *of = sizes->of;
    const bool decodes = of[AXIS_TOKENS] == of[AXIS_SEQUENCES];
    of[AXIS_PREFILL_TOKENS] = decodes ? 0 : of[AXIS_TOKENS];
    of[AXIS_PREFILL_ENDS] = 1 + (decodes ? 0 : of[AXIS_SEQUENCES]);
    of[AXIS_DECODE_TOKENS] = decodes ? of[AXIS_TOKENS] : 0;
    of[AXIS_DECODE_ENDS] = 1 + (decodes ? of[AXIS_SEQUENCES] : 0);
}

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

/* Tensors that code refers to by name. A program's table begins with them, absent ones too, and
 * goes on with those that rules add. */
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
    PLAN_ADAPTER_IDS, /* the adapters of each token, -1: none, and how much each counts */
    PLAN_ADAPTER_SHARES,
    PLAN_LAST,
    PLAN_SLOTS,
    PLAN_USES,
    PLAN_REPETITIONS,
    PLAN_PRESENCES,
    PLAN_FREQUENCIES,
    /* inputs of PLAN_FLASHINFER: the page table of the positions before this batch */
    PLAN_PAST_INDPTR,
    PLAN_PAST_INDICES,
    PLAN_PAST_LAST_PAGE_LEN,
    /* inputs of PLAN_PADDED */
    PLAN_Q_LENS,
    PLAN_PAST_LENS,
    PLAN_PADDING_OFFSETS,
    /* of sequences, for the changes that their requests make to logits */
    PLAN_HISTORY,
    PLAN_BIAS,
    PLAN_ALLOWED,
    /* made once, and the cache */
    PLAN_ROPE_TABLE,
    PLAN_ROPE_LOCAL, /* of layers that slide, where they turn otherwise */
    PLAN_K_CACHE,
    PLAN_V_CACHE,
    /* activations */
    PLAN_X,
    PLAN_SUMS,      /* x in fixed point: every value that it has in a pass */
    PLAN_SUMS_NEXT, /* the same of the next pass, cleared in this one */
    PLAN_X_NORM,
    PLAN_ATTN,
    PLAN_ATTN_SUMS, /* log-sum-exps of attention's scores, for sinks */
    PLAN_PART_VALUES,
    PLAN_PART_SUMS,
    PLAN_FFN,
    PLAN_LORA,          /* rows times adapters' A */
    PLAN_ROUTER_LOGITS, /* a mixture of experts: the router's product */
    PLAN_EXPERT_IDS,    /* the experts of each token */
    PLAN_EXPERT_SHARES,
    PLAN_EXPERTS,    /* the activation's output of each of these */
    PLAN_ATTN_ALL,   /* attention's output of all ranks */
    PLAN_FFN_ALL,    /* the activation's output of all ranks */
    PLAN_QK_ALL,     /* q and k of all ranks, where a norm spans all heads */
    PLAN_NEW_VALUES, /* PLAN_FLASHINFER: attention over the batch's own positions */
    PLAN_NEW_SUMS,
    PLAN_PAST_VALUES, /* and over those before */
    PLAN_PAST_SUMS,
    PLAN_MASK, /* PLAN_PADDED: the rectangle of sequences */
    PLAN_PADDED_Q,
    PLAN_PADDED_K,
    PLAN_PADDED_V,
    PLAN_REPEATED_K,
    PLAN_REPEATED_V,
    PLAN_SCORES,
    PLAN_TOP_VALUES, /* top-k of each block of the vocabulary, and of all */
    PLAN_TOP_IDS,
    PLAN_BEST_VALUES,
    PLAN_BEST_IDS,
    PLAN_X_OUT,
    PLAN_LOGITS,
    PLAN_NEXT,
    PLAN_NAMED, /* tensors without a name in the code are numbered from here */
    PLAN_MAX_TENSORS = 128
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

/* How the products of a layer are cut into ranks. */
typedef enum plan_cut {
    PLAN_GATHER, /* all by their outputs: a dot product is computed by one rank, as without ranks,
                  * and ranks exchange rows before a product that needs all of them */
    PLAN_REDUCE, /* the output and the down projection by their inputs: ranks add partial sums, so
                  * that a layer has two exchanges in place of four, and other roundings */
} plan_cut;

/* On a GPU: whether matrices in other types than BF16 are also kept in BF16. */
typedef enum plan_copies {
    PLAN_COPIES_AUTO, /* if there is room */
    PLAN_COPIES_ON,
    PLAN_COPIES_OFF,
} plan_copies;

/* Which operators make the forward pass: a page of the plan each. */
typedef enum plan_form {
    PLAN_PAGED,      /* quipu's own: paged attention for prompts and decoding alike (llama.c) */
    PLAN_FLASHINFER, /* as engines on FlashInfer's operators run it (llama_flashinfer.c) */
    PLAN_PADDED,     /* as padded-batch engines run it (llama_padded.c) */
    PLAN_FORMS
} plan_form;

/* "paged", "flashinfer", "padded". */
const char *plan_form_name(plan_form form);
qp_status plan_form_find(const char *name, plan_form *out, qp_error *error);

/* What a program is made for. */
typedef enum plan_target {
    PLAN_FOR_ANY,
    PLAN_FOR_CPU,
} plan_target;

typedef struct plan_options {
    int64_t max_tokens;    /* new tokens in one batch, all sequences together */
    int64_t max_sequences; /* sequences in one batch */
    int64_t max_outputs;   /* rows of logits */
    int64_t context;       /* positions a sequence may have */
    int64_t page_size;     /* positions in a page of the KV cache */
    int64_t n_pages;       /* 0: enough for every sequence at full context */
    dtype kv_type;         /* F32, F16, BF16 or F8 */
    dtype act_type;        /* of what layers work on: F32 or BF16 */
    int ranks, rank;       /* of tensor parallelism; 1 and 0 without */
    plan_cut cut;          /* of several ranks */
    plan_form form;        /* the others than PLAN_PAGED: one rank, not fused */
    bool fuse;     /* takes the rules for few tokens: what needs no other worker's result is one
                    * operator */
    bool sums;     /* fused further, as the megakernel runs it: workers add to the residual in
                    * fixed point; implies fuse */
    bool own_sums; /* of several ranks, with sums: x is this rank's part of the residual, and the
                    * machine adds the parts of all; no node does */
    int64_t adapters_at_once; /* most adapters of one sequence, if the model has some; 0: all */
    bool few_alike; /* on a GPU, passes of up to 8 tokens have the bits of passes of one, although
                     * there are several sequences */
    int64_t kv_partitions; /* fused: parts of a sequence's positions that attention is split in, on
                            * which bits depend; 0: 1 */
    plan_copies bf16_copies;
    plan_target target;
    uint32_t rules_added, rules_left_out; /* besides those of the options above, a bit each:
                                           * lower/lower.h */
    int rules_end; /* 1 + how many matches rules replace, of which launch rules count as one each;
                    * 0: all */
} plan_options;

typedef enum program_base {
    BASE_ARENA,
    BASE_INPUT,
    BASE_TABLE, /* the RoPE table */
    BASE_STATE, /* instructions of a node that change it touch different elements */
    BASE_K_CACHE,
    BASE_V_CACHE,
    BASE_WEIGHT,
    BASE_SUMS,      /* cleared by the pass before */
    BASE_SUMS_NEXT, /* those of the next pass, which this one clears */
} program_base;

/* Whether nodes change what lies there. */
static inline bool program_changes(program_base base)
{
    return base == BASE_ARENA || base == BASE_K_CACHE || base == BASE_V_CACHE ||
           base == BASE_SUMS || base == BASE_SUMS_NEXT;
}

/* Memory of one tensor, of one layer's cache, or of one weight. Areas of the arena may share bytes,
 * at different times. */
typedef struct program_area {
    program_base base;
    int index;          /* plan_tensor_id; of a weight: its number among program.weights */
    int64_t layer;      /* of a cache; else 0 */
    uint64_t offset;    /* from the base, bytes */
    uint64_t bytes;     /* at the program's capacity */
    uint64_t row_bytes; /* of a row of the batch, or of a page of a cache; 0: it has neither */
    int first_node;     /* of a weight: the first that reads it */
    const char *name;   /* "x", "attn_q" */
} program_area;

/* What a node sees of an area. */
typedef struct program_view {
    int area;
    uint64_t offset; /* from the area, bytes */
    dtype type;
    int rank;                             /* 0: absent, as view 0 is */
    int64_t shape[TENSOR_MAX_RANK];       /* a constant, or an axis negated */
    int64_t stride[TENSOR_MAX_RANK];      /* bytes; 0: contiguous after dimensions that vary */
    const char *symbols[TENSOR_MAX_RANK]; /* what the dimensions are called in print */
    int64_t first_column, columns; /* a part of the tensor's innermost dimension; columns 0: all */
} program_view;

/* Indices [first, first + count). */
typedef struct program_span {
    int64_t first, count;
} program_span;

/* What a rank computes of the model: heads of attention, and output features of the gate and up
 * projections, of the output and down projections, and of the output. */
typedef struct program_shard {
    program_span heads, kv_heads, intermediate, hidden, vocab;
} program_shard;

/* What a slot of a layer may have: see weight_areas. */
enum { PROGRAM_WEIGHT_PARTS = 4 };

/* A weight that nodes read, or its bias. weights.h reads its elements. */
typedef struct program_weight {
    weight_slot slot;
    int64_t layer; /* -1: of the whole model */
    bool bias;
    /* Of adapters: the A matrices of the slots that read the same rows, or the slot's B. */
    enum { WEIGHT_OWN, WEIGHT_LORA_A, WEIGHT_LORA_B } lora;
    int stored;   /* the number of the weight that holds its elements: its own, or of an output
                   * projection that is tied to it the embedding's */
    tensor whole; /* of all ranks, as the model stores it; no data where none was made or read */
    /* The part of `whole` that this rank holds, in elements: all, if there is one rank. A norm is
     * one row; a bias has a row for each element. */
    program_span rows, columns;
    int64_t experts; /* matrices in `whole`, one after the other, of which each has these rows */
} program_weight;

/* The part as nodes see it: contiguous. It has data if it lies so in `whole`. */
tensor program_weight_part(const program_weight *weight);

/* Whether the part has some of the columns only, so that it is not contiguous in `whole`. */
static inline bool program_weight_has_columns(const program_weight *w)
{
    return w->whole.rank == 2 && w->columns.count < w->whole.shape[1];
}

/* Rows of each matrix in `whole`. */
static inline int64_t program_weight_whole_rows(const program_weight *w)
{
    return w->whole.rank == 2 || w->bias ? w->whole.shape[0] / w->experts : 1;
}

/* Whether it has all rows. */
static inline bool program_weight_has_rows(const program_weight *w)
{
    return w->rows.count == program_weight_whole_rows(w);
}

typedef struct program_node {
    op_code op;
    const char *name; /* of its step: "attn_qkv" */
    int step;
    int64_t layer;         /* -1: outside the layers */
    program_axis row_axis; /* rows of the batch that its outputs have, else its inputs */
    uint16_t operands[OP_MAX_TENSORS]; /* views, in the order of the operator's tensors */
    float params[OP_MAX_PARAMS];
} program_node;

typedef struct program_step {
    const char *name;
    int64_t layer; /* -1: before or after the layers */
    bool graph;    /* several kernels, or an exchange between ranks */
    int first_node, n_nodes;
} program_step;

typedef struct program {
    const struct model *model; /* whose weights these are; NULL: a program of sizes only */
    model_config whole;        /* of all ranks */
    model_config config;       /* as one rank sees it: its own heads and its own part of the FFN */
    program_shard shard;       /* what that is; everything, if there is one rank */
    plan_options options;
    program_sizes capacity; /* the largest batch */
    plan_tensor *tensors;   /* [n_tensors], by plan_tensor_id */
    program_area *areas;
    program_view *views; /* view 0 is absent */
    program_weight *weights;
    int *weight_areas; /* [n_layers + 1][WEIGHT_COUNT][4]: 1 + the area of a layer's weight, its
                        * bias, adapters' A and B, row 0: of the whole model's; 0: no node reads it
                        */
    program_node *nodes;
    program_step *steps;
    int n_tensors, n_areas, n_views, n_weights, n_nodes, n_steps;
    int n_matches;      /* that rules have replaced */
    char last_rule[96]; /* the rule of the last one and its step: "norm_up at 2.ffn_up" */
    int logits_end; /* the step after the one that makes the logits; those that follow choose tokens
                     */
    size_t arena_bytes;
    uint64_t fingerprint;      /* of areas, views, weights, nodes and capacity */
    uint64_t form_fingerprint; /* of what a schedule refers to: without the capacity, places in
                                * memory and the type of the cache */
    arena memory;              /* of the tables above but the steps */
} program;

/* The view of a node's operand; its rank is 0 where the node has none. */
static inline const program_view *program_operand(const program *p, int node, int operand)
{
    return &p->views[p->nodes[node].operands[operand]];
}

/* The area of an operand that the node has. */
static inline const program_area *program_area_of(const program *p, int node, int operand)
{
    return &p->areas[program_operand(p, node, operand)->area];
}

/* The tensor of the plan that an operand sees; -1: it is a weight, or there is none. */
static inline int program_tensor_of(const program *p, int node, int operand)
{
    if (p->nodes[node].operands[operand] == 0) return -1;
    const program_area *area = program_area_of(p, node, operand);
    return area->base == BASE_WEIGHT ? -1 : area->index;
}

/* The weight or bias that an operand is; NULL: it is a tensor of the plan, or there is none. */
static inline const program_weight *program_weight_of(const program *p, int node, int operand)
{
    if (p->nodes[node].operands[operand] == 0) return NULL;
    const program_area *area = program_area_of(p, node, operand);
    return area->base == BASE_WEIGHT ? &p->weights[area->index] : NULL;
}

/* The number of a weight or bias among program.weights; -1: no node reads it. `layer` is ignored
 * for slots of the whole model. */
int program_find_weight(const program *program, weight_slot slot, int64_t layer, bool bias);

/* The same of any part: the weight, its bias, adapters' A and B. */
int program_find_weight_part(const program *program, weight_slot slot, int64_t layer, int part);

/* Whether a node has nothing to do: the sum over ranks if there is only one rank. */
static inline bool program_is_noop(const program *p, int node)
{
    return p->nodes[node].op == OP_ALL_REDUCE && p->options.ranks == 1;
}

/* Where a program's memory lies when it runs. */
typedef struct program_memory {
    void *data[PLAN_MAX_TENSORS]; /* by plan_tensor_id; of a cache that of layer 0 */
    size_t cache_layer_bytes;     /* from one layer's cache to the next */
    const void *const *weights;   /* [n_weights]; NULL: none has an address */
} program_memory;

/* The whole call of a node for a batch of these sizes ([AXES]): views of its operands, parameters,
 * all of its units. Addresses are NULL where `memory` is. `packed` and `scratch` are left to the
 * caller. */
void program_bind(const program *program, int node, const program_memory *memory,
                  const int64_t *sizes, op_call *call);

/* One view of the same. */
tensor program_bind_view(const program *program, int view, const program_memory *memory,
                         const int64_t *sizes);

/* ---- steps --------------------------------------------------------------------------------- */

/* Index of the step of that name in that layer (-1 for steps outside the layers); -1: none. */
int program_find_step(const program *program, const char *name, int64_t layer);

/* Finds a step by its label: "embedding", or "5.attn_qkv" for one of layer 5. QP_INVALID names the
 * step with the nearest name. */
qp_status program_parse_step(const program *program, const char *text, int *step, qp_error *error);

/* Writes a step's label, as program_parse_step() takes it, into `text`. */
const char *program_step_label(const program *program, int step, char *text, size_t size);

/* Directions in which a step touches a tensor. */
typedef struct program_access {
    bool read, write;
} program_access;
program_access program_step_access(const program *program, int step, plan_tensor_id id);

/* Bytes that a tensor takes in a batch of these sizes, from its beginning. */
size_t program_tensor_bytes(const program *program, plan_tensor_id id, const program_sizes *sizes);

/* ---- the whole ----------------------------------------------------------------------------- */

/* Bytes that a run needs, each part exact. */
typedef struct program_bytes {
    uint64_t weights, arena, sums, kv_cache, rope_table, state, inputs, total;
} program_bytes;
program_bytes program_count_bytes(const program *program, uint64_t weight_bytes);

void program_free(program *program);

/* What ranks of the model exchange that those of a Llama do not; NULL: nothing. */
const char *program_exchanges_more(const program *program);

/* Whether a layer, the embeddings or the logits are computed otherwise than in a Llama, by
 * operators or attributes that pages of their own and persistent kernels have not. */
bool program_is_other(const program *p);

/* The positions that a layer's attention looks at, the latest ones; 0: all of the context. */
int64_t program_window(const program *p, int64_t layer);
/* The same of any layer. */
int64_t program_any_window(const program *p);

/* Whether a token's RoPE angles depend on how long its sequence is: then each token of a batch has
 * its own row of the RoPE table, else each position. */
static inline bool program_has_dynamic_rope(const program *p)
{
    return p->config.rope.scaling == ROPE_DYNAMIC;
}

/* The table that a layer turns by. */
plan_tensor_id program_rope_table(const program *p, int64_t layer);

/* Rows of a RoPE table, [count][rope dim], for positions from `position` on in a sequence of
 * `length` tokens, which only matters if program_has_dynamic_rope(). A longrope takes the factors
 * of long texts if the program's context is longer than its original one, so that all keys of a
 * cache turn alike. */
void program_make_angles(const program *program, plan_tensor_id table, int64_t length,
                         int64_t position, int64_t count, float *rows);

/* All rows of the table, and of the local one after it where there is one. */
void program_make_tables(const program *program, float *rows);
