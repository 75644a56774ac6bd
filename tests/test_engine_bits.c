/* The engine's guarantee: the bits of logits depend on a session's tokens alone; and how far types
 * and roundings move them.
 *
 * A prompt is evaluated whole, in chunks, in several calls, beside other sequences, with any number
 * of threads and any page size. Each result is compared with one reference run by memcmp.
 */
#include "engine_test.h"

#include "base/cpu.h"

#include <math.h>

enum { PROMPT = 70, SLACK = 26, CONTEXT = PROMPT + SLACK };

static qp_error error;

/* One way to run a prompt. */
typedef struct way {
    const char *name;
    qp_engine_options options;
    size_t part;   /* tokens given in one call; 0: all */
    bool beside;   /* with other sequences in the same call */
    bool last_row; /* only the last token's logits are asked for */
} way;

/* Logits of the last token when only they are wanted; the parts are evaluated in several calls. */
static void check_last_row(const way *w, qp_engine *engine, const int32_t *ids, const float *want)
{
    size_t vocab_size = (size_t)qp_engine_get_info(engine)->vocab_size;
    /* Rows are put where their token number says; only the last comes. */
    float *base = calloc(vocab_size * PROMPT, sizeof *base);
    logit_sink sink = {&base, vocab_size};
    qp_session *session = open_session(engine);
    qp_input input = {.session = session, .tokens = ids, .count = PROMPT};
    assert_ok(qp_eval(engine, &input, 1, take_logits, &sink, NULL, &error));
    assert_same_bits(w->name, base + (PROMPT - 1) * vocab_size, want + (PROMPT - 1) * vocab_size,
                     vocab_size);
    for (size_t i = 0; i < (PROMPT - 1) * vocab_size; i++)
        assert_true(base[i] == 0);
    qp_session_close(session);
    free(base);
}

/* The prompt between two other sequences of other lengths, in both orders. */
static void check_beside(const way *w, qp_engine *engine, const int32_t *ids, const float *want)
{
    enum { BEFORE = 5, AFTER = 33 };
    size_t vocab_size = (size_t)qp_engine_get_info(engine)->vocab_size;
    int32_t before[BEFORE], after[AFTER];
    make_ids(before, BEFORE, (int64_t)vocab_size, 7);
    make_ids(after, AFTER, (int64_t)vocab_size, 8);
    qp_session *sessions[3];
    for (int i = 0; i < 3; i++)
        sessions[i] = open_session(engine);
    for (int order = 0; order < 2; order++) {
        qp_input inputs[3] = {{sessions[0], before, BEFORE, true},
                              {sessions[1], ids, PROMPT, true},
                              {sessions[2], after, AFTER, order == 1}};
        float *rows[3];
        for (int i = 0; i < 3; i++)
            rows[i] = calloc(inputs[i].count * vocab_size, sizeof *rows[i]);
        if (order == 1) {
            qp_input first = inputs[0];
            inputs[0] = inputs[2];
            inputs[2] = first;
            float *row = rows[0];
            rows[0] = rows[2];
            rows[2] = row;
        }
        logit_sink sink = {rows, vocab_size};
        assert_ok(qp_eval(engine, inputs, 3, take_logits, &sink, NULL, &error));
        assert_same_bits(w->name, rows[1], want, PROMPT * vocab_size);
        for (int i = 0; i < 3; i++) {
            free(rows[i]);
            qp_session_truncate(sessions[i], 0, NULL);
        }
    }
    for (int i = 0; i < 3; i++)
        qp_session_close(sessions[i]);
}

static void check_parts(const way *w, qp_engine *engine, const int32_t *ids, const float *want)
{
    size_t vocab_size = (size_t)qp_engine_get_info(engine)->vocab_size;
    size_t part = w->part ? w->part : PROMPT;
    qp_session *session = open_session(engine);
    for (size_t done = 0; done < PROMPT; done += part) {
        size_t count = PROMPT - done < part ? PROMPT - done : part;
        float *rows = eval_rows(engine, session, ids + done, count);
        assert_same_bits(w->name, rows, want + done * vocab_size, count * vocab_size);
        free(rows);
    }
    qp_session_close(session);
}

static void check_way(const way *w, const int32_t *ids, const float *want)
{
    qp_engine *engine = open_engine(w->options);
    if (w->last_row)
        check_last_row(w, engine, ids, want);
    else if (w->beside)
        check_beside(w, engine, ids, want);
    else
        check_parts(w, engine, ids, want);
    qp_engine_close(engine);
}

/* Every way compared with the prompt in one piece, in pages of 16, by one thread. `plain`: the
 * model, the machine, and what else changes logits. */
static void check_ways(qp_engine_options plain)
{
    plain.context = CONTEXT;
    plain.max_outputs = PROMPT;
    plain.threads = 1;
    qp_engine *engine = open_engine(plain);
    int32_t ids[PROMPT];
    make_ids(ids, PROMPT, qp_engine_get_info(engine)->vocab_size, 1);
    float *want = eval_fresh(engine, ids, PROMPT);
    qp_engine_close(engine);

    qp_engine_options chunk1 = plain, chunk7 = plain, chunk64 = plain, threads2 = plain,
                      threads3 = plain, page1 = plain, page5 = plain, few_rows = plain,
                      beside = plain, beside_chunks = plain;
    chunk1.chunk = 1, chunk7.chunk = 7, chunk64.chunk = 64;
    threads2.threads = 2, threads3.threads = 3;
    page1.page_size = 1, page5.page_size = 5;
    few_rows.max_outputs = 3;
    beside.max_sessions = beside_chunks.max_sessions = 3;
    beside_chunks.chunk = 9, beside_chunks.threads = 2, beside_chunks.max_outputs = 4;
    const way ways[] = {{"chunks of 1", chunk1, 0, false, false},
                        {"chunks of 7", chunk7, 0, false, false},
                        {"chunks of 64", chunk64, 0, false, false},
                        {"calls of 1", plain, 1, false, false},
                        {"calls of 7", plain, 7, false, false},
                        {"calls of 64", plain, 64, false, false},
                        {"2 threads", threads2, 0, false, false},
                        {"3 threads, calls of 7", threads3, 7, false, false},
                        {"pages of 1", page1, 0, false, false},
                        {"pages of 5", page5, 7, false, false},
                        {"3 rows of logits at a time", few_rows, 0, false, false},
                        {"the last row alone", chunk7, 0, false, true},
                        {"beside others", beside, 0, true, false},
                        {"beside others, in chunks", beside_chunks, 0, true, false}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        check_way(&ways[i], ids, want);
    free(want);
}

static void check_invariance(const char *model, const char *exec, const char *cpu_mask,
                             const char *kv_type)
{
    check_ways((qp_engine_options){
        .model = model, .exec = exec, .cpu_mask = cpu_mask, .kv_type = kv_type});
}

static const char *const masks[] = {"", "avx512f", "avx512f,avx_vnni", "all"};
enum { N_MASKS = sizeof masks / sizeof *masks };

static void logits_depend_on_the_tokens_alone(void **state)
{
    (void)state;
    static const char *const models[] = {
        "golden/models/llama-tied-gqa3.gguf", "golden/models/llama-gqa8-f16",
        "golden/models/llama-blocks32.gguf", "golden/models/internlm2"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        check_invariance(models[m], "reference", NULL, NULL);
        for (int k = 0; k < N_MASKS; k++)
            check_invariance(models[m], "operators", masks[k], k % 2 ? "F32" : "BF16");
    }
    for (int k = 0; k < N_MASKS - 1; k++) /* without kernels: covered, and slow */
        check_invariance("golden/models/llama-blocks256.gguf", "operators", masks[k], NULL);
}

/* Rows long enough for every part of a kernel: main loops, remainders, several blocks. */
static void so_do_those_of_larger_models(void **state)
{
    (void)state;
    check_invariance("synthetic:tiny:BF16", "operators", "", NULL);
    check_invariance("synthetic:tiny:Q8_0", "operators", "avx512f", NULL);
    check_invariance("synthetic:tiny:Q4_1", "operators", "", NULL);
    check_invariance("synthetic:tiny:Q4_K", "operators", "avx512f,avx_vnni", NULL);
}

/* Workers share the positions of a long context in segments: the last tokens of a text, one or two
 * in a call. */
static void so_do_those_of_a_long_context(void **state)
{
    (void)state;
    enum { TEXT = 1100, LAST = 6 };
    static const struct {
        const char *exec, *kv_type;
        int threads, page_size;
    } ways[] = {{"operators", "F16", 1, 16}, {"threads", "F16", 5, 16},  {"threads", "F16", 2, 7},
                {"operators", "F32", 1, 16}, {"threads", "F32", 9, 256}, {"threads", "F32", 3, 64}};
    for (int k = 0; k < 2; k++) {
        float *want = NULL;
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            qp_engine *engine = open_engine((qp_engine_options){.model = "synthetic:tiny:BF16",
                                                                .exec = ways[i].exec,
                                                                .cpu_mask = masks[k],
                                                                .kv_type = ways[i].kv_type,
                                                                .context = TEXT,
                                                                .threads = ways[i].threads,
                                                                .page_size = ways[i].page_size});
            const size_t vocab_size = (size_t)qp_engine_get_info(engine)->vocab_size;
            int32_t ids[TEXT];
            make_ids(ids, TEXT, (int64_t)vocab_size, 3);
            qp_session *session = open_session(engine);
            qp_input first = {.session = session, .tokens = ids, .count = TEXT - LAST};
            float *none = calloc(vocab_size * (TEXT - LAST), sizeof *none);
            logit_sink sink = {&none, vocab_size};
            assert_ok(qp_eval(engine, &first, 1, take_logits, &sink, NULL, &error));
            float *rows = calloc(LAST * vocab_size, sizeof *rows);
            for (size_t done = 0, count = 1; done < LAST; done += count, count = 3 - count) {
                float *some = eval_rows(engine, session, ids + TEXT - LAST + done, count);
                memcpy(rows + done * vocab_size, some, count * vocab_size * sizeof *rows);
                free(some);
            }
            if (strcmp(ways[i].exec, "operators") == 0) {
                free(want);
                want = rows;
            } else {
                assert_same_bits(ways[i].kv_type, rows, want, LAST * vocab_size);
                free(rows);
            }
            free(none);
            qp_session_close(session);
            qp_engine_close(engine);
        }
        free(want);
    }
}

/* --- Activations ------------------------------------------------------------------------------ */

static const char *const quantised[] = {"synthetic:tiny:Q8_0", "synthetic:tiny:Q4_1",
                                        "synthetic:tiny:Q4_K"};
static const char *const roundings[] = {"8", "16", "float"};
enum { N_QUANTISED = 3, N_ROUNDINGS = 3 };

/* However products take activations. With no rounding asked for that is 16 bits, as above. */
static void each_rounding_depends_on_the_tokens_alone(void **state)
{
    (void)state;
    for (int r = 0; r < N_ROUNDINGS; r++)
        for (int m = 0; m < N_QUANTISED; m++)
            check_ways((qp_engine_options){.model = quantised[m],
                                           .activations = roundings[r],
                                           .cpu_mask = masks[(r + m) % (N_MASKS - 1)],
                                           .exec = (r + m) % 2 ? "threads" : "operators"});
}

/* Products that round to BF16 too, by AMX and without it. */
static void rounding_to_bf16_depends_on_the_tokens_alone(void **state)
{
    (void)state;
    static const char *const without[] = {"", "amx_tile", "avx512_bf16"};
    for (int i = 0; i < 3; i++)
        check_ways((qp_engine_options){.model = "synthetic:tiny:BF16",
                                       .activations = "bf16",
                                       .cpu_mask = without[i],
                                       .exec = i % 2 ? "operators" : "threads"});
}

/* Logits of a prompt: float32 [PROMPT][vocab_size], to free(). */
static float *logits_with(const char *model, const char *exec, const char *activations, size_t *n)
{
    qp_engine *engine = open_engine((qp_engine_options){.model = model,
                                                        .exec = exec,
                                                        .activations = activations,
                                                        .max_outputs = PROMPT,
                                                        .context = CONTEXT});
    int32_t ids[PROMPT];
    const int64_t vocab_size = qp_engine_get_info(engine)->vocab_size;
    make_ids(ids, PROMPT, vocab_size, 1);
    float *logits = eval_fresh(engine, ids, PROMPT);
    *n = PROMPT * (size_t)vocab_size;
    qp_engine_close(engine);
    return logits;
}

/* The root of the mean square difference, as a share of that of `b`. */
static double distance(const float *a, const float *b, size_t n)
{
    double difference = 0, length = 0;
    for (size_t i = 0; i < n; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        length += (double)b[i] * (double)b[i];
    }
    return sqrt(difference / length);
}

static void finer_rounding_is_closer_to_the_reference(void **state)
{
    (void)state;
    for (int m = 0; m < N_QUANTISED; m++) {
        size_t n;
        double found[N_ROUNDINGS];
        float *reference = logits_with(quantised[m], "reference", NULL, &n);
        float *chosen = logits_with(quantised[m], NULL, NULL, &n);
        for (int r = 0; r < N_ROUNDINGS; r++) {
            float *logits = logits_with(quantised[m], NULL, roundings[r], &n);
            found[r] = distance(logits, reference, n);
            if (r == 1) assert_same_bits("the default", chosen, logits, n);
            free(logits);
        }
        if (!(found[0] < 0.05 && found[1] < found[0] / 30 && found[2] < found[0] / 100))
            fail_msg("%s: %g with 8 bits, %g with 16, %g with float", quantised[m], found[0],
                     found[1], found[2]);
        free(reference);
        free(chosen);
    }
}

static void rounding_to_bf16_is_close_to_the_reference(void **state)
{
    (void)state;
    size_t n;
    float *reference = logits_with("synthetic:tiny:BF16", "reference", NULL, &n);
    float *rounded = logits_with("synthetic:tiny:BF16", NULL, "bf16", &n);
    float *chosen = logits_with("synthetic:tiny:BF16", NULL, NULL, &n);
    float *exact = logits_with("synthetic:tiny:BF16", NULL, "float", &n);
    assert_same_bits("the default of a small model", chosen, exact, n);
    if (!(distance(rounded, reference, n) < 0.01))
        fail_msg("a distance of %g", distance(rounded, reference, n));
    free(reference);
    free(rounded);
    free(chosen);
    free(exact);
}

/* All messages of an engine, one after the other. */
static void keep_messages(void *context, qp_log_level level, const char *message)
{
    char *kept = context;
    const size_t held = strlen(kept);
    snprintf(kept + held, QP_ERROR_SIZE - held, "%s%s\n", level == QP_LOG_WARNING ? "! " : "",
             message);
}

static void the_rounding_is_said(void **state)
{
    (void)state;
    const char *const large = cpu_multiplies_bf16(cpu_features(0))
                                  ? "BF16 products take activations rounded to BF16\n"
                                  : "";
    const struct {
        const char *model, *exec, *activations, *message;
        int64_t context; /* so large that the model is refused before its weights are made */
    } cases[] = {
        {"synthetic:tiny:Q8_0", NULL, NULL, "take activations rounded to 16 bits\n", 0},
        {"synthetic:tiny:Q8_0", NULL, "auto", "take activations rounded to 16 bits\n", 0},
        {"synthetic:tiny:Q8_0", NULL, "8", "take activations rounded to 8 bits\n", 0},
        {"synthetic:tiny:Q8_0", "operators", "float", "take activations as float32\n", 0},
        {"synthetic:llama-3.2-1b:Q8_0", NULL, NULL, "rounded to 8 bits\n", 1 << 26},
        {"synthetic:llama-3.2-1b:Q8_0", NULL, "16", "rounded to 16 bits\n", 1 << 26},
        {"synthetic:llama-3.2-1b:BF16", NULL, NULL, large, 1 << 26},
        {"synthetic:tiny:Q8_0", "reference", "8", "! activations are not rounded to 8 bits", 0},
        {"synthetic:tiny:Q8_0", "serial", "16", "! activations are not rounded to 16 bits", 0},
        {"synthetic:tiny:BF16", NULL, "8", "! activations are not rounded to 8 bits", 0},
        {"synthetic:tiny:Q8_0", NULL, "bf16", "! activations are not rounded to BF16", 0},
        {"synthetic:tiny:BF16", "serial", "bf16", "! activations are not rounded to BF16", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char messages[QP_ERROR_SIZE] = "";
        qp_engine *engine;
        const qp_engine_options options = {.size = sizeof options,
                                           .model = cases[i].model,
                                           .exec = cases[i].exec,
                                           .activations = cases[i].activations,
                                           .threads = 1,
                                           .context = cases[i].context,
                                           .max_sessions = cases[i].context ? 1 << 16 : 1,
                                           .log = keep_messages,
                                           .log_context = messages};
        assert_int_equal(qp_engine_open(&options, &engine, &error),
                         cases[i].context ? QP_NO_MEMORY : QP_OK);
        if (!strstr(messages, cases[i].message))
            fail_msg("case %zu: expected \"%s\" in: %s", i, cases[i].message, messages);
        qp_engine_close(engine);
    }
}

/* --- KV cache and RoPE ----------------------------------------------------------------------- */

static double largest_error(const float *got, const float *want, size_t count)
{
    double most = 0, difference = 0;
    for (size_t i = 0; i < count; i++) {
        most = fmax(most, fabs((double)want[i]));
        difference = fmax(difference, fabs((double)got[i] - (double)want[i]));
    }
    return difference / most;
}

/* The cache rounds to 11 bits (F16), 8 (BF16) or 4 (F8): logits move by about as much. */
static void kv_types_round_as_they_should(void **state)
{
    (void)state;
    static const struct {
        const char *type;
        double tolerance;
    } types[] = {{"F32", 0}, {"F16", 2e-3}, {"BF16", 2e-2}, {"bf16", 2e-2}, {"F8", 2e-1}};
    float *want = NULL;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        qp_engine *engine = open_engine((qp_engine_options){
            .model = "synthetic:tiny", .context = 48, .kv_type = types[t].type});
        int32_t ids[48];
        make_ids(ids, 48, 512, 10);
        float *got = eval_fresh(engine, ids, 48);
        if (!want) want = got;
        double off = largest_error(got, want, (size_t)48 * 512);
        assert_true(off <= types[t].tolerance);
        assert_true(off > 0 || types[t].tolerance == 0);
        if (got != want) free(got);
        qp_engine_close(engine);
    }
    free(want);
}

/* With dynamic NTK the angles depend on the length of what a call brings the session to; how a
 * call is cut into chunks, and what lies beside it, must not show. */
static void dynamic_angles_do_not_depend_on_chunks(void **state)
{
    (void)state;
    static const char *const models[] = {"golden/models/llama-dynamic",
                                         "golden/models/internlm2-bias-dynamic"};
    static const int64_t chunks[] = {0, 1, 7, 64};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        float *want = NULL;
        int32_t ids[PROMPT], other[9];
        make_ids(ids, PROMPT, 71, 11);
        make_ids(other, 9, 71, 12);
        for (size_t k = 0; k < sizeof chunks / sizeof *chunks; k++) {
            qp_engine *engine = open_engine((qp_engine_options){.model = models[m],
                                                                .context = CONTEXT,
                                                                .max_sessions = 2,
                                                                .chunk = chunks[k],
                                                                .max_outputs = PROMPT});
            qp_session *a = open_session(engine), *b = open_session(engine);
            float *rows[2] = {calloc(9 * 71, sizeof(float)), calloc(PROMPT * 71, sizeof(float))};
            logit_sink sink = {rows, 71};
            const qp_input inputs[] = {{a, other, 9, true}, {b, ids, PROMPT, true}};
            assert_ok(qp_eval(engine, inputs, 2, take_logits, &sink, NULL, &error));
            qp_session_truncate(a, 0, NULL);
            float *alone = eval_rows(engine, a, ids, PROMPT);
            if (!want) want = alone;
            assert_same_bits(models[m], alone, want, PROMPT * 71);
            assert_same_bits(models[m], rows[1], want, PROMPT * 71);
            if (alone != want) free(alone);
            free(rows[0]);
            free(rows[1]);
            qp_session_close(b);
            qp_session_close(a);
            qp_engine_close(engine);
        }
        free(want);
    }
}

/* --- Synthetic weights ----------------------------------------------------------------------- */

/* Their deviations are chosen so that logits have about unit deviation after all layers. */
static void synthetic_models_stay_sane(void **state)
{
    (void)state;
    static const char *const types[] = {"F32",  "F16",  "BF16", "Q8_0", "Q4_0",
                                        "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q6_K"};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        char model[64];
        snprintf(model, sizeof model, "synthetic:tiny:%s:%zu", types[t], t);
        qp_engine *engine =
            open_engine((qp_engine_options){.model = model, .context = 32, .max_outputs = 32});
        assert_null(qp_engine_vocabulary(engine));
        int32_t ids[32];
        make_ids(ids, 32, 512, (uint32_t)t);
        float *rows = eval_fresh(engine, ids, 32);
        double sum = 0, squares = 0, n = 32 * 512;
        for (int i = 0; i < 32 * 512; i++) {
            assert_true(isfinite(rows[i]));
            sum += (double)rows[i];
            squares += (double)rows[i] * (double)rows[i];
        }
        double deviation = sqrt(squares / n - sum / n * (sum / n));
        if (!(deviation > 0.7 && deviation < 1.4) || fabs(sum / n) > 0.1)
            fail_msg("%s: logits have the mean %g and the deviation %g", model, sum / n, deviation);
        free(rows);
        qp_engine_close(engine);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_depend_on_the_tokens_alone),
        cmocka_unit_test(so_do_those_of_larger_models),
        cmocka_unit_test(so_do_those_of_a_long_context),
        cmocka_unit_test(each_rounding_depends_on_the_tokens_alone),
        cmocka_unit_test(rounding_to_bf16_depends_on_the_tokens_alone),
        cmocka_unit_test(finer_rounding_is_closer_to_the_reference),
        cmocka_unit_test(rounding_to_bf16_is_close_to_the_reference),
        cmocka_unit_test(the_rounding_is_said),
        cmocka_unit_test(kv_types_round_as_they_should),
        cmocka_unit_test(dynamic_angles_do_not_depend_on_chunks),
        cmocka_unit_test(synthetic_models_stay_sane),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
