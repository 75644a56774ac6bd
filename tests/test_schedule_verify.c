/* The verifier of schedules, tested by mutations: it must refuse every change that changes an
 * output in some order.
 *
 * A good schedule gets one random change. If the verifier still accepts it, random legal orders of
 * it must all give the reference's bits, in a first pass and in a second. If one does not, or gets
 * stuck, the verifier has missed an error. Refused schedules whose memory accesses stay in bounds
 * are run too, to check that a fair part of the changes does harm.
 */
#include "schedule_test.h"

#include "base/hash.h"

enum { MUTATIONS = 1000, ORDERS = 3 };

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

typedef enum mutation { DROP_WAIT, SWAP_KNOTS, SHIFT_OFFSET, CHANGE_COUNT, KINDS } mutation;

static instruction *pick(schedule *s, uint64_t random, int *worker, int *place)
{
    do {
        *worker = (int)(random % (uint64_t)s->options.workers);
        random = hash_mix(random);
    } while (s->length[*worker] < 2);
    *place = (int)(random % (uint64_t)(s->length[*worker] - 1));
    return s->instructions + (size_t)*worker * (size_t)s->longest + *place;
}

static void shift(instruction *in, uint64_t random)
{
    const int32_t by = (int32_t)(random % 33) - 16;
    const int32_t end = in->tokens.end > 1 << 20 ? 1 << 20 : in->tokens.end;
    switch (random >> 8 & 7) {
    case 0:
        in->units.begin += by;
        break;
    case 1:
        in->units.end += by;
        break;
    case 2:
        in->units.begin += by;
        in->units.end += by;
        break;
    case 3:
        in->tokens.begin += by;
        break;
    case 4:
        in->tokens.end = end + by;
        break;
    case 5:
        in->operands[random >> 16 & 15] = (uint16_t)(1 + (random >> 20) % 20);
        break;
    case 6:
        in->part = (uint16_t)(in->part + 1);
        break;
    default:
        in->parts = (uint16_t)(in->parts + 1);
    }
}

/* Whether a count beside the instruction's own was changed. */
static bool change_count(schedule *s, instruction *in, uint64_t random)
{
    instruction_wait *wait = &in->waits[random & 1];
    uint32_t counters = (uint32_t)s->n_counters, some = (uint32_t)(random >> 16);
    switch (random >> 8 & 3) {
    case 0:
        wait->needed += some & 1 ? 1u : UINT32_MAX;
        return false;
    case 1:
        wait->counter = some % counters;
        return false;
    case 2:
        in->signal = some % counters;
        return false;
    default:
        s->per_pass[1 + some % (counters - 1)] += 1;
        return true;
    }
}

/* Whether anything is other than before. */
static bool mutate(schedule *s, mutation kind, uint64_t random)
{
    int worker, place;
    instruction *in = pick(s, random, &worker, &place);
    random = hash_mix(random);
    instruction kept = *in;
    bool elsewhere = false;
    if (kind == DROP_WAIT) {
        in->waits[random & 1] = (instruction_wait){0};
        in->flags &= (uint16_t) ~(INSTRUCTION_PREVIOUS_0 << (random & 1));
    } else if (kind == SWAP_KNOTS) {
        *in = in[1];
        in[1] = kept;
    } else if (kind == SHIFT_OFFSET) {
        shift(in, random);
    } else {
        elsewhere = change_count(s, in, random);
    }
    return elsewhere || memcmp(in, &kept, sizeof kept) != 0;
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
