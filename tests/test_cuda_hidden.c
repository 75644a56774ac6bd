/* Hidden states on a GPU: a pass whose logits nobody reads ends before them, and its states have
 * the bits of a whole pass. */
#include "engine_test.h"
#include "gpu_test.h"

#include <math.h>
#include <stdlib.h>

enum { HIDDEN = 576, MOST = 300 };

typedef struct states {
    float *rows; /* [MOST][HIDDEN] */
    size_t n;    /* received */
    size_t n_logits;
} states;

static qp_status take_hidden(void *context, size_t token, const float *hidden)
{
    states *s = context;
    memcpy(s->rows + token * HIDDEN, hidden, HIDDEN * sizeof *hidden);
    s->n++;
    return QP_OK;
}

static qp_status count_logits(void *context, size_t token, const float *logits)
{
    states *s = context;
    (void)token;
    assert_true(isfinite(logits[0]));
    s->n_logits++;
    return QP_OK;
}

/* The states of the first n tokens of a text, in one pass; free() the rows. */
static states read_states(qp_engine *engine, size_t n, bool with_logits)
{
    qp_error error;
    int32_t ids[MOST];
    states out = {.rows = calloc((size_t)MOST * HIDDEN, sizeof *out.rows)};
    assert_non_null(out.rows);
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)(i * 131 + 7) % 40000;
    qp_sequence s = {.size = sizeof s,
                     .session = open_session(engine),
                     .tokens = ids,
                     .count = n,
                     .every_row = true,
                     .on_hidden = take_hidden,
                     .on_logits = with_logits ? count_logits : NULL,
                     .context = &out};
    assert_ok(qp_step(engine, &s, 1, &error));
    assert_int_equal(s.read, n);
    assert_int_equal(out.n, n);
    assert_int_equal(out.n_logits, with_logits ? n : 0);
    qp_session_close(s.session);
    return out;
}

static double cosine(const float *a, const float *b)
{
    double ab = 0, aa = 0, bb = 0;
    for (int i = 0; i < HIDDEN; i++) {
        ab += (double)a[i] * b[i];
        aa += (double)a[i] * a[i];
        bb += (double)b[i] * b[i];
    }
    return ab / sqrt(aa * bb);
}

static qp_engine *open_model(const char *device)
{
    return open_engine((qp_engine_options){.model = "synthetic:smollm2-135m:BF16",
                                           .device = device,
                                           .context = MOST,
                                           .chunk = MOST,
                                           .max_outputs = MOST});
}

static void test_states(void **state)
{
    (void)state;
    require_gpu();
    const size_t lengths[] = {1, 8, 9, 64, 65, MOST};
    qp_engine *gpu = open_model("cuda"), *cpu = open_model("cpu");
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const size_t n = lengths[i];
        states alone = read_states(gpu, n, false), whole = read_states(gpu, n, true),
               right = read_states(cpu, n, false);
        assert_memory_equal(alone.rows, whole.rows, n * HIDDEN * sizeof *alone.rows);
        for (size_t row = 0; row < n; row++)
            assert_true(cosine(alone.rows + row * HIDDEN, right.rows + row * HIDDEN) > 0.999);
        free(alone.rows);
        free(whole.rows);
        free(right.rows);
    }
    qp_engine_close(gpu);
    qp_engine_close(cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_states)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
