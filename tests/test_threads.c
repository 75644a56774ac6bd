/* The machine `threads`: the same bits as `operators`, and a message that names a stuck wait. */
#include "test.h"

#include "base/cpu.h"
#include "engine/pages.h"
#include "lower/lower.h"
#include "vm/scheduled.h"
#include "schedule/schedule.h"
#include "vm/prefetch.h"
#include "vm/threads.h"

static qp_error error;

/* A tiny model with everything that running it takes, and a batch of two sequences. */
typedef struct bench {
    model *model;
    program program;
    thread_pool *pool;
    executor executor;
    page_pool pages;
    page_list lists[2];
    batch batch;
    progress silent;
} bench;

enum { CONTEXT = 96 };
static const int64_t LENGTHS[2] = {19, 3};
static const int64_t LONG = 75; /* in three parts one full, one begun, one empty */

/* `parts`: of a fused plan; 0: not fused; SUMS + parts: of a plan of sums. */
enum { SUMS = 1000 };

static void bench_open_parts(bench *b, int threads, int64_t parts)
{
    uint32_t features = cpu_features(0);
    assert_ok(model_open("synthetic:tiny:Q8_0", NULL, &b->model, &error));
    plan_options options = plan_default_options(model_get_config(b->model));
    options.max_tokens = CONTEXT;
    options.max_sequences = options.max_outputs = 2;
    options.context = CONTEXT;
    options.fuse = parts > 0;
    options.sums = parts > SUMS;
    options.kv_partitions = parts % SUMS;
    assert_ok(lower_build(model_get_config(b->model), b->model, &options, &b->program, &error));
    assert_ok(thread_pool_create(threads, &b->pool, &error));
    assert_ok(executor_init(&b->executor, &b->program, b->pool, features, NULL, NULL, &b->silent,
                            &error));
    assert_ok(page_pool_init(&b->pages, b->program.options.n_pages, 16, &error));
    assert_ok(batch_init(&b->batch, &b->program, &error));
    batch_clear(&b->batch);
    int64_t row = 0;
    for (int i = 0; i < 2; i++) {
        int32_t tokens[CONTEXT];
        for (int t = 0; t < CONTEXT; t++)
            tokens[t] = (t * 37 + i * 11 + 5) % 256;
        int64_t length = i == 0 && parts > 1 ? LONG : LENGTHS[i];
        assert_ok(page_list_init(&b->lists[i], CONTEXT / 16, &error));
        assert_ok(page_list_resize(&b->lists[i], &b->pages, length, &error));
        batch_add(&b->batch, tokens, length, 0, b->lists[i].pages);
        row += length;
        batch_want(&b->batch, row - 1);
    }
}

static void bench_open(bench *b, int threads)
{
    bench_open_parts(b, threads, 0);
}

static void bench_close(bench *b)
{
    for (int i = 0; i < 2; i++)
        page_list_free(&b->lists[i], &b->pages);
    page_pool_free(&b->pages);
    batch_free(&b->batch);
    executor_free(&b->executor);
    thread_pool_destroy(b->pool);
    program_free(&b->program);
    model_close(b->model);
}

/* Passes of a schedule: the logits of each are those expected, to the bit. */
static void check_passes(bench *b, const schedule_options *options, const float *expected,
                         size_t bytes, int passes)
{
    scheduled scheduled;
    assert_ok(
        scheduled_init(&scheduled, &b->executor, thread_pool_size(b->pool), options, NULL, &error));
    threads_machine *machine;
    assert_ok(threads_machine_create(&scheduled.bound, b->pool, 0, &machine, &error));
    for (int pass = 0; pass < passes; pass++) {
        memset(executor_logits(&b->executor), 0x7f, bytes);
        executor_begin_pass(&b->executor);
        assert_ok(threads_machine_run(machine, b->batch.sizes.of, NULL, &error));
        assert_memory_equal(executor_logits(&b->executor), expected, bytes);
    }
    threads_machine_destroy(machine);
    scheduled_free(&scheduled);
}

/* Every setting and strategy on each number of threads; the fused plan is for the latency setting.
 */
static void check_threads(int threads, int64_t parts)
{
    bench b = {0};
    bench_open_parts(&b, threads, parts);
    size_t bytes = 2 * (size_t)b.program.config.vocab_size * sizeof(float);
    float *expected = malloc(bytes);
    assert_non_null(expected);
    executor_run(&b.executor, &b.batch, 0, b.program.logits_end);
    memcpy(expected, executor_logits(&b.executor), bytes);
    int settings = parts > 0 ? 1 : 2, passes = parts > 0 ? 6 : 20;
    for (int setting = 0; setting < settings; setting++) {
        for (int how = 0; schedule_assignment_name(how); how++) {
            schedule_options options = {.setting = (schedule_setting)setting,
                                        .assignment = (schedule_assignment)how,
                                        .tile = 4,
                                        .last_step = b.program.logits_end};
            check_passes(&b, &options, expected, bytes, passes);
        }
    }
    free(expected);
    bench_close(&b);
}

static void test_same_bits(void **state)
{
    (void)state;
    static const int threads[] = {1, 2, 3, 8};
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        for (int64_t parts = 0; parts <= 3; parts += parts + 1)
            check_threads(threads[i], parts);
        check_threads(threads[i], SUMS + 2);
    }
}

/* A wait that no signal ends is reported with worker, instruction and counter, soon. */
static void test_watchdog(void **state)
{
    (void)state;
    bench b = {0};
    scheduled scheduled;
    bench_open(&b, 2);
    const schedule_options options = {.last_step = b.program.logits_end};
    assert_ok(
        scheduled_init(&scheduled, &b.executor, thread_pool_size(b.pool), &options, NULL, &error));
    schedule *s = &scheduled.schedule;
    int planted = -1;
    for (int i = s->length[1] - 1; i >= 0 && planted < 0; i--) {
        instruction *in = &s->instructions[s->longest + i];
        if (in->waits[0].counter == 0) continue;
        in->waits[0].needed += 1000;
        planted = i;
    }
    assert_true(planted >= 0);
    threads_machine *machine;
    executor_take_inputs(&b.executor, &b.batch);
    assert_ok(threads_machine_create(&scheduled.bound, b.pool, 50000000, &machine, &error));
    assert_int_equal(threads_machine_run(machine, b.batch.sizes.of, NULL, &error), QP_INVALID);
    char where[64];
    snprintf(where, sizeof where, "worker 1 is stuck at instruction %d", planted);
    assert_non_null(strstr(error.message, where));
    threads_machine_destroy(machine);
    scheduled_free(&scheduled);
    bench_close(&b);
}

/* Every instruction's times are in order and inside the pass. */
static void test_timings(void **state)
{
    (void)state;
    bench b = {0};
    scheduled scheduled;
    bench_open(&b, 2);
    const schedule_options options = {.last_step = b.program.logits_end};
    assert_ok(
        scheduled_init(&scheduled, &b.executor, thread_pool_size(b.pool), &options, NULL, &error));
    const schedule *s = &scheduled.schedule;
    instruction_timing *timings = calloc(2 * (size_t)s->longest, sizeof *timings);
    assert_non_null(timings);
    executor_take_inputs(&b.executor, &b.batch);
    threads_machine *machine;
    assert_ok(threads_machine_create(&scheduled.bound, b.pool, 0, &machine, &error));
    assert_ok(threads_machine_run(machine, b.batch.sizes.of, timings, &error));
    threads_machine_destroy(machine);
    for (int w = 0; w < 2; w++) {
        uint64_t last = 0;
        for (int i = 0; i < s->length[w]; i++) {
            const instruction_timing *t = &timings[w * s->longest + i];
            assert_true(last <= t->wait && t->wait <= t->work && t->work <= t->signal);
            assert_true(t->signal <= t->end && (i == 0 || t->wait == last));
            last = t->end;
        }
    }
    free(timings);
    scheduled_free(&scheduled);
    bench_close(&b);
}

/* What is prefetched is the packed weights of the slice that comes next, to the byte. */
static void test_prefetched_weights(void **state)
{
    (void)state;
    bench b = {0};
    scheduled scheduled;
    bench_open(&b, 3);
    const schedule_options options = {.last_step = b.program.logits_end};
    assert_ok(
        scheduled_init(&scheduled, &b.executor, thread_pool_size(b.pool), &options, NULL, &error));
    const schedule *s = &scheduled.schedule;
    prefetch *table;
    assert_ok(prefetch_table(&scheduled.bound, &table, &error));
    const char *packed = b.executor.packed.data, *end = packed + b.executor.packed.bytes;
    int slices = 0;
    for (int w = 0; w < 3; w++) {
        for (int i = 0; i < s->length[w]; i++) {
            const instruction *in = schedule_queue(s, w) + i;
            const prefetch *a = &table[w * s->longest + i];
            if (a->data) assert_true(a->data >= packed && a->data + a->bytes <= end);
            if (in->opcode != OP_LINEAR) {
                assert_ptr_equal(a->data, i + 1 < s->length[w] ? a[1].data : NULL);
                continue;
            }
            const bound_kernel *kernel = &scheduled.kernels[in->node];
            assert_true(kernel->packed && in->units.begin < in->units.end);
            assert_ptr_equal(a->data, (const char *)kernel->packed +
                                          (size_t)in->units.begin * kernel->packed_unit_bytes);
            slices++;
        }
    }
    assert_true(slices > 0);
    free(table);
    scheduled_free(&scheduled);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_watchdog),
        cmocka_unit_test(test_timings),
        cmocka_unit_test(test_prefetched_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
