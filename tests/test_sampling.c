/* From logits to a token: argmax, top_k in two rounds, and sampling, compared with its
 * definition. */
#include "op/adjust_logits/adjust_logits.h"
#include "op/argmax/argmax.h"
#include "op/run.h"
#include "op/sampling/definite.h"
#include "op/sampling/sampling.h"
#include "op/top_k/top_k.h"

#include <math.h>

#include "test.h"

/* Binds and runs the reference. */
static void run(const op_info *op, const op_call *call)
{
    qp_error error;
    assert_ok(op_bind(op, call, NULL, &error));
    size_t bytes = op->scratch_bytes ? op->scratch_bytes(call) : 0;
    void *scratch = malloc(bytes + 1);
    op_run(op, op->reference, call, NULL, scratch, bytes);
    free(scratch);
}

static double uniform(uint64_t stream, int64_t i)
{
    return hash_uniform(hash_random(11, stream, (uint64_t)i));
}

/* --- definite.h ------------------------------------------------------------------------------ */

static void definite_functions_are_accurate(void **state)
{
    (void)state;
    for (int i = 0; i < 20000; i++) {
        double x = -700 * pow(uniform(0, i), 4);
        double power = exp(x);
        assert_true(fabs(definite_exp(x) - power) <= 4 * 0x1p-53 * power);
        double u = exp(700 * (2 * uniform(1, i) - 1)), near = 1 - 0x1p-50 * (1 + i);
        assert_true(fabs(definite_log(u) - log(u)) <= 4 * 0x1p-53 * fabs(log(u)));
        assert_true(fabs(definite_log(near) - log(near)) <= 4 * 0x1p-53 * fabs(log(near)));
    }
    assert_true(definite_exp(0) == 1 && definite_log(1) == 0);
    assert_true(definite_exp(-INFINITY) == 0 && definite_exp(-800) == 0);
}

/* Bits, not values: these hold on every machine or the same seed does not give the same text. */
static void definite_functions_are_definite(void **state)
{
    (void)state;
    uint64_t sum = 0;
    for (int i = 0; i < 100000; i++) {
        double g = definite_gumbel(42, (uint64_t)(i % 7), (uint64_t)i), e = definite_exp(-g * g);
        uint64_t bits[2];
        memcpy(&bits[0], &g, 8);
        memcpy(&bits[1], &e, 8);
        sum = hash_mix(sum ^ bits[0]) ^ bits[1];
    }
    assert_true(sum == 0x14a5d93c4a2c6b28u);
}

static void gumbel_noise_has_its_moments(void **state)
{
    (void)state;
    enum { N = 200000 };
    double sum = 0, squares = 0;
    for (int i = 0; i < N; i++) {
        double g = definite_gumbel(7, 3, (uint64_t)i);
        sum += g;
        squares += g * g;
    }
    double mean = sum / N, variance = squares / N - mean * mean;
    assert_true(fabs(mean - 0.5772157) < 0.01);
    assert_true(fabs(variance - 1.6449341) < 0.03); /* pi^2 / 6 */
}

/* --- argmax ---------------------------------------------------------------------------------- */

static void argmax_breaks_ties_low_and_passes_over_nan(void **state)
{
    (void)state;
    float logits[4][5] = {{1, 3, 3, 2, 3},
                          {NAN, -5, NAN, -4, -4},
                          {-INFINITY, NAN, -INFINITY, -INFINITY, NAN},
                          {-1e30f, -1e-30f, -1, -2, -0.5f}};
    int32_t ids[4];
    op_call call = {.tensors = {tensor_2d(logits, DTYPE_F32, 4, 5), tensor_1d(ids, DTYPE_I32, 4)}};
    run(&op_argmax, &call);
    assert_int_equal(ids[0], 1);
    assert_int_equal(ids[1], 3);
    assert_int_equal(ids[2], 0);
    assert_int_equal(ids[3], 1);

    qp_error error;
    call.tensors[ARGMAX_LOGITS] = tensor_2d(logits, DTYPE_F32, 4, 0);
    assert_int_equal(op_bind(&op_argmax, &call, NULL, &error), QP_INVALID);
}

/* --- top_k ----------------------------------------------------------------------------------- */

enum { TOP_ROWS = 3, TOP_N = 1003, TOP_MAX = 64, TOP_BLOCKS = 7 };

/* The answer by its definition: how many come before each. */
static void check_top_k(const float *logits, int n, int k, const float *values, const int32_t *ids)
{
    for (int i = 0; i < n; i++) {
        float value = isnan(logits[i]) ? -INFINITY : logits[i];
        int before = 0;
        for (int j = 0; j < n; j++) {
            float other = isnan(logits[j]) ? -INFINITY : logits[j];
            before += other > value || (other == value && j < i);
        }
        if (before >= k) continue;
        assert_int_equal(ids[before], i);
        assert_true(values[before] == value);
    }
}

static void top_k_in_two_rounds_is_the_definition(void **state)
{
    (void)state;
    static float logits[TOP_ROWS * TOP_N], block_values[TOP_ROWS * TOP_BLOCKS * TOP_MAX];
    static int32_t block_ids[TOP_ROWS * TOP_BLOCKS * TOP_MAX];
    float values[TOP_ROWS * TOP_MAX];
    int32_t ids[TOP_ROWS * TOP_MAX];
    for (int i = 0; i < TOP_ROWS * TOP_N; i++) {
        logits[i] = (float)(-100 - 50 * uniform(2, i)); /* all negative */
        if (i >= TOP_N) logits[i] = floorf(logits[i]);  /* ties from the second row on */
        if (i >= 2 * TOP_N && i % 5 == 0) logits[i] = NAN;
    }
    for (int k = 1; k <= TOP_MAX; k += 21) {
        tensor first_values = tensor_3d(block_values, DTYPE_F32, TOP_ROWS, TOP_BLOCKS, k);
        tensor first_ids = tensor_3d(block_ids, DTYPE_I32, TOP_ROWS, TOP_BLOCKS, k);
        op_call first = {.tensors = {[TOP_K_LOGITS] = tensor_2d(logits, DTYPE_F32, TOP_ROWS, TOP_N),
                                     [TOP_K_VALUES] = first_values,
                                     [TOP_K_IDS] = first_ids}};
        run(&op_top_k, &first);
        op_call second = top_k_second_round(&first, tensor_3d(values, DTYPE_F32, TOP_ROWS, 1, k),
                                            tensor_3d(ids, DTYPE_I32, TOP_ROWS, 1, k));
        run(&op_top_k, &second);
        for (int row = 0; row < TOP_ROWS; row++)
            check_top_k(logits + row * TOP_N, TOP_N, k, values + row * k, ids + row * k);
    }
}

static void top_k_of_few_values_says_what_is_missing(void **state)
{
    (void)state;
    float logits[3] = {-3, NAN, -1}, values[5];
    int32_t ids[5];
    op_call call = {.tensors = {[TOP_K_LOGITS] = tensor_2d(logits, DTYPE_F32, 1, 3),
                                [TOP_K_VALUES] = tensor_3d(values, DTYPE_F32, 1, 1, 5),
                                [TOP_K_IDS] = tensor_3d(ids, DTYPE_I32, 1, 1, 5)}};
    run(&op_top_k, &call);
    const int32_t expected[5] = {2, 0, 1, -1, -1};
    assert_memory_equal(ids, expected, sizeof ids);
    assert_true(values[0] == -1 && values[1] == -3 && values[2] == -INFINITY);
    assert_true(values[4] == -INFINITY);
}

/* --- adjust_logits --------------------------------------------------------------------------- */

enum { ADJUST_ROWS = 3, ADJUST_VOCAB = 40, ADJUST_SLOTS = 4 };

/* Three rows: each by its own settings, in slots in another order. */
typedef struct adjusting {
    float logits[ADJUST_ROWS][ADJUST_VOCAB], bias[ADJUST_SLOTS][ADJUST_VOCAB];
    int32_t last[ADJUST_ROWS], slots[ADJUST_ROWS], uses[ADJUST_ROWS];
    float repetitions[ADJUST_ROWS], presences[ADJUST_ROWS], frequencies[ADJUST_ROWS];
    int32_t history[ADJUST_SLOTS][ADJUST_VOCAB], allowed[ADJUST_SLOTS][2];
} adjusting;

static op_call adjust_call(adjusting *a)
{
    return (op_call){
        .tensors = {
            [ADJUST_LOGITS_LOGITS] = tensor_2d(a->logits, DTYPE_F32, ADJUST_ROWS, ADJUST_VOCAB),
            [ADJUST_LOGITS_LAST] = tensor_1d(a->last, DTYPE_I32, ADJUST_ROWS),
            [ADJUST_LOGITS_SLOTS] = tensor_1d(a->slots, DTYPE_I32, ADJUST_ROWS),
            [ADJUST_LOGITS_USES] = tensor_1d(a->uses, DTYPE_I32, ADJUST_ROWS),
            [ADJUST_LOGITS_REPETITIONS] = tensor_1d(a->repetitions, DTYPE_F32, ADJUST_ROWS),
            [ADJUST_LOGITS_PRESENCES] = tensor_1d(a->presences, DTYPE_F32, ADJUST_ROWS),
            [ADJUST_LOGITS_FREQUENCIES] = tensor_1d(a->frequencies, DTYPE_F32, ADJUST_ROWS),
            [ADJUST_LOGITS_HISTORY] = tensor_2d(a->history, DTYPE_I32, ADJUST_SLOTS, ADJUST_VOCAB),
            [ADJUST_LOGITS_BIAS] = tensor_2d(a->bias, DTYPE_F32, ADJUST_SLOTS, ADJUST_VOCAB),
            [ADJUST_LOGITS_ALLOWED] = tensor_2d(a->allowed, DTYPE_I32, ADJUST_SLOTS, 2)}};
}

static void logits_are_adjusted_in_order(void **state)
{
    (void)state;
    static adjusting a = {.last = {3, 39, 5},
                          .slots = {2, 0, 99},
                          .uses = {ADJUST_COUNT | ADJUST_PENALISE, ADJUST_BIAS | ADJUST_MASK, 0},
                          .repetitions = {2, 1, 1},
                          .presences = {0.5f, 0, 0},
                          .frequencies = {0.25f, 0, 0},
                          .allowed = {{1 << 4, 1 << 7}}};
    for (int i = 0; i < ADJUST_ROWS * ADJUST_VOCAB; i++)
        a.logits[i / ADJUST_VOCAB][i % ADJUST_VOCAB] = i % 2 ? 4 : -4;
    a.history[2][3] = 5; /* twice, and now a third time */
    a.history[2][8] = 1; /* in the prompt alone */
    a.bias[0][4] = 1.5f, a.bias[0][5] = 100;
    op_call call = adjust_call(&a);
    run(&op_adjust_logits, &call);
    assert_int_equal(a.history[2][3], 7);
    assert_true(a.logits[0][3] == 4 / 2.0f - (0.5f + 0.25f * 3));
    assert_true(a.logits[0][8] == -4 * 2.0f);
    assert_true(a.logits[0][9] == 4);
    assert_int_equal(a.history[0][39], 0); /* not asked for */
    for (int i = 0; i < ADJUST_VOCAB; i++) {
        assert_true(a.logits[1][i] == (i == 4 ? -2.5f : i == 39 ? 4 : -INFINITY));
        assert_true(a.logits[2][i] == (i % 2 ? 4 : -4)); /* its slot is not looked at */
    }
}

static void one_slot_has_one_row(void **state)
{
    (void)state;
    static adjusting a = {.repetitions = {1, 1, 0}, .slots = {1, 1, 2}, .uses = {1, 1, 0}};
    qp_error error;
    op_call call = adjust_call(&a);
    assert_int_equal(op_bind(&op_adjust_logits, &call, NULL, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "rows 0 and 1 use one slot"));
    a.slots[1] = ADJUST_SLOTS;
    assert_int_equal(op_bind(&op_adjust_logits, &call, NULL, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "must be 0 .. 3, found 4"));
    a.slots[1] = 0, a.uses[2] = ADJUST_PENALISE;
    assert_int_equal(op_bind(&op_adjust_logits, &call, NULL, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "must be above 0"));
}

/* --- sampling -------------------------------------------------------------------------------- */

enum { VOCAB = 301 };

typedef struct filter {
    double temperature;
    int top_k;
    double top_p, min_p;
    bool top_k_first;
} filter;

static int32_t sample(const float *logits, int n, filter with, uint64_t seed, int position)
{
    int64_t seeds = (int64_t)seed;
    int32_t positions = position, id = -7;
    op_call call = {
        .tensors = {[SAMPLING_LOGITS] = tensor_2d((void *)logits, DTYPE_F32, 1, n),
                    [SAMPLING_SEEDS] = tensor_1d(&seeds, DTYPE_I64, 1),
                    [SAMPLING_POSITIONS] = tensor_1d(&positions, DTYPE_I32, 1),
                    [SAMPLING_IDS] = tensor_1d(&id, DTYPE_I32, 1)},
        .params = {with.temperature, with.top_k, with.top_p, with.min_p, with.top_k_first}};
    run(&op_sampling, &call);
    return id;
}

/* The description's formula word for word, quadratic. */
static int32_t sample_by_definition(const float *logits, int n, filter with, uint64_t seed,
                                    int position)
{
    static double z[VOCAB];
    static uint64_t w[VOCAB];
    float m = -INFINITY;
    for (int i = 0; i < n; i++)
        if (logits[i] > m) m = logits[i];
    for (int i = 0; i < n; i++) {
        z[i] = isnan(logits[i]) ? -INFINITY
               : logits[i] == m ? 0
                                : ((double)logits[i] - m) / with.temperature;
        w[i] = (uint64_t)floor(0x1p40 * definite_exp(z[i]));
    }
    int top_k = with.top_k > 0 ? with.top_k : n, best = -1;
    double best_score = 0;
    uint64_t total = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < n; i++) {
            int above = 0;
            uint64_t weight = 0;
            for (int j = 0; j < n; j++) {
                if (!(logits[j] > logits[i] || (isnan(logits[i]) && !isnan(logits[j])))) continue;
                above++;
                weight += w[j];
            }
            if (pass == 0) {
                if (!with.top_k_first || above < top_k) total += w[i];
                continue;
            }
            bool kept = above < top_k &&
                        (with.top_p >= 1 || (double)weight < with.top_p * (double)total) &&
                        definite_exp(z[i]) >= with.min_p;
            if (logits[i] == m) kept = true;
            if (!kept || !(logits[i] > -INFINITY)) continue;
            double score = z[i] + definite_gumbel(seed, (uint64_t)position, (uint64_t)i);
            if (best < 0 || score > best_score) best = i, best_score = score;
        }
    }
    return best < 0 ? 0 : best;
}

static void fill_logits(float *logits, int n, int kind, int seed)
{
    for (int i = 0; i < n; i++) {
        double u = uniform(100 + (uint64_t)seed, i);
        logits[i] = (float)(8 * u * u);
        if (kind == 1) logits[i] = roundf(logits[i]) - 20; /* ties, negative */
        if (kind == 2 && i % 3 == 0) logits[i] = i % 2 ? NAN : -INFINITY;
        if (kind == 3) logits[i] *= 1e30f;
    }
}

static void sampling_is_its_definition(void **state)
{
    (void)state;
    static const filter filters[] = {
        {1, 0, 1, 0, false},       {0.7, 0, 0.9, 0, false},     {1.3, 40, 1, 0, false},
        {1, 40, 0.9, 0, false},    {1, 40, 0.9, 0, true},       {2, 5, 0.5, 0, true},
        {1, 0, 1, 0.1, false},     {0.8, 50, 0.95, 0.05, true}, {1, 1, 1, 0, false},
        {1, 0, 0, 0, false},       {1e-9, 0, 0.5, 0, false},    {1e9, 10, 0.3, 0.2, false},
        {1, 100000, 2, -1, false},
    };
    float logits[VOCAB];
    for (int kind = 0; kind < 4; kind++) {
        for (int seed = 0; seed < 12; seed++) {
            fill_logits(logits, VOCAB, kind, seed);
            for (size_t f = 0; f < sizeof filters / sizeof *filters; f++) {
                uint64_t bits = hash_random(5, (uint64_t)seed, f);
                int32_t id = sample(logits, VOCAB, filters[f], bits, seed * 3);
                assert_int_equal(id,
                                 sample_by_definition(logits, VOCAB, filters[f], bits, seed * 3));
            }
        }
    }
}

/* Draws follow the filtered softmax: chi-square with 7 degrees of freedom, 24.3 is the 0.1%. */
static void sampling_has_the_softmax_frequencies(void **state)
{
    (void)state;
    enum { N = 8, DRAWS = 20000 };
    const float logits[N] = {0.5f, 2, -1, 0, 1.25f, -2, 0.75f, 1.9f};
    int counts[N] = {0};
    for (int i = 0; i < DRAWS; i++)
        counts[sample(logits, N, (filter){1.5, 0, 1, 0, false}, 99, i)]++;
    double sum = 0, chi_square = 0;
    for (int i = 0; i < N; i++)
        sum += exp(logits[i] / 1.5);
    for (int i = 0; i < N; i++) {
        double expected = DRAWS * exp(logits[i] / 1.5) / sum;
        chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    assert_true(chi_square < 24.3);
}

/* What a filter must not let through never comes; ties at the border stay. */
static void sampling_filters_at_the_border(void **state)
{
    (void)state;
    const float logits[6] = {3, 1, 2, 2, 0, -INFINITY}; /* p = .61 .08 .22 .22 .03, about */
    bool seen[4][6] = {{false}};
    for (int i = 0; i < 4000; i++) {
        seen[0][sample(logits, 6, (filter){1, 2, 1, 0, false}, 1, i)] = true;
        seen[1][sample(logits, 6, (filter){1, 0, 0.6, 0, false}, 1, i)] = true;
        seen[2][sample(logits, 6, (filter){1, 0, 1, 0.2, false}, 1, i)] = true;
        seen[3][sample(logits, 6, (filter){1, 0, 1, 0, false}, 1, i)] = true;
    }
    const bool expected[4][6] = {{true, false, true, true},
                                 {true, false, true, true},
                                 {true, false, true, true},
                                 {true, true, true, true, true}};
    assert_memory_equal(seen, expected, sizeof seen);
}

static void sampling_order_of_filters_matters(void **state)
{
    (void)state;
    /* p = .40 .30 .20 .10: of all, 0.65 needs two tokens; of the best two (.57, .43) it needs both
     * as well; 0.5 of all needs two, 0.5 of the best two only one. */
    float logits[4];
    const double shares[4] = {0.4, 0.3, 0.2, 0.1};
    for (int i = 0; i < 4; i++)
        logits[i] = (float)log(shares[i]);
    bool joint = false, first = false;
    for (int i = 0; i < 2000; i++) {
        joint |= sample(logits, 4, (filter){1, 2, 0.5, 0, false}, 2, i) == 1;
        first |= sample(logits, 4, (filter){1, 2, 0.5, 0, true}, 2, i) == 1;
    }
    assert_true(joint);
    assert_false(first);
}

static void temperature_zero_is_argmax(void **state)
{
    (void)state;
    float logits[VOCAB];
    for (int seed = 0; seed < 20; seed++) {
        fill_logits(logits, VOCAB, seed % 3, seed);
        int32_t id;
        op_call call = {
            .tensors = {tensor_2d(logits, DTYPE_F32, 1, VOCAB), tensor_1d(&id, DTYPE_I32, 1)}};
        run(&op_argmax, &call);
        assert_int_equal(sample(logits, VOCAB, (filter){0, 3, 0.2, 0, false}, 9, seed), id);
        assert_int_equal(
            sample(logits, VOCAB, (filter){1e-12, 0, 1, 0, false}, 9, seed) == id ||
                logits[sample(logits, VOCAB, (filter){1e-12, 0, 1, 0, false}, 9, seed)] ==
                    logits[id],
            true);
    }
}

/* Rows with settings of their own give what they give alone. */
static void sampling_does_not_depend_on_the_batch(void **state)
{
    (void)state;
    enum { ROWS = 6 };
    static float logits[ROWS][VOCAB];
    int64_t seeds[ROWS];
    int32_t positions[ROWS], ids[ROWS], top_ks[ROWS] = {0, 5, 40, 0, 1, 0};
    float temperatures[ROWS] = {1, 0.5f, 0, 2, 1, 1}, top_ps[ROWS] = {1, 0.75f, 1, 0.5f, 1, 0.25f};
    float min_ps[ROWS] = {0, 0, 0, 0.125f, 0, 0.25f};
    for (int row = 0; row < ROWS; row++) {
        fill_logits(logits[row], VOCAB, row % 3, row);
        seeds[row] = row * 1000003 - 5;
        positions[row] = row * 17;
    }
    op_call call = {
        .tensors = {tensor_2d(logits, DTYPE_F32, ROWS, VOCAB), tensor_1d(seeds, DTYPE_I64, ROWS),
                    tensor_1d(positions, DTYPE_I32, ROWS), tensor_1d(temperatures, DTYPE_F32, ROWS),
                    tensor_1d(top_ks, DTYPE_I32, ROWS), tensor_1d(top_ps, DTYPE_F32, ROWS),
                    tensor_1d(min_ps, DTYPE_F32, ROWS), tensor_1d(ids, DTYPE_I32, ROWS)}};
    run(&op_sampling, &call);
    for (int row = 0; row < ROWS; row++) {
        filter with = {temperatures[row], top_ks[row], top_ps[row], min_ps[row], false};
        assert_int_equal(ids[row],
                         sample(logits[row], VOCAB, with, (uint64_t)seeds[row], positions[row]));
    }
}

static void sampling_of_degenerate_rows(void **state)
{
    (void)state;
    const float masked[3] = {-INFINITY, NAN, -INFINITY}, infinite[3] = {1, INFINITY, 5};
    assert_int_equal(sample(masked, 3, (filter){1, 0, 0.9, 0.1, false}, 1, 1), 0);
    for (int i = 0; i < 50; i++)
        assert_int_equal(sample(infinite, 3, (filter){1, 0, 1, 0, false}, 1, i), 1);
}

static void sampling_refuses_bad_settings(void **state)
{
    (void)state;
    static const filter bad[] = {{-1, 0, 1, 0, false},       {NAN, 0, 1, 0, false},
                                 {INFINITY, 0, 1, 0, false}, {1, 0, -0.5, 0, false},
                                 {1, 0, NAN, 0, false},      {1, 0, 1, 1.5, false}};
    float logits[4] = {0};
    int64_t seed = 0;
    int32_t position = 0, id;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        qp_error error;
        op_call call = {.tensors = {[SAMPLING_LOGITS] = tensor_2d(logits, DTYPE_F32, 1, 4),
                                    [SAMPLING_SEEDS] = tensor_1d(&seed, DTYPE_I64, 1),
                                    [SAMPLING_POSITIONS] = tensor_1d(&position, DTYPE_I32, 1),
                                    [SAMPLING_IDS] = tensor_1d(&id, DTYPE_I32, 1)},
                        .params = {bad[i].temperature, bad[i].top_k, bad[i].top_p, bad[i].min_p}};
        assert_int_equal(op_bind(&op_sampling, &call, NULL, &error), QP_INVALID);
        assert_non_null(strstr(error.message, "row 0"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(definite_functions_are_accurate),
        cmocka_unit_test(definite_functions_are_definite),
        cmocka_unit_test(gumbel_noise_has_its_moments),
        cmocka_unit_test(argmax_breaks_ties_low_and_passes_over_nan),
        cmocka_unit_test(top_k_in_two_rounds_is_the_definition),
        cmocka_unit_test(top_k_of_few_values_says_what_is_missing),
        cmocka_unit_test(logits_are_adjusted_in_order),
        cmocka_unit_test(one_slot_has_one_row),
        cmocka_unit_test(sampling_is_its_definition),
        cmocka_unit_test(sampling_has_the_softmax_frequencies),
        cmocka_unit_test(sampling_filters_at_the_border),
        cmocka_unit_test(sampling_order_of_filters_matters),
        cmocka_unit_test(temperature_zero_is_argmax),
        cmocka_unit_test(sampling_does_not_depend_on_the_batch),
        cmocka_unit_test(sampling_of_degenerate_rows),
        cmocka_unit_test(sampling_refuses_bad_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
