/* Tensors of passes for the caller: the same values on every machine that has their bits, the same
 * logits as without a receiver, and the schedule and its times as bytes. */
#include "engine_test.h"

#include "base/strbuf.h"
#include "schedule/instruction.h"

#include <stdlib.h>
#include <string.h>

enum { PROMPT = 9, MADE = 3 };

static qp_error error;

/* What a receiver was given: names and bytes, one after the other. */
typedef struct record {
    strbuf names, bytes;
    int count;
    qp_status answer;
} record;

static qp_status take(void *context, const qp_tensor *t)
{
    record *r = context;
    size_t elements = 1;
    for (int d = 0; d < t->rank; d++)
        elements *= (size_t)t->dims[d];
    assert_int_equal(t->bytes, elements * (strcmp(t->type, "F32") == 0 ? 4 : 2));
    strbuf_printf(&r->names, "%d:%s ", (int)t->pass, t->name);
    strbuf_append(&r->bytes, t->data, t->bytes);
    r->count++;
    return r->answer;
}

static void free_record(record *r)
{
    strbuf_free(&r->names);
    strbuf_free(&r->bytes);
}

static qp_engine_options options_for(const char *exec, const char *names, record *to)
{
    return (qp_engine_options){.model = "golden/models/llama-text.gguf",
                               .context = 64,
                               .threads = 2,
                               .exec = exec,
                               .tensors = names,
                               .on_tensor = to ? take : NULL,
                               .tensor_context = to};
}

/* Reads a prompt and makes tokens; the tokens that the session holds then. */
static void generate(qp_engine *e, int32_t made[PROMPT + MADE])
{
    int32_t prompt[PROMPT];
    size_t count;
    qp_session *s = open_session(e);
    qp_sampling sampling = {.size = sizeof sampling};
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = (i * 37 + 5) % 70;
    assert_ok(qp_sampling_defaults(e, &sampling, &error));
    assert_ok(qp_sampling_set(&sampling, QP_TEMPERATURE, 0, QP_FROM_REQUEST, &error));
    sampling.n_stop_tokens = 0;
    const qp_generate_options options = {.size = sizeof options,
                                         .prompt = prompt,
                                         .n_prompt = PROMPT,
                                         .sampling = &sampling,
                                         .max_tokens = MADE + 1};
    assert_ok(qp_generate(s, &options, NULL, &error));
    const int32_t *held = qp_session_tokens(s, &count);
    assert_int_equal(count, PROMPT + MADE);
    memcpy(made, held, (PROMPT + MADE) * sizeof *made);
    qp_session_close(s);
}

static void every_machine_hands_out(void **state)
{
    (void)state;
    static const char *const machines[] = {"threads", "operators", "reference", "serial"};
    int32_t expected[PROMPT + MADE];
    record first = {0};
    qp_engine *plain = open_engine(options_for("threads", NULL, NULL));
    generate(plain, expected);
    qp_engine_close(plain);
    for (size_t m = 0; m < sizeof machines / sizeof *machines; m++) {
        int32_t made[PROMPT + MADE];
        record r = {0};
        qp_engine *e = open_engine(options_for(machines[m], "layers.1.*, lm_head.*", &r));
        generate(e, made);
        qp_engine_close(e);
        assert_memory_equal(made, expected, sizeof made);
        assert_non_null(strstr(strbuf_text(&r.names), "0:layers.1.attn_qkv.attn "));
        assert_non_null(strstr(strbuf_text(&r.names), "3:lm_head.logits "));
        assert_null(strstr(strbuf_text(&r.names), "layers.0."));
        if (m == 0) {
            first = r;
            continue;
        }
        assert_string_equal(strbuf_text(&r.names), strbuf_text(&first.names));
        if (m == 1) assert_memory_equal(r.bytes.data, first.bytes.data, first.bytes.length);
        free_record(&r);
    }
    free_record(&first);
}

static void logits_are_those_of_the_pass(void **state)
{
    (void)state;
    const int32_t ids[] = {5, 9, 14};
    record r = {0};
    qp_engine_options options = options_for("threads", "*.logits", &r);
    options.max_outputs = 3;
    qp_engine *e = open_engine(options);
    float *rows = eval_fresh(e, ids, 3);
    assert_int_equal(r.count, 1);
    assert_int_equal(r.bytes.length, 3 * (size_t)qp_engine_get_info(e)->vocab_size * sizeof *rows);
    assert_memory_equal(rows, r.bytes.data, r.bytes.length);
    free(rows);
    free_record(&r);
    qp_engine_close(e);
}

static void what_ends_and_what_is_refused(void **state)
{
    (void)state;
    record r = {.answer = QP_IO};
    qp_engine *e;
    qp_trace *trace;
    qp_engine_options options = options_for("threads", "layers.0.*", &r);
    const qp_trace_options tracing = {.size = sizeof tracing, .max_passes = 2};
    const int32_t ids[] = {5, 9};
    options.size = sizeof options;
    options.device = "cpu";
    e = open_engine(options);
    qp_session *s = open_session(e);
    const qp_input input = {.session = s, .tokens = ids, .count = 2};
    assert_int_equal(qp_eval(e, &input, 1, NULL, NULL, NULL, &error), QP_IO);
    assert_int_equal(r.count, 1);
    r.answer = QP_OK; /* and the engine goes on */
    assert_ok(qp_eval(e, &input, 1, NULL, NULL, NULL, &error));
    assert_int_equal(qp_trace_open(e, &tracing, &trace, &error), QP_INVALID);
    qp_session_close(s);
    qp_engine_close(e);
    free_record(&r);
    options.tensors = "layer.0.*";
    assert_int_equal(qp_engine_open(&options, &e, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "no tensor of the pass is called layer.0.*; names are"));
}

static void schedules_and_times_are_bytes(void **state)
{
    (void)state;
    int32_t made[PROMPT + MADE];
    char *bytes, *times;
    size_t length, n;
    qp_trace *trace;
    const qp_trace_options options = {.size = sizeof options, .max_passes = 8};
    qp_engine *e = open_engine(options_for("threads", NULL, NULL));
    assert_ok(qp_engine_schedule(e, &bytes, &length, &error));
    assert_memory_equal(bytes, "QUIPUSCH", 8);
    uint32_t sizes[4]; /* version, workers, longest queue, counters */
    memcpy(sizes, bytes + 8, sizeof sizes);
    assert_int_equal(sizes[1], 2);
    assert_int_equal(length,
                     128 + 4 * (sizes[1] + sizes[3]) + sizes[1] * sizes[2] * sizeof(instruction));
    assert_ok(qp_trace_open(e, &options, &trace, &error));
    generate(e, made);
    assert_ok(qp_trace_print(trace, QP_TRACE_TIMINGS, &times, &n, &error));
    assert_int_equal(n, (MADE + 1) * sizes[1] * sizes[2] * 4 * sizeof(int64_t));
    const int64_t *first = (const int64_t *)(void *)times;
    assert_true(first[0] >= 0 && first[1] >= first[0] && first[2] >= first[1] &&
                first[3] >= first[2]);
    qp_trace_close(trace);
    qp_free(times);
    qp_free(bytes);
    qp_engine_close(e);
    e = open_engine(options_for("operators", NULL, NULL));
    assert_int_equal(qp_engine_schedule(e, &bytes, &length, &error), QP_UNSUPPORTED);
    qp_engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_machine_hands_out),
        cmocka_unit_test(logits_are_those_of_the_pass),
        cmocka_unit_test(what_ends_and_what_is_refused),
        cmocka_unit_test(schedules_and_times_are_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
