/* Every sentence with which the verifier of schedules refuses, provoked by one change of a good
 * schedule, at the limit that the sentence names; and what it knows of values, against a model that
 * follows each byte of the arena through a serial pass.
 */
#include "schedule_test.h"

#include "op/table.h"
#include "schedule/verify.h"

enum { WORKERS = 3 };

static bench tiny;
static schedule good;
static qp_error error;

static instruction *at(int worker, int place)
{
    return good.instructions + (size_t)worker * (size_t)good.longest + place;
}

static bool has_columns(const instruction *in)
{
    return in->opcode != INSTRUCTION_NOOP && op_get((op_code)in->opcode)->columns;
}

/* ---- Which instruction is changed -------------------------------------------------------------
 */

static bool any(const instruction *in)
{
    return in->opcode != INSTRUCTION_NOOP;
}

static bool is_shared(const instruction *in)
{
    return in->flags & INSTRUCTION_SHARED && in->signal;
}

static bool waits(const instruction *in)
{
    return in->waits[0].counter && !(in->flags & INSTRUCTION_PREVIOUS_0);
}

static bool does_not_wait(const instruction *in)
{
    return any(in) && !in->waits[1].counter;
}

static bool is_cut_by_parts(const instruction *in)
{
    return any(in) && in->parts > 0;
}

static bool needs_all_rows(const instruction *in)
{
    bool needs = false;
    for (int i = 0; has_columns(in) && i < INSTRUCTION_OPERANDS; i++) {
        const program_view *view = &tiny.program.views[in->operands[i]];
        needs |= view->rank && view->shape[0] == -AXIS_SEQUENCE_ENDS;
    }
    return needs;
}

/* A slice of columns that does not begin its rows, so that one with the same rows is before it. */
static bool is_inner(const instruction *in)
{
    return has_columns(in) && in->units.begin > 0;
}

static bool is_first(const instruction *in)
{
    return has_columns(in) && in->units.begin == 0 && in->tokens.begin == 0;
}

static bool ends_its_rows(const instruction *in)
{
    op_call call;
    if (!has_columns(in)) return false;
    program_bind(good.program, (int)in->node, NULL, good.program->capacity.of, &call);
    return in->units.end == call.end && in->units.end - in->units.begin > 1;
}

static bool has_all_rows(const instruction *in)
{
    return has_columns(in) && in->tokens.end == INSTRUCTION_ALL_TOKENS && is_first(in) &&
           !needs_all_rows(in);
}

/* ---- The changes ------------------------------------------------------------------------------
 */

static void unknown_opcode(instruction *in)
{
    in->opcode = OP_COUNT + 1;
}

static void unknown_flag(instruction *in)
{
    in->flags |= 16;
}

static void not_zero(instruction *in)
{
    in->zero = 1;
}

static void foreign_signal(instruction *in)
{
    in->signal = (uint32_t)good.n_counters;
}

static void silent(instruction *in)
{
    in->signal = 0;
}

static void foreign_wait(instruction *in)
{
    in->waits[1].counter = (uint32_t)good.n_counters;
}

static void number_without_counter(instruction *in)
{
    in->waits[1].needed = 1;
}

static void flag_without_counter(instruction *in)
{
    in->flags |= INSTRUCTION_PREVIOUS_1;
}

static void waits_for_none(instruction *in)
{
    in->waits[0].needed = 0;
}

static void waits_for_more(instruction *in)
{
    in->waits[0].needed = good.per_pass[in->waits[0].counter] + 1;
}

static void other_opcode(instruction *in)
{
    in->opcode = (uint16_t)((in->opcode + 1) % OP_COUNT);
}

static void other_step(instruction *in)
{
    in->step++;
}

static void other_layer(instruction *in)
{
    in->layer++;
}

static void other_parameter(instruction *in)
{
    in->params[0] += 1;
}

static void other_operand(instruction *in)
{
    in->operands[0]++;
}

static void one_operand_more(instruction *in)
{
    in->operands[INSTRUCTION_OPERANDS - 1] = 1;
}

static void foreign_node(instruction *in)
{
    in->node = (uint32_t)good.n_nodes;
}

static void rows_before_0(instruction *in)
{
    in->tokens.begin = -1;
}

static void no_rows(instruction *in)
{
    in->tokens.end = in->tokens.begin;
}

static void units_before_0(instruction *in)
{
    in->units.begin = -1;
}

static void other_cut(instruction *in)
{
    in->flags ^= INSTRUCTION_ROW_SLICES;
}

static void parts_and_units(instruction *in)
{
    in->parts = 1;
}

static void no_parts(instruction *in)
{
    in->parts = 0;
}

static void no_units(instruction *in)
{
    in->units.end = in->units.begin;
}

static void some_rows(instruction *in)
{
    in->tokens.end = 1;
}

static void part_past_the_last(instruction *in)
{
    in->part = in->parts;
}

static void part_with_units(instruction *in)
{
    in->units.begin = 1;
}

static void part_without_grain(instruction *in)
{
    in->units.end = 0;
}

static void begins_late(instruction *in)
{
    in->units.begin++;
}

static void begins_early(instruction *in)
{
    in->units.begin--;
}

static void ends_early(instruction *in)
{
    in->units.end--;
}

static void first_row_is_missing(instruction *in)
{
    for (int w = 0; w < good.options.workers; w++) {
        for (int i = 0; i < good.length[w]; i++)
            if (at(w, i)->node == in->node) at(w, i)->tokens.begin = 1;
    }
}

static void last_row_is_missing(instruction *in)
{
    const int32_t rows = (int32_t)tiny.program.capacity.of[tiny.program.nodes[in->node].row_axis];
    for (int w = 0; w < good.options.workers; w++) {
        for (int i = 0; i < good.length[w]; i++)
            if (at(w, i)->node == in->node) at(w, i)->tokens.end = rows - 1;
    }
}

static void waits_for_itself(instruction *in)
{
    in->waits[0] = (instruction_wait){in->signal, good.per_pass[in->signal]};
    in->flags &= (uint16_t)~INSTRUCTION_PREVIOUS_0;
}

static void one_signal_more(instruction *in)
{
    good.per_pass[in->signal]--;
    for (int i = 0; i < good.options.workers * good.longest; i++) {
        for (int w = 0; w < INSTRUCTION_WAITS; w++) {
            instruction_wait *wait = &good.instructions[i].waits[w];
            if (wait->counter == in->signal && wait->needed > good.per_pass[in->signal])
                wait->needed--;
        }
    }
}

static void one_signal_less(instruction *in)
{
    good.per_pass[in->signal]++;
}

static bool signals_beside_others(const instruction *in)
{
    return in->signal && good.per_pass[in->signal] > 1;
}

static bool signals(const instruction *in)
{
    return in->signal && any(in);
}

static const struct refusal {
    const char *sentence;
    bool (*fits)(const instruction *in);
    void (*change)(instruction *in);
} refusals[] = {
    {"its opcode or flags are unknown", any, unknown_opcode},
    {"its opcode or flags are unknown", any, unknown_flag},
    {"its opcode or flags are unknown", any, not_zero},
    {"its signal is not a counter", any, foreign_signal},
    {"it is shared, but does not signal", is_shared, silent},
    {"its wait is not for a counter", does_not_wait, foreign_wait},
    {"a number of signals without a counter", does_not_wait, number_without_counter},
    {"a number of signals without a counter", does_not_wait, flag_without_counter},
    {"it waits for no signals", waits, waits_for_none},
    {"for more than there are in a pass", waits, waits_for_more},
    {"it differs from its node", any, other_opcode},
    {"it differs from its node", any, other_step},
    {"it differs from its node", any, other_layer},
    {"it differs from its node", any, other_parameter},
    {"it differs from its node", any, other_operand},
    {"it differs from its node", any, one_operand_more},
    {"it differs from its node", any, foreign_node},
    {"its rows or units are not a range", any, rows_before_0},
    {"its rows or units are not a range", any, no_rows},
    {"its rows or units are not a range", any, units_before_0},
    {"it is not cut in the way that its operator needs", any, other_cut},
    {"it is not cut in the way that its operator needs", has_columns, parts_and_units},
    {"it is not cut in the way that its operator needs", is_cut_by_parts, no_parts},
    {"it has no units", has_columns, no_units},
    {"its operator needs all rows of the batch", needs_all_rows, some_rows},
    {"its part is not one of its parts", is_cut_by_parts, part_past_the_last},
    {"its part is not one of its parts", is_cut_by_parts, part_with_units},
    {"its part is not one of its parts", is_cut_by_parts, part_without_grain},
    {"its slice does not begin where its neighbour's ends", is_inner, begins_late},
    {"its slice does not begin where its neighbour's ends", is_inner, begins_early},
    {"its slice does not begin where its neighbour's ends", is_first, begins_late},
    {"units beside it are not computed", ends_its_rows, ends_early},
    {"rows before it are not computed", has_all_rows, first_row_is_missing},
    {"of a node are not computed", has_all_rows, last_row_is_missing},
    {"its wait never ends", signals, waits_for_itself},
    {"signals in a pass, expected", signals_beside_others, one_signal_more},
    {"signals in a pass, expected", signals, one_signal_less},
};

static void build(int workers, schedule_setting setting, int64_t tile)
{
    const schedule_options options = {
        .workers = workers, .setting = setting, .tile = tile, .unshared = workers == 1};
    assert_ok(schedule_build(&tiny.program, &options, &good, &error));
    assert_ok(schedule_verify(&good, &error));
}

static void assert_refused(const char *sentence)
{
    assert_int_equal(schedule_verify(&good, &error), QP_INVALID);
    if (!strstr(error.message, sentence)) fail_msg("%s; expected: %s", error.message, sentence);
}

static instruction *find(bool (*fits)(const instruction *in))
{
    for (int w = 0; w < good.options.workers; w++) {
        for (int i = 0; i < good.length[w]; i++)
            if (fits(at(w, i))) return at(w, i);
    }
    return NULL;
}

static bool met[sizeof refusals / sizeof *refusals];

/* Those that the plan has an instruction for. */
static void test_changes_are_refused_by_name(void **state)
{
    (void)state;
    for (size_t r = 0; r < 2 * sizeof refusals / sizeof *refusals; r++) {
        const struct refusal *refusal = &refusals[r / 2];
        build(WORKERS, r % 2 ? SCHEDULE_THROUGHPUT : SCHEDULE_LATENCY, 2);
        instruction *in = find(refusal->fits);
        if (in) {
            refusal->change(in);
            assert_refused(refusal->sentence);
            met[r / 2] = true;
        }
        schedule_free(&good);
    }
}

static void test_every_change_was_made(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof met / sizeof *met; r++)
        if (!met[r]) fail_msg("no instruction for \"%s\"", refusals[r].sentence);
}

static void test_queues_are_measured(void **state)
{
    (void)state;
    build(WORKERS, SCHEDULE_LATENCY, 0);
    const int longest = good.longest, length = good.length[0], counters = good.n_counters;
    good.length[0] = longest + 1;
    assert_refused("instructions");
    good.length[0] = -1;
    assert_refused("schedule: queue 0 has -1 of");
    good.length[0] = length;
    good.options.workers = 0;
    assert_refused("cannot be run");
    good.options.workers = SCHEDULE_MAX_WORKERS + 1;
    assert_refused("cannot be run");
    good.options.workers = WORKERS;
    good.longest = 0;
    assert_refused("cannot be run");
    good.longest = INT32_MAX / SCHEDULE_MAX_WORKERS + 1;
    assert_refused("cannot be run");
    good.longest = longest;
    good.n_counters = 0;
    assert_refused("cannot be run");
    good.n_counters = counters;
    for (int w = 0; w < WORKERS; w++) {
        if (good.length[w] == longest) continue;
        at(w, longest - 1)->cost_ns = 1;
        assert_refused("it is after its queue's end");
        at(w, longest - 1)->cost_ns = 0;
    }
    assert_ok(schedule_verify(&good, &error));
    schedule_free(&good);
}

/* The queue that worker 0 has is worker `worker`'s, and the other way round. */
static void swap_queues(int worker)
{
    for (int i = 0; i < good.longest; i++) {
        const instruction kept = *at(0, i);
        *at(0, i) = *at(worker, i);
        *at(worker, i) = kept;
    }
    const int32_t length = good.length[0];
    good.length[0] = good.length[worker];
    good.length[worker] = length;
}

static int drop_waits_for_the_previous_pass(int worker)
{
    int dropped = 0;
    for (int i = 0; i < good.length[worker]; i++) {
        instruction *in = at(worker, i);
        for (int w = 0; w < INSTRUCTION_WAITS; w++) {
            if (!(in->flags >> w & 1)) continue;
            in->waits[w] = (instruction_wait){0};
            in->flags &= (uint16_t) ~(INSTRUCTION_PREVIOUS_0 << w);
            dropped++;
        }
    }
    return dropped;
}

/* Without its waits for the previous pass a worker may begin too early, whatever its number. */
static void test_every_worker_waits_for_the_previous_pass(void **state)
{
    (void)state;
    int refused = 0;
    for (int i = 0; i < WORKERS * WORKERS; i++) {
        const int worker = i / WORKERS;
        build(WORKERS, SCHEDULE_LATENCY, 0);
        swap_queues(i % WORKERS);
        assert_ok(schedule_verify(&good, &error));
        if (drop_waits_for_the_previous_pass(worker)) {
            assert_refused("it may begin before the previous pass has ended");
            refused |= 1 << worker;
        }
        schedule_free(&good);
    }
    assert_int_equal(refused, (1 << WORKERS) - 1);
}

/* ---- Rows -------------------------------------------------------------------------------------
 */

/* The boundary between two tiles of rows of a node moves by one: readers of the tile before it now
 * miss a row that they do not wait for, or the node reads one. A move by nothing is no change. */
static void test_tiles_that_overlap_by_a_row_need_an_order(void **state)
{
    (void)state;
    int refused = 0;
    for (int node = 0; node < tiny.program.n_nodes; node++) {
        build(WORKERS, SCHEDULE_THROUGHPUT, 4);
        int moved = 0;
        for (int i = 0; i < WORKERS * good.longest; i++) {
            instruction *in = &good.instructions[i];
            if (!any(in) || (int)in->node != node || in->parts) continue;
            if (in->tokens.end == 4) in->tokens.end = 5, moved++;
            if (in->tokens.begin == 4) in->tokens.begin = 5, moved++;
        }
        if (moved && schedule_verify(&good, &error) != QP_OK) {
            if (!strstr(error.message, "without waiting for worker"))
                fail_msg("node %d: %s", node, error.message);
            refused++;
        }
        schedule_free(&good);
    }
    print_message("%d of %d nodes\n", refused, tiny.program.n_nodes);
    assert_true(refused > 0);
}

/* ---- Values -----------------------------------------------------------------------------------
 */

/* A model of the arena in a serial pass: for each byte of a row the area whose value it holds. */
typedef struct shadow {
    int *owner; /* [arena bytes]; 0: nobody */
} shadow;

static bool is_in_arena(const program_view *view)
{
    return tiny.program.areas[view->area].base == BASE_ARENA;
}

/* [begin, end) of the arena: the view's columns of the first row. */
static void span_of(const program_view *view, uint64_t span[2])
{
    const program_area *area = &tiny.program.areas[view->area];
    uint64_t bytes = dtype_block_bytes(view->type);
    for (int d = 1; d < view->rank; d++)
        bytes *= (uint64_t)view->shape[d];
    span[0] = area->offset + view->offset;
    span[1] = span[0] + bytes;
}

static bool holds(const shadow *s, const program_view *view)
{
    uint64_t span[2];
    span_of(view, span);
    for (uint64_t b = span[0]; b < span[1]; b++)
        if (s->owner[b] != view->area + 1) return false;
    return true;
}

static void run_node(shadow *s, const program_node *node)
{
    const op_info *op = op_get(node->op);
    for (int i = 0; i < OP_MAX_TENSORS; i++) {
        const program_view *view = &tiny.program.views[node->operands[i]];
        if (!node->operands[i] || !op_writes(op->tensors[i].direction) || !is_in_arena(view))
            continue;
        const program_area *area = &tiny.program.areas[view->area];
        for (uint64_t b = area->offset; b < area->offset + area->bytes; b++)
            if (s->owner[b] != view->area + 1) s->owner[b] = 0;
        uint64_t span[2];
        span_of(view, span);
        for (uint64_t b = span[0]; b < span[1]; b++)
            s->owner[b] = view->area + 1;
    }
}

static bool is_alike(const program_view *a, const program_view *b)
{
    return a->rank == b->rank && a->type == b->type &&
           memcmp(a->shape, b->shape, sizeof a->shape) == 0;
}

/* Whether the schedule is sound if a node reads another view in place of its operand. */
static bool accepts(int node, int operand, uint16_t view)
{
    program_node *n = &tiny.program.nodes[node];
    const uint16_t kept = n->operands[operand];
    n->operands[operand] = view;
    for (int i = 0; i < good.length[0]; i++)
        if (any(at(0, i)) && (int)at(0, i)->node == node) at(0, i)->operands[operand] = view;
    const bool sound = schedule_verify(&good, &error) == QP_OK;
    n->operands[operand] = kept;
    for (int i = 0; i < good.length[0]; i++)
        if (any(at(0, i)) && (int)at(0, i)->node == node) at(0, i)->operands[operand] = kept;
    return sound;
}

/* One worker has an order, so that only values decide: what the model says of each view that a node
 * might read, the verifier says too. */
static void test_reads_find_their_values(void **state)
{
    (void)state;
    build(1, SCHEDULE_LATENCY, 0);
    shadow model = {calloc(tiny.program.arena_bytes, sizeof(int))};
    int right = 0, wrong = 0;
    for (int n = 0; n < good.n_nodes; n++) {
        if (program_is_noop(&tiny.program, n)) continue;
        const program_node *node = &tiny.program.nodes[n];
        const op_info *op = op_get(node->op);
        for (int i = 0; i < OP_MAX_TENSORS; i++) {
            const program_view *own = &tiny.program.views[node->operands[i]];
            if (!node->operands[i] || op->tensors[i].direction != OP_IN || !is_in_arena(own) ||
                own->shape[0] >= 0)
                continue;
            for (int v = 1; v < tiny.program.n_views; v++) {
                const program_view *view = &tiny.program.views[v];
                if (!is_in_arena(view) || !is_alike(own, view) || view->shape[0] >= 0) continue;
                const bool expected = holds(&model, view), found = accepts(n, i, (uint16_t)v);
                if (expected != found)
                    fail_msg("node %d (%s), operand %d, view %d of \"%s\": %s; %s", n, op->name, i,
                             v, tiny.program.areas[view->area].name,
                             expected ? "holds its value" : "holds none",
                             found ? "accepted" : error.message);
                *(expected ? &right : &wrong) += 1;
            }
        }
        run_node(&model, node);
    }
    print_message("%d reads of a value, %d of none\n", right, wrong);
    assert_true(right > 10 && wrong > 0);
    free(model.owner);
    schedule_free(&good);
}

/* A view that reads a column after those that were written, and sums of the next pass. */
static void test_reads_of_sums(void **state)
{
    (void)state;
    const int last = tiny.program.n_views;
    program_view *views = calloc((size_t)last + 1, sizeof *views);
    memcpy(views, tiny.program.views, (size_t)last * sizeof *views);
    tiny.program.views = views;
    build(1, SCHEDULE_LATENCY, 0);
    int read = 0;
    for (int n = 0; n < good.n_nodes; n++) {
        const program_node *node = &tiny.program.nodes[n];
        const op_info *op = op_get(node->op);
        for (int i = 0; i < OP_MAX_TENSORS; i++) {
            const program_view *own = &views[node->operands[i]];
            program_area *area = &tiny.program.areas[own->area];
            if (!node->operands[i] || op->tensors[i].direction != OP_IN || area->base != BASE_SUMS)
                continue;
            area->base = BASE_SUMS_NEXT;
            assert_refused("it reads the next pass's sums");
            area->base = BASE_SUMS;
            views[last] = *own;
            views[last].offset += dtype_block_bytes(own->type);
            assert_false(accepts(n, i, (uint16_t)last));
            assert_non_null(
                strstr(error.message, "bytes that no instruction of this pass has written"));
            read++;
        }
    }
    assert_true(read > 0);
    schedule_free(&good);
    free(views);
}

/* ---- Suite ------------------------------------------------------------------------------------
 */

static int open_tiny(void **state)
{
    bench_open_parts(&tiny, "synthetic:tiny:F32", *state ? *(const int *)*state : 0, BENCH_CONTEXT);
    return 0;
}

static int close_tiny(void **state)
{
    (void)state;
    bench_close(&tiny);
    return 0;
}

int main(void)
{
    static int sums = BENCH_SUMS + 3, parts = 3;
#define OVER(test, plan) cmocka_unit_test_prestate_setup_teardown(test, open_tiny, close_tiny, plan)
    const struct CMUnitTest tests[] = {
        OVER(test_changes_are_refused_by_name, NULL),
        OVER(test_changes_are_refused_by_name, &parts),
        OVER(test_changes_are_refused_by_name, &sums),
        cmocka_unit_test(test_every_change_was_made),
        OVER(test_queues_are_measured, NULL),
        OVER(test_every_worker_waits_for_the_previous_pass, NULL),
        OVER(test_every_worker_waits_for_the_previous_pass, &parts),
        OVER(test_tiles_that_overlap_by_a_row_need_an_order, NULL),
        OVER(test_reads_find_their_values, NULL),
        OVER(test_reads_find_their_values, &parts),
        OVER(test_reads_of_sums, &sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
