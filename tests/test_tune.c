/* The search for quicker schedules: comparisons of pairs decide by their interval, neighbours of a
 * schedule have its instructions and are sound, and what is saved runs as any other schedule does.
 */
#include "schedule_test.h"

#include "base/hash.h"
#include "base/paired.h"
#include "inspect/tune.h"
#include "quipu.h"
#include "schedule/neighbour.h"
#include "schedule/predict.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

static qp_error error;

/* A time with noise: most are a little above the least, and one of ten is far above. */
static double noisy(double least, uint64_t *seed)
{
    const double a = (double)(hash_mix(*seed = hash_mix(*seed)) >> 11) * 0x1p-53;
    const double b = (double)(hash_mix(*seed = hash_mix(*seed)) >> 11) * 0x1p-53;
    return least * (1 + 0.05 * a + (b < 0.1 ? 3 * a : 0));
}

/* In how many of 2,000 comparisons of `n` pairs a thing that takes `ratio` of another is called
 * quicker. */
static int called_quicker(double ratio, int n)
{
    int count = 0;
    uint64_t seed = 7;
    for (int trial = 0; trial < 2000; trial++) {
        paired_ratio p = {0};
        for (int i = 0; i < n; i++)
            paired_add(&p, noisy(ratio, &seed), noisy(1, &seed));
        count += paired_is_quicker(&p);
    }
    return count;
}

static void equal_things_are_not_called_quicker(void **state)
{
    (void)state;
    assert_int_equal(called_quicker(0.5, PAIRED_LEAST - 1), 0);
    assert_in_range(called_quicker(1, 8), 0, 30);
    assert_in_range(called_quicker(1, 24), 0, 30);
    assert_in_range(called_quicker(1, PAIRED_MOST), 0, 30);
    assert_in_range(called_quicker(0.9, 24), 1900, 2000);
    assert_in_range(called_quicker(1.1, 24), 0, 0);
    const paired_ratio alike = {.n = 9, .ratio = {1, 1, 1, 1, 1, 1, 1, 1, 1}};
    assert_false(paired_is_quicker(&alike));
    assert_true(paired_of(&(paired_ratio){0}).median == 1);
}

/* A number that does not depend on the order of the instructions. */
static uint64_t sum_of_instructions(const schedule *s)
{
    uint64_t sum = 0;
    for (int w = 0; w < s->options.workers; w++) {
        for (int i = 0; i < s->length[w]; i++) {
            const uint32_t *words = (const uint32_t *)(schedule_queue(s, w) + i);
            uint64_t hash = 0;
            for (int word = 0; word < INSTRUCTION_WORDS; word++)
                hash = hash_mix(hash ^ words[word]);
            sum += hash;
        }
    }
    return sum;
}

static void neighbours_have_the_same_instructions(void **state)
{
    (void)state;
    bench b;
    bench_open(&b, "synthetic:tiny");
    uint64_t seed = 1;
    for (int workers = 1; workers <= 5; workers++) {
        schedule s, next;
        schedule_options options = {.workers = workers};
        assert_ok(schedule_build(&b.program, &options, &s, &error));
        int differ = 0;
        for (int i = 0; i < 40; i++) {
            assert_ok(schedule_neighbour(&s, 1 + i % 5, &seed, &next, &error));
            assert_true(sum_of_instructions(&next) == sum_of_instructions(&s));
            assert_int_equal(next.n_counters, s.n_counters);
            schedule_free(&next);
            assert_ok(schedule_sound_neighbour(&s, 2, &seed, &next, &error));
            if (next.n_counters > 0) assert_ok(schedule_verify(&next, &error));
            differ += next.n_counters > 0 &&
                      (next.longest != s.longest ||
                       memcmp(next.instructions, s.instructions,
                              (size_t)workers * (size_t)s.longest * sizeof(instruction)) != 0);
            schedule_free(&next);
        }
        if (workers > 1) assert_true(differ > 20);
        schedule_free(&s);
    }
    bench_close(&b);
}

/* Half of the work of a worker lies with another: a climb finds that out. */
static void a_climb_finds_a_bad_assignment(void **state)
{
    (void)state;
    bench b;
    bench_open(&b, "synthetic:tiny");
    uint64_t seed = 1;
    schedule s, better;
    schedule_options options = {.workers = 4, .assignment = SCHEDULE_POOL, .memory_fraction = 0.25};
    assert_ok(schedule_build(&b.program, &options, &s, &error));
    schedule_prediction before, after;
    double ns;
    assert_ok(schedule_predict(&s, &before, &error));
    assert_ok(schedule_climb(&s, 400, &seed, &better, &ns, &error));
    assert_ok(schedule_verify(&better, &error));
    assert_ok(schedule_predict(&better, &after, &error));
    assert_true(ns == after.total && after.total < 0.97 * before.total);
    prediction_free(&before);
    prediction_free(&after);
    schedule_free(&better);
    schedule_free(&s);
    bench_close(&b);
}

static qp_status keep_logits(void *context, size_t input, size_t token, const float *logits)
{
    (void)input, (void)token;
    memcpy(context, logits, 512 * sizeof *logits);
    return QP_OK;
}

/* Logits of a token after two others, by the engine's own schedule or by a file's. */
static void take_logits(const char *file, float logits[512])
{
    qp_engine *engine;
    qp_session *session;
    const qp_schedule_options schedule = {.size = sizeof schedule, .file = file};
    const qp_engine_options options = {.size = sizeof options,
                                       .model = "synthetic:tiny",
                                       .device = "cpu",
                                       .exec = "threads",
                                       .threads = 2,
                                       .context = 64,
                                       .chunk = 16,
                                       .schedule = file ? &schedule : NULL};
    const int32_t ids[] = {1, 2, 3};
    assert_ok(qp_engine_open(&options, &engine, &error));
    assert_ok(qp_session_open(engine, &session, &error));
    const qp_input input = {.session = session, .tokens = ids, .count = 3};
    assert_ok(qp_eval(engine, &input, 1, keep_logits, logits, NULL, &error));
    qp_session_close(session);
    qp_engine_close(engine);
}

static void what_is_saved_runs(void **state)
{
    (void)state;
    char path[256];
    float usual[512], tuned[512];
    strbuf text = {0};
    snprintf(path, sizeof path, "%s/quipu-test-tune-%ld", P_tmpdir, (long)getpid());
    tune_options options = {.model = "synthetic:tiny",
                            .threads = 2,
                            .context = 64,
                            .chunk = 16,
                            .seconds = 0.5,
                            .verbose = true,
                            .save = path};
    assert_ok(schedule_tune(&options, &text, &error));
    assert_non_null(strstr(strbuf_text(&text), "pool "));
    assert_non_null(strstr(strbuf_text(&text), " groups of 32 "));
    assert_non_null(strstr(strbuf_text(&text), " candidates, "));
    strbuf_free(&text);
    take_logits(NULL, usual);
    take_logits(path, tuned);
    assert_memory_equal(usual, tuned, sizeof usual);
    const int stopped = 1;
    options.cancel = &stopped;
    unlink(path);
    assert_int_equal(schedule_tune(&options, &text, &error), QP_CANCELLED);
    assert_int_not_equal(access(path, F_OK), 0);
    strbuf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_things_are_not_called_quicker),
        cmocka_unit_test(neighbours_have_the_same_instructions),
        cmocka_unit_test(a_climb_finds_a_bad_assignment),
        cmocka_unit_test(what_is_saved_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
