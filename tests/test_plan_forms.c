/* The forms of the plan: FlashInfer's operators and those of a padded-batch engine compute what the
 * plan over pages computes, up to rounding, however a prompt is cut and whatever other sequences
 * are in the batch; they choose the same tokens, and are printed and traced like it.
 */
#include "engine_test.h"

#include "plan/plan.h"
#include "lower/print.h"

#include <math.h>

enum { CONTEXT = 96, PROMPT = 41, OTHER = 17, ANSWER = 12, TOP_K = 20 };

static qp_error error;

static const char *const models[] = {"synthetic:tiny:F32", "synthetic:tiny:Q8_0:3"};
static const char *const forms[] = {"flashinfer", "padded"};

/* With a cache in F32, so that no form sees keys before they are rounded to its type, and without
 * roundings of activations, which small differences decide. */
static qp_engine *open_form(const char *model, const char *form, int64_t chunk)
{
    return open_engine((qp_engine_options){.model = model,
                                           .plan = form,
                                           .context = CONTEXT,
                                           .chunk = chunk,
                                           .max_sessions = 3,
                                           .max_outputs = PROMPT,
                                           .kv_type = "F32",
                                           .activations = "float",
                                           .threads = 2});
}

static void fill_ids(const qp_engine *e, uint32_t seed, int32_t *ids, size_t count)
{
    const uint32_t vocab_size = (uint32_t)qp_engine_get_info(e)->vocab_size;
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        ids[i] = (int32_t)((seed >> 8) % vocab_size);
    }
}

static void assert_near(const float *rows, const float *expected, size_t count)
{
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        difference += pow((double)rows[i] - (double)expected[i], 2);
        norm += pow((double)expected[i], 2);
    }
    assert_true(norm > 0);
    if (!(sqrt(difference / norm) < 1e-5)) fail_msg("they differ by %g", sqrt(difference / norm));
}

/* A prompt, a shorter one in a batch with one more token of the first, and a token of both. */
typedef struct rows {
    float *prompt, *first[2], *second[2];
    size_t vocab_size;
} rows;

static void eval_both(qp_engine *e, qp_session *sessions[2], const int32_t *const ids[2],
                      const size_t counts[2], float *out[2], size_t vocab_size)
{
    qp_input inputs[2];
    for (int i = 0; i < 2; i++) {
        out[i] = calloc(counts[i] * vocab_size, sizeof(float));
        inputs[i] = (qp_input){
            .session = sessions[i], .tokens = ids[i], .count = counts[i], .every_row = true};
    }
    logit_sink sink = {out, vocab_size};
    assert_ok(qp_eval(e, inputs, 2, take_logits, &sink, NULL, &error));
}

static rows eval_form(const char *model, const char *form, int64_t chunk)
{
    qp_engine *e = open_form(model, form, chunk);
    qp_session *sessions[2] = {open_session(e), open_session(e)};
    int32_t ids[PROMPT + 2], other[OTHER + 1];
    rows out = {.vocab_size = (size_t)qp_engine_get_info(e)->vocab_size};
    fill_ids(e, 1, ids, PROMPT + 2);
    fill_ids(e, 2, other, OTHER + 1);
    out.prompt = eval_rows(e, sessions[0], ids, PROMPT);
    eval_both(e, sessions, (const int32_t *const[]){ids + PROMPT, other},
              (const size_t[]){1, OTHER}, out.first, out.vocab_size);
    eval_both(e, sessions, (const int32_t *const[]){ids + PROMPT + 1, other + OTHER},
              (const size_t[]){1, 1}, out.second, out.vocab_size);
    for (int i = 0; i < 2; i++)
        qp_session_close(sessions[i]);
    qp_engine_close(e);
    return out;
}

static void free_rows(rows *r)
{
    free(r->prompt);
    for (int i = 0; i < 2; i++) {
        free(r->first[i]);
        free(r->second[i]);
    }
}

static void assert_rows_near(const rows *a, const rows *b)
{
    assert_near(a->prompt, b->prompt, PROMPT * a->vocab_size);
    assert_near(a->first[0], b->first[0], a->vocab_size);
    assert_near(a->first[1], b->first[1], OTHER * a->vocab_size);
    for (int i = 0; i < 2; i++)
        assert_near(a->second[i], b->second[i], a->vocab_size);
}

static void logits_are_near(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        rows expected = eval_form(models[m], "paged", 64);
        for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
            for (int64_t chunk = 5; chunk <= 64; chunk += 59) {
                rows found = eval_form(models[m], forms[f], chunk);
                assert_rows_near(&found, &expected);
                free_rows(&found);
            }
        }
        free_rows(&expected);
    }
}

/* ---- tokens -------------------------------------------------------------------------------- */

static qp_status keep(void *context, int32_t token, const char *text, size_t length)
{
    int32_t **next = context;
    (void)text, (void)length;
    *(*next)++ = token;
    return QP_OK;
}

static void answer(const char *model, const char *form, double temperature, int32_t *tokens)
{
    qp_engine *e = open_form(model, form, 7);
    qp_session *session = open_session(e);
    int32_t ids[PROMPT], *next = tokens;
    fill_ids(e, 5, ids, PROMPT);
    qp_sampling sampling = {.size = sizeof sampling};
    assert_ok(qp_sampling_defaults(e, &sampling, &error));
    sampling.n_stop_tokens = 0;
    assert_ok(qp_sampling_set(&sampling, QP_TEMPERATURE, temperature, QP_FROM_REQUEST, &error));
    assert_ok(qp_sampling_set(&sampling, QP_TOP_K, TOP_K, QP_FROM_REQUEST, &error));
    assert_ok(qp_sampling_set(&sampling, QP_SEED, 11, QP_FROM_REQUEST, &error));
    assert_ok(qp_sampling_set(&sampling, QP_TOP_P, 1, QP_FROM_REQUEST, &error));
    const qp_generate_options options = {.size = sizeof options,
                                         .prompt = ids,
                                         .n_prompt = PROMPT,
                                         .sampling = &sampling,
                                         .max_tokens = ANSWER,
                                         .on_token = keep,
                                         .context = &next};
    qp_generate_result result = {.size = sizeof result};
    assert_ok(qp_generate(session, &options, &result, &error));
    assert_int_equal(next - tokens, ANSWER);
    qp_session_close(session);
    qp_engine_close(e);
}

static void tokens_are_the_same(void **state)
{
    (void)state;
    for (int sampled = 0; sampled < 2; sampled++) {
        int32_t expected[ANSWER], found[ANSWER];
        answer(models[0], "paged", sampled, expected);
        for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
            answer(models[0], forms[f], sampled, found);
            assert_memory_equal(found, expected, sizeof expected);
        }
    }
}

/* ---- what is printed ----------------------------------------------------------------------- */

static void shapes_are_printed(void **state)
{
    (void)state;
    const shapes_print_options padded = {
        .model = models[0], .tokens = 8, .batch = 2, .form = PLAN_PADDED};
    strbuf text = {0};
    assert_ok(plan_print_shapes(&padded, &text, &error));
    assert_non_null(strstr(strbuf_text(&text), "[n_sequences, n_heads, max_q_len, max_kv_len]"));
    assert_non_null(strstr(strbuf_text(&text), "[n_outputs, n_blocks, k]"));
    assert_non_null(strstr(strbuf_text(&text), "best_ids"));
    strbuf_free(&text);
    const plan_print_options flashinfer = {.model = models[0],
                                           .tokens = 8,
                                           .sequences = 1,
                                           .ranks = 1,
                                           .page_size = 16,
                                           .kv_type = "F16",
                                           .form = PLAN_FLASHINFER};
    assert_ok(plan_print_lifetimes(&flashinfer, &text, &error));
    assert_non_null(strstr(strbuf_text(&text), "past_v"));
    strbuf_free(&text);
}

static void check_trace(const char *form, const char *exec, const char *kind)
{
    qp_engine *e = open_engine((qp_engine_options){
        .model = models[0], .plan = form, .exec = exec, .context = CONTEXT, .max_outputs = PROMPT});
    qp_session *session = open_session(e);
    const qp_trace_options options = {.size = sizeof options, .max_passes = 1, .prompt_passes = 1};
    int32_t ids[PROMPT];
    qp_trace *trace = NULL;
    char *text = NULL;
    size_t length;
    fill_ids(e, 5, ids, PROMPT);
    assert_ok(qp_trace_open(e, &options, &trace, &error));
    free(eval_rows(e, session, ids, PROMPT));
    assert_ok(qp_trace_print(trace, QP_TRACE_TABLE, &text, &length, &error));
    if (!strstr(text, kind)) fail_msg("%s has no %s:\n%s", form, kind, text);
    free(text);
    qp_trace_close(trace);
    qp_session_close(session);
    qp_engine_close(e);
}

static void forms_are_traced(void **state)
{
    (void)state;
    check_trace("padded", "operators", "RepeatKV");
    check_trace("flashinfer", "operators", "merge_state");
    check_trace("flashinfer", "serial", "ragged_prefill");
    check_trace("flashinfer", "threads", "paged_prefill");
}

/* ---- what is refused ----------------------------------------------------------------------- */

static void assert_refused(qp_engine_options options, const char *why)
{
    qp_engine *engine = NULL;
    options.size = sizeof options;
    options.model = models[0];
    options.threads = 1;
    assert_int_not_equal(qp_engine_open(&options, &engine, &error), QP_OK);
    if (!strstr(error.message, why)) fail_msg("%s", error.message);
}

static void what_cannot_run_is_refused(void **state)
{
    (void)state;
    assert_refused((qp_engine_options){.plan = "ragged"}, "paged, flashinfer or padded");
    assert_refused((qp_engine_options){.plan = "padded", .fuse = true}, "is not fused");
    assert_refused((qp_engine_options){.plan = "padded", .exec = "threads"}, "has no schedule");
    assert_refused((qp_engine_options){.plan = "flashinfer", .exec = "megakernel"}, "on the CPU");
    assert_refused((qp_engine_options){.plan = "flashinfer", .ranks = 2}, "on one rank");
    assert_refused((qp_engine_options){.plan = "flashinfer", .speculate = "lookup"}, "other bits");
    assert_refused((qp_engine_options){.plan = "padded", .context = 1 << 17}, "in one page");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_near),
        cmocka_unit_test(tokens_are_the_same),
        cmocka_unit_test(shapes_are_printed),
        cmocka_unit_test(forms_are_traced),
        cmocka_unit_test(what_cannot_run_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
