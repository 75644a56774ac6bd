/* Sequences that decode beside prompts on the GPU: attention of the two is two launches. Their
 * logits are those of passes in which nothing else is read, but for rounding. */
#include "engine_test.h"
#include "gpu_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    DECODE = 7,
    PROMPTS = 2,
    MOST = DECODE + PROMPTS,
    PROMPT = 100,
    LONG = 1600, /* positions that attention cuts into parts */
    CONTEXT = LONG + 16,
};

/* Logits of all sequences after their last tokens. */
typedef struct results {
    qp_engine *engine;
    qp_session *sessions[MOST];
    int32_t tokens[MOST][CONTEXT];
    float *rows[MOST];
    size_t vocab_size;
} results;

static int length_of(int i)
{
    return i >= DECODE ? PROMPT + 30 * i : i == 2 ? LONG : 20 + 37 * i;
}

static qp_status take_last(void *context, size_t input, size_t token, const float *logits)
{
    const logit_sink *sink = context;
    (void)token;
    memcpy(sink->rows[input], logits, sink->vocab_size * sizeof *logits);
    return QP_OK;
}

/* Reads the prompts of sequences first .. end - 1, or of those that decode the token after. */
static void eval(results *r, int first, int end, bool prompts)
{
    qp_input inputs[MOST];
    float *rows[MOST];
    qp_error error;
    logit_sink sink = {rows, r->vocab_size};
    for (int i = first; i < end; i++) {
        const size_t held = prompts || i >= DECODE ? 0 : (size_t)length_of(i);
        const size_t count = prompts || i >= DECODE ? (size_t)length_of(i) : 1;
        rows[i - first] = r->rows[i];
        inputs[i - first] =
            (qp_input){.session = r->sessions[i], .tokens = r->tokens[i] + held, .count = count};
    }
    assert_ok(qp_eval(r->engine, inputs, (size_t)(end - first), take_last, &sink, NULL, &error));
}

/* A token of DECODE sequences beside the prompts of the others, or each kind by itself. */
static void run(const char *model, bool beside, results *r)
{
    r->engine = open_engine((qp_engine_options){.model = model,
                                                .context = CONTEXT,
                                                .max_sessions = MOST,
                                                .max_outputs = MOST,
                                                .device = "cuda",
                                                .exec = "cuda"});
    r->vocab_size = (size_t)qp_engine_get_info(r->engine)->vocab_size;
    for (int i = 0; i < MOST; i++) {
        for (int t = 0; t < CONTEXT; t++)
            r->tokens[i][t] = (i * 131 + t * 17 + 3) % 500;
        r->sessions[i] = open_session(r->engine);
        r->rows[i] = calloc(r->vocab_size, sizeof(float));
        assert_non_null(r->rows[i]);
        if (i < DECODE) eval(r, i, i + 1, true);
    }
    if (beside) {
        eval(r, 0, MOST, false);
    } else {
        eval(r, 0, DECODE, false);
        eval(r, DECODE, MOST, false);
    }
    for (int i = 0; i < MOST; i++)
        qp_session_close(r->sessions[i]);
    qp_engine_close(r->engine);
}

/* The root mean square of the difference, relative to that of the logits. */
static double difference(const float *a, const float *b, size_t n)
{
    double sum = 0, of = 0;
    for (size_t i = 0; i < n; i++) {
        sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        of += (double)a[i] * a[i];
    }
    return sqrt(sum / of);
}

static void check(const char *model)
{
    static results beside, alone;
    run(model, true, &beside);
    run(model, false, &alone);
    for (int i = 0; i < MOST; i++) {
        const double found = difference(alone.rows[i], beside.rows[i], alone.vocab_size);
        if (!(found < 0.02)) fail_msg("%s, sequence %d: logits differ by %g", model, i, found);
        free(alone.rows[i]);
        free(beside.rows[i]);
    }
}

static void decoding_beside_prompts(void **state)
{
    (void)state;
    require_gpu();
    check("synthetic:smollm2-135m:BF16");
    check("synthetic:tiny:BF16");
    check("synthetic:smollm2-135m:Q8_0");
    check("synthetic:llama-3.2-3b:BF16"); /* head_dim 128 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(decoding_beside_prompts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
