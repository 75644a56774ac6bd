/* batch_invariant on the GPU: a sequence's logits have the same bits alone, beside others, and
 * after a prompt that was read in other company. */
#include "engine/engine.h"
#include "engine_test.h"
#include "gpu_test.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 64, STEPS = 5, PROMPT = 40, CONTEXT = 640 };

/* What a call of qp_step() hands to a sequence. */
typedef struct answer {
    size_t vocab_size;
    float *logits; /* [STEPS][vocab_size] */
    int n_rows;
    int32_t tokens[STEPS + 1];
    int n_tokens;
} answer;

static qp_status on_logits(void *context, size_t token, const float *row)
{
    answer *a = context;
    (void)token;
    if (a->n_rows < STEPS)
        memcpy(a->logits + (size_t)a->n_rows++ * a->vocab_size, row, a->vocab_size * sizeof *row);
    return QP_OK;
}

static qp_status on_token(void *context, int32_t token)
{
    answer *a = context;
    if (a->n_tokens <= STEPS) a->tokens[a->n_tokens++] = token;
    return QP_OK;
}

static qp_engine *open_invariant(const char *model, int64_t sessions)
{
    return open_engine((qp_engine_options){.model = model,
                                           .context = CONTEXT,
                                           .max_sessions = sessions,
                                           .max_outputs = sessions,
                                           .chunk = 128,
                                           .batch_invariant = true,
                                           .device = "cuda"});
}

static qp_sampler *open_greedy(qp_engine *engine)
{
    qp_error error;
    qp_sampling sampling = {.size = sizeof sampling};
    qp_sampler *sampler;
    assert_ok(qp_sampling_defaults(engine, &sampling, &error));
    sampling.value[QP_TEMPERATURE] = 0;
    sampling.n_stop_tokens = 0;
    assert_ok(qp_sampler_open(engine, &sampling, &sampler, &error));
    return sampler;
}

/* The first sequence's logits beside n - 1 others, from STEPS passes; free() them. */
static float *logits_beside(qp_engine *engine, int n)
{
    static int32_t prompts[MOST][PROMPT + MOST];
    static answer answers[MOST];
    qp_session *sessions[MOST];
    qp_sampler *samplers[MOST];
    qp_sequence sequences[MOST];
    qp_error error;
    const size_t vocab_size = (size_t)qp_engine_get_info(engine)->vocab_size;
    float *rows = calloc((size_t)n * STEPS * vocab_size, sizeof *rows);
    assert_non_null(rows);
    for (int i = 0; i < n; i++) {
        for (int t = 0; t < PROMPT + i; t++)
            prompts[i][t] = (i * 131 + t * 17 + 3) % 500;
        answers[i] =
            (answer){.vocab_size = vocab_size, .logits = rows + (size_t)i * STEPS * vocab_size};
        sessions[i] = open_session(engine);
        samplers[i] = open_greedy(engine);
    }
    while (answers[0].n_rows < STEPS) {
        for (int i = 0; i < n; i++) {
            answer *a = &answers[i];
            const bool begun = a->n_tokens > 0;
            const size_t held = sessions[i]->count;
            sequences[i] =
                (qp_sequence){.size = sizeof(qp_sequence),
                              .session = sessions[i],
                              .tokens = begun ? &a->tokens[a->n_tokens - 1] : prompts[i] + held,
                              .count = begun ? 1 : (size_t)(PROMPT + i) - held,
                              .sampler = samplers[i],
                              .max_tokens = 1,
                              .on_logits = on_logits,
                              .on_token = on_token,
                              .context = a};
        }
        assert_ok(qp_step(engine, sequences, (size_t)n, &error));
    }
    for (int i = 0; i < n; i++) {
        qp_sampler_close(samplers[i]);
        qp_session_close(sessions[i]);
    }
    return rows;
}

static void check(const char *model, int64_t slots, const int *beside)
{
    qp_engine *engine = open_invariant(model, slots);
    const size_t bytes = STEPS * (size_t)qp_engine_get_info(engine)->vocab_size * sizeof(float);
    float *expected = logits_beside(engine, 1);
    for (; *beside; beside++) {
        float *found = logits_beside(engine, *beside);
        if (memcmp(expected, found, bytes) != 0)
            fail_msg("%s, %lld slots: other logits in a batch of %d", model, (long long)slots,
                     *beside);
        free(found);
    }
    free(expected);
    qp_engine_close(engine);
}

static void bits_do_not_depend_on_neighbours(void **state)
{
    (void)state;
    require_gpu();
    check("synthetic:smollm2-135m:BF16", 64, (const int[]){2, 8, 9, 10, 33, 64, 0});
    check("synthetic:smollm2-135m:BF16", 8, (const int[]){2, 5, 8, 0});
    check("synthetic:smollm2-135m:Q8_0", 64, (const int[]){3, 12, 64, 0});
    check("synthetic:smollm2-135m:Q4_0", 20, (const int[]){3, 9, 20, 0});
}

/* Where sizes differ, passes are filled no further than they have to be. */
static void few_rows_fill_small_passes(void **state)
{
    (void)state;
    require_gpu();
    static const struct {
        const char *model;
        int64_t slots, rows;
    } cases[] = {{"synthetic:tiny:BF16", 64, 9}, {"synthetic:tiny:BF16", 65, 65},
                 {"synthetic:tiny:BF16", 8, 8},  {"synthetic:tiny:Q8_0", 64, 64},
                 {"synthetic:tiny:Q8_0", 63, 9}, {"synthetic:tiny:BF16", 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qp_engine *engine = open_invariant(cases[i].model, cases[i].slots);
        assert_int_equal(engine->step.fixed.rows, cases[i].rows);
        qp_engine_close(engine);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bits_do_not_depend_on_neighbours),
                                       cmocka_unit_test(few_rows_fill_small_passes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
