/* Schedules: built for any number of workers, sound, and with the plan's bits in any legal
 * order. */
#include "schedule_test.h"

#include "base/clock.h"

/* The plan as it is for many tokens, fused in one part, in three with room for them, and of sums.
 */
enum { TINY, FUSED, SPLIT, SUMS, BENCHES };
static bench benches[BENCHES];
#define tiny benches[TINY]

static int open_tiny(void **state)
{
    (void)state;
    bench_open(&benches[TINY], "synthetic:tiny:BF16");
    bench_open_parts(&benches[FUSED], "synthetic:tiny:BF16", 1, BENCH_CONTEXT);
    bench_open_parts(&benches[SPLIT], "synthetic:tiny:BF16", 3, 200);
    bench_open_parts(&benches[SUMS], "synthetic:tiny:BF16", BENCH_SUMS + 2, BENCH_CONTEXT);
    return 0;
}

static int close_tiny(void **state)
{
    (void)state;
    for (int i = 0; i < BENCHES; i++)
        bench_close(&benches[i]);
    return 0;
}

static void test_record_is_32_words(void **state)
{
    (void)state;
    assert_int_equal(sizeof(instruction), 128);
    instruction in = {.waits = {{1, 3}, {2, 1}}, .flags = INSTRUCTION_PREVIOUS_1};
    assert_int_equal(instruction_target(&in, 0, 0, 3), 3);
    assert_int_equal(instruction_target(&in, 0, 7, 3), 24);
    assert_int_equal(instruction_target(&in, 1, 0, 4), 0);
    assert_int_equal(instruction_target(&in, 1, 5, 4), 17);
    assert_true(instruction_reached(3, 3));
    assert_false(instruction_reached(2, 3));
    /* past 2^32: the target has gone round, or the count has too */
    assert_false(instruction_reached(UINT32_MAX, 2));
    assert_true(instruction_reached(2, UINT32_MAX));
}

static void test_parts_cover_all_units_once(void **state)
{
    (void)state;
    for (int parts = 1; parts < 9; parts++) {
        for (int32_t rows = 0; rows < 7; rows++) {
            for (int32_t grain = 1; grain < 4; grain++) {
                int64_t next = 2 < rows ? 2 * 5 : rows * 5;
                for (int part = 0; part < parts; part++) {
                    instruction in = {.part = (uint16_t)part,
                                      .parts = (uint16_t)parts,
                                      .units.end = grain,
                                      .tokens = {2, 5}};
                    int64_t begin, end;
                    instruction_units(&in, rows * 5, rows, &begin, &end);
                    assert_int_equal(begin, next);
                    assert_true(end >= begin);
                    next = end;
                }
                assert_int_equal(next, (rows < 5 ? rows : 5) * 5);
            }
        }
    }
}

static void build(const bench *b, int workers, int setting, int assignment, schedule *s)
{
    qp_error error;
    schedule_options options = {.workers = workers,
                                .setting = (schedule_setting)setting,
                                .assignment = (schedule_assignment)assignment,
                                .tile = 4};
    assert_ok(schedule_build(&b->program, &options, s, &error));
}

static void test_every_strategy_is_sound(void **state)
{
    (void)state;
    static const int workers[] = {1, 2, 3, 8, 33, 132, 1024};
    for (size_t w = 0; w < sizeof workers / sizeof *workers; w++) {
        for (int i = 0; i < BENCHES; i++) {
            for (int setting = 0; schedule_setting_name(setting); setting++) {
                for (int assignment = 0; schedule_assignment_name(assignment); assignment++) {
                    schedule s;
                    qp_error error;
                    build(&benches[i], workers[w], setting, assignment, &s);
                    assert_ok(schedule_verify(&s, &error));
                    schedule_free(&s);
                }
            }
        }
    }
}

/* A prompt of two sequences, a step of both, a step of one, on one schedule. */
static void check_orders(bench *b, int workers, int setting, int assignment,
                         const int64_t counts[3][2])
{
    qp_error error;
    schedule s;
    machine_memory memory;
    serial_machine *machine;
    build(b, workers, setting, assignment, &s);
    assert_ok(serial_create(&s, &machine, &error));
    memory_open(&memory, b);
    bench_clear_caches(b);
    b->past[0] = b->past[1] = 0;
    void *scratch = aligned_alloc(64, serial_scratch_bytes(&s));
    for (int pass = 0; pass < 3; pass++) {
        bench_fill(b, counts[pass][0], counts[pass][1]);
        bench_run(b);
        serial_options options = {.scratch = scratch,
                                  .seed = (uint64_t)pass * 31 + (uint64_t)workers};
        memory_begin_pass(&memory);
        assert_ok(serial_run(machine, &memory.bound, b->batch.sizes.of, &options, &error));
        assert_true(same_outputs(b, &memory));
    }
    free(scratch);
    memory_close(&memory, b);
    serial_destroy(machine);
    schedule_free(&s);
}

static void test_any_order_gives_the_same_bits(void **state)
{
    (void)state;
    static const int64_t counts[][2] = {{7, 4}, {1, 1}, {0, 1}};
    static const int workers[] = {1, 3, 8, 50};
    for (size_t w = 0; w < sizeof workers / sizeof *workers; w++) {
        for (int setting = 0; schedule_setting_name(setting); setting++) {
            for (int assignment = 0; schedule_assignment_name(assignment); assignment++) {
                check_orders(&benches[TINY], workers[w], setting, assignment, counts);
                check_orders(&benches[FUSED], workers[w], setting, assignment, counts);
                check_orders(&benches[SUMS], workers[w], setting, assignment, counts);
            }
        }
    }
}

/* Contexts that fill one part, two and three, to the last place and one past it. */
static void test_parts_of_the_context_in_any_order(void **state)
{
    (void)state;
    static const int64_t counts[][2] = {{128, 64}, {1, 1}, {70, 1}};
    for (int assignment = 0; schedule_assignment_name(assignment); assignment++)
        check_orders(&benches[SPLIT], 3 + assignment, SCHEDULE_LATENCY, assignment, counts);
}

/* Waits of the fused layers: four for all of a step, and by KV head from the norm through
 * attention. */
static void test_attention_waits_by_kv_head(void **state)
{
    (void)state;
    const bench *b = &benches[SPLIT];
    const uint32_t heads = (uint32_t)b->program.config.n_kv_heads;
    schedule s;
    build(b, 8, SCHEDULE_LATENCY, SCHEDULE_RR, &s);
    uint32_t signals[64][8] = {{0}}; /* by node: the counters it signals */
    uint32_t counters[64] = {0};
    assert_true(s.n_nodes <= 64);
    for (int w = 0; w < 8; w++) {
        for (int i = 0; i < s.length[w]; i++) {
            const instruction *in = schedule_queue(&s, w) + i;
            assert_int_not_equal(in->opcode, INSTRUCTION_NOOP);
            uint32_t at = 0;
            while (at < counters[in->node] && signals[in->node][at] != in->signal)
                at++;
            assert_true(at < 8);
            signals[in->node][at] = in->signal;
            if (at == counters[in->node]) counters[in->node]++;
            assert_int_equal(in->waits[1].counter, 0);
        }
    }
    for (int node = 0; node < s.n_nodes; node++) {
        op_code op = s.program->nodes[node].op;
        if (program_is_noop(s.program, node)) continue;
        bool by_head = op == OP_NORM_QKV_ROPE || op == OP_ATTENTION_PARTIAL;
        assert_int_equal(counters[node], by_head ? heads : 1);
    }
    schedule_free(&s);
}

/* In a plan of sums: two waits a layer for all of a step. KV heads add to the residual without
 * waiting for one another, and each worker has one instruction of a node at most, always of the
 * same KV head. */
static void test_sums_wait_for_nobody_who_adds(void **state)
{
    (void)state;
    const bench *b = &benches[SUMS];
    const int64_t heads = b->program.config.n_kv_heads, hidden = b->program.config.hidden_size;
    schedule s;
    build(b, 8, SCHEDULE_LATENCY, SCHEDULE_RR, &s);
    for (int w = 0; w < 8; w++) {
        for (int i = 0; i < s.length[w]; i++) {
            const instruction *in = schedule_queue(&s, w) + i;
            if (in->layer < 0) continue;
            assert_true(i == 0 || in->node != in[-1].node);
            assert_int_equal(in->waits[1].counter, 0);
            if (in->opcode != OP_ATTENTION_OUTPUT) continue;
            assert_int_equal(in->units.begin / hidden, (in->units.end - 1) / hidden);
            assert_int_equal(in->units.begin / hidden, w * heads / 8);
            assert_true(in->waits[0].needed < 8); /* its KV head's parts */
        }
    }
    assert_true(s.n_counters - 1 <= b->program.config.n_layers * (2 + 2 * heads) + 8);
    schedule_free(&s);
}

/* With rr: a segment's end cuts an instruction, but both parts are the same worker's. */
static void check_shares(const bench *b, int64_t group)
{
    schedule s;
    qp_error error;
    const schedule_options options = {.workers = 5, .group = group};
    assert_ok(schedule_build(&b->program, &options, &s, &error));
    assert_true(s.n_nodes <= 64);
    int share[64][5] = {{0}};
    for (int w = 0; w < 5; w++) {
        for (int i = 0; i < s.length[w]; i++) {
            const instruction *in = schedule_queue(&s, w) + i;
            if (in->flags & INSTRUCTION_ROW_SLICES)
                share[in->node][w] += in->units.end - in->units.begin;
        }
    }
    for (int node = 0; node < s.n_nodes; node++) {
        int least = INT32_MAX, most = 0;
        for (int w = 0; w < 5; w++) {
            if (share[node][w] < least) least = share[node][w];
            if (share[node][w] > most) most = share[node][w];
        }
        bool alone = op_get(s.program->nodes[node].op)->grain == 0;
        assert_true(most - least <= (alone ? 1 : group));
    }
    schedule_free(&s);
}

static void test_fused_shares_differ_by_one_group(void **state)
{
    (void)state;
    check_shares(&benches[FUSED], 1);
    check_shares(&benches[FUSED], 16);
    check_shares(&benches[SPLIT], 1);
}

static void test_workers_differ_by_one_group(void **state)
{
    (void)state;
    schedule s;
    qp_error error;
    const schedule_options options = {.workers = 5, .group = 16};
    assert_ok(schedule_build(&tiny.program, &options, &s, &error));
    int least[64], most[64];
    assert_true(s.n_nodes <= 64);
    for (int node = 0; node < s.n_nodes; node++) {
        least[node] = INT32_MAX;
        most[node] = 0;
    }
    for (int w = 0; w < 5; w++) {
        for (int i = 0; i < s.length[w]; i++) {
            const instruction *in = schedule_queue(&s, w) + i;
            if (in->opcode != OP_LINEAR) continue;
            assert_int_equal(in->units.begin % 16, 0);
            int units = in->units.end - in->units.begin;
            if (units < least[in->node]) least[in->node] = units;
            if (units > most[in->node]) most[in->node] = units;
        }
    }
    for (int node = 0; node < s.n_nodes; node++)
        assert_true(most[node] == 0 || most[node] - least[node] <= 16);
    schedule_free(&s);
}

static void test_bad_options_are_refused(void **state)
{
    (void)state;
    const schedule_options bad[] = {
        {.workers = 0},
        {.workers = 1025},
        {.workers = 1, .memory_fraction = 1.5},
        {.workers = 1, .assignment = (schedule_assignment)5},
        {.workers = 1, .setting = (schedule_setting)2},
        {.workers = 1, .tile = -1},
        {.workers = 1, .last_step = 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        schedule s;
        qp_error error = {0};
        assert_int_equal(schedule_build(&tiny.program, &bad[i], &s, &error), QP_INVALID);
        assert_true(strlen(error.message) > 20);
        schedule_free(&s);
    }
}

/* A schedule that ends before the sampling: the host has the logits first. */
static void test_a_schedule_may_end_early(void **state)
{
    (void)state;
    qp_error error;
    schedule s;
    schedule_options options = {.workers = 4, .last_step = tiny.program.logits_end};
    assert_ok(schedule_build(&tiny.program, &options, &s, &error));
    assert_ok(schedule_verify(&s, &error));
    assert_int_equal(s.program->nodes[s.n_nodes - 1].op, OP_LINEAR);
    schedule_free(&s);
}

/* 132 workers of an 8B model in under a second, with much to spare. */
static void check_large(bool fuse, bool sums)
{
    qp_error error;
    model *m;
    program p;
    schedule s;
    model_options sizes_only = {.sizes_only = true};
    assert_ok(model_open("synthetic:llama-3.1-8b", &sizes_only, &m, &error));
    plan_options options = plan_default_options(model_get_config(m));
    options.context = 8192;
    options.fuse = fuse;
    options.sums = sums;
    options.kv_partitions = schedule_kv_partitions(132, model_get_config(m)->n_kv_heads);
    assert_int_equal(options.kv_partitions, 16);
    assert_ok(lower_build(model_get_config(m), m, &options, &p, &error));
    uint64_t begin = clock_ns();
    schedule_options of = {.workers = 132, .assignment = SCHEDULE_DAG, .group = fuse ? 1 : 0};
    assert_ok(schedule_build(&p, &of, &s, &error));
    assert_ok(schedule_verify(&s, &error));
    assert_true(clock_ns() - begin < 3000000000u);
    schedule_free(&s);
    program_free(&p);
    model_close(m);
}

static void test_a_large_model_is_quick(void **state)
{
    (void)state;
    check_large(false, false);
    check_large(true, false);
    check_large(true, true);
}

/* However unequal the costs, and whatever is asked for: queues are padded to the longest. */
static void test_pools_are_bounded(void **state)
{
    (void)state;
    static const double fractions[] = {0, 1e-6, 0.5, 1};
    for (int workers = 1; workers <= 132; workers = workers * 5 / 2 + 1) {
        for (size_t f = 0; f < sizeof fractions / sizeof *fractions; f++) {
            schedule s;
            qp_error error;
            const schedule_options options = {.workers = workers,
                                              .setting = SCHEDULE_THROUGHPUT,
                                              .assignment = SCHEDULE_POOL,
                                              .memory_fraction = fractions[f],
                                              .profile.bytes_per_second = 1e15,
                                              .tile = 1};
            assert_ok(schedule_build(&tiny.program, &options, &s, &error));
            int64_t all = 0;
            for (int w = 0; w < workers; w++)
                all += s.length[w];
            assert_true(s.longest <= 4 * (all / workers + 1));
            schedule_free(&s);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pools_are_bounded),
        cmocka_unit_test(test_record_is_32_words),
        cmocka_unit_test(test_parts_cover_all_units_once),
        cmocka_unit_test(test_every_strategy_is_sound),
        cmocka_unit_test(test_any_order_gives_the_same_bits),
        cmocka_unit_test(test_parts_of_the_context_in_any_order),
        cmocka_unit_test(test_attention_waits_by_kv_head),
        cmocka_unit_test(test_sums_wait_for_nobody_who_adds),
        cmocka_unit_test(test_workers_differ_by_one_group),
        cmocka_unit_test(test_fused_shares_differ_by_one_group),
        cmocka_unit_test(test_bad_options_are_refused),
        cmocka_unit_test(test_a_schedule_may_end_early),
        cmocka_unit_test(test_a_large_model_is_quick),
    };
    return cmocka_run_group_tests(tests, open_tiny, close_tiny);
}
