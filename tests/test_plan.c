/* The plan of a forward pass: lifetimes as designed, everything there once, and every node a call
 * that its operator accepts. Its memory: test_plan_memory.c.
 */
#include "engine/pages.h"
#include "plan/lifetime.h"
#include "vm/execute.h"

#include "plan_test.h"
#include "lower/lower.h"

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
            plan_cell_text(&cells[(first + i) * p->n_tensors + (int)columns[c]], text);
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
    assert_string_equal(plan_cell_text(&cells[p.n_tensors + PLAN_POSITION_IDS], text), "o");
    for (int i = 0; i < N_LAYER; i++) {
        const int step = N_BEFORE + N_LAYER + i;
        const plan_cell *row = &cells[step * p.n_tensors];
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
    assert_ok(lower_build(&config, NULL, &options, &wide, &error));
    options.act_type = DTYPE_BF16;
    assert_ok(lower_build(&config, NULL, &options, &narrow, &error));
    for (int id = 0; id < wide.n_tensors; id++) {
        const bool halved = id == PLAN_X || id == PLAN_X_NORM || id == PLAN_ATTN || id == PLAN_FFN;
        assert_int_equal(wide.tensors[id].bytes, narrow.tensors[id].bytes << halved);
    }
    assert_true(narrow.arena_bytes < wide.arena_bytes);
    program_free(&wide);
    program_free(&narrow);
    options.fuse = true;
    assert_int_equal(lower_build(&config, NULL, &options, &wide, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "fused operators"));
    options.fuse = false, options.form = PLAN_FLASHINFER;
    assert_int_equal(lower_build(&config, NULL, &options, &wide, &error), QP_UNSUPPORTED);
    options.form = PLAN_PAGED, options.act_type = DTYPE_F16;
    assert_int_equal(lower_build(&config, NULL, &options, &wide, &error), QP_INVALID);
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
        assert_ok(lower_build(&config, NULL, &options, &p, &error));
        assert_ok(lifetime_compute(&p, &cells, &error));
        assert_int_equal(p.n_steps, N_BEFORE + 3 * N_FUSED_LAYER + N_FUSED_AFTER);
        check_rows(&p, cells, 0, before, N_BEFORE, -1);
        for (int i = 0; i < 3; i++)
            check_rows(&p, cells, N_BEFORE + i * N_FUSED_LAYER, fused_layer, N_FUSED_LAYER, i);
        check_rows(&p, cells, N_BEFORE + 3 * N_FUSED_LAYER, fused_after, N_FUSED_AFTER, -1);
        int attention = program_find_step(&p, "attention", 1);
        const plan_cell *cell = &cells[attention * p.n_tensors + PLAN_PART_VALUES];
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
        assert_string_equal(plan_cell_text(&cells[step * p.n_tensors + PLAN_X], text), want[i].x);
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
    for (int id = 0; id < p.n_tensors; id++) {
        plan_kind kind = p.tensors[id].kind;
        bool outlives = kind == PLAN_TABLE || kind == PLAN_CACHE || kind == PLAN_STATE;
        bool alive = outlives;
        for (int step = 0; step < p.n_steps; step++) {
            const plan_cell *c = &cells[step * p.n_tensors + id];
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

/* --- The program ----------------------------------------------------------------------------- */

/* Each view is there once, weights are the model's, and nodes refer to both by number. */
static void a_program_has_everything_once(void **state)
{
    (void)state;
    model *model;
    assert_ok(model_open("synthetic:tiny:Q8_0", NULL, &model, &error));
    plan_options options = plan_default_options(model_get_config(model));
    program p, bare;
    assert_ok(lower_build(model_get_config(model), model, &options, &p, &error));
    assert_ok(lower_build(model_get_config(model), NULL, &options, &bare, &error));
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
    assert_ok(lower_build(model_get_config(model), model, &options, &p, &error));
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
        for (int id = 0; id < p.n_tensors; id++) {
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

/* What differs from a Llama is known of a program, and refused where it is not computed. */
static void other_layers_are_told(void **state)
{
    (void)state;
    static const struct {
        const model_family *family;
        double attention;
        bool other;
        const char *form;
    } cases[] = {{&family_llama, 0, false, NULL},
                 {&family_granite, 0.5, true, NULL},
                 {&family_gemma2, 0, true, "SiLU as its activation"},
                 {&family_glm4, 0, true, "a norm before attention"},
                 {&family_olmo2, 0, true, "a norm before attention"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_config config = small_config();
        config.family = cases[i].family;
        config.scales.attention = cases[i].attention;
        plan_options options = plan_default_options(&config);
        program p;
        assert_ok(lower_build(&config, NULL, &options, &p, &error));
        assert_int_equal(program_is_other(&p), cases[i].other);
        program_free(&p);
        options.ranks = 2;
        assert_ok(lower_build(&config, NULL, &options, &p, &error));
        program_free(&p);
        options.ranks = 1, options.form = PLAN_FLASHINFER;
        const qp_status status = lower_build(&config, NULL, &options, &p, &error);
        assert_int_equal(status, cases[i].form ? QP_UNSUPPORTED : QP_OK);
        if (cases[i].form) assert_non_null(strstr(error.message, cases[i].form));
        program_free(&p);
    }
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
        cmocka_unit_test(a_program_has_everything_once),
        cmocka_unit_test(every_node_binds),
        cmocka_unit_test(other_layers_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
