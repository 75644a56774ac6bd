/* What LoRA adapters add to the products of llama.c's pass.
 *
 *     lora    [n_tokens, adapters_at_once, rank of the products that read the same rows]
 *
 * A token's adapters are its experts: linear_experts multiplies its row with the A of each, and
 * adds the products of that with B, by their shares, to what the weight itself has made. An id of
 * -1 is none. A token with no adapter keeps the bits of the model.
 */
#include "plan/builder.h"

#include "model/adapter.h"

static int64_t at_once(const plan_builder *b)
{
    const int64_t n = b->program->config.adapters.n, most = b->program->options.adapters_at_once;
    return most > 0 && most < n ? most : n;
}

/* Columns of `lora` that products of the slot's rows need. */
static int64_t ranks_of(const model_config *c, weight_slot slot)
{
    return adapter_sharers(c, slot) * c->adapters.rank;
}

bool llama_adapts(const plan_builder *b, uint32_t slots)
{
    const model_adapters *a = &b->program->config.adapters;
    return a->n > 0 && (a->slots & slots) != 0;
}

void llama_lora_tensors(plan_builder *b)
{
    const model_config *c = &b->program->config;
    const plan_dim n = {"n_tokens", "n", -AXIS_TOKENS};
    const plan_dim k = {"adapters_at_once", "na", at_once(b)};
    int64_t most = 0;
    if (c->adapters.n == 0) return;
    for (weight_slot slot = 0; slot < WEIGHT_COUNT; slot++)
        if (ranks_of(c, slot) > most) most = ranks_of(c, slot);
    builder_tensor(b, PLAN_ADAPTER_IDS, "adapters", PLAN_INPUT, DTYPE_I32, PLAN_DIMS(n, k));
    builder_tensor(b, PLAN_ADAPTER_SHARES, "adapter_shares", PLAN_INPUT, DTYPE_F32,
                   PLAN_DIMS(n, k));
    builder_tensor(b, PLAN_LORA, "lora", PLAN_ACTIVATION, DTYPE_F32,
                   PLAN_DIMS(n, k, {"lora_rank", "r", most}));
}

/* lora[:, :, 0 .. ranks) = in times A of each adapter. */
static void multiply_a(plan_builder *b, weight_slot slot, plan_tensor_id in, int64_t count,
                       const char *symbol)
{
    plan_node *down = builder_node(b, OP_LINEAR_EXPERTS);
    node_row(down, "x", in, 0, count, symbol);
    node_tensor(down, "ids", PLAN_ADAPTER_IDS);
    node_lora_a(down, adapter_leader(slot));
    node_columns(down, "out", PLAN_LORA, 0, ranks_of(&b->program->config, slot), "lora_rank");
}

/* out += the shares of lora times B of each adapter. */
static void add_b(plan_builder *b, const lora_output *o)
{
    const model_config *c = &b->program->config;
    plan_node *up = builder_node(b, OP_LINEAR_EXPERTS);
    node_columns(up, "x", PLAN_LORA, adapter_place(c, o->slot) * c->adapters.rank, c->adapters.rank,
                 "lora_rank");
    node_tensor(up, "ids", PLAN_ADAPTER_IDS);
    node_lora_b(up, o->slot);
    node_tensor(up, "shares", PLAN_ADAPTER_SHARES);
    node_columns(up, "residual", o->out, o->first, o->count, o->symbol);
    node_row(up, "out", o->out, o->first, o->count, o->symbol);
}

void llama_adapt(plan_builder *b, plan_tensor_id in, int64_t count, const char *symbol,
                 const lora_output *outputs, int n_outputs)
{
    bool multiplied = false;
    for (int i = 0; i < n_outputs; i++) {
        const lora_output *o = &outputs[i];
        if (!llama_adapts(b, 1u << o->slot)) continue;
        if (!multiplied) multiply_a(b, o->slot, in, count, symbol);
        multiplied = true;
        add_b(b, o);
    }
}
