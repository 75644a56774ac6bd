/* Operators on distributions of tokens: those kept of them, and the tokens of a draft model that a
 * target model accepts. Compared with results by hand, between all kernels, and, where tokens are
 * drawn, with the distribution that they must have. */
#include "op/chain_speculative_sampling/chain_speculative_sampling.h"
#include "op/renorm_probs/renorm_probs.h"
#include "op_test.h"

#include "base/cpu.h"

enum { VOCAB = 6 };

static op_call renorm_call(int64_t n, const float *probs, double top_k, double top_p)
{
    op_call call = {.params = {[RENORM_PROBS_TOP_K] = top_k, [RENORM_PROBS_TOP_P] = top_p}};
    call.tensors[RENORM_PROBS_PROBS] = zeros(DTYPE_F32, SHAPE(1, n));
    call.tensors[RENORM_PROBS_OUT] = zeros(DTYPE_F32, SHAPE(1, n));
    memcpy(call.tensors[RENORM_PROBS_PROBS].data, probs, (size_t)n * sizeof *probs);
    return call;
}

/* Runs the reference and every kernel of this processor. */
static void check_renorm(const op_call *call, const double *expected)
{
    op_call own = *call;
    run(&op_renorm_probs, call);
    assert_near(&call->tensors[RENORM_PROBS_OUT], expected, 1e-7);
    own.end = 1;
    own.scratch = arena_alloc(&memory, op_renorm_probs.scratch_bytes(call), 64);
    for (const op_variant *v = op_renorm_probs.variants; v->name; v++) {
        if (v->needs & ~cpu_features(0)) continue;
        v->kernel(&own);
        assert_near(&own.tensors[RENORM_PROBS_OUT], expected, 1e-7);
    }
}

static void filters_keep_what_they_say(void **state)
{
    (void)state;
    static const float probs[VOCAB] = {0.125f, 0.25f, 0.0625f, 0.25f, 0.0625f, 0.25f};
    static const struct {
        double top_k, top_p, expected[VOCAB];
    } cases[] = {
        {0, 1, {0.125, 0.25, 0.0625, 0.25, 0.0625, 0.25}},
        {4, 1, {1 / 7., 2 / 7., 0, 2 / 7., 0, 2 / 7.}},
        {5, 1, {0.125, 0.25, 0.0625, 0.25, 0.0625, 0.25}}, /* equals of the fifth stay */
        {1, 1, {0, 1 / 3., 0, 1 / 3., 0, 1 / 3.}},
        {0, 0.5, {0, 1 / 3., 0, 1 / 3., 0, 1 / 3.}},
        {0, 0.75, {0, 1 / 3., 0, 1 / 3., 0, 1 / 3.}}, /* they weigh 0.75: no more is needed */
        {0, 0.76, {1 / 7., 2 / 7., 0, 2 / 7., 0, 2 / 7.}},
        {0, 0, {0, 1 / 3., 0, 1 / 3., 0, 1 / 3.}},
        {3, 0.9, {0, 1 / 3., 0, 1 / 3., 0, 1 / 3.}},
        {100, 2, {0.125, 0.25, 0.0625, 0.25, 0.0625, 0.25}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        op_call call = renorm_call(VOCAB, probs, cases[i].top_k, cases[i].top_p);
        check_renorm(&call, cases[i].expected);
    }
    op_call odd = renorm_call(4, (float[]){NAN, -1, 0, 0.5f}, 3, 0.9);
    check_renorm(&odd, (double[]){0, 0, 0, 1});
    op_call nothing = renorm_call(3, (float[]){0, NAN, -0.0f}, 2, 0.9);
    check_renorm(&nothing, (double[]){0, 0, 0});
    odd.params[RENORM_PROBS_TOP_P] = NAN;
    assert_refused(&op_renorm_probs, &odd, "top_p of row 0");
}

/* A row's settings replace the parameters. */
static void rows_have_their_own_filters(void **state)
{
    (void)state;
    op_call call = {.params = {[RENORM_PROBS_TOP_K] = 1, [RENORM_PROBS_TOP_P] = 0}};
    call.tensors[RENORM_PROBS_PROBS] = zeros(DTYPE_F32, SHAPE(2, 4));
    call.tensors[RENORM_PROBS_OUT] = zeros(DTYPE_F64, SHAPE(2, 4));
    call.tensors[RENORM_PROBS_TOP_KS] = INDICES(0, 2);
    call.tensors[RENORM_PROBS_TOP_PS] = zeros(DTYPE_F32, SHAPE(2));
    memcpy(call.tensors[RENORM_PROBS_TOP_PS].data, (float[]){0.5f, 1}, 8);
    memcpy(call.tensors[RENORM_PROBS_PROBS].data,
           (float[]){0.25f, 0.375f, 0.25f, 0.125f, 0.25f, 0.5f, 0.125f, 0.125f}, 32);
    run_cut(&op_renorm_probs, &call, 1);
    const double expected[] = {2 / 7., 3 / 7., 2 / 7., 0, 1 / 3., 2 / 3., 0, 0};
    assert_near(&call.tensors[RENORM_PROBS_OUT], expected, 1e-15);
}

/* --- chain_speculative_sampling -------------------------------------------------------------- */

static op_call chain_call(int n_sequences, int n_speculative)
{
    op_call call = {0};
    tensor *t = call.tensors;
    t[CHAIN_SAMPLING_DRAFT_PROBS] = zeros(DTYPE_F32, SHAPE(n_sequences, n_speculative, VOCAB));
    t[CHAIN_SAMPLING_DRAFT_IDS] = zeros(DTYPE_I32, SHAPE(n_sequences, n_speculative));
    t[CHAIN_SAMPLING_UNIFORM] = zeros(DTYPE_F32, SHAPE(n_sequences, n_speculative + 1));
    t[CHAIN_SAMPLING_TARGET_PROBS] = zeros(DTYPE_F32, SHAPE(n_sequences, n_speculative + 1, VOCAB));
    t[CHAIN_SAMPLING_IDS] = zeros(DTYPE_I32, SHAPE(n_sequences, n_speculative + 1));
    t[CHAIN_SAMPLING_ACCEPTED] = zeros(DTYPE_I32, SHAPE(n_sequences));
    t[CHAIN_SAMPLING_EMITTED] = zeros(DTYPE_I32, SHAPE(n_sequences));
    return call;
}

static void set_row(const tensor *probs, int64_t b, int64_t i, const float *row)
{
    memcpy(tensor_row2(probs, b, i), row, VOCAB * sizeof *row);
}

static void run_chain(const op_call *call, const op_variant *variant)
{
    op_call own = *call;
    own.end = op_chain_speculative_sampling.units(&own);
    if (variant)
        variant->kernel(&own);
    else
        run_cut(&op_chain_speculative_sampling, call, 4);
}

static void check_chain(const op_call *call, const int32_t *ids, int32_t accepted, int32_t emitted)
{
    const op_variant *v = op_chain_speculative_sampling.variants;
    for (const op_variant *now = NULL;; now = v++) {
        if (now && !now->name) return;
        if (now && now->needs & ~cpu_features(0)) continue;
        run_chain(call, now);
        const tensor *t = call->tensors;
        assert_memory_equal(t[CHAIN_SAMPLING_IDS].data, ids, 3 * sizeof *ids);
        assert_int_equal(*(int32_t *)t[CHAIN_SAMPLING_ACCEPTED].data, accepted);
        assert_int_equal(*(int32_t *)t[CHAIN_SAMPLING_EMITTED].data, emitted);
        memset(t[CHAIN_SAMPLING_IDS].data, 0x55, 3 * sizeof *ids);
    }
}

static void chains_end_where_they_must(void **state)
{
    (void)state;
    static const float half[VOCAB] = {0.5f, 0.5f}, first[VOCAB] = {1},
                       last[VOCAB] = {0, 0, 0, 0.25f, 0, 0.75f};
    op_call call = chain_call(1, 2);
    tensor *t = call.tensors;
    float *uniform = t[CHAIN_SAMPLING_UNIFORM].data;
    memcpy(t[CHAIN_SAMPLING_DRAFT_IDS].data, (int32_t[]){0, 1}, 8);
    for (int i = 0; i < 2; i++) {
        set_row(&t[CHAIN_SAMPLING_DRAFT_PROBS], 0, i, half);
        set_row(&t[CHAIN_SAMPLING_TARGET_PROBS], 0, i, half);
    }
    set_row(&t[CHAIN_SAMPLING_TARGET_PROBS], 0, 2, last);
    uniform[0] = uniform[1] = 0.99f; /* below 1: equal probabilities always accept */
    uniform[2] = 0.2f;
    check_chain(&call, (int32_t[]){0, 1, 3}, 2, 2);
    uniform[2] = 0.3f;
    check_chain(&call, (int32_t[]){0, 1, 5}, 2, 2);
    uniform[2] = 1;
    check_chain(&call, (int32_t[]){0, 1, 5}, 2, 2);
    /* The first token is refused, and drawn from what the target has more of. */
    set_row(&t[CHAIN_SAMPLING_TARGET_PROBS], 0, 0, last);
    uniform[1] = 0.3f;
    check_chain(&call, (int32_t[]){5, -1, -1}, 1, 0);
    /* The draft has at least as much of everything: the target's own distribution. */
    set_row(&t[CHAIN_SAMPLING_TARGET_PROBS], 0, 0, first);
    set_row(&t[CHAIN_SAMPLING_DRAFT_PROBS], 0, 0, (float[VOCAB]){1, 1, 1, 1, 1, 1});
    uniform[0] = 1;
    check_chain(&call, (int32_t[]){0, -1, -1}, 1, 0);
    ((int32_t *)t[CHAIN_SAMPLING_DRAFT_IDS].data)[1] = VOCAB;
    assert_refused(&op_chain_speculative_sampling, &call, "draft_token_ids[0, 1] must be 0 .. 5");
}

/* Whatever the draft proposes, the first token has the target's distribution. */
static void tokens_are_distributed_as_the_targets(void **state)
{
    (void)state;
    enum { N = 20000 };
    static const float draft[VOCAB] = {0.5f, 0.25f, 0.125f, 0.125f, 0, 0},
                       target[VOCAB] = {0.125f, 0.25f, 0.0625f, 0.3125f, 0.25f, 0};
    op_call call = chain_call(N, 1);
    const tensor *t = call.tensors;
    for (int64_t b = 0; b < N; b++) {
        set_row(&t[CHAIN_SAMPLING_DRAFT_PROBS], b, 0, draft);
        for (int i = 0; i < 2; i++) {
            set_row(&t[CHAIN_SAMPLING_TARGET_PROBS], b, i, target);
            ((float *)tensor_row(&t[CHAIN_SAMPLING_UNIFORM], b))[i] =
                hash_uniform(hash_random(1, (uint64_t)i, (uint64_t)b));
        }
        float u = hash_uniform(hash_random(2, 0, (uint64_t)b)), sum = draft[0];
        int32_t id = 0;
        while (u >= sum)
            sum += draft[++id];
        ((int32_t *)t[CHAIN_SAMPLING_DRAFT_IDS].data)[b] = id;
    }
    run(&op_chain_speculative_sampling, &call);
    int counts[VOCAB] = {0};
    for (int64_t b = 0; b < N; b++)
        counts[*(int32_t *)tensor_row(&t[CHAIN_SAMPLING_IDS], b)]++;
    for (int i = 0; i < VOCAB; i++) { /* within four deviations */
        double expected = N * (double)target[i], deviation = sqrt(expected * (1 - target[i]));
        assert_true(fabs(counts[i] - expected) <= 4 * deviation);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        op_test(filters_keep_what_they_say),
        op_test(rows_have_their_own_filters),
        op_test(chains_end_where_they_must),
        op_test(tokens_are_distributed_as_the_targets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
