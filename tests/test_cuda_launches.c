/* Lists of launches, for GPUs that need not be installed, and the checks of chains. */
#include "test.h"

#include "inspect/cuda_print.h"
#include "inspect/launch_print.h"
#include "inspect/pass_launches.h"
#include "lower/launches.h"
#include "op/attention/attention_cuda.h"
#include "op/exchange_cuda.h"
#include "vm/cuda/chain_check.h"
#include "vm/cuda/tiles.h"

#include <string.h>

/* A list and what it is made from. */
typedef struct made {
    model *model;
    pass_launches pass;
} made;

/* Of a pass of `tokens` of one sequence, or of as many sequences with `decodes`; on the last of
 * `ranks`. */
static void make_rank(made *m, const char *model, const char *arch, int64_t tokens, bool decodes,
                      int ranks, plan_cut cut)
{
    qp_error error;
    model_options sizes_only = {.sizes_only = true};
    assert_ok(model_open(model, &sizes_only, &m->model, &error));
    plan_options options = plan_default_options(model_get_config(m->model));
    options.max_tokens = tokens;
    options.context = 512;
    options.max_sequences = options.max_outputs = decodes ? tokens : 1;
    options.ranks = ranks;
    options.rank = ranks - 1;
    options.cut = cut;
    assert_ok(pass_launches_make(m->model, &options, tokens, options.max_sequences, arch, &m->pass,
                                 &error));
}

static void make(made *m, const char *model, const char *arch, int64_t tokens, bool decodes)
{
    make_rank(m, model, arch, tokens, decodes, 1, PLAN_GATHER);
}

/* Of one sequence and weights in FP8, as if all of their scales were of rows, or of blocks. */
static void make_scaled(made *m, const char *model, int64_t tokens, bool by_rows)
{
    qp_error error;
    model_options sizes_only = {.sizes_only = true};
    assert_ok(model_open(model, &sizes_only, &m->model, &error));
    model_config *config = (model_config *)(uintptr_t)model_get_config(m->model);
    assert_true(config->fp8_by_rows); /* as synthetic ones are */
    config->fp8_by_rows = by_rows;
    plan_options options = plan_default_options(config);
    options.max_tokens = tokens;
    options.context = 512;
    assert_ok(pass_launches_make(m->model, &options, tokens, 1, "sm_90", &m->pass, &error));
}

static void free_made(made *m)
{
    pass_launches_free(&m->pass);
    model_close(m->model);
}

static linear_chain *chain_of(const made *m, const launch_entry *entry)
{
    return cuda_recording_argument(&m->pass.list.recording, entry->record, 0);
}

static const linear_chain *first_chain(const made *m)
{
    for (int e = 0; e < m->pass.list.n_entries; e++)
        if (m->pass.list.entries[e].chain) return chain_of(m, &m->pass.list.entries[e]);
    return NULL;
}

/* Every node is one entry's, in order, and records are the entries', in order. */
static void check_list(const made *m)
{
    const launch_list *l = &m->pass.list;
    int node = 0, record = 0;
    for (int i = 0; i < l->n_entries; i++) {
        const launch_entry *e = &l->entries[i];
        assert_int_equal(e->node, node);
        assert_int_equal(e->record, record);
        node += e->n_nodes;
        record += e->n_records;
        if (e->n_records > 0) assert_true(e->chain != (e->kernel != NULL));
        for (int r = e->record; r < e->record + e->n_records; r++)
            assert_true(i > 0 || !l->recording.records[r].early);
    }
    const program_step *last = &m->pass.program.steps[l->of.last - 1];
    assert_int_equal(node, last->first_node + last->n_nodes);
    assert_int_equal(record, l->recording.n_records);
}

/* A layer's entries as they are printed, without their numbers and records. */
static void assert_layer(const made *m, int layer, const char *expected)
{
    strbuf text = {0}, found = {0};
    char prefix[16];
    snprintf(prefix, sizeof prefix, "  %d.", layer);
    launch_list_print(&m->pass.setting, &m->pass.list, &text);
    for (const char *line = strbuf_text(&text); *line; line += strcspn(line, "\n") + 1) {
        const char *at = line + strspn(line, "0123456789");
        if (at > line && strncmp(at, prefix, strlen(prefix)) == 0)
            strbuf_printf(&found, "%.*s\n", (int)strcspn(at + 2, "\n"), at + 2);
    }
    assert_string_equal(strbuf_text(&found), expected);
    strbuf_free(&text);
    strbuf_free(&found);
}

/* What runs a layer, and the form in which rows pass from one launch to the next. */
static void test_layers(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        int64_t tokens;
        bool decodes;
        int layer;
        const char *expected;
    } layers[] = {
        {"synthetic:llama-3.2-1b:BF16", 2048, false, 1,
         "1.attn_norm: cuda, plain -> BF16\n"
         "1.attn_qkv..1.attention: cuda_wide + rope, kv_append, BF16 -> q as the cache\n"
         "1.attention: cuda_tiles, q as the cache -> BF16\n"
         "1.attn_output: cublaslt, BF16 -> plain\n"
         "1.ffn_norm: cuda, plain -> BF16\n"
         "1.ffn_up..1.activation: cuda_wide + silu_and_mul, BF16 -> BF16\n"
         "1.ffn_down: cublaslt, BF16 -> plain\n"},
        {"synthetic:llama-3.2-1b:BF16", 65, true, 1,
         "1.attn_norm: cuda, plain -> BF16\n"
         "1.attn_qkv: cublaslt, BF16 -> plain\n"
         "1.rope..1.attention: cuda + kv_append, plain -> plain\n"
         "1.attention: cuda_batch, plain -> plain and BF16\n"
         "1.attn_output: cublaslt, BF16 -> plain\n"
         "1.ffn_norm: cuda, plain -> BF16\n"
         "1.ffn_up: cublaslt, BF16 -> plain\n"
         "1.activation: cuda, plain -> BF16\n"
         "1.ffn_down: cublaslt, BF16 -> plain\n"},
        {"synthetic:llama-3.2-1b:F8", 300, false, 1,
         "1.attn_norm: cuda, plain -> FP8\n"
         "1.attn_qkv..1.attention: cublaslt_f8 + rope, kv_append, FP8 -> q as the cache\n"
         "1.attention: cuda_tiles, q as the cache -> BF16\n"
         "1.attn_output: cublaslt_f8, BF16 -> plain\n"
         "1.ffn_norm: cuda, plain -> FP8\n"
         "1.ffn_up..1.activation: cublaslt_f8 + silu_and_mul, FP8 -> FP8\n"
         "1.ffn_down: cublaslt_f8, FP8 -> plain\n"},
        {"synthetic:llama-3.2-1b:Q4_0", 1, true, 1,
         "1.attn_norm: cuda, plain -> plain\n"
         "1.attn_qkv: cuda_eight, plain -> plain\n"
         "1.rope..1.attention: cuda + kv_append, plain -> plain\n"
         "1.attention: cuda, plain -> plain\n"
         "1.attn_output: cuda_eight, plain -> plain\n"
         "1.ffn_norm: cuda, plain -> plain\n"
         "1.ffn_up..1.activation: cuda_eight + silu_and_mul, plain -> plain\n"
         "1.ffn_down: cuda_eight, plain -> plain\n"},
    };
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        made m;
        make(&m, layers[i].model, "sm_90", layers[i].tokens, layers[i].decodes);
        assert_layer(&m, layers[i].layer, layers[i].expected);
        free_made(&m);
    }
}

/* Entries that launch something. */
static int count_entries(const made *m)
{
    int n = 0;
    for (int i = 0; i < m->pass.list.n_entries; i++)
        n += m->pass.list.entries[i].n_records > 0;
    return n;
}

/* The list without a rule, on one of `ranks`; "": with all. */
static void make_without(made *m, const char *rule, int64_t tokens, bool decodes, int ranks)
{
    qp_error error;
    char text[32];
    launch_setting *setting = &m->pass.setting;
    make_rank(m, "synthetic:llama-3.2-1b:BF16", "sm_90", tokens, decodes, ranks, PLAN_REDUCE);
    const launch_class of = m->pass.list.of;
    program p = {0};
    snprintf(text, sizeof text, *rule ? "-%s" : "%s", rule);
    assert_ok(lower_parse_rules(text, &p.options, &error));
    setting->rules = lower_launch_rules(&p);
    launch_list_free(&m->pass.list);
    assert_ok(launch_list_make(setting, &of, NULL, NULL, &m->pass.list, &error));
    check_list(m);
}

/* What a pass has more of without a rule: entries, where the rule makes one launch of several
 * nodes; or no more entries in BF16. */
static void test_rules(void **state)
{
    (void)state;
    enum { LAYERS = 16 };
    static const struct {
        const char *rule;
        int64_t tokens;
        bool decodes;
        int ranks, more;
    } rules[] = {
        {"merge", 2048, false, 1, 5 * LAYERS}, /* k, v, RoPE and append; up, the activation */
        {"silu", 2048, false, 1, LAYERS},      /* the activation */
        {"turn", 2048, false, 1, LAYERS},      /* RoPE and append are one */
        {"rope_append", 65, true, 1, LAYERS},  /* the append */
        {"gather_wanted", 2048, false, 1, 1},  /* the gather at the end of the layers */
        {"argmax", 65, true, 1, 0},            /* cuBLASLt makes the logits of 65 rows */
        {"reduce_norm", 1, true, 2, 2 * LAYERS - 1} /* the norms, but for the last */,
        {"cut_rows", 2048, false, 2, 2 * (2 * LAYERS - 2)}, /* all_reduce and norm */
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        made all, without;
        make_without(&all, "", rules[i].tokens, rules[i].decodes, rules[i].ranks);
        make_without(&without, rules[i].rule, rules[i].tokens, rules[i].decodes, rules[i].ranks);
        if (count_entries(&without) - count_entries(&all) != rules[i].more)
            fail_msg("without %s there are %d entries, and %d with it", rules[i].rule,
                     count_entries(&without), count_entries(&all));
        free_made(&all);
        free_made(&without);
    }
    made m;
    make_without(&m, "persistent", 8, true, 1);
    assert_null(first_chain(&m));
    free_made(&m);
    make_without(&m, "narrow", 2048, false, 1);
    assert_layer(
        &m, 1,
        "1.attn_norm: cuda, plain -> plain\n"
        "1.attn_qkv..1.attention: cuda_wide + rope, kv_append, plain, rounded to BF16 "
        "first -> q as the cache\n"
        "1.attention: cuda_tiles, q as the cache -> plain\n"
        "1.attn_output: cublaslt, plain, rounded to BF16 first -> plain\n"
        "1.ffn_norm: cuda, plain -> plain\n"
        "1.ffn_up..1.activation: cuda_wide + silu_and_mul, plain, rounded to BF16 first -> "
        "BF16\n"
        "1.ffn_down: cublaslt, BF16 -> plain\n");
    free_made(&m);
}

static void expect_told(int64_t tokens, bool decodes, const char *const *lines)
{
    qp_error error;
    made m;
    strbuf text = {0};
    make(&m, "synthetic:llama-3.2-1b:BF16", "sm_90", tokens, decodes);
    assert_ok(pass_launches_explain(&m.pass, &text, &error));
    for (; *lines; lines++)
        if (!strstr(strbuf_text(&text), *lines))
            fail_msg("no \"%s\" in \"%s\"", *lines, strbuf_text(&text));
    strbuf_free(&text);
    free_made(&m);
}

/* plan -v tells how often a rule was taken, and why it was not where it nearly applied; a number
 * takes the first of them. */
static void test_rules_are_told(void **state)
{
    (void)state;
    expect_told(2048, false,
                (const char *const[]){
                    "merge           32 times", "turn            16 times",
                    "gather_wanted    1 times", "split            0 times",
                    "narrow        not at 15.ffn_norm to final_norm, 2 times: no "
                    "product that reads BF16 follows",
                    "persistent    not at embedding: the pass has more than 64 rows", NULL});
    expect_told(
        8, true,
        (const char *const[]){"decode          16 times", "persistent       2 times", NULL});
    program p = {.options = {.rules_end = 1 + 3}};
    assert_int_equal(lower_launch_rules(&p), 1u << LOWER_RULE_decode |
                                                 1u << LOWER_RULE_gather_wanted |
                                                 1u << LOWER_RULE_persistent);
    p.n_matches = 2; /* on the plan */
    assert_int_equal(lower_launch_rules(&p), 1u << LOWER_RULE_decode);
}

/* Any set of the rules makes a list that has every node once. */
static void test_sets_of_rules(void **state)
{
    (void)state;
    static const char *const models[] = {"synthetic:llama-3.2-1b:F8", "synthetic:tiny-qwen3:Q4_0",
                                         "synthetic:llama-3.2-1b:BF16"};
    static const int64_t tokens[] = {1, 9, 64, 300};
    uint32_t seed = 1;
    for (int round = 0; round < 60; round++) {
        qp_error error;
        made m;
        make_rank(&m, models[round % 3], "sm_90", tokens[round % 4], round % 5 < 3, 1 + round % 2,
                  PLAN_REDUCE);
        const launch_class of = m.pass.list.of;
        launch_list_free(&m.pass.list);
        m.pass.setting.rules = seed = seed * 1664525 + 1013904223;
        assert_ok(launch_list_make(&m.pass.setting, &of, NULL, NULL, &m.pass.list, &error));
        check_list(&m);
        free_made(&m);
    }
}

static void test_lists(void **state)
{
    (void)state;
    static const char *const models[] = {"synthetic:smollm2-135m", "synthetic:llama-3.2-1b",
                                         "synthetic:llama-3.1-8b:Q4_0", "synthetic:tiny:F32",
                                         "golden/models/internlm2.gguf"};
    static const int64_t tokens[] = {1, 2, 8, 9, 17, 64, 65, 300, 2048};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (size_t j = 0; j < sizeof tokens / sizeof *tokens; j++)
            for (int decodes = 0; decodes < 2; decodes++) {
                made m;
                make(&m, models[i], "sm_90", tokens[j], decodes);
                check_list(&m);
                free_made(&m);
                make(&m, models[i], "sm_100", tokens[j], decodes);
                check_list(&m);
                for (int e = 0; e < m.pass.list.n_entries; e++)
                    assert_false(m.pass.list.entries[e].chain); /* made of Hopper's instructions */
                free_made(&m);
            }
}

/* Weights in FP8, with a scale a row or for a block: every product takes x in FP8, which norms and
 * silu_and_mul leave; that of q, k and v of a prompt rotates and appends too. */
static void test_f8(void **state)
{
    (void)state;
    static const char *const models[] = {"synthetic:llama-3.2-1b:F8", "synthetic:llama-3.1-8b:F8",
                                         "synthetic:tiny:F8"};
    static const int64_t tokens[] = {1, 8, 64, 65, 512, 2048};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (size_t j = 0; j < 2 * sizeof tokens / sizeof *tokens; j++) {
            const bool by_rows = j % 2;
            made m;
            int n = 0, turned = 0;
            if (by_rows && tokens[j / 2] <= 64) continue; /* chains */
            make_scaled(&m, models[i], tokens[j / 2], by_rows);
            check_list(&m);
            for (int e = 0; e < m.pass.list.n_entries; e++) {
                const launch_entry *entry = &m.pass.list.entries[e];
                n += entry->output == LAUNCH_F8;
                turned += entry->output == LAUNCH_Q;
                if (entry->kernel && entry->kernel->op == OP_LINEAR)
                    assert_int_equal(entry->kernel->takes_f8,
                                     by_rows ? CUDA_F8_ROWS : CUDA_F8_GROUPS);
            }
            assert_true(n >= 2 * m.pass.program.config.n_layers - 1); /* norms, but for the last */
            if (tokens[j / 2] > 64) assert_int_equal(turned, m.pass.program.config.n_layers);
            free_made(&m);
        }
}

/* Up to 64 rows products of weights in FP8 are steps of chains, of a single sequence too, and end
 * where their scales are applied: no kernel takes x in F16 from another. */
static void test_f8_chains(void **state)
{
    (void)state;
    static const int64_t tokens[] = {1, 8, 64};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        made m;
        make(&m, "synthetic:llama-3.1-8b:F8", "sm_90", tokens[i], true);
        check_list(&m);
        const linear_chain *chain = first_chain(&m);
        assert_non_null(chain);
        assert_int_equal(chain->packed, CHAIN_PACKED_IN_F8);
        assert_int_equal(chain->steps[0].kind, CHAIN_ROWS);
        const chain_packed *qkv = &chain->steps[1].of.product.packed;
        assert_int_equal(qkv->n_groups, (4096 + 2 * 1024) / PACKED_GROUP_ROWS);
        assert_int_equal(qkv->kind[0], PACKED_F8);
        assert_int_equal(qkv->first[1], INT32_MAX); /* q, k and v are one */
        assert_true(qkv->scales[0] > qkv->from[0]);
        for (int e = 0; e < m.pass.list.n_entries; e++) {
            const launch_entry *entry = &m.pass.list.entries[e];
            assert_true(entry->chain || entry->kernel == NULL || entry->kernel->op != OP_LINEAR);
            if (entry->chain) assert_int_equal(entry->output, LAUNCH_PLAIN);
        }
        free_made(&m);
    }
}

/* The chain that decoding of nine sequences begins with: rows, QKV, rope, attention, ... */
static void test_first_chain(void **state)
{
    (void)state;
    made m;
    make(&m, "synthetic:smollm2-135m", "sm_90", 9, true);
    const launch_entry *first = &m.pass.list.entries[0];
    assert_true(first->chain);
    assert_true(first->follows);
    const linear_chain *chain = chain_of(&m, first);
    assert_int_equal(chain->n_steps, 6);
    assert_int_equal(chain->steps[0].kind, CHAIN_ROWS);
    assert_int_equal(chain->steps[2].kind, CHAIN_ROPE);
    assert_int_equal(chain->steps[3].kind, CHAIN_ATTENTION);
    assert_int_equal(m.pass.program.nodes[m.pass.list.step_nodes[first->step + 3]].op,
                     OP_PAGED_PREFILL);
    strbuf text = {0};
    launch_list_print(&m.pass.setting, &m.pass.list, &text);
    assert_non_null(strstr(strbuf_text(&text), "0  embedding..0.attn_allreduce: chain"));
    assert_non_null(strstr(strbuf_text(&text), "(0.attention)"));
    strbuf_free(&text);
    free_made(&m);
}

/* Each change of a right chain is found, and the message says where. */
static void test_wrong_chains(void **state)
{
    (void)state;
    qp_error error;
    made m;
    make(&m, "synthetic:smollm2-135m", "sm_90", 9, true);
    const linear_chain *right = chain_of(&m, &m.pass.list.entries[0]);
    static linear_chain wrong;
    assert_ok(chain_verify(right, 132, &error));
#define WRONG(step, ...)                                                                           \
    do {                                                                                           \
        wrong = *right;                                                                            \
        __VA_ARGS__;                                                                               \
        assert_int_equal(chain_verify(&wrong, 132, &error), QP_INVALID);                           \
        assert_non_null(strstr(error.message, step));                                              \
    } while (0)
    WRONG("has 0 steps", wrong.n_steps = 0);
    WRONG("77 steps", wrong.n_steps = CHAIN_MAX_STEPS + 1);
    WRONG("stages", wrong.weight_stages = 5);
    WRONG("counters", wrong.arrived = NULL);
    WRONG("step 0", wrong.steps[0].blocks = 133);
    WRONG("step 0", wrong.steps[0].blocks = 0);
    WRONG("step 0", wrong.steps[0].of.rows.narrowed = NULL);
    WRONG("step 0", wrong.steps[0].of.rows.table = NULL, wrong.steps[0].of.rows.residual = NULL);
    WRONG("step 1", wrong.steps[0].of.rows.narrowed += 8);
    WRONG("step 1", wrong.steps[1].of.product.n_depths++);
    WRONG("step 1", wrong.steps[1].of.product.end = CHAIN_PLAIN);
    WRONG("step 1", memset(wrong.steps[1].of.product.x_map, 0, CUDA_MAP_BYTES));
    WRONG("step 1", wrong.n_steps = 2);
    WRONG("step 2", wrong.steps[2].of.rope.parts.n_parts++);
    WRONG("step 2", wrong.steps[2].of.rope.parts.data++);
    WRONG("step 2", wrong.steps[3].of.attention.q++);
    WRONG("step 2", wrong.steps[2].of.rope.q_norm = &error);
    WRONG("step 2", wrong.steps[2].of.rope.head_dim = 264);
    WRONG("step 3", wrong.steps[3].of.attention.group = 9);
    WRONG("step 3", wrong.steps[3].of.attention.narrowed = NULL);
    WRONG("step 4", wrong.steps[3].of.attention.group++);
    WRONG("step 5", wrong.steps[5].of.rows.parts.n_features--);
    WRONG("step 5", wrong.steps[5].of.rows.out = NULL);
    WRONG("step 4", wrong.steps[5].kind = 9);
    free_made(&m);
}

/* Batches of quantised weights are chains that read them in their order. With one session a few
 * tokens have the bits of one: no chain. */
static void test_packed_chains(void **state)
{
    (void)state;
    static const int32_t tokens[] = {2, 8, 64};
    qp_error error;
    made m;
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        make(&m, "synthetic:llama-3.1-8b:Q4_K", "sm_90", tokens[i], true);
        const linear_chain *chain = first_chain(&m);
        assert_non_null(chain);
        assert_true(chain->packed);
        const chain_packed *qkv = &chain->steps[1].of.product.packed;
        assert_int_equal(qkv->n_groups, (4096 + 2 * 1024) / PACKED_GROUP_ROWS);
        assert_int_equal(qkv->kind[0], PACKED_Q4);
        static linear_chain wrong;
        wrong = *chain;
        wrong.steps[1].of.product.packed.kind[0] = PACKED_NONE;
        assert_int_equal(chain_verify(&wrong, 132, &error), QP_INVALID);
        wrong = *chain;
        wrong.steps[1].of.product.packed.n_groups--;
        assert_int_equal(chain_verify(&wrong, 132, &error), QP_INVALID);
        free_made(&m);
    }
    make(&m, "synthetic:llama-3.1-8b:Q4_K", "sm_90", 8, false);
    assert_null(first_chain(&m));
    free_made(&m);
}

/* The tiles that the chains of a pass of `tokens` sequences read. */
static void add_tiles(cuda_tiles *tiles, const char *model, int64_t tokens)
{
    qp_error error;
    made m;
    make(&m, model, "sm_90", tokens, true);
    for (int e = 0; e < m.pass.list.n_entries; e++)
        if (m.pass.list.entries[e].chain)
            assert_ok(cuda_tiles_add(tiles, chain_of(&m, &m.pass.list.entries[e]), &error));
    free_made(&m);
}

/* Passes of 2 and of 64 sequences read the same tiles: one of each matrix, and of gate and up
 * together. A chain whose products read them is right, and wrong without their addresses. */
static void test_tiles(void **state)
{
    (void)state;
    qp_error error;
    cuda_tiles tiles = {.area = LAUNCH_TILES};
    add_tiles(&tiles, "synthetic:llama-3.2-1b:BF16", 2);
    assert_int_equal(tiles.n_parts, 16 * 4 + 1);
    const size_t matrices = (size_t)2048 * (16 * (3072 + 2048 + 3 * 8192) + 128256) * 2;
    assert_true(tiles.bytes >= matrices && tiles.bytes < matrices + (1 << 20));
    add_tiles(&tiles, "synthetic:llama-3.2-1b:BF16", 64);
    assert_int_equal(tiles.n_parts, 16 * 4 + 1);
    made m;
    make(&m, "synthetic:llama-3.2-1b:BF16", "sm_90", 8, true);
    static linear_chain own;
    own = *first_chain(&m);
    for (int s = 0; s < own.n_steps; s++) {
        if (own.steps[s].kind != CHAIN_PRODUCT) continue;
        cuda_tiles_take(&tiles, &own.steps[s].of.product);
        assert_true(own.steps[s].of.product.tiled);
        assert_ok(chain_verify(&own, 132, &error));
    }
    own.steps[1].of.product.tiles = 0;
    assert_int_equal(chain_verify(&own, 132, &error), QP_INVALID);
    free_made(&m);
    cuda_tiles_free(NULL, &tiles);
    add_tiles(&tiles, "synthetic:llama-3.1-8b:Q4_0", 8); /* has an order of its own */
    assert_int_equal(tiles.n_parts, 0);
}

/* Attention over heads of 128 is a step while half of a block has at most one of them. */
static void test_wide_heads(void **state)
{
    (void)state;
    static const int32_t tokens[] = {2, 33, 34};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        made m;
        make(&m, "synthetic:llama-3.1-8b:BF16", "sm_90", tokens[i], true);
        const linear_chain *chain = first_chain(&m);
        assert_non_null(chain);
        assert_int_equal(chain->head, tokens[i] * 8 <= 2 * 132 ? 128 : 0);
        free_made(&m);
    }
}

/* What a family's layers have besides a Llama's, as steps of a chain. */
typedef struct family {
    const char *model;
    bool biased, normed, has_no_rope;
    int group;
} family;

static void check_family_step(const family *f, const chain_step *step, int *n_still)
{
    if (step->kind == CHAIN_ROPE) {
        assert_int_equal(step->of.rope.parts.bias != NULL, f->biased);
        assert_int_equal(step->of.rope.q_norm != NULL, f->normed);
        *n_still += step->of.rope.table == NULL;
    } else if (step->kind == CHAIN_ROWS) {
        assert_null(step->of.rows.parts.bias);
    } else if (step->kind == CHAIN_ATTENTION) {
        assert_int_equal(step->of.attention.group, f->group);
    }
}

/* Batches of every dense family are chains: all of a pass but the rows of a quantised embedding,
 * and attention where it is a kernel of its own. */
static void test_families(void **state)
{
    (void)state;
    static const int tokens[] = {2, 8, 33, 64};
    static const family families[] = {
        {"synthetic:qwen2.5-0.5b:BF16", true, false, false, 7},
        {"synthetic:qwen2.5-1.5b:Q4_K+Q6_K", true, false, false, 6},
        {"synthetic:qwen3-0.6b:Q4_K+Q6_K", false, true, false, 2},
        {"synthetic:qwen3-8b:BF16", false, true, false, 4},
        {"synthetic:smollm3-3b:BF16", false, false, true, 4},
        {"synthetic:mistral-7b:BF16", false, false, false, 4},
    };
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        for (size_t j = 0; j < sizeof tokens / sizeof *tokens; j++) {
            made m;
            int n_still = 0;
            make(&m, families[i].model, "sm_90", tokens[j], true);
            check_list(&m);
            for (int e = 0; e < m.pass.list.n_entries; e++) {
                const launch_entry *entry = &m.pass.list.entries[e];
                if (!entry->chain && entry->n_records > 0)
                    assert_true(entry->kernel->op == OP_EMBEDDING ||
                                entry->kernel->op == OP_PAGED_DECODE);
                if (!entry->chain) continue;
                const linear_chain *chain = chain_of(&m, entry);
                for (int s = 0; s < chain->n_steps; s++)
                    check_family_step(&families[i], &chain->steps[s], &n_still);
            }
            assert_int_equal(n_still,
                             families[i].has_no_rope ? m.pass.program.config.n_layers / 4 : 0);
            free_made(&m);
        }
}

/* The attention of a pass of 8 sequences of up to `longest` positions, in a context of 8,192: a
 * step of a chain, or a kernel. */
static bool attends_in_chain(const char *model, int64_t longest)
{
    qp_error error;
    made m = {0};
    launch_list list;
    model_options sizes_only = {.sizes_only = true};
    assert_ok(model_open(model, &sizes_only, &m.model, &error));
    plan_options options = plan_default_options(model_get_config(m.model));
    options.context = 8192;
    options.max_tokens = options.max_sequences = options.max_outputs = 8;
    assert_ok(pass_launches_make(m.model, &options, 8, 8, "sm_90", &m.pass, &error));
    launch_class of = m.pass.list.of;
    of.n_chunks = cuda_decode_chunks(longest);
    assert_ok(launch_list_make(&m.pass.setting, &of, NULL, NULL, &list, &error));
    bool in_chain = true;
    for (int e = 0; e < list.n_entries; e++)
        in_chain =
            in_chain && !(list.entries[e].kernel && list.entries[e].kernel->op == OP_PAGED_DECODE);
    launch_list_free(&list);
    free_made(&m);
    return in_chain;
}

/* A window of 4,096 positions hides nothing from sequences short enough for a chain's attention. */
static void test_windows(void **state)
{
    (void)state;
    assert_true(attends_in_chain("synthetic:mistral-7b-v0.1:BF16", 1500));
    assert_false(attends_in_chain("synthetic:mistral-7b-v0.1:BF16", 1600));
    assert_true(attends_in_chain("synthetic:mistral-7b:BF16", 1500));
}

/* Symbolic addresses keep their offset and differ from real addresses. */
static void test_areas(void **state)
{
    (void)state;
    int area;
    size_t offset;
    assert_true(cuda_area_find(cuda_area_address(7, 4096) + 16, &area, &offset));
    assert_int_equal(area, 7);
    assert_int_equal(offset, 4112);
    assert_false(cuda_area_find(0, &area, &offset));
    assert_false(cuda_area_find(0x7f0012345678, &area, &offset));
    assert_false(cuda_area_find(UINT64_MAX, &area, &offset));
}

/* The blocks of an all_gather of rows x columns, where `beside` ranks share a GPU. */
static unsigned blocks_of_gather(int64_t rows, int64_t columns, int beside)
{
    enum { RANKS_THERE = 8 };
    qp_error error;
    const exchange exchange = {.n_ranks = RANKS_THERE};
    cuda_recording recording = {0};
    cuda_ops ops = {.exchange = &exchange, .beside = beside, .recording = &recording};
    const tensor part = tensor_2d(NULL, DTYPE_F32, rows, columns / RANKS_THERE),
                 out = tensor_2d(NULL, DTYPE_F32, rows, columns);
    assert_ok(cuda_exchange(&ops, "all_gather", &part, &out, 0, &error));
    assert_int_equal(recording.n_records, 1);
    const unsigned blocks = recording.records[0].start.grid[0];
    cuda_recording_free(&recording);
    return blocks;
}

/* A block waits for those of its number on all ranks. Where ranks share a GPU, all of their blocks
 * must be resident: of words up to 5 on each of 132 multiprocessors, of chunks 4. */
static void test_ranks_on_one_gpu_fit(void **state)
{
    (void)state;
    static const struct {
        int64_t rows, columns;
        unsigned alone, most;
    } cases[] = {{1, 128256, 126, EXCHANGE_BLOCKS}, {64, 65536, 512, CHUNKS_BLOCKS}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(blocks_of_gather(cases[i].rows, cases[i].columns, 0), cases[i].alone);
        assert_int_equal(blocks_of_gather(cases[i].rows, cases[i].columns, 1), cases[i].alone);
        for (unsigned beside = 2; beside <= EXCHANGE_RANKS; beside++) {
            const unsigned blocks = blocks_of_gather(cases[i].rows, cases[i].columns, (int)beside);
            assert_true(blocks > 0 && blocks * beside <= cases[i].most);
        }
    }
}

static void test_unknown_architecture(void **state)
{
    (void)state;
    qp_error error;
    strbuf text = {0};
    const cuda_print_options options = {.model = "synthetic:tiny",
                                        .tokens = 1,
                                        .sequences = 1,
                                        .page_size = 16,
                                        .kv_type = "F16",
                                        .arch = "sm_70"};
    assert_int_equal(cuda_print_run(&options, &text, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "sm_70"));
    strbuf_free(&text);
}

/* Launches of kernels whose names begin so. */
static int count_launches(const made *m, const char *name)
{
    const cuda_recording *r = &m->pass.list.recording;
    int n = 0;
    for (int i = 0; i < r->n_records; i++)
        n += strncmp(launch_kernel_name(&r->records[i]), name, strlen(name)) == 0;
    return n;
}

/* The entry of a node of the last layer; its step's name is that of the plan. */
static const launch_entry *last_entry(const made *m, const char *step)
{
    const program *p = &m->pass.program;
    const int node = p->steps[program_find_step(p, step, p->config.n_layers - 1)].first_node;
    for (int e = 0; e < m->pass.list.n_entries; e++)
        if (m->pass.list.entries[e].node == node) return &m->pass.list.entries[e];
    return NULL;
}

/* After the last layer's attention a prompt has only the row whose logits are wanted, gathered from
 * attention's output in BF16 and from x. Where all rows are wanted, and in chains, none is gathered
 * before the layer's end. */
static void test_wanted_rows(void **state)
{
    (void)state;
    static const struct {
        int64_t tokens;
        bool decodes;
        int gathers;
    } passes[] = {{300, false, 3}, {65, false, 3}, {64, false, 2}, {2, false, 2}, {300, true, 2}};
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
        made m;
        make(&m, "synthetic:llama-3.1-8b:BF16", "sm_90", passes[i].tokens, passes[i].decodes);
        if (passes[i].tokens > 64) /* else a chain may have gathered them */
            assert_int_equal(count_launches(&m, "run_embedding"), passes[i].gathers);
        if (passes[i].gathers == 3) {
            const launch_entry *output = last_entry(&m, "attn_output");
            const launch_entry *up = last_entry(&m, "ffn_up"), *down = last_entry(&m, "ffn_down");
            assert_string_equal(output->kernel->name, "cuda_eight");
            assert_string_equal(up->kernel->name, "cuda_eight");
            assert_string_equal(down->kernel->name, "cuda_eight");
            assert_int_equal(output->n_records, 3);
            assert_int_equal(output[-1].output, LAUNCH_BF16); /* attention */
        }
        free_made(&m);
    }
}

/* q, k and v of a prompt by tiles of 192 features where clusters then have less to multiply: 2,048
 * rows of 3,072 features are 128 such tiles for 66 clusters, or 96 of 256. */
static void test_narrow_tiles(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        int64_t tokens;
        int narrow, wide;
    } passes[] = {{"synthetic:llama-3.2-1b:BF16", 2048, 16, 0},
                  {"synthetic:llama-3.2-1b:BF16", 1280, 0, 16}};
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
        made m;
        make(&m, passes[i].model, "sm_90", passes[i].tokens, false);
        assert_int_equal(count_launches(&m, "run_linear_narrow_rope_64"), passes[i].narrow);
        assert_int_equal(count_launches(&m, "run_linear_wide_rope_64"), passes[i].wide);
        free_made(&m);
    }
}

/* Two exchanges a layer where partial sums are added, four where columns are gathered, and the
 * logits are gathered in both unless tokens are chosen; in words for few rows, else in chunks. A
 * norm of up to eight rows is part of the launch that adds them; after the last layer other rows
 * are gathered first. Chains of 9 to 64 rows add them between their steps. Many rows are cut among
 * the ranks up to the last layer, which needs one row of x. */
static void test_ranks_exchange_rows(void **state)
{
    (void)state;
    static const int64_t tokens[] = {1, 8, 16, 64, 2048};
    enum { LAYERS = 16 };
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        for (int cut = PLAN_GATHER; cut <= PLAN_REDUCE; cut++) {
            made m;
            make_rank(&m, "synthetic:llama-3.2-1b:BF16", "sm_90", tokens[i], false, 2,
                      (plan_cut)cut);
            check_list(&m);
            const int sums = cut == PLAN_REDUCE ? 2 * LAYERS : 0;
            const int columns = cut == PLAN_GATHER ? 4 * LAYERS : 0;
            const bool many = tokens[i] == 2048, chained = tokens[i] > 8 && !many;
            const int cut_rows = many && sums > 0 ? sums - 2 : 0;
            const int normed = sums == 0 ? 0 : many ? 1 : tokens[i] <= 8 ? sums - 1 : 0;
            assert_int_equal(count_launches(&m, "run_all_reduce_rows"), cut_rows);
            assert_int_equal(count_launches(&m, "copy to a GPU"), cut_rows);
            assert_int_equal(count_launches(&m, "run_all_reduce_norm"), normed);
            assert_int_equal(count_launches(&m, "run_all_reduce_words"),
                             chained ? 0 : sums - normed - cut_rows);
            assert_int_equal(count_launches(&m, "run_all_reduce_chunks"), 0);
            /* A pass that chooses each sequence's next token exchanges the likeliest ones. */
            const int chooses = tokens[i] == 1;
            assert_int_equal(count_launches(&m, "run_all_gather"),
                             columns + !chooses + (cut_rows > 0));
            assert_int_equal(count_launches(&m, "run_likeliest_of_ranks"), chooses);
            free_made(&m);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_rules_are_told),
        cmocka_unit_test(test_sets_of_rules),
        cmocka_unit_test(test_f8),
        cmocka_unit_test(test_f8_chains),
        cmocka_unit_test(test_first_chain),
        cmocka_unit_test(test_wrong_chains),
        cmocka_unit_test(test_packed_chains),
        cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_wide_heads),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_areas),
        cmocka_unit_test(test_wanted_rows),
        cmocka_unit_test(test_narrow_tiles),
        cmocka_unit_test(test_ranks_exchange_rows),
        cmocka_unit_test(test_ranks_on_one_gpu_fit),
        cmocka_unit_test(test_unknown_architecture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
