/* Plans that suites build: one small model, and random ones. */
#pragma once

#include "model/family/family.h"
#include "lower/lower.h"

#include "test.h"

static qp_error error;

static inline model_config small_config(void)
{
    return (model_config){.family = &family_llama,
                          .name = "test",
                          .hidden_size = 64,
                          .intermediate_size = 172,
                          .n_layers = 3,
                          .n_heads = 8,
                          .n_kv_heads = 4,
                          .head_dim = 8,
                          .vocab_size = 512,
                          .context_length = 512,
                          .rms_norm_eps = 1e-5,
                          .rope = {.dim = 8, .theta = 10000, .factor = 1}};
}

static inline program small_plan(int ranks, int rank)
{
    model_config config = small_config();
    plan_options options = plan_default_options(&config);
    options.ranks = ranks, options.rank = rank;
    options.cut = PLAN_REDUCE;
    program p;
    assert_ok(lower_build(&config, NULL, &options, &p, &error));
    return p;
}

/* Seed it before use. */
static uint64_t random_state;
static inline int64_t random_between(int64_t low, int64_t high)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return low + (int64_t)((random_state >> 33) % (uint64_t)(high - low + 1));
}

static inline model_config random_config(void)
{
    model_config c = small_config();
    c.n_layers = random_between(1, 4);
    c.n_kv_heads = random_between(1, 4) * 2;
    c.n_heads = c.n_kv_heads * random_between(1, 8);
    c.head_dim = random_between(1, 16) * 8;
    c.rope.dim = c.head_dim;
    c.hidden_size = random_between(2, 700);
    c.intermediate_size = random_between(1, 900) * 2;
    c.vocab_size = random_between(2, 3000);
    c.context_length = random_between(1, 5000);
    c.rope.scaling = random_between(0, 3) ? ROPE_DEFAULT : ROPE_DYNAMIC;
    c.rope.original_context = c.context_length;
    return c;
}

static inline plan_options random_options(const model_config *c)
{
    plan_options o = plan_default_options(c);
    o.max_tokens = random_between(1, 600);
    o.max_sequences = random_between(1, 40);
    o.max_outputs = random_between(1, 600);
    o.context = random_between(1, 5000);
    o.page_size = random_between(1, 40);
    o.ranks = (int)random_between(1, 2);
    o.rank = (int)random_between(0, o.ranks - 1);
    o.cut = random_between(0, 1) ? PLAN_GATHER : PLAN_REDUCE;
    o.fuse = random_between(0, 1);
    o.sums = o.ranks == 1 && random_between(0, 2) == 0;
    o.kv_partitions = random_between(0, 5);
    /* In one step, parts of attention end before the gathered rows begin: they may share bytes,
     * which a table by steps cannot show. */
    if (o.ranks > 1 && o.cut == PLAN_GATHER && o.fuse) o.kv_partitions = 1;
    return o;
}
