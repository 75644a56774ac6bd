/* What a page of the plan (llama.c) writes a forward pass with: steps, and nodes whose operands are
 * parts of tensors and weights by name. program.c makes areas and views of them. */
#pragma once

#include "plan/plan.h"

/* What a node reads or writes: a tensor of the plan, or a part of one, or a weight. */
typedef struct plan_operand {
    enum {
        OPERAND_NONE,
        OPERAND_TENSOR,
        OPERAND_WEIGHT,
        OPERAND_BIAS,
        OPERAND_LORA_A,
        OPERAND_LORA_B
    } kind;
    int id;                        /* plan_tensor_id or weight_slot */
    int64_t first_column, columns; /* a part of the innermost dimension; columns 0: all of it */
    int64_t heads;  /* the innermost dimension then split in `heads` parts; 0: not split */
    bool one_part;  /* with heads: a dimension of 1 before the innermost, attention in one part */
    int64_t choice; /* 1 + which of a token's rows, of a tensor that has several for each; 0: all */
    bool slots;     /* a cache as [1, n_slots, n_kv_heads, max_seq_len, head_dim] */
    program_axis rows;       /* counts the outermost dimension, in place of the declared axis; 0 */
    const char *rows_symbol; /* what it is called in print */
    int64_t ranks; /* 0, or the first of a new outermost dimension: the tensor on every rank */
    const char *symbols[2]; /* what the columns (or heads and head size) are called in print */
} plan_operand;

typedef struct plan_node {
    op_code op;
    int64_t layer; /* of its weights and cache; -1: none */
    int step;
    plan_operand operands[OP_MAX_TENSORS];
    double params[OP_MAX_PARAMS]; /* float32 values: instruction records hold no more */
} plan_node;

typedef struct plan_builder {
    program *program;
    plan_node *nodes; /* of all steps, in their order */
    int n_nodes;
    int step_capacity, node_capacity;
    int64_t layer; /* of the steps that follow; -1: outside the layers */
    bool failed;   /* memory ran out */
} plan_builder;

/* Opens a step; the nodes that follow belong to it. A kernel has one node, a graph any number. */
void builder_kernel(plan_builder *b, const char *name);
void builder_graph(plan_builder *b, const char *name);
void builder_graph_if(plan_builder *b, bool graph, const char *name);

/* Adds a node with the operator's usual parameters; what it is made of is set by name. */
plan_node *builder_node(plan_builder *b, op_code op);
void node_tensor(plan_node *node, const char *name, plan_tensor_id id);
void node_weight(plan_node *node, const char *name, weight_slot slot);
void node_bias(plan_node *node, const char *name, weight_slot slot);
/* Adapters' matrices, one for each adapter. */
void node_lora_a(plan_node *node, weight_slot slot);
void node_lora_b(plan_node *node, weight_slot slot);
void node_param(plan_node *node, const char *name, double value);
/* Columns [first, first + count) of a tensor, called `symbol`. */
void node_columns(plan_node *node, const char *name, plan_tensor_id id, int64_t first,
                  int64_t count, const char *symbol);
/* The tensor of every rank: one more dimension in front. */
void node_parts(plan_node *node, const char *name, plan_tensor_id id, int64_t ranks);
/* The same columns as `heads` heads. */
void node_heads(plan_node *node, const char *name, plan_tensor_id id, int64_t first, int64_t count,
                int64_t heads, const char *symbol);

/* The same columns as one of several rows of a token, of which there is one. */
void node_row(plan_node *node, const char *name, plan_tensor_id id, int64_t first, int64_t count,
              const char *symbol);

/* All columns of a tensor as `count` blocks of `size` columns, called `symbols`. */
void node_blocks(plan_node *node, const char *name, plan_tensor_id id, int64_t count, int64_t size,
                 const char *const symbols[static 2]);

/* One row for each token, of a tensor that has several. */
void node_choice(plan_node *node, const char *name, plan_tensor_id id, int64_t choice,
                 const char *symbol);

/* The cache as a padded-batch engine sees it: each sequence has a slot, its only page. */
void node_slots(plan_node *node, const char *name, plan_tensor_id id);

/* Lets another axis count the rows of an operand that the node has. */
void node_rows(plan_node *node, const char *name, program_axis axis, const char *symbol);

/* Dimensions, for builder_tensor(). */
#define PLAN_DIMS(...)                                                                             \
    sizeof((plan_dim[]){__VA_ARGS__}) / sizeof(plan_dim), (plan_dim[])                             \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* Declares a tensor of the plan. */
void builder_tensor(plan_builder *b, plan_tensor_id id, const char *name, plan_kind kind,
                    dtype type, int rank, const plan_dim *dims);

/* Writes the steps of a Llama-family forward pass: llama.c. */
void llama_forward(plan_builder *b);

/* Its parts: the tensors (llama_tensors.c); gate, up and activation of the chosen experts, and the
 * sum of their down projections (llama_experts.c). */
void llama_tensors(plan_builder *b);
void llama_mix_experts(plan_builder *b);

/* What adapters add to products: llama_lora.c. Their tensors; whether any adapts one of `slots`;
 * the nodes after those of the products that read the columns [0, count) of `in`: h = in times A,
 * then out += h times B for each of `slots`. */
typedef struct lora_output {
    weight_slot slot;
    plan_tensor_id out;
    int64_t first, count; /* columns of out */
    const char *symbol;
} lora_output;
void llama_lora_tensors(plan_builder *b);
bool llama_adapts(const plan_builder *b, uint32_t slots);
void llama_adapt(plan_builder *b, plan_tensor_id in, int64_t count, const char *symbol,
                 const lora_output *outputs, int n_outputs);

/* Whether there are several ranks; whether these exchange rows. */
bool llama_has_ranks(const plan_builder *b);
bool llama_gathers(const plan_builder *b);

/* out = the columns of all ranks, of which `columns` are this rank's: those of `part` from
 * first_column on. The same of each choice of a mixture, from PLAN_EXPERTS to PLAN_FFN_ALL. */
void llama_gather(plan_builder *b, plan_tensor_id part, int64_t first_column, plan_tensor_id out,
                  program_span columns);
void llama_gather_choices(plan_builder *b);

/* Heads of all ranks, from attn's columns from `first` on to PLAN_QK_ALL's from all_first on, for
 * norms that span them; and of these the rank's own back to attn. */
void llama_gather_heads(plan_builder *b, int64_t first, program_span heads, int64_t all_first,
                        int64_t all_heads);
void llama_take_heads(plan_builder *b, int64_t first, program_span heads, int64_t all_first);

/* With several ranks x is whole on all again, at the end of the step that has made the rank's part
 * of it. */
void llama_exchange(plan_builder *b, plan_tensor_id x);

/* The output and the down projection, and attention's operands and parameters, which other forms
 * have too. */
void llama_paging(plan_node *node);
double llama_attention_scale(const plan_builder *b);
void llama_attention_params(const plan_builder *b, plan_node *node);

/* Parts of a layer that other forms have too. */
void llama_norm(plan_builder *b, const char *step, weight_slot weight);

/* The same of x in families that have this norm; in the others products read x. */
void llama_norm_before(plan_builder *b, const char *step, weight_slot norm);
void llama_qkv(plan_builder *b);
void llama_qk_norm(plan_builder *b);
void llama_rope(plan_builder *b);
void llama_append(plan_builder *b);
void llama_up(plan_builder *b);
/* x_ = in[:, 0 .. count) times the weight, with its bias or without. */
void llama_project_to(plan_builder *b, weight_slot weight, plan_tensor_id in, int64_t count,
                      const char *symbol, bool bias);
/* Gathers the rows of `from`, normalised already, whose logits are wanted; the logits. */
void llama_gather_rows(plan_builder *b, plan_tensor_id from);
void llama_head(plan_builder *b);

/* The layers and what follows them in the forms `flashinfer` and `padded`, with tensors of their
 * own: llama_flashinfer.c, llama_padded.c. */
void llama_flashinfer_tensors(plan_builder *b);
void llama_flashinfer_layer(plan_builder *b);
void llama_flashinfer_logits(plan_builder *b);
void llama_padded_tensors(plan_builder *b);
void llama_padded_setup(plan_builder *b);
void llama_padded_layer(plan_builder *b);
void llama_padded_logits(plan_builder *b);
void llama_padded_sample(plan_builder *b);

/* The operands of `sampling` but its logits. */
void llama_sampling(plan_node *sample);

/* Areas, views and nodes of what the page has written: program.c. */
qp_status program_build(const plan_builder *b, const model *model, program *out, qp_error *error);

/* Gives areas of the arena the offsets of their tensors. */
void program_place(program *program);
/* Its numbers, which differ for another program. */
void program_take_fingerprints(program *program);
