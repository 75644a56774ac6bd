/* Ways of choosing a token on the CPU, each compared with its formula, written down again here in
 * the plainest way. */
#include "engine/pick.h"

#include "base/hash.h"

#include <math.h>

#include "test.h"

enum { N = 40, TRIALS = 300 };

static double uniform(uint64_t stream, uint64_t i)
{
    return (double)(hash_random(77, stream, i) >> 11) * 0x1p-53;
}

static void neutral(double *value)
{
    memset(value, 0, QP_SETTING_COUNT * sizeof *value);
    value[QP_TEMPERATURE] = value[QP_TOP_P] = value[QP_TYPICAL_P] = value[QP_REPETITION_PENALTY] =
        1;
    value[QP_XTC_THRESHOLD] = 0.1;
    value[QP_DRY_BASE] = 1.75;
    value[QP_DRY_ALLOWED_LENGTH] = 2;
    value[QP_DRY_PENALTY_LAST_N] = -1;
}

static void draw_logits(uint64_t trial, pick_candidate *c)
{
    for (int i = 0; i < N; i++)
        c[i] = (pick_candidate){.logit = 6 * uniform(trial, (uint64_t)i), .token = i};
}

/* Probabilities by token, of those with kept[token]. */
static void probabilities(const pick_candidate *c, const bool *kept, double temperature, double *p)
{
    double sum = 0;
    for (int i = 0; i < N; i++)
        sum += p[i] = kept[i] ? exp(c[i].logit / temperature) : 0;
    for (int i = 0; i < N; i++)
        p[i] /= sum;
}

static void expect(const double *value, double mu, const pick_candidate *c, const bool *kept)
{
    pick_candidate copy[N];
    double p[N];
    size_t wanted = 0;
    memcpy(copy, c, sizeof copy);
    probabilities(c, kept, value[QP_TEMPERATURE], p);
    for (int i = 0; i < N; i++)
        wanted += kept[i];
    const size_t n = pick_filter(value, 1, 2, mu, copy, N);
    assert_int_equal(n, wanted);
    for (size_t i = 0; i < n; i++) {
        assert_true(kept[copy[i].token]);
        assert_true(fabs(copy[i].p - p[copy[i].token]) < 1e-12);
        assert_true(i == 0 || copy[i].logit <= copy[i - 1].logit);
    }
}

static void all(bool *kept)
{
    for (int i = 0; i < N; i++)
        kept[i] = true;
}

/* Keeps the best by a score until they have the share together. */
static void keep_share(const double *score, const double *p, double share, int least, bool *kept)
{
    double sum = 0;
    memset(kept, 0, N * sizeof *kept);
    for (int count = 0; count < N && (sum < share || count < least); count++) {
        int best = -1;
        for (int i = 0; i < N; i++)
            if (!kept[i] && (best < 0 || score[i] > score[best])) best = i;
        kept[best] = true;
        sum += p[best];
    }
}

static void top_n_sigma_keeps_the_largest_logits(void **state)
{
    (void)state;
    double value[QP_SETTING_COUNT];
    for (uint64_t t = 0; t < TRIALS; t++) {
        pick_candidate c[N];
        bool kept[N];
        double sum = 0, squares = 0, most = 0;
        neutral(value);
        value[QP_TOP_N_SIGMA] = 0.2 + 2 * uniform(t, 1000);
        value[QP_TEMPERATURE] = 0.5 + uniform(t, 1001);
        draw_logits(t, c);
        for (int i = 0; i < N; i++) {
            sum += c[i].logit;
            squares += c[i].logit * c[i].logit;
            if (c[i].logit > most) most = c[i].logit;
        }
        const double sigma = sqrt(squares / N - sum / N * (sum / N));
        for (int i = 0; i < N; i++)
            kept[i] = c[i].logit >= most - value[QP_TOP_N_SIGMA] * sigma;
        expect(value, 0, c, kept);
    }
}

static void typical_tokens_are_kept(void **state)
{
    (void)state;
    double value[QP_SETTING_COUNT];
    for (uint64_t t = 0; t < TRIALS; t++) {
        pick_candidate c[N];
        bool kept[N];
        double p[N], score[N], entropy = 0;
        neutral(value);
        value[QP_TYPICAL_P] = 0.05 + 0.9 * uniform(t, 1000);
        value[QP_TEMPERATURE] = 0.5 + uniform(t, 1001);
        value[QP_MIN_KEEP] = (double)(t % 5);
        draw_logits(t, c);
        all(kept);
        probabilities(c, kept, value[QP_TEMPERATURE], p);
        for (int i = 0; i < N; i++)
            entropy -= p[i] * log(p[i]);
        for (int i = 0; i < N; i++)
            score[i] = -fabs(-log(p[i]) - entropy);
        keep_share(score, p, value[QP_TYPICAL_P], (int)value[QP_MIN_KEEP], kept);
        expect(value, 0, c, kept);
    }
}

static void top_p_and_min_p_leave_min_keep(void **state)
{
    (void)state;
    double value[QP_SETTING_COUNT];
    for (uint64_t t = 0; t < TRIALS; t++) {
        pick_candidate c[N];
        bool kept[N];
        double p[N], q[N], most = 0;
        neutral(value);
        value[QP_TOP_P] = 0.05 + 0.9 * uniform(t, 1000);
        value[QP_MIN_P] = uniform(t, 1001);
        value[QP_MIN_KEEP] = (double)(2 + t % 5);
        draw_logits(t, c);
        all(kept);
        probabilities(c, kept, 1, p);
        keep_share(p, p, value[QP_TOP_P], (int)value[QP_MIN_KEEP], kept);
        for (int i = 0; i < N; i++)
            most = p[i] > most ? p[i] : most;
        for (int i = 0; i < N; i++)
            q[i] = kept[i] && p[i] >= value[QP_MIN_P] * most ? p[i] : 0;
        bool by_min_p[N];
        keep_share(p, p, 0, (int)value[QP_MIN_KEEP], by_min_p);
        for (int i = 0; i < N; i++)
            kept[i] = kept[i] && (q[i] > 0 || by_min_p[i]);
        expect(value, 0, c, kept);
    }
}

static void xtc_leaves_the_least_likely_of_the_likely(void **state)
{
    (void)state;
    double value[QP_SETTING_COUNT];
    int left_out = 0;
    for (uint64_t t = 0; t < TRIALS; t++) {
        pick_candidate c[N];
        bool kept[N];
        double p[N], least = 2;
        neutral(value);
        value[QP_XTC_PROBABILITY] = 1;
        value[QP_XTC_THRESHOLD] = 0.02 + 0.1 * uniform(t, 1000);
        draw_logits(t, c);
        all(kept);
        probabilities(c, kept, 1, p);
        for (int i = 0; i < N; i++)
            if (p[i] >= value[QP_XTC_THRESHOLD] && p[i] < least) least = p[i];
        for (int i = 0; i < N; i++)
            kept[i] = p[i] <= least;
        expect(value, 0, c, kept);
        value[QP_XTC_PROBABILITY] = 0.25; /* it is decided anew at each position */
        for (uint64_t position = 0; position < 20; position++) {
            pick_candidate copy[N];
            memcpy(copy, c, sizeof copy);
            left_out += pick_filter(value, t, position, 0, copy, N) < N;
        }
    }
    assert_true(left_out > TRIALS * 20 / 6 && left_out < TRIALS * 20 / 3);
}

static void mirostat_bounds_surprise(void **state)
{
    (void)state;
    double value[QP_SETTING_COUNT];
    for (uint64_t t = 0; t < TRIALS; t++) {
        pick_candidate c[N];
        bool kept[N];
        double p[N], most = 0;
        const double mu = 8 * uniform(t, 1000);
        neutral(value);
        value[QP_MIROSTAT] = 2;
        value[QP_TOP_K] = 1; /* filters are not used beside it */
        draw_logits(t, c);
        all(kept);
        probabilities(c, kept, 1, p);
        for (int i = 0; i < N; i++)
            most = p[i] > most ? p[i] : most;
        for (int i = 0; i < N; i++)
            kept[i] = -log2(p[i]) <= mu || p[i] == most;
        expect(value, mu, c, kept);
    }
}

/* The longest text that ends before i and ends the whole text. */
static int repetition(const int32_t *tokens, int n, int i)
{
    int length = 0;
    while (length < i && tokens[i - 1 - length] == tokens[n - 1 - length])
        length++;
    return length;
}

static void dry_penalises_what_goes_on_with_repetitions(void **state)
{
    (void)state;
    double value[QP_SETTING_COUNT];
    for (uint64_t t = 0; t < TRIALS; t++) {
        enum { LENGTH = 60 };
        pick_candidate c[N];
        int32_t tokens[LENGTH], lengths[LENGTH], longest[N] = {0};
        neutral(value);
        value[QP_DRY_MULTIPLIER] = 0.8;
        value[QP_DRY_ALLOWED_LENGTH] = (double)(1 + t % 4);
        const int limit = (int)(t % 7 ? LENGTH : t % 20), n = 2 + (int)(t % (LENGTH - 1));
        for (int i = 0; i < n; i++)
            tokens[i] = (int32_t)(hash_random(t, 5, (uint64_t)i) % 3);
        draw_logits(t, c);
        double expected[N];
        for (int token = 0; token < N; token++) {
            int most = 0;
            for (int i = 1; i < n; i++) {
                int length = repetition(tokens, n, i);
                if (length > limit) length = limit;
                if (tokens[i] == token && length > most) most = length;
            }
            const double over = most - value[QP_DRY_ALLOWED_LENGTH];
            expected[token] = c[token].logit;
            if (most > 0 && over >= 0) expected[token] -= 0.8 * pow(1.75, over);
        }
        dry_penalise(value, &(dry_text){tokens, (size_t)n, (size_t)limit, lengths}, c, N, longest);
        for (int token = 0; token < N; token++)
            assert_true(fabs(c[token].logit - expected[token]) <
                        1e-12 * (1 + fabs(expected[token])));
    }
}

/* Draws have the frequencies of the probabilities, and the same seed makes the same draw. */
static void draws_follow_the_probabilities(void **state)
{
    (void)state;
    enum { DRAWS = 20000 };
    double value[QP_SETTING_COUNT], counts[N] = {0};
    pick_candidate c[N];
    neutral(value);
    value[QP_TOP_N_SIGMA] = 1.5;
    value[QP_TEMPERATURE] = 0.7;
    draw_logits(3, c);
    const size_t n = pick_filter(value, 1, 0, 0, c, N);
    for (uint64_t i = 0; i < DRAWS; i++)
        counts[pick_draw(value, 1, i, c, n)]++;
    for (size_t i = 0; i < n; i++)
        assert_true(fabs(counts[i] / DRAWS - c[i].p) < 5 * sqrt(c[i].p / DRAWS));
    assert_int_equal(pick_draw(value, 9, 4, c, n), pick_draw(value, 9, 4, c, n));
    value[QP_TEMPERATURE] = 0;
    assert_int_equal(pick_draw(value, 9, 4, c, n), 0);
}

static void neutral_settings_need_nothing(void **state)
{
    (void)state;
    static const qp_setting each[] = {QP_TOP_N_SIGMA, QP_XTC_PROBABILITY, QP_DRY_MULTIPLIER};
    double value[QP_SETTING_COUNT] = {0};
    assert_false(pick_is_needed(value));
    neutral(value);
    assert_false(pick_is_needed(value));
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        neutral(value);
        value[each[i]] = 0.5;
        assert_true(pick_is_needed(value));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(top_n_sigma_keeps_the_largest_logits),
        cmocka_unit_test(typical_tokens_are_kept),
        cmocka_unit_test(top_p_and_min_p_leave_min_keep),
        cmocka_unit_test(xtc_leaves_the_least_likely_of_the_likely),
        cmocka_unit_test(mirostat_bounds_surprise),
        cmocka_unit_test(dry_penalises_what_goes_on_with_repetitions),
        cmocka_unit_test(draws_follow_the_probabilities),
        cmocka_unit_test(neutral_settings_need_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
