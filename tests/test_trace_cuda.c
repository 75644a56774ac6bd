/* Times of the megakernel's entries: in order on every block, pass after pass, and no token is
 * another for them. They need a GPU. */
#include "engine_test.h"
#include "generate/engine.h"

#include <stdlib.h>
#include <string.h>

static const int32_t PROMPT[] = {3, 1, 4, 1, 5, 9, 2, 6};
enum { PROMPT_TOKENS = 8, GENERATED = 40, MAX_PASSES = 64 };

static bool gpu_is_here(void)
{
    cuda_device device;
    bool here = cuda_device_open(&device, NULL) == QP_OK && device.major == 9;
    cuda_device_close(&device);
    return here;
}

static qp_engine *open_mega(void)
{
    return open_engine((qp_engine_options){
        .model = "synthetic:tiny:BF16", .device = "cuda", .exec = "mk", .context = 256});
}

/* The likeliest tokens behind the prompt. */
static void generate(qp_engine *engine, int32_t tokens[GENERATED])
{
    qp_error error;
    qp_session *session = open_session(engine);
    qp_sampling sampling;
    size_t count;
    qp_sampling_defaults(engine, &sampling);
    sampling.n_stop_tokens = 0;
    assert_ok(qp_sampling_set(&sampling, QP_TEMPERATURE, 0, QP_FROM_REQUEST, &error));
    qp_generate_options options = {.prompt = PROMPT,
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
    size_t longest = (size_t)mega->arguments.longest, slots = (size_t)mega->n_blocks * longest;
    instruction_timing *timings = calloc(slots, sizeof *timings);
    uint64_t *last = calloc((size_t)mega->n_blocks, sizeof *last);
    mega_fetching *fetching = calloc(slots, sizeof *fetching);
    assert_true(timings && last && fetching);
    for (size_t pass = 0; pass < passes; pass++) {
        assert_ok(cuda_mega_read_timings(mega, pass, timings, fetching, &error));
        for (size_t i = 0; i < slots; i++) {
            const instruction_timing *t = &timings[i];
            uint64_t *before = &last[i / longest];
            assert_true(t->wait > 0 && t->wait >= *before);
            assert_true(t->work >= t->wait && t->signal >= t->work && t->end >= t->signal);
            assert_true(t->end - t->wait < 1000000000 && fetching[i].room_ns < 1000000000);
            *before = t->end;
        }
    }
    free(timings);
    free(last);
    free(fetching);
}

static void test_times_are_in_order(void **state)
{
    (void)state;
    if (!gpu_is_here()) skip();
    qp_error error;
    qp_engine *engine = open_mega();
    int32_t expected[GENERATED], found[GENERATED];
    generate(engine, expected);
    assert_ok(cuda_mega_time(&engine->mega, MAX_PASSES, &error));
    generate(engine, found);
    assert_memory_equal(expected, found, (GENERATED - 1) * sizeof *found);
    assert_int_equal(engine->mega.n_timed, GENERATED - 1);
    check_order(&engine->mega, engine->mega.n_timed);
    qp_engine_close(engine);
}

/* A launch that does not fit is not recorded, and nothing is once nobody asks. */
static void test_no_more_passes_than_asked_for(void **state)
{
    (void)state;
    if (!gpu_is_here()) skip();
    qp_error error;
    qp_engine *engine = open_mega();
    int32_t tokens[GENERATED];
    assert_ok(cuda_mega_time(&engine->mega, 20, &error));
    generate(engine, tokens);
    assert_in_range(engine->mega.n_timed, 1, 20);
    check_order(&engine->mega, engine->mega.n_timed);
    assert_int_equal(cuda_mega_time(&engine->mega, SIZE_MAX / 64, &error), QP_NO_MEMORY);
    cuda_mega_time_no_more(&engine->mega);
    generate(engine, tokens);
    assert_int_equal(engine->mega.n_timed, 0);
    qp_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_times_are_in_order),
        cmocka_unit_test(test_no_more_passes_than_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
