/* The plan of a forward pass: lifetimes as designed, an arena in which no two live tensors overlap,
 * a verifier that finds every misplacement, and exact byte counts.
 */
#include "vm/execute.h"
#include "engine/pages.h"
#include "model/family/family.h"
#include "plan/lifetime.h"
#include "plan/plan.h"

#include "test.h"

static qp_error error;

static model_config small_config(void)
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

static program small_plan(int ranks, int rank)
{
    model_config config = small_config();
    plan_options options = plan_default_options(&config);
    options.ranks = ranks, options.rank = rank;
    options.cut = PLAN_REDUCE;
    program p;
    assert_ok(plan_build(&config, NULL, &options, &p, &error));
    return p;
}

static uint64_t random_state;
static int64_t random_between(int64_t low, int64_t high)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return low + (int64_t)((random_state >> 33) % (uint64_t)(high - low + 1));
}

/* --- Lifetimes ------------------------------------------------------------------------------- */

/* The designed table for one rank, as literals: step, tokens, x, x_, attn, ffn. */
typedef struct table_row {
    const char *step, *tokens, *x, *x_norm, *attn, *ffn;
} table_row;

/* Its columns of positions and of the kind of step, in a layer that is not the last. The design has
 * one operator in attn_qkv and ffn_up, and positions that rope reads; the legend says why the plan
 * differs there. */
static const struct {
    const char *step, *pos;
    bool graph, differs;
} layer_columns[] = {{"attn_norm", "o", false, false},   {"attn_qkv", "o", false, true},
                     {"rope", "r", false, true},         {"attention", "r", true, false},
                     {"attn_output", "o", false, false}, {"attn_allreduce", "o", true, false},
                     {"ffn_norm", "o", false, false},    {"ffn_up", "o", false, true},
                     {"activation", "o", false, false},  {"ffn_down", "o", false, false},
                     {"ffn_allreduce", "o", true, false}};

static const table_row before[] = {{"setup", "+m", "", "", "", ""},
                                   {"embedding", "rx", "+w", "", "", ""}};
static const table_row layer[] = {
    {"attn_norm", "", "r", "+w", "", ""},    {"attn_qkv", "", "o", "rx", "+w", ""},
    {"rope", "", "o", "", "rw", ""},         {"attention", "", "o", "", "rw", ""},
    {"attn_output", "", "rw", "", "rx", ""}, {"attn_allreduce", "", "rw", "", "", ""},
    {"ffn_norm", "", "r", "+w", "", ""},     {"ffn_up", "", "o", "rx", "", "+w"},
    {"activation", "", "o", "", "", "rw"},   {"ffn_down", "", "rw", "", "", "rx"},
    {"ffn_allreduce", "", "rw", "", "", ""}};
static const table_row after[] = {{"final_norm", "", "rx", "", "", ""},
                                  {"lm_head", "", "", "", "", ""},
                                  {"adjust_logits", "", "", "", "", ""},
                                  {"sample", "", "", "", "", ""}};
enum { N_BEFORE = 2, N_LAYER = 11, N_AFTER = 4 };

static void check_rows(const program *p, const plan_cell *cells, int first, const table_row *rows,
                       int count, int64_t of_layer)
{
    static const plan_tensor_id columns[] = {PLAN_TOKEN_IDS, PLAN_X, PLAN_X_NORM, PLAN_ATTN,
                                             PLAN_FFN};
    for (int i = 0; i < count; i++) {
        const program_step *step = &p->steps[first + i];
        assert_string_equal(step->name, rows[i].step);
        assert_int_equal(step->layer, of_layer);
        const char *const want[] = {rows[i].tokens, rows[i].x, rows[i].x_norm, rows[i].attn,
                                    rows[i].ffn};
        for (int c = 0; c < 5; c++) {
            char text[8];
            plan_cell_text(&cells[(first + i) * PLAN_TENSOR_COUNT + (int)columns[c]], text);
            if (strcmp(text, want[c]) != 0)
                fail_msg("step %s, tensor %s: \"%s\" instead of \"%s\"", step->name,
                         p->tensors[columns[c]].name, text, want[c]);
        }
    }
}

static void lifetimes_are_those_of_the_design(void **state)
{
    (void)state;
    program p = small_plan(1, 0);
    plan_cell *cells;
    assert_ok(lifetime_compute(&p, &cells, &error));
    assert_int_equal(p.n_steps, N_BEFORE + 3 * N_LAYER + N_AFTER);
    check_rows(&p, cells, 0, before, N_BEFORE, -1);
    for (int i = 0; i < 3; i++)
        check_rows(&p, cells, N_BEFORE + i * N_LAYER, layer, N_LAYER, i);
    check_rows(&p, cells, N_BEFORE + 3 * N_LAYER, after, N_AFTER, -1);
    free(cells);
    program_free(&p);
}

static void positions_and_kinds_are_those_of_the_design(void **state)
{
    (void)state;
    program p = small_plan(1, 0);
    plan_cell *cells;
    char text[8];
    assert_ok(lifetime_compute(&p, &cells, &error));
    assert_string_equal(plan_cell_text(&cells[PLAN_POSITION_IDS], text), "+m");
    assert_string_equal(plan_cell_text(&cells[PLAN_TENSOR_COUNT + PLAN_POSITION_IDS], text), "o");
    for (int i = 0; i < N_LAYER; i++) {
        const int step = N_BEFORE + N_LAYER + i;
        const plan_cell *row = &cells[step * PLAN_TENSOR_COUNT];
        const bool is_rope = strcmp(layer_columns[i].step, "rope") == 0;
        assert_string_equal(p.steps[step].name, layer_columns[i].step);
        assert_int_equal(p.steps[step].graph != layer_columns[i].graph,
                         layer_columns[i].differs && !is_rope);
        assert_string_equal(plan_cell_text(&row[PLAN_POSITION_IDS], text),
                            is_rope ? "o" : layer_columns[i].pos);
        if (is_rope) /* the same positions, as rows of the table */
            assert_string_equal(plan_cell_text(&row[PLAN_ROPE_ROWS], text), layer_columns[i].pos);
    }
    free(cells);
    program_free(&p);
}

/* What layers work on takes half the bytes in BF16; what comes after them stays float32. */
static void activations_in_bf16_take_half(void **state)
{
    (void)state;
    model_config config = small_config();
    plan_options options = plan_default_options(&config);
    program wide, narrow;
    assert_ok(plan_build(&config, NULL, &options, &wide, &error));
    options.act_type = DTYPE_BF16;
    assert_ok(plan_build(&config, NULL, &options, &narrow, &error));
    for (int id = 0; id < PLAN_TENSOR_COUNT; id++) {
        const bool halved = id == PLAN_X || id == PLAN_X_NORM || id == PLAN_ATTN || id == PLAN_FFN;
        assert_int_equal(wide.tensors[id].bytes, narrow.tensors[id].bytes << halved);
    }
    assert_true(narrow.arena_bytes < wide.arena_bytes);
    program_free(&wide);
    program_free(&narrow);
    options.fuse = true;
    assert_int_equal(plan_build(&config, NULL, &options, &wide, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "fused operators"));
    options.fuse = false, options.form = PLAN_FLASHINFER;
    assert_int_equal(plan_build(&config, NULL, &options, &wide, &error), QP_UNSUPPORTED);
    options.form = PLAN_PAGED, options.act_type = DTYPE_F16;
    assert_int_equal(plan_build(&config, NULL, &options, &wide, &error), QP_INVALID);
}

/* The same of the fused pass, with attention in parts and in one. */
static const table_row fused_layer[] = {
    {"attn_qkv", "", "r", "", "+w", ""},     {"attention", "", "o", "", "rw", ""},
    {"attn_output", "", "rw", "", "rx", ""}, {"attn_allreduce", "", "rw", "", "", ""},
    {"ffn_up", "", "r", "", "", "+w"},       {"ffn_down", "", "rw", "", "", "rx"},
    {"ffn_allreduce", "", "rw", "", "", ""}};
static const table_row fused_after[] = {{"lm_head", "", "rx", "", "", ""},
                                        {"adjust_logits", "", "", "", "", ""},
                                        {"sample", "", "", "", "", ""}};
enum { N_FUSED_LAYER = 7, N_FUSED_AFTER = 3 };

static void fused_lifetimes_are_those_of_the_design(void **state)
{
    (void)state;
    for (int parts = 1; parts <= 4; parts += 3) {
        model_config config = small_config();
        plan_options options = plan_default_options(&config);
        options.fuse = true, options.kv_partitions = parts;
        program p;
        plan_cell *cells;
        char text[8];
        assert_ok(plan_build(&config, NULL, &options, &p, &error));
        assert_ok(lifetime_compute(&p, &cells, &error));
        assert_int_equal(p.n_steps, N_BEFORE + 3 * N_FUSED_LAYER + N_FUSED_AFTER);
        check_rows(&p, cells, 0, before, N_BEFORE, -1);
        for (int i = 0; i < 3; i++)
            check_rows(&p, cells, N_BEFORE + i * N_FUSED_LAYER, fused_layer, N_FUSED_LAYER, i);
        check_rows(&p, cells, N_BEFORE + 3 * N_FUSED_LAYER, fused_after, N_FUSED_AFTER, -1);
        int attention = program_find_step(&p, "attention", 1);
        const plan_cell *cell = &cells[attention * PLAN_TENSOR_COUNT + PLAN_PART_VALUES];
        assert_string_equal(plan_cell_text(cell, text), parts > 1 ? "+wx" : "");
        assert_int_equal(p.tensors[PLAN_X_NORM].kind, PLAN_ABSENT);
        assert_int_equal(p.steps[attention].n_nodes, parts > 1 ? 2 : 1);
        free(cells);
        program_free(&p);
    }
}

/* Every rank but the first leaves the residual to the first: its x ends at each norm and begins
 * again as a partial sum. */
static void other_ranks_make_partial_sums(void **state)
{
    (void)state;
    program p = small_plan(2, 1);
    assert_int_equal(p.config.n_heads, 4);
    assert_int_equal(p.config.n_kv_heads, 2);
    assert_int_equal(p.config.intermediate_size, 86);
    assert_int_equal(p.whole.n_heads, 8);
    plan_cell *cells;
    assert_ok(lifetime_compute(&p, &cells, &error));
    static const struct {
        const char *step, *x;
    } want[] = {{"attn_norm", "rx"}, {"attn_qkv", ""},   {"attn_output", "+w"},
                {"ffn_norm", "rx"},  {"ffn_down", "+w"}, {"ffn_allreduce", "rw"},
                {"ffn_up", ""},      {"activation", ""}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        int step = program_find_step(&p, want[i].step, 1);
        char text[8];
        assert_string_equal(plan_cell_text(&cells[step * PLAN_TENSOR_COUNT + PLAN_X], text),
                            want[i].x);
    }
    free(cells);
    program_free(&p);
    program first = small_plan(2, 0); /* as a single rank's table */
    assert_ok(lifetime_compute(&first, &cells, &error));
    check_rows(&first, cells, N_BEFORE, layer, N_LAYER, 0);
    free(cells);
    program_free(&first);
}

/* What a cell says must agree with itself and with its neighbours, for every tensor. */
static void every_cell_is_consistent(void **state)
{
    (void)state;
    program p = small_plan(2, 1);
    plan_cell *cells;
    assert_ok(lifetime_compute(&p, &cells, &error));
    for (int id = 0; id < PLAN_TENSOR_COUNT; id++) {
        plan_kind kind = p.tensors[id].kind;
        bool outlives = kind == PLAN_TABLE || kind == PLAN_CACHE || kind == PLAN_STATE;
        bool alive = outlives;
        for (int step = 0; step < p.n_steps; step++) {
            const plan_cell *c = &cells[step * PLAN_TENSOR_COUNT + id];
            program_access access = program_step_access(&p, step, (plan_tensor_id)id);
            assert_int_equal(c->read, access.read);
            assert_int_equal(c->written, access.write);
            if (c->created) assert_false(alive);
            if (c->created) alive = true;
            if (c->read || c->written || c->kept || c->destroyed) assert_true(alive);
            assert_int_equal(c->kept,
                             alive && !c->created && !c->read && !c->written && !c->destroyed);
            if (c->destroyed) alive = false;
            if (c->mapped) assert_true(kind == PLAN_INPUT && step == 0);
        }
        assert_int_equal(alive, outlives || kind == PLAN_OUTPUT);
    }
    free(cells);
    program_free(&p);
}

static void a_layer_has_two_all_reduces(void **state)
{
    (void)state;
    program p = small_plan(2, 0);
    int count[3] = {0};
    for (int s = 0; s < p.n_steps; s++) {
        for (int n = 0; n < p.steps[s].n_nodes; n++) {
            if (p.nodes[p.steps[s].first_node + n].op == OP_ALL_REDUCE) {
                count[p.steps[s].layer]++;
                assert_true(p.steps[s].graph);
            }
        }
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(count[i], 2);
    assert_int_equal(program_find_step(&p, "attn_norm", 3), -1);
    assert_int_equal(program_find_step(&p, "lm_head", 0), -1);
    program_free(&p);
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
        const plan_cell *row = &cells[step * PLAN_TENSOR_COUNT];
        if (*plan_cell_text(&row[a], text) && *plan_cell_text(&row[b], text)) return true;
    }
    return false;
}

/* Whether two tensors that are alive in one step share bytes, or one lies outside. */
static bool is_unsound(const program *p, const plan_cell *cells)
{
    for (int a = 0; a < PLAN_TENSOR_COUNT; a++) {
        if (!in_arena(p, a)) continue;
        if (p->tensors[a].offset + p->tensors[a].bytes > p->arena_bytes) return true;
        for (int b = a + 1; b < PLAN_TENSOR_COUNT; b++) {
            if (in_arena(p, b) && meet(p, a, b) && alive_together(p, cells, a, b)) return true;
        }
    }
    return false;
}

static model_config random_config(void)
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

static plan_options random_options(const model_config *c)
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

static void live_tensors_never_meet(void **state)
{
    (void)state;
    random_state = 1;
    for (int i = 0; i < 300; i++) {
        model_config config = random_config();
        plan_options options = random_options(&config);
        program p;
        assert_ok(plan_build(&config, NULL, &options, &p, &error));
        plan_cell *cells;
        assert_ok(lifetime_compute(&p, &cells, &error));
        assert_false(is_unsound(&p, cells));
        size_t most = 0, sum = 0;
        for (int id = 0; id < PLAN_TENSOR_COUNT; id++) {
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
        assert_ok(plan_build(&config, NULL, &options, &p, &error));
        plan_cell *cells;
        assert_ok(lifetime_compute(&p, &cells, &error));
        for (int k = 0; k < 200; k++) {
            int a = (int)random_between(PLAN_X, PLAN_TENSOR_COUNT - 1);
            int b = (int)random_between(PLAN_X, PLAN_TENSOR_COUNT - 1);
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
            fail_msg("%s and the step behind it: %s", swaps[i].step, error.message);
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
        assert_ok(plan_build(config, NULL, &options, &p, &error));
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
    assert_ok(plan_build(config, NULL, &options, &p, &error));
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
    assert_int_equal(plan_largest_context(&config, &options, 1000, whole), 700);
    assert_int_equal(plan_largest_context(&config, &options, 1000, UINT64_MAX), 700);
    assert_int_equal(plan_largest_context(&config, &options, 1000, 0), 0);
    for (uint64_t available = total_at(&config, options, 16) - 3000; available < whole;
         available += 1777) {
        int64_t largest = plan_largest_context(&config, &options, 1000, available);
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
            assert_int_equal(plan_build(&config, NULL, &options, &p, &error), QP_INVALID);
            assert_non_null(strstr(error.message, fields[i].message));
            program_free(&p);
        }
    }
    program p;
    plan_options options = good;
    model_config sliding = config;
    sliding.window = options.context - 1;
    sliding.windowed_unknown = true;
    assert_int_equal(plan_build(&sliding, NULL, &options, &p, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "in layers that quipu does not know"));
    sliding.windowed_unknown = false;
    layer_set_add(&sliding.windowed, 1);
    options.fuse = true;
    assert_int_equal(plan_build(&sliding, NULL, &options, &p, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "slides over the latest"));
    options.context--;
    assert_ok(plan_build(&sliding, NULL, &options, &p, &error));
    program_free(&p);
    options = good;
    model_config normed = config;
    normed.family = &family_qwen3;
    assert_ok(plan_build(&normed, NULL, &options, &p, &error));
    assert_true(program_find_step(&p, "qk_norm", 0) == program_find_step(&p, "rope", 0) - 1);
    program_free(&p);
    options.fuse = true;
    assert_int_equal(plan_build(&normed, NULL, &options, &p, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "norms of q and k"));
    model_config unrotated = config;
    layer_set_add(&unrotated.no_rope, 1);
    assert_int_equal(plan_build(&unrotated, NULL, &options, &p, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "rotates q and k in every layer"));
    options = good, options.form = PLAN_PADDED;
    assert_int_equal(plan_build(&unrotated, NULL, &options, &p, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "rotates q and k in every layer"));
    options = good;
    assert_ok(plan_build(&unrotated, NULL, &options, &p, &error));
    assert_true(program_find_step(&p, "rope", 0) > 0);
    assert_int_equal(program_find_step(&p, "rope", 1), -1);
    program_free(&p);
    options = good;
    options.ranks = 9;
    assert_int_equal(plan_build(&config, NULL, &options, &p, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "9 ranks"));
    options.ranks = 2, options.rank = 2;
    assert_int_equal(plan_build(&config, NULL, &options, &p, &error), QP_INVALID);
    options = good, options.kv_type = DTYPE_Q8_0;
    assert_int_equal(plan_build(&config, NULL, &options, &p, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "Q8_0"));
    options = good, options.max_tokens = options.max_outputs = 1 << 20;
    options.max_sequences = 1 << 16, options.context = 1 << 26;
    config.head_dim = 1 << 12, config.n_kv_heads = config.n_heads = 1 << 12;
    config.vocab_size = 1 << 22;
    qp_status status = plan_build(&config, NULL, &options, &p, &error);
    assert_int_equal(status, QP_NO_MEMORY);
    assert_non_null(strstr(error.message, "too large"));
    program_free(&p);
}

/* --- The program ----------------------------------------------------------------------------- */

/* Each view is there once, weights are the model's, and nodes refer to both by number. */
static void a_program_has_everything_once(void **state)
{
    (void)state;
    model *model;
    assert_ok(model_open("synthetic:tiny:Q8_0", NULL, &model, &error));
    plan_options options = plan_default_options(model_get_config(model));
    program p, bare;
    assert_ok(plan_build(model_get_config(model), model, &options, &p, &error));
    assert_ok(plan_build(model_get_config(model), NULL, &options, &bare, &error));
    for (int a = 1; a < p.n_views; a++)
        for (int b = 1; b < a; b++) {
            const program_view *x = &p.views[a], *y = &p.views[b];
            assert_false(x->area == y->area && x->offset == y->offset && x->rank == y->rank &&
                         memcmp(x->shape, y->shape, sizeof x->shape) == 0 &&
                         memcmp(x->stride, y->stride, sizeof x->stride) == 0);
        }
    assert_int_equal(p.n_weights, 3 + 9 * p.config.n_layers); /* tiny has a head of its own */
    for (int n = 0; n < p.n_nodes; n++)
        for (int i = 0; i < op_n_tensors(op_get(p.nodes[n].op)); i++) {
            const program_weight *of = program_weight_of(&p, n, i);
            if (!of) continue;
            const tensor *stored =
                &model_get_weight(model, (weight_slot)of->slot, of->layer)->weight;
            assert_ptr_equal(of->whole.data, stored->data);
            assert_int_equal(program_find_weight(&p, of->slot, of->layer, of->bias),
                             program_area_of(&p, n, i)->index);
            assert_int_equal(of->stored, program_area_of(&p, n, i)->index);
            assert_int_equal(program_operand(&p, n, i)->type, stored->type);
            assert_int_equal(program_operand(&bare, n, i)->type, DTYPE_F32);
            assert_int_equal(program_operand(&bare, n, i)->shape[0], stored->shape[0]);
            assert_int_equal(program_tensor_of(&p, n, i), -1);
        }
    assert_true(p.fingerprint != bare.fingerprint);
    program_free(&bare);
    program_free(&p);
    model_close(model);
}

/* Every node of a plan is a call that its operator's own check accepts, at any size. */
static void bind_every_node(bool fuse, bool sums, int64_t kv_partitions)
{
    model *model;
    assert_ok(model_open("synthetic:tiny:F32", NULL, &model, &error));
    plan_options options = plan_default_options(model_get_config(model));
    options.max_tokens = 20, options.context = 64;
    options.fuse = fuse, options.sums = sums, options.kv_partitions = kv_partitions;
    program p;
    assert_ok(plan_build(model_get_config(model), model, &options, &p, &error));
    executor x;
    assert_ok(executor_init(&x, &p, NULL, 0, NULL, NULL, NULL, &error));
    batch b;
    assert_ok(batch_init(&b, &p, &error));
    page_pool pool;
    assert_ok(page_pool_init(&pool, p.options.n_pages, 16, &error));
    page_list pages;
    assert_ok(page_list_init(&pages, 4, &error));
    int64_t past = 0;
    static const int64_t counts[] = {20, 1, 13, 20, 10};
    static const int32_t ids[20] = {1, 2, 3};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        batch_clear(&b);
        assert_ok(page_list_resize(&pages, &pool, past + counts[i], &error));
        batch_add(&b, ids, counts[i], past, pages.pages);
        batch_want(&b, counts[i] - 1);
        for (int id = 0; id < PLAN_TENSOR_COUNT; id++) {
            if (p.tensors[id].kind == PLAN_INPUT) x.memory.data[id] = b.of[id];
        }
        for (int n = 0; n < p.n_nodes; n++) {
            op_call call;
            program_bind(&p, n, &x.memory, b.sizes.of, &call);
            const op_info *op = op_get(p.nodes[n].op);
            if (op_bind(op, &call, NULL, &error) != QP_OK)
                fail_msg("node %d, %s: %s", n, op->name, error.message);
        }
        past += counts[i];
    }
    page_list_free(&pages, &pool);
    assert_int_equal(pool.n_free, pool.n_pages);
    page_pool_free(&pool);
    batch_free(&b);
    executor_free(&x);
    program_free(&p);
    model_close(model);
}

static void every_node_binds(void **state)
{
    (void)state;
    bind_every_node(false, false, 1);
    bind_every_node(true, false, 1);
    bind_every_node(true, false, 3);
    bind_every_node(false, true, 1);
    bind_every_node(false, true, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lifetimes_are_those_of_the_design),
        cmocka_unit_test(positions_and_kinds_are_those_of_the_design),
        cmocka_unit_test(activations_in_bf16_take_half),
        cmocka_unit_test(fused_lifetimes_are_those_of_the_design),
        cmocka_unit_test(other_ranks_make_partial_sums),
        cmocka_unit_test(every_cell_is_consistent),
        cmocka_unit_test(a_layer_has_two_all_reduces),
        cmocka_unit_test(live_tensors_never_meet),
        cmocka_unit_test(the_verifier_catches_every_misplacement),
        cmocka_unit_test(the_verifier_catches_wrong_orders),
        cmocka_unit_test(bytes_are_those_that_are_allocated),
        cmocka_unit_test(the_largest_context_is_the_largest),
        cmocka_unit_test(impossible_options_are_named),
        cmocka_unit_test(a_program_has_everything_once),
        cmocka_unit_test(every_node_binds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
