/* Traces: every slice appears once, slices do not overlap, and the sums add up to the passes. */
#include "trace_test.h"

#include "inspect/timeline/timeline_table.h"

static const int32_t PROMPT[] = {3, 1, 4, 1, 5, 9, 2, 6};
enum { PROMPT_TOKENS = 8, GENERATED = 5 };

/* A model's answer to the prompt, recorded. */
typedef struct recording {
    qp_engine *engine;
    qp_session *session;
    qp_trace *trace;
} recording;

static void generate(recording *r)
{
    qp_error error;
    qp_sampling sampling = {.size = sizeof sampling};
    assert_int_equal(qp_sampling_defaults(r->engine, &sampling, NULL), QP_OK);
    sampling.n_stop_tokens = 0;
    qp_generate_options options = {.size = sizeof options,
                                   .prompt = PROMPT,
                                   .n_prompt = PROMPT_TOKENS,
                                   .sampling = &sampling,
                                   .max_tokens = GENERATED};
    assert_ok(qp_generate(r->session, &options, NULL, &error));
}

static recording record(qp_engine_options options, size_t max_passes)
{
    qp_error error;
    options.model = "synthetic:tiny:Q8_0";
    options.context = 64;
    options.chunk = 4;
    recording r = {.engine = open_engine(options)};
    r.session = open_session(r.engine);
    assert_ok(qp_trace_open(
        r.engine, &(qp_trace_options){.size = sizeof(qp_trace_options), .max_passes = max_passes},
        &r.trace, &error));
    generate(&r);
    return r;
}

static void recording_free(recording *r)
{
    qp_trace_close(r->trace);
    qp_session_close(r->session);
    qp_engine_close(r->engine);
}

static void test_no_two_slices_overlap(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        recording r = record((qp_engine_options){.threads = threads}, 16);
        cJSON *json = trace_json(r.trace);
        int works[MAX_TRACKS + 1];
        int passes = check_tracks(json, threads, works);
        assert_int_equal(passes, 2 + GENERATED - 1);
        for (int track = 1; track <= threads; track++)
            assert_true(works[track] > 0 && works[track] % passes == 0);
        cJSON_Delete(json);
        recording_free(&r);
    }
}

/* A matrix product's FLOPs are those of its whole, however it is cut. */
static void test_costs_do_not_depend_on_the_cut(void **state)
{
    (void)state;
    double flops[3] = {0}, bytes[3] = {0};
    for (int threads = 1; threads <= 3; threads++) {
        recording r = record((qp_engine_options){.threads = threads}, 16);
        cJSON *json = trace_json(r.trace);
        const cJSON *event;
        cJSON_ArrayForEach(event, json_get(json, "traceEvents"))
        {
            const cJSON *cat = json_get(event, "cat");
            if (!cat || strcmp(cat->valuestring, "work") != 0) continue;
            flops[threads - 1] += number(json_get(event, "args"), "flops");
            bytes[threads - 1] += number(json_get(event, "args"), "bytes");
        }
        cJSON_Delete(json);
        recording_free(&r);
    }
    for (int i = 1; i < 3; i++) {
        assert_true(fabs(flops[i] / flops[0] - 1) < 1e-4);
        assert_true(fabs(bytes[i] / bytes[0] - 1) < 1e-4);
    }
}

static void test_table_adds_up(void **state)
{
    (void)state;
    recording r = record((qp_engine_options){.threads = 2}, 16);
    char *text;
    print_trace(r.trace, QP_TRACE_TABLE, &text);
    const char *prompt = strstr(text, "prompt: 2 passes of 4 tokens");
    const char *generation = strstr(text, "generation: 4 passes of 1 token, ");
    assert_true(prompt && generation && prompt < generation);
    check_sums(prompt);
    check_sums(generation);
    static const char *const parts[] = {"latency, rr, 2 workers",
                                        "\nlinear ",
                                        "\nwaiting ",
                                        "\nsignals ",
                                        "\noutside ",
                                        "of limit",
                                        "sampling, between the passes: "};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!strstr(text, parts[i])) fail_msg("no \"%s\" in\n%s", parts[i], text);
    }
    free(text);
    recording_free(&r);
}

/* A kind with a long name, as launches of several operators have, moves no number out of its
 * column.
 */
static void test_table_of_long_names(void **state)
{
    (void)state;
    timeline_node nodes[] = {{.kind = 1, .layer = -1}, {.kind = 2, .layer = -1}};
    timeline_slice slices[] = {
        {.node = 0, .wait = 0, .work = 0, .signal = 7000, .end = 7000},
        {.node = 1, .wait = 7000, .work = 9000, .signal = 20000, .end = 20000}};
    const timeline t = {.kinds = {"noop", "linear", "linear + silu_and_mul + rms_norm"},
                        .n_kinds = 3,
                        .nodes = nodes,
                        .n_nodes = 2,
                        .n_tracks = 1,
                        .n_at_once = 1};
    const timeline_panel panel = {.tokens = 1, .length = 23000, .slices = slices, .count = 2};
    timeline_table table = {.passes = 0};
    strbuf text = {0};
    timeline_table_add(&table, &t, &panel);
    timeline_table_print(&table, &t, "prompt", &text);
    check_sums(strbuf_text(&text));
    strbuf_free(&text);
}

static int length(const cJSON *json, const char *key)
{
    const cJSON *item = json_get(json, key);
    if (!cJSON_IsArray(item)) fail_msg("%s is no array", key);
    return cJSON_GetArraySize(item);
}

/* Columns are of one length, and each track's times stay inside the panel. */
static void check_panel(const cJSON *panel, int n_nodes, int tracks)
{
    int n = length(panel, "node"), counted = 0, i = 0;
    assert_int_equal(length(panel, "counts"), tracks);
    assert_int_equal(length(panel, "times"), 4 * n);
    assert_int_equal(length(panel, "cost"), 3 * n);
    assert_int_equal(length(panel, "shape"), n);
    assert_int_equal(length(panel, "waits"), n);
    assert_int_equal(length(panel, "signals"), n);
    assert_int_equal(length(panel, "blocker"), n);
    assert_true(length(panel, "critical") > 0 && length(panel, "critical") <= n);
    const cJSON *count, *node, *time = json_get(panel, "times")->child;
    cJSON_ArrayForEach(count, json_get(panel, "counts"))
    {
        double at = 0;
        counted += count->valueint;
        for (; i < 4 * counted; i++, time = time->next) {
            assert_true(time->valuedouble >= 0);
            at += time->valuedouble;
        }
        assert_true(at <= number(panel, "length"));
    }
    assert_int_equal(counted, n);
    cJSON_ArrayForEach(node, json_get(panel, "node"))
        assert_in_range(node->valueint, 0, n_nodes - 1);
}

static void test_page_is_complete(void **state)
{
    (void)state;
    qp_error error;
    recording r = record((qp_engine_options){.threads = 3}, 16);
    char *text;
    print_trace(r.trace, QP_TRACE_HTML, &text);
    static const char opening[] = "<script id=\"data\" type=\"application/json\">";
    const char *begin = strstr(text, opening);
    assert_true(begin && !strstr(text, "://") && !strstr(text, "@DATA@"));
    begin += sizeof opening - 1;
    const char *end = strstr(begin, "</script>");
    cJSON *json;
    assert_ok(json_parse(begin, (size_t)(end - begin), "the page", &json, &error));
    assert_string_equal(string(json, "title"), "synthetic:tiny:Q8_0");
    int n_nodes = length(json, "nodes");
    check_panel(json_get(json, "planned"), n_nodes, 3);
    assert_int_equal(length(json, "measured"), 2 + GENERATED - 1);
    const cJSON *panel;
    cJSON_ArrayForEach(panel, json_get(json, "measured")) check_panel(panel, n_nodes, 3);
    cJSON_Delete(json);
    free(text);
    recording_free(&r);
}

/* What does not fit is left out, and a closed trace records no more. */
static void test_passes_are_bounded(void **state)
{
    (void)state;
    qp_error error;
    recording r = record((qp_engine_options){.threads = 2}, 3);
    char *text;
    print_trace(r.trace, QP_TRACE_TABLE, &text);
    assert_non_null(strstr(text, "generation: 1 pass of 1 token"));
    free(text);
    qp_trace_close(r.trace);
    generate(&r);
    assert_ok(qp_trace_open(r.engine,
                            &(qp_trace_options){.size = sizeof(qp_trace_options), .max_passes = 2},
                            &r.trace, &error));
    recording_free(&r);
}

/* Recording does not change what is computed. */
static void test_same_answer(void **state)
{
    (void)state;
    recording r = record((qp_engine_options){.threads = 2}, 16);
    size_t count, again;
    const int32_t *tokens = qp_session_tokens(r.session, &count);
    int32_t kept[64];
    assert_true(count <= 64);
    memcpy(kept, tokens, count * sizeof *kept);
    qp_trace_close(r.trace);
    r.trace = NULL;
    qp_session_truncate(r.session, 0, NULL);
    generate(&r);
    tokens = qp_session_tokens(r.session, &again);
    assert_int_equal(count, again);
    assert_memory_equal(tokens, kept, count * sizeof *kept);
    recording_free(&r);
}

/* Logits of two sequences of different lengths in chunks, then of a token for each; float32
 * [n][vocab_size], to free(). */
static float *two_sequences(qp_engine *engine, size_t *n)
{
    qp_error error;
    size_t vocab_size = (size_t)qp_engine_get_info(engine)->vocab_size;
    *n = (PROMPT_TOKENS + 3 + 2) * vocab_size;
    float *all = calloc(*n, sizeof *all);
    assert_non_null(all);
    float *rows[] = {all, all + PROMPT_TOKENS * vocab_size};
    float *next[] = {rows[1] + 3 * vocab_size, rows[1] + 4 * vocab_size};
    logit_sink first = {rows, vocab_size}, second = {next, vocab_size};
    qp_session *a = open_session(engine), *b = open_session(engine);
    qp_input prompts[] = {{a, PROMPT, PROMPT_TOKENS, true}, {b, PROMPT + 2, 3, true}};
    qp_input tokens[] = {{a, PROMPT, 1, true}, {b, PROMPT + 1, 1, true}};
    assert_ok(qp_eval(engine, prompts, 2, take_logits, &first, NULL, &error));
    assert_ok(qp_eval(engine, tokens, 2, take_logits, &second, NULL, &error));
    qp_session_close(a);
    qp_session_close(b);
    return all;
}

static qp_engine *open_small(const char *exec, const char *kv_type)
{
    return open_engine((qp_engine_options){.model = "synthetic:tiny:F32",
                                           .exec = exec,
                                           .kv_type = kv_type,
                                           .threads = 3,
                                           .context = 32,
                                           .chunk = 5,
                                           .page_size = 4,
                                           .max_sessions = 2,
                                           .max_outputs = 8});
}

/* One instruction at a time gives the same bits as the references operator by operator; in parts
 * the same but for rounding. */
static void test_serial_in_parts(void **state)
{
    (void)state;
    static const char *const kv_types[] = {"F32", "F16", "BF16", "F8"};
    for (size_t k = 0; k < sizeof kv_types / sizeof *kv_types; k++) {
        qp_error error;
        size_t n;
        qp_engine *reference = open_small("reference", kv_types[k]);
        qp_engine *serial = open_small("serial", kv_types[k]);
        float *expected = two_sequences(reference, &n), *whole = two_sequences(serial, &n);
        assert_memory_equal(whole, expected, n * sizeof *whole);
        qp_trace *trace;
        assert_ok(qp_trace_open(
            serial, &(qp_trace_options){.size = sizeof(qp_trace_options), .max_passes = 16}, &trace,
            &error));
        float *parts = two_sequences(serial, &n);
        double worst = 0, largest = 0;
        for (size_t i = 0; i < n; i++) {
            worst = fmax(worst, fabs((double)parts[i] - (double)expected[i]));
            largest = fmax(largest, fabs((double)expected[i]));
        }
        if (!(worst <= 1e-5 * largest)) fail_msg("%s: %g of %g", kv_types[k], worst, largest);
        free(expected);
        free(whole);
        free(parts);
        qp_trace_close(trace);
        qp_engine_close(serial);
        qp_engine_close(reference);
    }
}

static recording record_parts(const char *exec, int threads, int tracks)
{
    qp_error error;
    const qp_engine_options options = {.model = "synthetic:tiny:Q8_0",
                                       .exec = exec,
                                       .threads = threads,
                                       .context = 64,
                                       .chunk = 4};
    const qp_trace_options how = {
        .size = sizeof how, .max_passes = 16, .parts = 1, .tracks = tracks};
    recording r = {.engine = open_engine(options)};
    r.session = open_session(r.engine);
    assert_ok(qp_trace_open(r.engine, &how, &r.trace, &error));
    generate(&r);
    return r;
}

/* FLOPs of all parts; each says what it is a part of, with shapes and type. */
static double check_parts(const cJSON *json, int tracks)
{
    static const char *const kinds[] = {"Embedding", "RMSNorm",   "Linear",         "RoPE",
                                        "MemCopy",   "Concat",    "RepeatKV",       "MatMul",
                                        "Mask",      "ReduceMax", "SiLU",           "Mul",
                                        "Add",       "Normalize", "ElementwiseExp", "Sample"};
    int counts[sizeof kinds / sizeof *kinds] = {0};
    double flops = 0;
    const cJSON *event;
    cJSON_ArrayForEach(event, json_get(json, "traceEvents"))
    {
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            counts[i] += strcmp(string(event, "name"), kinds[i]) == 0;
        const cJSON *category = json_get(event, "cat"), *args = json_get(event, "args");
        if (strcmp(string(event, "name"), "Sample") == 0)
            assert_string_equal(string(args, "outputs"), "1");
        if (!category || strcmp(category->valuestring, "work") != 0) continue;
        assert_in_range((int)number(event, "tid"), 2, tracks + 1);
        assert_true(strncmp(string(args, "module"), "model", 5) == 0 ||
                    strcmp(string(args, "module"), "lm_head") == 0);
        assert_true(strlen(string(args, "inputs")) > 0 && strlen(string(args, "outputs")) > 0);
        assert_true(number(args, "elements") > 0 && strlen(string(args, "type")) > 0);
        flops += number(args, "flops");
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (counts[i] == 0) fail_msg("no %s", kinds[i]);
    }
    return flops;
}

/* The slices of `kind` in a module, in the last pass: how many, and their elements together. */
static int count_chunks(const cJSON *json, const char *kind, const char *module, double *elements)
{
    int count = 0;
    const cJSON *event;
    *elements = 0;
    cJSON_ArrayForEach(event, json_get(json, "traceEvents"))
    {
        const cJSON *category = json_get(event, "cat"), *args = json_get(event, "args");
        if (category && strcmp(category->valuestring, "pass") == 0) *elements = count = 0;
        if (strcmp(string(event, "name"), kind) != 0 || !json_get(args, "module")) continue;
        if (strcmp(string(args, "module"), module) != 0) continue;
        *elements += number(args, "elements");
        count++;
    }
    return count;
}

/* Every kind of work is there; operators are cut into as many chunks as there are tracks, whatever
 * the number of threads, and compute the same. */
static void test_kinds_of_parts(void **state)
{
    (void)state;
    double flops[5] = {0}, elements;
    for (int tracks = 1; tracks <= 4; tracks++) {
        recording r = record_parts("serial", 3, tracks);
        cJSON *json = trace_json(r.trace);
        int works[MAX_TRACKS + 1];
        assert_int_equal(check_tracks(json, tracks, works), 2 + GENERATED - 1);
        flops[tracks] = check_parts(json, tracks);
        assert_true(fabs(flops[tracks] / flops[1] - 1) < 1e-9);
        assert_int_equal(count_chunks(json, "Linear", "model.layers.1.self_attn.q_proj", &elements),
                         tracks);
        assert_true(elements == 256);
        assert_int_equal(count_chunks(json, "SiLU", "model.layers.1.mlp.act_fn", &elements),
                         tracks);
        assert_true(elements == 512);
        cJSON_Delete(json);
        char *text;
        print_trace(r.trace, QP_TRACE_TABLE, &text);
        check_sums(strstr(text, "prompt: "));
        check_sums(strstr(text, "generation: "));
        free(text);
        print_trace(r.trace, QP_TRACE_HTML, &text);
        assert_non_null(strstr(text, "\"planned\":null"));
        free(text);
        recording_free(&r);
    }
}

/* With threads each worker is a track, and its waits are there. */
static void test_workers_in_parts(void **state)
{
    (void)state;
    recording r = record_parts("threads", 3, 0);
    cJSON *json = trace_json(r.trace);
    int works[MAX_TRACKS + 1];
    assert_int_equal(check_tracks(json, 3, works), 2 + GENERATED - 1);
    assert_true(works[1] > 0 && works[2] > 0 && works[3] > 0);
    check_parts(json, 3);
    cJSON_Delete(json);
    char *text;
    print_trace(r.trace, QP_TRACE_TABLE, &text);
    assert_non_null(strstr(text, "rr, 3 workers, in parts"));
    check_sums(strstr(text, "generation: "));
    assert_non_null(strstr(text, "\nwaiting "));
    free(text);
    recording_free(&r);
}

static void test_what_cannot_be_is_refused(void **state)
{
    (void)state;
    qp_error error;
    qp_trace *trace;
    char *text;
    size_t length;
    qp_engine *reference =
        open_engine((qp_engine_options){.model = "synthetic:tiny", .exec = "reference"});
    assert_int_equal(
        qp_trace_open(reference,
                      &(qp_trace_options){.size = sizeof(qp_trace_options), .max_passes = 4},
                      &trace, &error),
        QP_UNSUPPORTED);
    assert_null(trace);
    qp_engine_close(reference);
    qp_engine *engine = open_engine((qp_engine_options){.model = "synthetic:tiny", .threads = 2});
    assert_int_equal(qp_trace_open(engine,
                                   &(qp_trace_options){.size = sizeof(qp_trace_options),
                                                       .max_passes = SIZE_MAX / 8},
                                   &trace, &error),
                     QP_NO_MEMORY);
    assert_ok(qp_trace_open(engine,
                            &(qp_trace_options){.size = sizeof(qp_trace_options), .max_passes = 0},
                            &trace, &error));
    qp_trace *second;
    assert_int_equal(
        qp_trace_open(engine,
                      &(qp_trace_options){.size = sizeof(qp_trace_options), .max_passes = 4},
                      &second, &error),
        QP_INVALID);
    assert_int_equal(qp_trace_print(trace, QP_TRACE_TABLE, &text, &length, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "no pass"));
    qp_trace_close(trace);
    qp_engine_close(engine);
    engine =
        open_engine((qp_engine_options){.model = "synthetic:tiny", .threads = 2, .fuse = true});
    assert_int_equal(
        qp_trace_open(
            engine,
            &(qp_trace_options){.size = sizeof(qp_trace_options), .max_passes = 4, .parts = 1},
            &trace, &error),
        QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "fused"));
    assert_int_equal(
        qp_trace_open(engine, &(qp_trace_options){.size = sizeof(qp_trace_options), .tracks = 65},
                      &trace, &error),
        QP_INVALID);
    qp_engine_close(engine);
    recording r = record((qp_engine_options){.threads = 2}, 4);
    assert_int_equal(qp_trace_print(r.trace, (qp_trace_form)99, &text, &length, &error),
                     QP_INVALID);
    assert_null(text);
    recording_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_two_slices_overlap),
        cmocka_unit_test(test_costs_do_not_depend_on_the_cut),
        cmocka_unit_test(test_table_adds_up),
        cmocka_unit_test(test_table_of_long_names),
        cmocka_unit_test(test_page_is_complete),
        cmocka_unit_test(test_passes_are_bounded),
        cmocka_unit_test(test_same_answer),
        cmocka_unit_test(test_serial_in_parts),
        cmocka_unit_test(test_kinds_of_parts),
        cmocka_unit_test(test_workers_in_parts),
        cmocka_unit_test(test_what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
