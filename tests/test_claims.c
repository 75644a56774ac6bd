/* Shared instructions: their cells cover them exactly, and one worker alone can run a whole pass.
 */
#include "test.h"

#include "lower/lower.h"
#include "schedule/build.h"
#include "vm/claims.h"

static qp_error error;

typedef struct bench {
    model *model;
    program program;
    schedule schedule;
    bound_schedule bound;
    claims *claims;
    int64_t sizes[AXES];
} bench;

enum { TOKENS = 300 };

static void bench_open(bench *b, int workers, bool fuse)
{
    *b = (bench){0};
    assert_ok(model_open("synthetic:tiny:Q8_0", NULL, &b->model, &error));
    plan_options options = plan_default_options(model_get_config(b->model));
    options.max_tokens = options.context = TOKENS;
    options.fuse = fuse;
    assert_ok(lower_build(model_get_config(b->model), b->model, &options, &b->program, &error));
    const schedule_options chosen = {.workers = workers, .last_step = b->program.logits_end};
    assert_ok(schedule_build(&b->program, &chosen, &b->schedule, &error));
    b->bound = (bound_schedule){.schedule = &b->schedule};
    assert_ok(claims_create(&b->bound, &b->claims, &error));
}

static void bench_close(bench *b)
{
    claims_destroy(b->claims);
    schedule_free(&b->schedule);
    program_free(&b->program);
    model_close(b->model);
}

static void begin_pass(bench *b, uint32_t pass, int64_t tokens)
{
    for (int a = 0; a < AXES; a++)
        b->sizes[a] = tokens;
    program_set_outputs(b->sizes, 1);
    b->sizes[AXIS_SEQUENCES] = 1;
    b->sizes[AXIS_SEQUENCE_ENDS] = 2;
    claims_begin(b->claims, pass, b->sizes, false);
}

/* Adds what a cell computes to counts (rows, units); a unit that follows rows is one of row 0. */
static void count_cell(const bench *b, const claimed *of, int32_t number, int64_t width,
                       uint8_t *counts)
{
    const cell cell = cells_at(&of->cut, number);
    const int64_t rows = b->sizes[b->program.nodes[of->in->node].row_axis];
    int64_t row = 0, end = of->in->flags & INSTRUCTION_ROW_SLICES ? rows : 1;
    if (of->cut.block) {
        row = cell.rows.begin;
        end = cell.rows.end;
    }
    for (; row < end; row++)
        for (int64_t unit = cell.begin; unit < cell.end; unit++)
            counts[row * width + unit]++;
}

/* Every unit of a node, for every row, is in one cell of one of its instructions. */
static void check_node(const bench *b, int node)
{
    op_call call;
    program_bind(&b->program, node, NULL, b->sizes, &call);
    const bool columns = op_get(b->program.nodes[node].op)->columns != NULL;
    const int64_t width = call.end;
    const size_t all =
        (size_t)(columns ? b->sizes[b->program.nodes[node].row_axis] : 1) * (size_t)width;
    uint8_t *counts = calloc(all + 1, 1), *ones = malloc(all + 1);
    assert_true(counts && ones);
    memset(ones, 1, all + 1);
    for (int32_t place = 0; place < b->schedule.options.workers * b->schedule.longest; place++) {
        const instruction *in = &b->schedule.instructions[place];
        if (in->opcode == INSTRUCTION_NOOP || in->node != (uint32_t)node) continue;
        assert_true(in->flags & INSTRUCTION_SHARED);
        const claimed of = claims_of(b->claims, place);
        assert_true(of.cut.count >= 1);
        for (int32_t i = 0; i < of.cut.count; i++)
            count_cell(b, &of, i, width, counts);
    }
    assert_memory_equal(counts, ones, all);
    free(counts);
    free(ones);
}

static void test_cells_cover(void **state)
{
    (void)state;
    static const int workers[] = {1, 2, 5, 16};
    static const int64_t tokens[] = {1, 2, 16, 17, 64, 131, TOKENS};
    for (size_t w = 0; w < 2 * sizeof workers / sizeof *workers; w++) {
        bench b;
        bench_open(&b, workers[w / 2], w % 2);
        for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
            begin_pass(&b, (uint32_t)t, tokens[t]);
            for (int node = 0; node < b.schedule.n_nodes; node++)
                if (!program_is_noop(&b.program, node)) check_node(&b, node);
        }
        bench_close(&b);
    }
}

/* Counters of a pass that only worker 0 runs. */
typedef struct lone {
    bench *b;
    uint32_t *counts;
} lone;

static bool is_ready(const void *context, const instruction *in)
{
    const lone *l = context;
    for (int w = 0; w < INSTRUCTION_WAITS; w++) {
        const bool previous = in->flags >> w & 1;
        if (!previous && l->counts[in->waits[w].counter] < in->waits[w].needed) return false;
    }
    return true;
}

static void end_cell(const lone *l, const claimed *of)
{
    if (claims_end(l->b->claims, of, 1)) l->counts[of->in->signal]++;
}

static void run_alone(const lone *l)
{
    const schedule *s = &l->b->schedule;
    claimed of;
    for (int i = 0; i < s->length[0]; i++) {
        const instruction *in = schedule_queue(s, 0) + i;
        for (int w = 0; w < INSTRUCTION_WAITS; w++) {
            while (!(in->flags >> w & 1) && l->counts[in->waits[w].counter] < in->waits[w].needed) {
                assert_true(
                    claims_find(l->b->claims, in->waits[w].counter, is_ready, l, true, &of));
                assert_true(claims_take_last(l->b->claims, &of) >= 0);
                end_cell(l, &of);
            }
        }
        of = claims_of(l->b->claims, i);
        while (claims_take_first(l->b->claims, &of) >= 0)
            end_cell(l, &of);
    }
    const uint32_t last = schedule_queue(s, 0)[s->length[0] - 1].signal;
    while (claims_find(l->b->claims, last, is_ready, l, true, &of)) {
        assert_true(claims_take_last(l->b->claims, &of) >= 0);
        end_cell(l, &of);
    }
}

/* The other workers never come, and every instruction signals once, in every pass. */
static void test_one_worker_runs_all(void **state)
{
    (void)state;
    for (int fuse = 0; fuse < 2; fuse++) {
        bench b;
        bench_open(&b, 5, fuse);
        const size_t counters = (size_t)b.schedule.n_counters;
        lone l = {&b, calloc(counters, sizeof *l.counts)};
        assert_non_null(l.counts);
        for (uint32_t pass = 0; pass < 3; pass++) {
            begin_pass(&b, pass, pass == 1 ? TOKENS : 1);
            memset(l.counts, 0, counters * sizeof *l.counts);
            run_alone(&l);
            for (size_t c = 1; c < counters; c++)
                assert_int_equal(l.counts[c], b.schedule.per_pass[c]);
        }
        free(l.counts);
        bench_close(&b);
    }
}

static bool is_always_ready(const void *context, const instruction *in)
{
    (void)context;
    (void)in;
    return true;
}

/* The norm of a layer is one instruction. Others share its rows in a prompt, and leave one row to
 * its own worker unless they have waited. */
static void test_others_share_a_norm(void **state)
{
    (void)state;
    static const int64_t tokens[] = {1, TOKENS};
    bench b;
    bench_open(&b, 5, false);
    for (uint32_t pass = 0; pass < 2; pass++) {
        int norms = 0;
        begin_pass(&b, pass, tokens[pass]);
        for (int32_t place = 0; place < b.schedule.options.workers * b.schedule.longest; place++) {
            const instruction *in = &b.schedule.instructions[place];
            claimed of;
            if (in->opcode == INSTRUCTION_NOOP || b.program.nodes[in->node].op != OP_RMS_NORM ||
                in->signal == 0)
                continue;
            const bool many = b.sizes[b.program.nodes[in->node].row_axis] > 1;
            norms++;
            assert_int_equal(claims_find(b.claims, in->signal, is_always_ready, NULL, false, &of),
                             many);
            assert_true(claims_find(b.claims, in->signal, is_always_ready, NULL, true, &of));
            assert_int_equal(of.place, place);
            assert_int_equal(of.cut.count > 1, many);
        }
        assert_true(norms > 0);
    }
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cells_cover),
                                       cmocka_unit_test(test_others_share_a_norm),
                                       cmocka_unit_test(test_one_worker_runs_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
