/* Sampled answers side by side on the GPU: the tokens that it chooses, in groups of passes, are
 * those that the definitions choose from the same logits, with penalties and biases too.
 */
#include "engine/engine.h"
#include "engine_test.h"
#include "gpu_test.h"
#include "picker.h"

#include <math.h>
#include <stdlib.h>

enum { MOST = 70, PASSES = 21, PROMPT = 40, ANSWERS = 13, MADE = 60 };

static qp_error error;
static const qp_logit_bias biases[] = {{7, 2}, {9, -1}};

static void set(qp_sampling *s, qp_setting setting, double value)
{
    assert_ok(qp_sampling_set(s, setting, value, QP_FROM_REQUEST, &error));
}

/* Settings of the i-th of several: greedy, plain, with filters of all kinds. */
static qp_sampling settings_of(const qp_engine *engine, int i, bool penalised)
{
    qp_sampling s = {.size = sizeof s};
    assert_int_equal(qp_sampling_defaults(engine, &s, NULL), QP_OK);
    s.n_stop_tokens = 0;
    set(&s, QP_SEED, 1000 + i);
    set(&s, QP_TEMPERATURE, i % 5 == 0 ? 0 : 0.3 * (i % 5));
    if (i % 3 == 1) set(&s, QP_TOP_K, 40);
    if (i % 4 == 1) set(&s, QP_TOP_P, 0.9);
    if (i % 7 == 3) set(&s, QP_MIN_P, 0.02);
    if (penalised && i % 2) set(&s, QP_REPETITION_PENALTY, 1.3);
    if (penalised && i % 3) set(&s, QP_FREQUENCY_PENALTY, 0.4);
    if (penalised && i % 5 == 2) s.logit_bias = biases, s.n_logit_bias = 2;
    return s;
}

static int32_t token_of(int session, int position)
{
    return (session * 131 + position * 17 + 3) % 500;
}

/* ---- passes -------------------------------------------------------------------------------- */

/* What comes of PASSES passes over sessions that hold PROMPT tokens and more: (PASSES + 1, n). */
typedef struct taken {
    int32_t *next;
    int pitch;
} taken;

static qp_status take_token(void *context, int32_t token)
{
    taken *t = context;
    *(t->next += t->pitch) = token;
    return QP_OK;
}

static void begin_all(qp_session **sessions, int n, int32_t *tokens)
{
    for (int i = 0; i < n; i++) {
        qp_session_truncate(sessions[i], PROMPT + (size_t)i, NULL);
        tokens[i] = token_of(i, 7);
    }
}

static void decode_all(qp_engine *engine, qp_session **sessions, int n, bool penalised,
                       int32_t *tokens)
{
    static qp_sampler *samplers[MOST];
    static qp_sequence all[MOST];
    static taken takers[MOST];
    begin_all(sessions, n, tokens);
    for (int i = 0; i < n; i++) {
        const qp_sampling settings = settings_of(engine, i, penalised);
        assert_ok(qp_sampler_open(engine, &settings, &samplers[i], &error));
        takers[i] = (taken){tokens + i, n};
        all[i] = (qp_sequence){.size = sizeof(qp_sequence),
                               .session = sessions[i],
                               .count = 1,
                               .sampler = samplers[i],
                               .on_token = take_token,
                               .context = &takers[i]};
    }
    for (size_t made = 0; made < PASSES; made += all[0].chosen) {
        for (int i = 0; i < n; i++) {
            all[i].tokens = takers[i].next;
            all[i].max_tokens = PASSES - made;
        }
        assert_ok(qp_step(engine, all, (size_t)n, &error));
    }
    for (int i = 0; i < n; i++) {
        assert_int_equal(sessions[i]->count, PROMPT + i + PASSES);
        qp_sampler_close(samplers[i]);
    }
}

/* The same, picked here from logits. */
static void pick_all(qp_engine *engine, qp_session **sessions, int n, bool penalised,
                     int32_t *tokens)
{
    static qp_sampling settings[MOST];
    static picker pickers[MOST];
    static qp_input inputs[MOST];
    const size_t vocab_size = (size_t)qp_engine_get_info(engine)->vocab_size;
    float *rows[MOST];
    begin_all(sessions, n, tokens);
    for (int i = 0; i < n; i++) {
        settings[i] = settings_of(engine, i, penalised);
        pickers[i] = picker_open((int64_t)vocab_size, &settings[i]);
        rows[i] = pickers[i].row;
        for (size_t t = 0; t < sessions[i]->count; t++)
            picker_see(&pickers[i], sessions[i]->tokens[t]);
        picker_see(&pickers[i], tokens[i]);
    }
    for (int pass = 0; pass < PASSES; pass++) {
        const logit_sink sink = {rows, vocab_size};
        for (int i = 0; i < n; i++)
            inputs[i] =
                (qp_input){.session = sessions[i], .tokens = tokens + pass * n + i, .count = 1};
        assert_ok(qp_eval(engine, inputs, (size_t)n, take_logits, (void *)&sink, NULL, &error));
        for (int i = 0; i < n; i++)
            tokens[(pass + 1) * n + i] = picker_pick(&pickers[i], rows[i], sessions[i]->count);
    }
    for (int i = 0; i < n; i++)
        picker_close(&pickers[i]);
}

static void check_passes(const char *model, const char *exec)
{
    static const int batches[] = {2, 9, 33, 64, MOST};
    static int32_t expected[(PASSES + 1) * MOST], found[(PASSES + 1) * MOST];
    qp_engine *engine = open_engine((qp_engine_options){.model = model,
                                                        .context = PROMPT + MOST + PASSES,
                                                        .max_sessions = MOST,
                                                        .device = "cuda",
                                                        .exec = exec});
    qp_session *sessions[MOST];
    for (int i = 0; i < MOST; i++) {
        int32_t prompt[PROMPT + MOST];
        for (int t = 0; t < PROMPT + i; t++)
            prompt[t] = token_of(i, t);
        sessions[i] = open_session(engine);
        qp_input input = {.session = sessions[i], .tokens = prompt, .count = PROMPT + (size_t)i};
        assert_ok(qp_eval(engine, &input, 1, NULL, NULL, NULL, &error));
    }
    for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
        int n = batches[b];
        const bool penalised = b % 2;
        pick_all(engine, sessions, n, penalised, expected);
        decode_all(engine, sessions, n, penalised, found);
        for (int i = 0; i < n * (PASSES + 1); i++)
            if (found[i] != expected[i])
                fail_msg("%s, %d sessions: token %d of session %d is %d, not %d", model, n, i / n,
                         i % n, found[i], expected[i]);
    }
    for (int i = 0; i < MOST; i++)
        qp_session_close(sessions[i]);
    qp_engine_close(engine);
}

static void test_passes(void **state)
{
    (void)state;
    require_gpu();
    check_passes("synthetic:tiny:BF16", "cuda");
    check_passes("synthetic:tiny:Q8_0", "cuda");
    check_passes("synthetic:smollm2-135m:BF16", "cuda");
}

/* ---- whole answers ------------------------------------------------------------------------- */

typedef struct record {
    int32_t tokens[MADE];
    int count;
} record;

static qp_status on_token(void *context, int32_t token, const char *text, size_t length)
{
    record *r = context;
    (void)text, (void)length;
    assert_true(r->count < MADE);
    if (token >= 0) r->tokens[r->count++] = token;
    return QP_OK;
}

/* Answers of different lengths, so that there are fewer and fewer, at last one. `alone`: one after
 * the other. `way` 0: greedy, 1: sampled, 2: with penalties and biases too. */
static void answer_all(qp_engine *engine, int n, int n_prompt, int way, int64_t interval,
                       bool alone, record records[ANSWERS])
{
    qp_sampling settings[ANSWERS];
    qp_generate_options options[ANSWERS];
    qp_answer answers[ANSWERS];
    int32_t prompts[ANSWERS][PROMPT];
    memset(records, 0, ANSWERS * sizeof *records);
    for (int i = 0; i < n; i++) {
        for (int t = 0; t < PROMPT; t++)
            prompts[i][t] = token_of(i, t);
        settings[i] = settings_of(engine, way == 0 ? 0 : i, way == 2);
        options[i] = (qp_generate_options){.size = sizeof(qp_generate_options),
                                           .prompt = prompts[i],
                                           .n_prompt = (size_t)n_prompt,
                                           .sampling = &settings[i],
                                           .max_tokens = i == 3 ? MADE : 1 + 4 * i % 37,
                                           .eos_interval = interval,
                                           .on_token = on_token,
                                           .context = &records[i]};
        answers[i] = (qp_answer){open_session(engine), &options[i], NULL};
        if (alone) assert_ok(qp_generate(answers[i].session, &options[i], NULL, &error));
    }
    if (!alone) assert_ok(qp_generate_together(answers, (size_t)n, &error));
    for (int i = 0; i < n; i++) {
        assert_int_equal(records[i].count, options[i].max_tokens);
        qp_session_close(answers[i].session);
    }
}

static qp_engine *open_for_answers(const char *exec)
{
    return open_engine((qp_engine_options){.model = "synthetic:smollm2-135m:BF16",
                                           .context = PROMPT + MADE,
                                           .max_sessions = ANSWERS,
                                           .kv_type = "BF16",
                                           .device = "cuda",
                                           .exec = exec});
}

static void test_answers(void **state)
{
    (void)state;
    static record expected[ANSWERS], found[ANSWERS];
    require_gpu();
    qp_engine *engine = open_for_answers("cuda");
    for (int way = 0; way < 3; way++) {
        answer_all(engine, ANSWERS, 25, way, 1, false, expected);
        answer_all(engine, ANSWERS, 25, way, 0, false, found);
        assert_memory_equal(found, expected, sizeof found);
    }
    qp_engine_close(engine);
}

/* In the megakernel a sequence's logits are the same to the bit whatever its neighbours: what it
 * draws alone is drawn of them side by side, by a kernel of its own. Prompts are of
 * one token, which it reads too. */
static void test_answers_of_the_megakernel(void **state)
{
    (void)state;
    static record expected[ANSWERS], found[ANSWERS];
    require_gpu();
    qp_engine *engine = open_for_answers("megakernel");
    for (int way = 0; way < 3; way++) {
        answer_all(engine, 7, 1, way, 4, true, expected);
        answer_all(engine, 7, 1, way, 4, false, found);
        assert_memory_equal(found, expected, sizeof found);
    }
    qp_engine_close(engine);
}

/* ---- a prompt beside answers --------------------------------------------------------------- */

enum { TALKING = 5, NEW = 90, CHUNK = 32 };

/* For each input, the row after its last token. */
typedef struct row_sink {
    float **rows;
    size_t vocab_size;
} row_sink;

static qp_status keep_row(void *context, size_t input, size_t token, const float *logits)
{
    const row_sink *sink = context;
    (void)token;
    memcpy(sink->rows[input], logits, sink->vocab_size * sizeof *logits);
    return QP_OK;
}

/* Five sequences of different lengths read a token each while a sixth reads a prompt of three
 * chunks: logits behind all of them, (TALKING + 1, vocab_size). */
static void mix(qp_engine *engine, float *logits)
{
    size_t vocab_size = (size_t)qp_engine_get_info(engine)->vocab_size;
    qp_session *sessions[TALKING + 1];
    qp_input inputs[TALKING + 1];
    float *rows[TALKING + 1];
    int32_t held[TALKING][PROMPT], prompt[NEW], next[TALKING];
    for (int i = 0; i <= TALKING; i++) {
        sessions[i] = open_session(engine);
        rows[i] = logits + (size_t)i * vocab_size;
        inputs[i] = (qp_input){.session = sessions[i], .tokens = prompt, .count = NEW};
    }
    for (int t = 0; t < NEW; t++)
        prompt[t] = token_of(TALKING, t);
    for (int i = 0; i < TALKING; i++) {
        for (int t = 0; t < PROMPT; t++)
            held[i][t] = token_of(i, t);
        qp_input past = {.session = sessions[i], .tokens = held[i], .count = (size_t)(3 + 8 * i)};
        assert_ok(qp_eval(engine, &past, 1, NULL, NULL, NULL, &error));
        next[i] = token_of(i, 77);
        inputs[i].tokens = &next[i];
        inputs[i].count = 1;
    }
    row_sink sink = {rows, vocab_size};
    assert_ok(qp_eval(engine, inputs, TALKING + 1, keep_row, &sink, NULL, &error));
    for (int i = 0; i <= TALKING; i++)
        qp_session_close(sessions[i]);
}

/* The references' logits on the CPU, but for what products round. */
static void test_a_prompt_beside_answers(void **state)
{
    (void)state;
    static const char *const models[] = {"synthetic:tiny:BF16", "synthetic:tiny:Q8_0",
                                         "synthetic:smollm2-135m:BF16"};
    require_gpu();
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        qp_engine_options options = {.size = sizeof options,
                                     .model = models[m],
                                     .context = 128,
                                     .max_sessions = TALKING + 1,
                                     .chunk = CHUNK};
        options.threads = 4;
        qp_engine *cpu = open_engine(options);
        options.device = "cuda";
        qp_engine *gpu = open_engine(options);
        size_t vocab_size = (size_t)qp_engine_get_info(cpu)->vocab_size;
        size_t n = (TALKING + 1) * vocab_size;
        float *expected = calloc(n, sizeof *expected), *found = calloc(n, sizeof *found);
        mix(cpu, expected);
        mix(gpu, found);
        for (size_t row = 0; row <= TALKING; row++) {
            double largest = 0, apart = 0;
            for (size_t i = row * vocab_size; i < (row + 1) * vocab_size; i++) {
                largest = fmax(largest, fabs(expected[i]));
                apart = fmax(apart, fabs(expected[i] - found[i]));
            }
            if (!(apart <= 0.03 * largest))
                fail_msg("%s, row %zu: %g apart, the largest is %g", models[m], row, apart,
                         largest);
        }
        free(expected);
        free(found);
        qp_engine_close(cpu);
        qp_engine_close(gpu);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passes),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_a_prompt_beside_answers),
        cmocka_unit_test(test_answers_of_the_megakernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
