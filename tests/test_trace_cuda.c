/* Traces of a GPU: times in order, slices that do not overlap, tables that add up, and the same
 * tokens as without a trace. Everything except the placing of passes needs a GPU. */
#include "gpu_test.h"
#include "trace_test.h"

#include "machines_test.h"
#include "vm/mega/records.h"

#include <stdlib.h>
#include <string.h>

static const int32_t PROMPT[] = {3, 1, 4, 1, 5, 9, 2, 6};
enum { PROMPT_TOKENS = 8, GENERATED = 40, MAX_PASSES = 64 };

static qp_engine *open_gpu(const char *exec, int workers)
{
    return open_engine((qp_engine_options){.model = "synthetic:tiny:BF16",
                                           .device = "cuda",
                                           .exec = exec,
                                           .workers = workers,
                                           .context = 256});
}

/* The likeliest tokens after the prompt. */
static void generate(qp_engine *engine, int32_t tokens[GENERATED])
{
    qp_error error;
    qp_session *session = open_session(engine);
    qp_sampling sampling = {.size = sizeof sampling};
    size_t count;
    assert_int_equal(qp_sampling_defaults(engine, &sampling, NULL), QP_OK);
    sampling.n_stop_tokens = 0;
    assert_ok(qp_sampling_set(&sampling, QP_TEMPERATURE, 0, QP_FROM_REQUEST, &error));
    qp_generate_options options = {.size = sizeof options,
                                   .prompt = PROMPT,
                                   .n_prompt = PROMPT_TOKENS,
                                   .sampling = &sampling,
                                   .max_tokens = GENERATED,
                                   .eos_interval = 16};
    assert_ok(qp_generate(session, &options, NULL, &error));
    const int32_t *held = qp_session_tokens(session, &count);
    assert_int_equal(count, PROMPT_TOKENS + GENERATED - 1);
    memcpy(tokens, held + PROMPT_TOKENS, (GENERATED - 1) * sizeof *tokens);
    qp_session_close(session);
}

/* Each moment after the one before, on every block, through all passes of a launch. */
static void check_order(const cuda_mega *mega, size_t passes)
{
    qp_error error;
    const schedule *s = &mega->schedule;
    const size_t longest = (size_t)s->longest, workers = (size_t)s->options.workers;
    instruction_timing *timings = calloc(workers * longest, sizeof *timings);
    uint64_t *last = calloc(workers, sizeof *last);
    mega_fetching fetching;
    assert_true(timings && last);
    for (size_t pass = 0; pass < passes; pass++) {
        assert_ok(cuda_mega_read_timings(mega, pass, timings, &fetching, &error));
        assert_true(fetching.room_ns >= 0 && fetching.memory_ns > 0 && fetching.room_ns < 1e9);
        for (size_t w = 0; w < workers; w++) {
            for (int i = 0; i < s->length[w]; i++) {
                const instruction_timing *t = &timings[w * longest + (size_t)i];
                assert_true(t->wait > 0 && t->wait >= last[w] && t->work >= t->wait);
                assert_true(t->signal >= t->work && t->end >= t->signal);
                assert_true(t->end - t->wait < 1000000000);
                last[w] = t->end;
            }
        }
    }
    free(timings);
    free(last);
}

static void test_times_are_in_order(void **state)
{
    (void)state;
    require_gpu();
    qp_error error;
    qp_engine *engine = open_gpu("megakernel", 0);
    int32_t expected[GENERATED], found[GENERATED];
    generate(engine, expected);
    assert_ok(cuda_mega_time(mega_of(engine), MAX_PASSES, &error));
    generate(engine, found);
    assert_memory_equal(expected, found, (GENERATED - 1) * sizeof *found);
    assert_int_equal(mega_of(engine)->n_timed, GENERATED - 1);
    check_order(mega_of(engine), mega_of(engine)->n_timed);
    qp_engine_close(engine);
}

/* A launch that does not fit is not recorded, and none is recorded after timing was turned off. */
static void test_no_more_passes_than_asked_for(void **state)
{
    (void)state;
    require_gpu();
    qp_error error;
    qp_engine *engine = open_gpu("megakernel", 0);
    int32_t tokens[GENERATED];
    assert_ok(cuda_mega_time(mega_of(engine), 20, &error));
    generate(engine, tokens);
    assert_in_range(mega_of(engine)->n_timed, 1, 20);
    check_order(mega_of(engine), mega_of(engine)->n_timed);
    assert_int_equal(cuda_mega_time(mega_of(engine), SIZE_MAX / 64, &error), QP_NO_MEMORY);
    cuda_mega_time_no_more(mega_of(engine));
    generate(engine, tokens);
    assert_int_equal(mega_of(engine)->n_timed, 0);
    qp_engine_close(engine);
}

/* A trace of the same tokens as without one; works: slices of work of each track. */
static qp_trace *trace_tokens(qp_engine *engine, int tracks, int32_t expected[GENERATED],
                              int works[MAX_TRACKS + 1])
{
    qp_error error;
    qp_trace *trace;
    int32_t found[GENERATED];
    generate(engine, expected);
    assert_ok(qp_trace_open(
        engine, &(qp_trace_options){.size = sizeof(qp_trace_options), .max_passes = MAX_PASSES},
        &trace, &error));
    generate(engine, found);
    assert_memory_equal(expected, found, (GENERATED - 1) * sizeof *found);
    cJSON *json = trace_json(trace);
    assert_int_equal(check_tracks(json, tracks, works), GENERATED);
    cJSON_Delete(json);
    return trace;
}

/* Every launch is a slice of the one track, and the tables add up to the passes. */
static void test_operators_are_traced(void **state)
{
    (void)state;
    require_gpu();
    qp_engine *engine = open_gpu("cuda", 0);
    int works[MAX_TRACKS + 1];
    int32_t expected[GENERATED], found[GENERATED];
    qp_trace *trace = trace_tokens(engine, 1, expected, works);
    assert_true(works[1] >= GENERATED * 10);
    char *text;
    print_trace(trace, QP_TRACE_TABLE, &text);
    check_sums(strstr(text, "prompt: 1 pass of 8 tokens"));
    check_sums(strstr(text, "generation: "));
    free(text);
    print_trace(trace, QP_TRACE_HTML, &text);
    assert_non_null(strstr(text, "\"unit\":\"stream\""));
    free(text);
    qp_trace_close(trace);
    generate(engine, found); /* in graphs again */
    assert_memory_equal(expected, found, (GENERATED - 1) * sizeof *found);
    qp_engine_close(engine);
}

/* Every block is a track, and passes are placed one after the other. */
static void test_blocks_are_traced(void **state)
{
    (void)state;
    require_gpu();
    qp_engine *engine = open_gpu("megakernel", 0);
    int works[MAX_TRACKS + 1];
    int32_t expected[GENERATED];
    qp_trace *trace = trace_tokens(engine, mega_of(engine)->n_blocks, expected, works);
    for (int block = 0; block < mega_of(engine)->n_blocks; block++)
        assert_int_equal(works[block + 1],
                         (GENERATED - 1) * mega_of(engine)->schedule.length[block]);
    char *text;
    print_trace(trace, QP_TRACE_TABLE, &text);
    check_sums(strstr(text, "generation: 39 passes of 1 token"));
    assert_non_null(strstr(text, "prompt: 1 pass of 8 tokens"));
    assert_non_null(strstr(text, "norm_mlp"));
    free(text);
    print_trace(trace, QP_TRACE_SVG, &text);
    assert_true(strlen(text) < 200000);
    free(text);
    print_trace(trace, QP_TRACE_HTML, &text);
    assert_non_null(strstr(text, "\"unit\":\"block\""));
    free(text);
    qp_trace_close(trace);
    qp_engine_close(engine);
}

/* Any number of blocks makes the same tokens. */
static void test_any_number_of_blocks(void **state)
{
    (void)state;
    require_gpu();
    static const int workers[] = {4, 5, 7, 31, 64, 131, 132};
    int32_t expected[GENERATED], found[GENERATED];
    qp_engine *engine = open_gpu("megakernel", 0);
    generate(engine, expected);
    qp_engine_close(engine);
    for (size_t i = 0; i < sizeof workers / sizeof *workers; i++) {
        engine = open_gpu("megakernel", workers[i]);
        assert_int_equal(mega_of(engine)->n_blocks, workers[i]);
        generate(engine, found);
        assert_memory_equal(expected, found, (GENERATED - 1) * sizeof *found);
        qp_engine_close(engine);
    }
}

static void check_refused(const char *device, const char *exec, int workers, qp_status status,
                          const char *what)
{
    qp_error error;
    qp_engine *engine = NULL;
    qp_engine_options options = {.size = sizeof options,
                                 .model = "synthetic:tiny:BF16",
                                 .threads = 1,
                                 .device = device,
                                 .exec = exec,
                                 .workers = workers};
    assert_int_equal(qp_engine_open(&options, &engine, &error), status);
    if (!strstr(error.message, what)) fail_msg("no \"%s\" in \"%s\"", what, error.message);
}

static void test_blocks_that_cannot_be_are_refused(void **state)
{
    (void)state;
    check_refused("cpu", NULL, 4, QP_INVALID, "--threads");
    require_gpu();
    check_refused("cuda", "cuda", 4, QP_INVALID, "--workers");
    check_refused("cuda", NULL, 1000, QP_INVALID, "1 to 132 blocks");
    check_refused("cuda", "megakernel", 1, QP_UNSUPPORTED, "a block for every KV head");
    check_refused("cuda", NULL, 3, QP_UNSUPPORTED, "--workers 3 has no meaning");
}

/* A launch's times, as blocks of an arbitrary schedule could have stamped them: each pass lies
 * where its time is, behind the one before, and its slices inside it. */
static void test_passes_are_placed(void **state)
{
    (void)state;
    enum { PASSES = 3, WORKERS = 3 };
    qp_engine *engine =
        open_engine((qp_engine_options){.model = "synthetic:tiny:BF16", .threads = WORKERS});
    const schedule *s = machine_schedule(engine_machine(engine, 0));
    const size_t longest = (size_t)s->longest, slots = WORKERS * longest;
    instruction_timing *timings = calloc(PASSES * slots, sizeof *timings);
    machine_record passes[PASSES] = {0};
    uint64_t at[WORKERS] = {1000, 1010, 1020}, now = 5000000;
    assert_non_null(timings);
    for (int p = 0; p < PASSES; p++) {
        passes[p].timings = timings + (size_t)p * slots;
        for (int w = 0; w < WORKERS; w++) {
            for (int i = 0; i < s->length[w]; i++) {
                uint64_t begin = at[w], step = (uint64_t)(10 + 7 * w);
                passes[p].timings[(size_t)w * longest + (size_t)i] =
                    (instruction_timing){.wait = begin,
                                         .work = begin + step,
                                         .signal = begin + 2 * step,
                                         .end = begin + 3 * step};
                at[w] += 3 * step;
            }
        }
    }
    qp_error error;
    assert_ok(mega_place_records(s, passes, PASSES, now, &error));
    assert_int_equal(passes[PASSES - 1].end, now);
    for (int p = 0; p < PASSES; p++) {
        assert_true(passes[p].begin < passes[p].end);
        if (p > 0) assert_int_equal(passes[p].begin, passes[p - 1].end);
        for (int w = 0; w < WORKERS; w++) {
            uint64_t last = passes[p].begin;
            for (int i = 0; i < s->length[w]; i++) {
                const instruction_timing *t = &passes[p].timings[(size_t)w * longest + (size_t)i];
                assert_true(t->wait >= last && t->work >= t->wait && t->signal >= t->work);
                assert_true(t->end >= t->signal && t->end <= passes[p].end);
                last = t->end;
            }
        }
    }
    free(timings);
    qp_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_times_are_in_order),
        cmocka_unit_test(test_no_more_passes_than_asked_for),
        cmocka_unit_test(test_operators_are_traced),
        cmocka_unit_test(test_blocks_are_traced),
        cmocka_unit_test(test_any_number_of_blocks),
        cmocka_unit_test(test_blocks_that_cannot_be_are_refused),
        cmocka_unit_test(test_passes_are_placed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
