/* Hidden states on the CPU: a pass has more of them than rows of logits, on every machine and page
 * of the plan, beside sequences that decode or receive logits, and their bits are those of tokens
 * that are read one by one.
 */
#include "engine_test.h"

#include <math.h>

enum { TOKENS = 40, OUTPUTS = 3, HIDDEN = 256, CONTEXT = 64 };

static qp_error error;
static double tolerance; /* 0: bits are the same */

typedef struct states {
    float rows[TOKENS][HIDDEN];
    size_t n, before; /* states received; tokens of earlier calls */
    size_t n_logits, n_chosen;
} states;

static qp_status take_hidden(void *context, size_t token, const float *hidden)
{
    states *s = context;
    assert_true(s->before + token < TOKENS);
    memcpy(s->rows[s->before + token], hidden, sizeof s->rows[0]);
    s->n++;
    return QP_OK;
}

static qp_status count_logits(void *context, size_t token, const float *logits)
{
    states *s = context;
    (void)token, (void)logits;
    s->n_logits++;
    return QP_OK;
}

static qp_status count_token(void *context, int32_t token)
{
    states *s = context;
    (void)token;
    s->n_chosen++;
    return QP_OK;
}

static const int32_t *text(void)
{
    static int32_t ids[TOKENS];
    for (int i = 0; i < TOKENS; i++)
        ids[i] = (i * 37 + 11) % 500;
    return ids;
}

static qp_sequence of_session(qp_session *session, states *to, size_t from, size_t count)
{
    to->before = from;
    return (qp_sequence){.size = sizeof(qp_sequence),
                         .session = session,
                         .tokens = text() + from,
                         .count = count,
                         .context = to};
}

static void check_states(const states *got, const states *expected, size_t first, size_t n)
{
    for (size_t t = first; t < first + n; t++)
        for (int i = 0; i < HIDDEN; i++) {
            const double difference = fabs((double)got->rows[t][i] - (double)expected->rows[t][i]);
            if (difference > tolerance) fail_msg("token %zu, %d: %g", t, i, difference);
        }
}

/* Token by token. */
static void read_singly(qp_engine *engine, states *out)
{
    qp_session *session = open_session(engine);
    for (size_t i = 0; i < TOKENS; i++) {
        qp_sequence s = of_session(session, out, i, 1);
        s.on_hidden = take_hidden;
        assert_ok(qp_step(engine, &s, 1, &error));
    }
    assert_int_equal(out->n, TOKENS);
    qp_session_close(session);
}

/* One call reads all states, the last state of another text, logits of a third and chooses tokens
 * after a fourth. */
static void read_beside_others(qp_engine *engine, const states *expected)
{
    states got[4] = {0};
    qp_sampling sampling = {.size = sizeof sampling};
    qp_sampler *sampler;
    qp_sequence s[4];
    assert_ok(qp_sampling_defaults(engine, &sampling, &error));
    assert_ok(qp_sampler_open(engine, &sampling, &sampler, &error));
    for (int i = 0; i < 4; i++)
        s[i] = of_session(open_session(engine), &got[i], 0, i ? 9 : TOKENS);
    s[0].every_row = true;
    s[0].on_hidden = s[1].on_hidden = take_hidden;
    s[2].on_logits = count_logits;
    s[3].sampler = sampler;
    s[3].on_token = count_token;
    s[3].max_tokens = 1;
    assert_ok(qp_step(engine, s, 4, &error));
    assert_int_equal(s[0].read, TOKENS);
    assert_int_equal(got[0].n, TOKENS);
    check_states(&got[0], expected, 0, TOKENS);
    assert_int_equal(got[1].n, 1);
    check_states(&got[1], expected, 8, 1);
    assert_int_equal(got[2].n_logits, 1);
    assert_int_equal(got[3].n_chosen, 1);
    for (int i = 0; i < 4; i++)
        qp_session_close(s[i].session);
    qp_sampler_close(sampler);
}

/* States and logits of the same tokens: rows of logits limit how many a call reads. */
static void read_with_logits(qp_engine *engine, const states *expected)
{
    states got = {0};
    qp_session *session = open_session(engine);
    size_t calls = 0;
    for (size_t from = 0; from < TOKENS; calls++) {
        qp_sequence s = of_session(session, &got, from, TOKENS - from);
        s.every_row = true;
        s.on_hidden = take_hidden;
        s.on_logits = count_logits;
        assert_ok(qp_step(engine, &s, 1, &error));
        assert_true(s.read > 0 && s.read <= OUTPUTS);
        from += s.read;
    }
    assert_int_equal(got.n_logits, TOKENS);
    check_states(&got, expected, 0, TOKENS);
    qp_session_close(session);
}

static void check(qp_engine_options options)
{
    static states expected;
    expected = (states){0};
    options.model = "synthetic:tiny";
    options.context = CONTEXT;
    options.max_sessions = 4;
    options.max_outputs = OUTPUTS;
    options.threads = 2;
    qp_engine *engine = open_engine(options);
    read_singly(engine, &expected);
    read_beside_others(engine, &expected);
    read_with_logits(engine, &expected);
    qp_engine_close(engine);
}

static void machines_read_many_states(void **state)
{
    static const char *const execs[] = {"threads", "operators", "serial", "reference"};
    (void)state;
    for (int i = 0; i < 4; i++)
        check((qp_engine_options){.exec = execs[i]});
}

static void pages_of_the_plan_read_many_states(void **state)
{
    (void)state;
    tolerance = 2e-3;
    check((qp_engine_options){.plan = "flashinfer"});
    check((qp_engine_options){.plan = "padded"});
    tolerance = 0;
}

static void ranks_read_many_states(void **state)
{
    (void)state;
    check((qp_engine_options){.ranks = 2});
    check((qp_engine_options){.ranks = 2, .cut = "gather"});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(machines_read_many_states),
        cmocka_unit_test(pages_of_the_plan_read_many_states),
        cmocka_unit_test(ranks_read_many_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
