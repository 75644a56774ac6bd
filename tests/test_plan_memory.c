/* The memory of a plan: an arena in which no two live tensors overlap, a verifier that finds every
 * misplacement, and exact byte counts.
 */
#include "op/norm_qkv_rope/norm_qkv_rope.h"
#include "plan/lifetime.h"
#include "vm/execute.h"

#include "plan_test.h"
#include "lower/lower.h"

static const program_node *node_of(const program *p, int64_t layer, op_code op)
{
    int node = 0;
    while (p->nodes[node].op != op || p->nodes[node].layer != layer)
        node++;
    return &p->nodes[node];
}

/* --- The arena ------------------------------------------------------------------------------- */

static bool in_arena(const program *p, int id)
{
    return p->tensors[id].kind == PLAN_ACTIVATION || p->tensors[id].kind == PLAN_OUTPUT;
}

static bool meet(const program *p, int a, int b)
{
    const plan_tensor *x = &p->tensors[a], *y = &p->tensors[b];
    return x->offset < y->offset + y->bytes && y->offset < x->offset + x->bytes;
}

static bool alive_together(const program *p, const plan_cell *cells, int a, int b)
{
    for (int step = 0; step < p->n_steps; step++) {
        char text[8];
        const plan_cell *row = &cells[step * p->n_tensors];
        if (*plan_cell_text(&row[a], text) && *plan_cell_text(&row[b], text)) return true;
    }
    return false;
}

/* Whether two tensors that are alive in one step share bytes, or one lies outside. */
static bool is_unsound(const program *p, const plan_cell *cells)
{
    for (int a = 0; a < p->n_tensors; a++) {
        if (!in_arena(p, a)) continue;
        if (p->tensors[a].offset + p->tensors[a].bytes > p->arena_bytes) return true;
        for (int b = a + 1; b < p->n_tensors; b++) {
            if (in_arena(p, b) && meet(p, a, b) && alive_together(p, cells, a, b)) return true;
        }
    }
    return false;
}

static void live_tensors_never_meet(void **state)
{
    (void)state;
    random_state = 1;
    for (int i = 0; i < 300; i++) {
        model_config config = random_config();
        plan_options options = random_options(&config);
        program p;
        assert_ok(lower_build(&config, NULL, &options, &p, &error));
        plan_cell *cells;
        assert_ok(lifetime_compute(&p, &cells, &error));
        assert_false(is_unsound(&p, cells));
        size_t most = 0, sum = 0;
        for (int id = 0; id < p.n_tensors; id++) {
            if (!in_arena(&p, id)) continue;
            assert_int_equal(p.tensors[id].offset % 64, 0);
            sum += (p.tensors[id].bytes + 63) / 64 * 64;
            if (p.tensors[id].bytes > most) most = p.tensors[id].bytes;
        }
        assert_true(p.arena_bytes >= most && p.arena_bytes <= sum);
        free(cells);
        program_free(&p);
    }
}

/* Shifts of offsets, and swaps of them: the verifier, which knows no lifetimes, must say exactly
 * what the lifetimes say. */
static void the_verifier_catches_every_misplacement(void **state)
{
    (void)state;
    random_state = 2;
    int harmful = 0, harmless = 0;
    for (int i = 0; i < 150; i++) {
        model_config config = random_config();
        config.n_layers = random_between(1, 2);
        plan_options options = random_options(&config);
        program p;
        assert_ok(lower_build(&config, NULL, &options, &p, &error));
        plan_cell *cells;
        assert_ok(lifetime_compute(&p, &cells, &error));
        for (int k = 0; k < 200; k++) {
            int a = (int)random_between(PLAN_X, p.n_tensors - 1);
            int b = (int)random_between(PLAN_X, p.n_tensors - 1);
            size_t offset_a = p.tensors[a].offset, offset_b = p.tensors[b].offset;
            switch (random_between(0, 3)) {
            case 0: /* anywhere */
                p.tensors[a].offset = (size_t)random_between(0, (int64_t)p.arena_bytes);
                break;
            case 1: /* a little to either side */
                p.tensors[a].offset += (size_t)random_between(0, 128);
                p.tensors[a].offset -= p.tensors[a].offset < 64 ? 0 : 64;
                break;
            case 2: /* the last byte of another tensor, or the one after it */
                p.tensors[a].offset = offset_b + p.tensors[b].bytes - (size_t)random_between(0, 1);
                break;
            default:
                p.tensors[a].offset = offset_b;
                p.tensors[b].offset = offset_a;
            }
            bool unsound = is_unsound(&p, cells);
            bool caught = program_verify(&p, &error) != QP_OK;
            if (caught != unsound)
                fail_msg("plan %d, \"%s\" at %zu, \"%s\" at %zu: %s", i, p.tensors[a].name,
                         p.tensors[a].offset, p.tensors[b].name, p.tensors[b].offset,
                         unsound ? "not caught" : error.message);
            *(unsound ? &harmful : &harmless) += 1;
            p.tensors[a].offset = offset_a;
            p.tensors[b].offset = offset_b;
        }
        assert_ok(program_verify(&p, &error));
        free(cells);
        program_free(&p);
    }
    assert_true(harmful > 1000 && harmless > 1000);
}

/* Steps in a wrong order read what is not there. */
static void the_verifier_catches_wrong_orders(void **state)
{
    (void)state;
    program p = small_plan(1, 0);
    static const struct {
        const char *step;
        int64_t layer;
        const char *tensor, *holds; /* what the next step reads too early */
    } swaps[] = {{"embedding", -1, "x", "nothing"},  {"attn_norm", 0, "x_", "nothing"},
                 {"attn_qkv", 0, "attn", "nothing"}, {"attn_qkv", 1, "attn", "ffn"},
                 {"ffn_up", 1, "ffn", "attn"},       {"final_norm", -1, "x_out", "ffn"},
                 {"lm_head", -1, "logits", "ffn"}};
    for (size_t i = 0; i < sizeof swaps / sizeof *swaps; i++) {
        int s = program_find_step(&p, swaps[i].step, swaps[i].layer);
        program_step first = p.steps[s];
        p.steps[s] = p.steps[s + 1];
        p.steps[s + 1] = first;
        char want[64];
        snprintf(want, sizeof want, "reads tensor \"%s\", but its bytes hold %s", swaps[i].tensor,
                 swaps[i].holds);
        if (program_verify(&p, &error) != QP_INVALID || !strstr(error.message, want))
            fail_msg("%s and the step after it: %s", swaps[i].step, error.message);
        p.steps[s + 1] = p.steps[s];
        p.steps[s] = first;
    }
    program_step embedding = p.steps[1];
    p.steps[1].n_nodes = 0; /* left out */
    assert_int_equal(program_verify(&p, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "attn_norm"));
    assert_non_null(strstr(error.message, "\"x\""));
    assert_non_null(strstr(error.message, "nothing"));
    p.steps[1] = embedding;
    p.arena_bytes--;
    assert_int_equal(program_verify(&p, &error), QP_INVALID);
    program_free(&p);
}

/* --- Bytes ----------------------------------------------------------------------------------- */

static void bytes_are_those_that_are_allocated(void **state)
{
    (void)state;
    random_state = 3;
    for (int i = 0; i < 20; i++) {
        char name[64];
        static const char *const types[] = {"F32", "BF16", "Q8_0"};
        snprintf(name, sizeof name, "synthetic:tiny:%s", types[i % 3]);
        model *model;
        assert_ok(model_open(name, NULL, &model, &error));
        const model_config *config = model_get_config(model);
        plan_options options = random_options(config);
        options.ranks = 1, options.rank = 0;
        options.kv_type = i % 2 ? DTYPE_F16 : DTYPE_F32;
        options.max_outputs = random_between(1, 20);
        program p;
        assert_ok(lower_build(config, NULL, &options, &p, &error));
        program_bytes bytes = program_count_bytes(&p, model_weight_bytes(model));
        executor x;
        assert_ok(executor_init(&x, &p, NULL, 0, NULL, NULL, NULL, &error));
        assert_int_equal(bytes.arena, x.arena.bytes);
        assert_int_equal(bytes.rope_table, x.rope_table.bytes);
        assert_int_equal(bytes.kv_cache, x.k_cache.bytes + x.v_cache.bytes);
        assert_int_equal(bytes.sums, x.sums.bytes);
        assert_int_equal(bytes.state, x.state.bytes);
        assert_int_equal(bytes.state,
                         options.max_sequences * (config->vocab_size * 8 + config->vocab_size / 8));
        assert_int_equal(bytes.total, bytes.weights + bytes.arena + bytes.sums + bytes.kv_cache +
                                          bytes.rope_table + bytes.state + bytes.inputs);
        /* pages x page_size x KV heads x head_dim, two caches a layer */
        int64_t pages = (options.context + options.page_size - 1) / options.page_size;
        int64_t elements = pages * options.max_sequences * options.page_size * 2 * 64;
        assert_int_equal(bytes.kv_cache, elements * (options.kv_type == DTYPE_F32 ? 4 : 2) * 2 * 2);
        uint64_t weights = 0;
        for (int slot = 0; slot < WEIGHT_COUNT; slot++) {
            int64_t layers = weight_get_info((weight_slot)slot)->per_layer ? config->n_layers : 1;
            if (!family_has(config->family, (weight_slot)slot)) continue;
            for (int64_t l = 0; l < layers; l++)
                weights += tensor_bytes(&model_get_weight(model, (weight_slot)slot, l)->weight);
        }
        assert_int_equal(bytes.weights, weights);
        batch b;
        assert_ok(batch_init(&b, &p, &error));
        batch_free(&b);
        executor_free(&x);
        program_free(&p);
        model_close(model);
    }
}

static uint64_t total_at(const model_config *config, plan_options options, int64_t context)
{
    program p;
    options.context = context;
    assert_ok(lower_build(config, NULL, &options, &p, &error));
    uint64_t total = program_count_bytes(&p, 1000).total;
    program_free(&p);
    return total;
}

static void the_largest_context_is_the_largest(void **state)
{
    (void)state;
    model_config config = small_config();
    config.context_length = 700; /* not whole pages */
    plan_options options = plan_default_options(&config);
    options.max_tokens = 32;
    uint64_t whole = total_at(&config, options, 700), previous = 0;
    assert_int_equal(lower_largest_context(&config, &options, 1000, whole), 700);
    assert_int_equal(lower_largest_context(&config, &options, 1000, UINT64_MAX), 700);
    assert_int_equal(lower_largest_context(&config, &options, 1000, 0), 0);
    for (uint64_t available = total_at(&config, options, 16) - 3000; available < whole;
         available += 1777) {
        int64_t largest = lower_largest_context(&config, &options, 1000, available);
        assert_true((uint64_t)largest >= previous);
        assert_int_equal(largest % 16, 0);
        if (largest > 0) assert_true(total_at(&config, options, largest) <= available);
        if (largest + 16 < 700) assert_true(total_at(&config, options, largest + 16) > available);
        previous = (uint64_t)largest;
    }
    assert_true(previous > 600);
}

static void impossible_options_are_named(void **state)
{
    (void)state;
    model_config config = small_config();
    plan_options good = plan_default_options(&config);
    static const struct {
        size_t field;
        const char *message;
    } fields[] = {{offsetof(plan_options, max_tokens), "tokens in a batch"},
                  {offsetof(plan_options, max_sequences), "sequences"},
                  {offsetof(plan_options, max_outputs), "rows of logits"},
                  {offsetof(plan_options, context), "context"},
                  {offsetof(plan_options, page_size), "page size"}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        static const int64_t wrong[] = {0, -1, INT64_MIN, INT64_MAX, (int64_t)1 << 40};
        for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
            plan_options options = good;
            memcpy((char *)&options + fields[i].field, &wrong[k], sizeof wrong[k]);
            program p;
            assert_int_equal(lower_build(&config, NULL, &options, &p, &error), QP_INVALID);
            assert_non_null(strstr(error.message, fields[i].message));
            program_free(&p);
        }
    }
    program p;
    plan_options options = good;
    model_config sliding = config;
    sliding.window = options.context - 1;
    sliding.windowed_unknown = true;
    assert_int_equal(lower_build(&sliding, NULL, &options, &p, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "in layers that quipu does not know"));
    sliding.windowed_unknown = false;
    layer_set_add(&sliding.windowed, 1);
    options.fuse = true;
    assert_ok(lower_build(&sliding, NULL, &options, &p, &error));
    program_free(&p);
    options = good;
    model_config normed = config;
    normed.family = &family_qwen3;
    assert_ok(lower_build(&normed, NULL, &options, &p, &error));
    assert_true(program_find_step(&p, "qk_norm", 0) == program_find_step(&p, "rope", 0) - 1);
    program_free(&p);
    options.fuse = true;
    assert_ok(lower_build(&normed, NULL, &options, &p, &error));
    assert_true(node_of(&p, 0, OP_NORM_QKV_ROPE)->operands[NORM_QKV_ROPE_K_NORM] > 0);
    program_free(&p);
    model_config unrotated = config;
    layer_set_add(&unrotated.no_rope, 1);
    assert_ok(lower_build(&unrotated, NULL, &options, &p, &error));
    assert_true(node_of(&p, 0, OP_NORM_QKV_ROPE)->params[NORM_QKV_ROPE_TURNS] == 1);
    assert_true(node_of(&p, 1, OP_NORM_QKV_ROPE)->params[NORM_QKV_ROPE_TURNS] == 0);
    program_free(&p);
    options = good, options.form = PLAN_PADDED;
    assert_int_equal(lower_build(&unrotated, NULL, &options, &p, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "rotates q and k in every layer"));
    options = good;
    assert_ok(lower_build(&unrotated, NULL, &options, &p, &error));
    assert_true(program_find_step(&p, "rope", 0) > 0);
    assert_int_equal(program_find_step(&p, "rope", 1), -1);
    program_free(&p);
    options = good;
    options.ranks = 9;
    assert_int_equal(lower_build(&config, NULL, &options, &p, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "9 ranks"));
    options.ranks = 2, options.rank = 2;
    assert_int_equal(lower_build(&config, NULL, &options, &p, &error), QP_INVALID);
    options = good, options.kv_type = DTYPE_Q8_0;
    assert_int_equal(lower_build(&config, NULL, &options, &p, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "Q8_0"));
    options = good, options.max_tokens = options.max_outputs = 1 << 20;
    options.max_sequences = 1 << 16, options.context = 1 << 26;
    config.head_dim = 1 << 12, config.n_kv_heads = config.n_heads = 1 << 12;
    config.vocab_size = 1 << 22;
    qp_status status = lower_build(&config, NULL, &options, &p, &error);
    assert_int_equal(status, QP_NO_MEMORY);
    assert_non_null(strstr(error.message, "too large"));
    program_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(live_tensors_never_meet),
        cmocka_unit_test(the_verifier_catches_every_misplacement),
        cmocka_unit_test(the_verifier_catches_wrong_orders),
        cmocka_unit_test(bytes_are_those_that_are_allocated),
        cmocka_unit_test(the_largest_context_is_the_largest),
        cmocka_unit_test(impossible_options_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
