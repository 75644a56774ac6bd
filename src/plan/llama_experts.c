/* The feed-forward network of a mixture of experts, in llama.c's pass. */
#include "plan/builder.h"

/* The experts of each token. */
static void route(plan_builder *b)
{
    builder_kernel(b, "router");
    plan_node *router = builder_node(b, OP_LINEAR);
    node_tensor(router, "x", PLAN_X_NORM);
    node_weight(router, "weight", WEIGHT_ROUTER);
    node_bias(router, "bias", WEIGHT_ROUTER);
    node_tensor(router, "out", PLAN_ROUTER_LOGITS);

    builder_kernel(b, "route");
    plan_node *choose = builder_node(b, OP_ROUTE);
    node_tensor(choose, "logits", PLAN_ROUTER_LOGITS);
    node_tensor(choose, "ids", PLAN_EXPERT_IDS);
    node_tensor(choose, "shares", PLAN_EXPERT_SHARES);
    node_param(choose, "normalised", b->program->config.experts_normalised);
}

/* x += the sum of the experts' outputs; of several ranks the rank's columns of it, or its part. */
static void add_outputs(plan_builder *b)
{
    const bool gathers = llama_gathers(b), first = b->program->options.rank == 0;
    const program_span own = b->program->shard.hidden;
    builder_graph_if(b, llama_has_ranks(b), "ffn_down");
    plan_node *down = builder_node(b, OP_LINEAR_EXPERTS);
    node_tensor(down, "x", gathers ? PLAN_FFN_ALL : PLAN_EXPERTS);
    node_tensor(down, "ids", PLAN_EXPERT_IDS);
    node_weight(down, "weight", WEIGHT_DOWN_EXPERTS);
    if (gathers || first) node_bias(down, "bias", WEIGHT_DOWN_EXPERTS);
    node_tensor(down, "shares", PLAN_EXPERT_SHARES);
    if (gathers)
        node_columns(down, "residual", PLAN_X, own.first, own.count, "own_hidden_units");
    else if (first)
        node_tensor(down, "residual", PLAN_X);
    node_row(down, "out", PLAN_X, own.first, own.count,
             gathers ? "own_hidden_units" : "hidden_size");
    if (llama_has_ranks(b)) llama_exchange(b, PLAN_X);
}

void llama_mix_experts(plan_builder *b)
{
    static const char *const one_row[] = {"1", "hidden_size"};
    const model_swiglu *swiglu = &b->program->config.swiglu;
    const int64_t d = b->program->config.hidden_size;
    llama_norm_before(b, "ffn_norm", WEIGHT_FFN_NORM);
    route(b);

    builder_graph_if(b, llama_gathers(b), "ffn_up");
    plan_node *up = builder_node(b, OP_LINEAR_EXPERTS);
    node_blocks(up, "x", PLAN_X_NORM, 1, d, one_row);
    node_tensor(up, "ids", PLAN_EXPERT_IDS);
    node_weight(up, "weight", WEIGHT_GATE_EXPERTS);
    node_weight(up, "up_weight", WEIGHT_UP_EXPERTS);
    node_bias(up, "bias", WEIGHT_GATE_EXPERTS);
    node_bias(up, "up_bias", WEIGHT_UP_EXPERTS);
    node_tensor(up, "out", PLAN_EXPERTS);
    if (swiglu->alpha > 0) {
        node_param(up, "alpha", swiglu->alpha);
        node_param(up, "limit", swiglu->limit);
        node_param(up, "added", swiglu->added);
    }
    if (llama_gathers(b)) llama_gather_choices(b);
    add_outputs(b);
}
