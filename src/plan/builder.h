/* What llama.c writes a forward pass with: steps, nodes and operands. */
#ifndef QUIPU_PLAN_BUILDER_H
#define QUIPU_PLAN_BUILDER_H

#include "plan/plan.h"

typedef struct plan_builder {
    plan *plan;
    int step_capacity, node_capacity;
    int64_t layer; /* of the steps that follow; -1: outside the layers */
    int64_t sum;   /* of the plan of sums: the residual's latest value */
    bool failed;   /* memory ran out */
} plan_builder;

/* Opens a step; the nodes that follow belong to it. A kernel has one node, a graph any number. */
void builder_kernel(plan_builder *b, const char *name);
void builder_graph(plan_builder *b, const char *name);

/* Adds a node with the operator's usual parameters; what it is made of is set by name. */
plan_node *builder_node(plan_builder *b, op_code op);
void node_tensor(plan_node *node, const char *name, plan_tensor_id id);
void node_weight(plan_node *node, const char *name, weight_slot slot);
void node_bias(plan_node *node, const char *name, weight_slot slot);
void node_param(plan_node *node, const char *name, double value);
/* Columns [first, first + count) of a tensor, called `symbol`. */
void node_columns(plan_node *node, const char *name, plan_tensor_id id, int64_t first,
                  int64_t count, const char *symbol);
/* A tensor as it stands on every rank: one more dimension in front. */
void node_parts(plan_node *node, const char *name, plan_tensor_id id, int64_t ranks);
/* A tensor whose last two dimensions are seen as one. */
void node_flat(plan_node *node, const char *name, plan_tensor_id id);
/* The same columns as `heads` heads. */
void node_heads(plan_node *node, const char *name, plan_tensor_id id, int64_t first, int64_t count,
                int64_t heads, const char *symbol);

/* The same, for attention in one part: a dimension of 1 between heads and head size. */
void node_one_part(plan_node *node, const char *name, plan_tensor_id id, int64_t count,
                   int64_t heads, const char *symbol);

/* Declares a tensor of the plan. */
void builder_tensor(plan_builder *b, plan_tensor_id id, const char *name, plan_kind kind,
                    dtype type, int rank, const plan_dim *dims);

/* Writes the steps of a Llama-family forward pass: llama.c. */
void llama_forward(plan_builder *b);

/* What the fused pass (llama_fused.c) has in common with it: the output and the down projection
 * with their sums over ranks, and what attention finds in the batch state. */
void llama_project_back(plan_builder *b, weight_slot weight, plan_tensor_id in, int64_t count,
                        const char *symbol);
void llama_all_reduce(plan_builder *b, const char *step);
void llama_paging(plan_node *node);
void llama_attention_params(const plan_builder *b, plan_node *node);

/* The fused layers and the fused head: llama_fused.c. */
void llama_fused_layer(plan_builder *b);
void llama_fused_logits(plan_builder *b);

/* Of these the plan of sums has the same, from its own residual: QKV, and attention in parts. */
void llama_fused_norm(const plan_builder *b, plan_node *node, weight_slot weight);
void llama_fused_qkv(plan_builder *b);
plan_node *llama_fused_attend(plan_builder *b);

/* The layers that add up sums, and what comes before them: llama_sums.c. */
void llama_sums_embedding(plan_builder *b);
void llama_sums_layer(plan_builder *b);
/* Sees the residual's latest value, or the one that comes `ahead` of it. */
void llama_sums_view(const plan_builder *b, plan_node *node, const char *name, int64_t ahead);

#endif
