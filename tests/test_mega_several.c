/* The megakernel with two to eight sequences makes the tokens of the machine `cuda`; what it makes
 * of one does not depend on the others. */
#include "engine_test.h"
#include "vm/mega/parts.h"
#include "gpu_test.h"
#include "kernels_for_tests.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 8, STEPS = 70, RUNS = 100, DELAY_NS = 20000 };
/* How far logits may be from those of exact x, as a part of the largest, where x is 16 bits or 8.
 */
#define EXACT_X 1e-3f
#define BF16_X  2e-2f

/* Prompts of other tokens and lengths; blocks read parts of the long ones. */
static const int prompt_lengths[SEQUENCES] = {21, 600, 3, 64, 430, 17, 95, 790};

static const char *const models[] = {"synthetic:tiny:BF16",         "synthetic:smollm2-135m:BF16",
                                     "synthetic:tiny-qwen2:BF16",   "synthetic:tiny-qwen3:BF16",
                                     "synthetic:tiny-smollm3:BF16", "synthetic:tiny-mistral:BF16"};

static qp_engine *open_for_several(const char *model, const char *exec, int workers,
                                   const char *kv_type)
{
    return open_engine((qp_engine_options){.model = model,
                                           .device = "cuda",
                                           .exec = exec,
                                           .workers = workers,
                                           .kv_type = kv_type,
                                           .context = 1024,
                                           .max_sessions = SEQUENCES,
                                           .max_outputs = SEQUENCES});
}

static qp_session *open_prompted(qp_engine *engine, int which)
{
    qp_session *session = open_session(engine);
    int32_t prompt[1024];
    for (int i = 0; i < prompt_lengths[which]; i++)
        prompt[i] = (i * 97 + which * 31 + 5) % 500;
    qp_error error;
    qp_input input = {.session = session, .tokens = prompt, .count = (size_t)prompt_lengths[which]};
    assert_ok(qp_eval(engine, &input, 1, NULL, NULL, NULL, &error));
    return session;
}

static int32_t first_token(int which)
{
    return which * 13 + 7;
}

/* STEPS tokens after each of n prompts, side by side: tokens[step * n + i]. */
static void decode_several(qp_engine *engine, const int *which, int n, int32_t *tokens)
{
    qp_session *sessions[SEQUENCES];
    qp_error error;
    for (int i = 0; i < n; i++) {
        sessions[i] = open_prompted(engine, which[i]);
        tokens[i] = first_token(which[i]);
    }
    assert_ok(qp_decode(engine, sessions, (size_t)n, STEPS, tokens, NULL, &error));
    for (int i = 0; i < n; i++)
        qp_session_close(sessions[i]);
}

/* Picks `n` of the sequences: others, or in other rows, in each run. */
static void choose_several(int run, int n, int *which)
{
    for (int i = 0; i < n; i++)
        which[i] = (run + i * (1 + 2 * (run / SEQUENCES % 4))) % SEQUENCES;
}

static void check_several(qp_engine *engine, int run, int n, int32_t (*alone)[STEPS + 1])
{
    int32_t tokens[(STEPS + 1) * SEQUENCES];
    int which[SEQUENCES];
    choose_several(run, n, which);
    decode_several(engine, which, n, tokens);
    for (int i = 0; i < n; i++)
        for (int step = 0; step <= STEPS; step++)
            if (tokens[step * n + i] != alone[which[i]][step])
                fail_msg("sequence %d as number %d of %d, token %d: expected %d, found %d",
                         which[i], i, n, step, alone[which[i]][step], tokens[step * n + i]);
}

static void it_makes_the_same_tokens_of_several(void **state)
{
    (void)state;
    require_gpu();
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        int32_t alone[SEQUENCES][STEPS + 1];
        qp_engine *engine = open_for_several(models[m], "cuda", 0, NULL);
        for (int i = 0; i < SEQUENCES; i++)
            decode_several(engine, &i, 1, alone[i]);
        qp_engine_close(engine);
        engine = open_for_several(models[m], "megakernel", 0, NULL);
        assert_non_null(mega_of(engine)->batch_kernel);
        static const int counts[] = {1, 2, 3, 5, 8};
        for (int c = 0; c < 5; c++)
            for (int run = 0; run < SEQUENCES; run += counts[c])
                check_several(engine, run, counts[c], alone);
        qp_engine_close(engine);
    }
}

/* Logits after one more token of each of n sessions: rows[i][vocab]. */
static void eval_several(qp_engine *engine, qp_session *const *sessions, const int *which, int n,
                         float *const *rows)
{
    qp_input inputs[SEQUENCES];
    int32_t tokens[SEQUENCES];
    qp_error error;
    logit_sink sink = {rows, (size_t)qp_engine_get_info(engine)->vocab_size};
    for (int i = 0; i < n; i++) {
        qp_session *session = sessions[which[i]];
        tokens[i] = first_token(which[i]);
        qp_session_truncate(session, (size_t)prompt_lengths[which[i]], NULL);
        inputs[i] = (qp_input){.session = session, .tokens = &tokens[i], .count = 1};
    }
    assert_ok(qp_eval(engine, inputs, (size_t)n, take_logits, &sink, NULL, &error));
}

/* All sequences after their prompts, and the logits that the kernel of one sequence makes of each.
 */
typedef struct several {
    qp_engine *engine;
    cuda_function usual, delayed;
    size_t vocab;
    qp_session *sessions[SEQUENCES];
    float *alone[SEQUENCES], *found[SEQUENCES];
} several;

static void open_several(several *s, const char *model, int workers, const char *kv_type,
                         bool delays)
{
    qp_error error;
    s->engine = open_for_several(model, "megakernel", workers, kv_type);
    s->vocab = (size_t)qp_engine_get_info(s->engine)->vocab_size;
    s->usual = s->delayed = mega_of(s->engine)->batch_kernel;
    assert_non_null(s->usual);
    mega_of(s->engine)->batch.delay = DELAY_NS;
    if (delays) assert_ok(find_delayed_batch(s->engine, &s->delayed, &error));
    for (int i = 0; i < SEQUENCES; i++) {
        s->sessions[i] = open_prompted(s->engine, i);
        s->alone[i] = malloc(s->vocab * sizeof(float));
        s->found[i] = malloc(s->vocab * sizeof(float));
        assert_true(s->alone[i] && s->found[i]);
        eval_several(s->engine, s->sessions, &i, 1, &s->alone[i]);
    }
}

static void close_several(several *s)
{
    for (int i = 0; i < SEQUENCES; i++) {
        qp_session_close(s->sessions[i]);
        free(s->alone[i]);
        free(s->found[i]);
    }
    qp_engine_close(s->engine);
}

/* Two to eight of the sequences in any order, with delays in every other run: found[i] has the
 * logits of sequence which[i]. Returns how many there are. */
static int run_several(several *s, int run, int *which)
{
    const int n = 2 + run % 7;
    choose_several(run, n, which);
    mega_of(s->engine)->batch_kernel = run % 2 ? s->delayed : s->usual;
    eval_several(s->engine, s->sessions, which, n, s->found);
    return n;
}

static void its_bits_do_not_depend_on_neighbours(void **state)
{
    (void)state;
    require_gpu();
    /* With few blocks, a block has several parts of contexts, of one chunk or of more. */
    static const struct {
        const char *model;
        int workers;
        const char *kv_type;
    } cases[] = {{"synthetic:tiny:BF16", 0, NULL},
                 {"synthetic:tiny:BF16", 16, NULL},
                 {"synthetic:tiny:BF16", 8, NULL},
                 {"synthetic:smollm2-135m:BF16", 0, NULL},
                 {"synthetic:smollm2-135m:BF16", 24, "BF16"},
                 {"synthetic:tiny-qwen2:BF16", 0, NULL},
                 {"synthetic:tiny-qwen3:BF16", 0, NULL},
                 {"synthetic:tiny-qwen3:BF16", 16, NULL},
                 {"synthetic:tiny-smollm3:BF16", 0, "BF16"},
                 {"synthetic:tiny-mistral:BF16", 0, NULL},
                 {"synthetic:tiny-mistral:BF16", 16, NULL}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        several s;
        const bool delays = cases[c].kv_type == NULL; /* F16 */
        open_several(&s, cases[c].model, cases[c].workers, cases[c].kv_type, delays);
        for (int run = 0; run < RUNS; run++) {
            int which[SEQUENCES];
            const int n = run_several(&s, run, which);
            for (int i = 0; i < n; i++)
                if (memcmp(s.found[i], s.alone[which[i]], s.vocab * sizeof(float)) != 0)
                    fail_msg("%s, %d workers: other logits of sequence %d as number %d of %d in "
                             "run %d",
                             cases[c].model, cases[c].workers, which[i], i, n, run);
        }
        close_several(&s);
    }
}

/* The largest difference of two rows of logits, relative to the largest logit. */
static float differ(const float *a, const float *b, size_t n)
{
    float most = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        most = fmaxf(most, fabsf(a[i] - b[i]));
        largest = fmaxf(largest, fabsf(a[i]));
        if (!(fabsf(b[i]) < INFINITY)) return INFINITY;
    }
    return most / largest;
}

/* Quantised weights: nearly the logits of one row's kernel, whose x is more exact, and the same
 * bits whatever the neighbours are. */
static void it_reads_quantised_weights_of_several(void **state)
{
    (void)state;
    require_gpu();
    static const struct {
        const char *model;
        int workers; /* of small models not all blocks would have a part of each step */
        bool delays;
        float apart; /* the most */
    } cases[] = {{"synthetic:tiny:Q4_0", 16, false, EXACT_X},
                 {"synthetic:tiny:Q4_0", 8, false, EXACT_X},
                 {"synthetic:smollm2-135m:Q4_0", 48, false, EXACT_X},
                 {"synthetic:llama-3.2-1b:Q4_0", 0, false, EXACT_X},
                 {"synthetic:tiny:Q8_0", 16, true, EXACT_X},
                 {"synthetic:tiny:Q4_1", 16, true, EXACT_X},
                 {"synthetic:tiny:Q4_K", 16, true, EXACT_X},
                 {"synthetic:tiny:Q6_K", 16, true, EXACT_X},
                 {"synthetic:tiny:Q4_0+Q6_K", 8, true, EXACT_X},
                 {"synthetic:llama-3.2-1b:Q4_K+Q6_K", 0, false, EXACT_X},
                 {"synthetic:tiny-qwen2:Q8_0", 16, false, EXACT_X}, /* features in sixteens */
                 {"synthetic:tiny-qwen2:Q4_K+Q6_K", 16, false, EXACT_X},
                 {"synthetic:tiny-qwen3:Q4_K", 16, false, EXACT_X},
                 {"synthetic:tiny-smollm3:Q8_0", 16, true, EXACT_X},
                 {"synthetic:tiny-mistral:Q4_0", 16, false, EXACT_X},
                 {"synthetic:llama-3.2-3b:Q4_0", 0, false, BF16_X},
                 {"synthetic:llama-3.1-8b:Q4_0", 0, false, BF16_X}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        several s;
        float *first[SEQUENCES];
        open_several(&s, cases[c].model, cases[c].workers, NULL, cases[c].delays);
        for (int i = 0; i < SEQUENCES; i++) {
            first[i] = calloc(s.vocab, sizeof **first);
            assert_non_null(first[i]);
        }
        for (int run = 0; run < RUNS; run++) {
            int which[SEQUENCES];
            const int n = run_several(&s, run, which);
            for (int i = 0; i < n; i++) {
                const int k = which[i];
                const float apart = differ(s.alone[k], s.found[i], s.vocab);
                if (!(apart < cases[c].apart))
                    fail_msg("%s: logits of sequence %d as number %d of %d differ by %g",
                             cases[c].model, k, i, n, (double)apart);
                if (first[k][0] == 0) memcpy(first[k], s.found[i], s.vocab * sizeof **first);
                if (memcmp(first[k], s.found[i], s.vocab * sizeof **first) != 0)
                    fail_msg("%s: other logits of sequence %d as number %d of %d in run %d",
                             cases[c].model, k, i, n, run);
            }
        }
        for (int i = 0; i < SEQUENCES; i++)
            free(first[i]);
        close_several(&s);
    }
}

/* An argument chooses tests. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_makes_the_same_tokens_of_several),
        cmocka_unit_test(its_bits_do_not_depend_on_neighbours),
        cmocka_unit_test(it_reads_quantised_weights_of_several),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
