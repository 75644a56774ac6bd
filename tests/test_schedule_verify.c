/* The verifier of schedules, tested by mutations: it must refuse every change that changes an
 * output in some order.
 *
 * A good schedule gets one random change. If the verifier still accepts it, random legal orders of
 * it must all give the reference's bits, in a first pass and in a second. If one does not, or gets
 * stuck, the verifier has missed an error. Refused schedules whose memory accesses stay in bounds
 * are run too, to check that a fair part of the changes does harm.
 */
#include "mutate_schedule.h"
#include "schedule_test.h"

/* What the verifier accepts does not depend on sanitizers, which make a mutation take ten times as
 * long. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MUTATIONS = 160 };
#else
enum { MUTATIONS = 1000 };
#endif
enum { ORDERS = 3 };

static bench tiny;

/* `state`: the parts of a fused plan; none: not fused. */
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

/* The oracle's inputs for two passes are the same: what differs is the machine. */
static bool runs_right(const schedule *s, uint64_t seed)
{
    qp_error error;
    machine_memory memory;
    serial_machine *machine;
    memory_open(&memory, &tiny);
    assert_ok(serial_create(s, &machine, &error));
    void *scratch = aligned_alloc(64, serial_scratch_bytes(s));
    bool right = true;
    for (int pass = 0; pass < 2 && right; pass++) {
        serial_options options = {.scratch = scratch, .seed = seed};
        memory_begin_pass(&memory);
        right =
            serial_run(machine, &memory.bound, tiny.batch.sizes.of, &options, &error) == QP_OK &&
            same_outputs(&tiny, &memory);
        memset(memory.arena, 0xcd, tiny.program.arena_bytes);
    }
    free(scratch);
    memory_close(&memory, &tiny);
    serial_destroy(machine);
    return right;
}

static void test_no_harmful_mutation_is_accepted(void **state)
{
    (void)state;
    int accepted = 0, tried = 0, harmful = 0;
    bench_fill(&tiny, 2, 1);
    bench_run(&tiny);
    for (uint64_t i = 0; i < MUTATIONS; i++) {
        qp_error error;
        schedule s;
        schedule_options options = {.workers = (int)(2 + i % 4),
                                    .setting = (schedule_setting)(i / 4 % 2),
                                    .assignment = (schedule_assignment)(i / 8 % 5),
                                    .tile = 2};
        assert_ok(schedule_build(&tiny.program, &options, &s, &error));
        mutation kind = (mutation)(i % KINDS);
        for (uint64_t attempt = 0; !mutate(&s, kind, hash_random(7, attempt, i)); attempt++)
            continue;
        bool sound = schedule_verify(&s, &error) == QP_OK;
        accepted += sound;
        bool in_bounds = kind == DROP_WAIT || kind == SWAP_KNOTS;
        bool right = true;
        for (uint64_t order = 0; order < (sound ? ORDERS : in_bounds && i % 3 == 0); order++)
            right = right && runs_right(&s, 1 + i * ORDERS + order);
        if (sound && !right) fail_msg("mutation %d of kind %d does harm", (int)i, (int)kind);
        tried += !sound && in_bounds && i % 3 == 0;
        harmful += !right;
        schedule_free(&s);
    }
    print_message("%d accepted; of %d refused ones that were run, %d did harm in one order\n",
                  accepted, tried, harmful);
    assert_true(accepted > 20);
    assert_true(harmful * 10 > tried);
}

/* The next pass would add to what this one has left. */
static void test_sums_that_nobody_clears_are_refused(void **state)
{
    (void)state;
    qp_error error;
    schedule s;
    const schedule_options options = {.workers = 3};
    assert_ok(schedule_build(&tiny.program, &options, &s, &error));
    assert_ok(schedule_verify(&s, &error));
    const int x_next = op_tensor_index(op_get(OP_EMBEDDING_CLEAR), "x_next");
    assert_int_equal(tiny.program.nodes[0].op, OP_EMBEDDING_CLEAR);
    int64_t *rows = &tiny.program.views[tiny.program.nodes[0].operands[x_next]].shape[0];
    --*rows;
    assert_int_equal(schedule_verify(&s, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "no instruction clears \"x_next\""));
    ++*rows;
    schedule_free(&s);
}

int main(void)
{
    static int parts = 3, sums = BENCH_SUMS + 3;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_no_harmful_mutation_is_accepted, open_tiny,
                                        close_tiny),
        cmocka_unit_test_prestate_setup_teardown(test_no_harmful_mutation_is_accepted, open_tiny,
                                                 close_tiny, &parts),
        cmocka_unit_test_prestate_setup_teardown(test_no_harmful_mutation_is_accepted, open_tiny,
                                                 close_tiny, &sums),
        cmocka_unit_test_prestate_setup_teardown(test_sums_that_nobody_clears_are_refused,
                                                 open_tiny, close_tiny, &sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
