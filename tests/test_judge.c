/* The judge of kernels, which says whether an output is right: each of its rules at its limit, for
 * every type of output.
 */
#include "test.h"

#include "op/element.h"
#include "op/harness/compare.h"
#include "op/rms_norm/rms_norm.h"
#include "op/table.h"
#include "op/tolerance.h"

#include <math.h>
#include <string.h>

static qp_error error;
static const dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F8};
enum { N_TYPES = sizeof types / sizeof *types };

/* Limits that no number of a type reaches by chance. */
static op_limits some_limits(dtype type)
{
    return (op_limits){.relative = 0.25,
                       .absolute = 0.125,
                       .floor = 0x1p-40,
                       .largest = type == DTYPE_F16  ? 65504
                                  : type == DTYPE_F8 ? 448
                                                     : 1e38};
}

/* ---- An element -------------------------------------------------------------------------------
 */

static void what_is_not_finite_must_be_the_same(void **state)
{
    (void)state;
    for (int t = 0; t < N_TYPES; t++) {
        const op_limits limits = some_limits(types[t]);
        const double others[] = {0, 1, -1, limits.largest, -limits.largest, 1e300};
        for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
            assert_false(op_element_matches(&limits, types[t], NAN, others[i], 1));
            if (i < 3) assert_false(op_element_matches(&limits, types[t], others[i], NAN, 1e9));
            if (element_round(types[t], INFINITY) != INFINITY) continue; /* has no infinity */
            assert_false(op_element_matches(&limits, types[t], INFINITY, others[i], 1e300));
            assert_false(op_element_matches(&limits, types[t], -INFINITY, others[i], 1e300));
        }
        assert_true(op_element_matches(&limits, types[t], NAN, NAN, 1));
        if (element_round(types[t], INFINITY) != INFINITY) continue;
        assert_true(op_element_matches(&limits, types[t], INFINITY, INFINITY, 1));
        assert_false(op_element_matches(&limits, types[t], INFINITY, -INFINITY, 1));
        assert_false(op_element_matches(&limits, types[t], INFINITY, NAN, 1));
    }
}

/* Only where the expected value could have been rounded past the largest one. */
static void an_overflow_must_be_near(void **state)
{
    (void)state;
    for (int t = 0; t < N_TYPES; t++) {
        const op_limits limits = some_limits(types[t]);
        const double least = limits.largest / (1 + limits.relative);
        assert_true(op_element_matches(&limits, types[t], least * 1.001, INFINITY, 1));
        assert_true(op_element_matches(&limits, types[t], -least * 1.001, -INFINITY, 1));
        assert_false(op_element_matches(&limits, types[t], least * 0.999, INFINITY, 1e300));
        assert_false(op_element_matches(&limits, types[t], -least * 0.999, -INFINITY, 1e300));
        assert_false(op_element_matches(&limits, types[t], -least * 1.001, INFINITY, 1e300));
    }
}

/* The three allowances add up, each by itself; the limit itself is allowed. */
static void an_element_may_differ_by_so_much(void **state)
{
    (void)state;
    static const struct {
        double expected, typical, allowed;
    } cases[] = {{8, 0, 2}, {-8, 0, 2}, {0, 16, 2}, {8, 16, 4}, {0, 0, 0x1p-3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        op_limits limits = some_limits(DTYPE_F32);
        limits.floor = cases[i].typical || cases[i].expected ? 0 : 0x1p-3;
        for (int sign = -1; sign <= 1; sign += 2) {
            const double at = cases[i].expected + sign * cases[i].allowed;
            assert_true(
                op_element_matches(&limits, DTYPE_F32, cases[i].expected, at, cases[i].typical));
            assert_false(op_element_matches(&limits, DTYPE_F32, cases[i].expected,
                                            at + sign * 0x1p-20, cases[i].typical));
        }
    }
}

static void what_is_exact_is_rounded_and_no_more(void **state)
{
    (void)state;
    for (int t = 0; t < N_TYPES; t++) {
        op_limits limits = some_limits(types[t]);
        limits.exact = true;
        const double rounded = element_round(types[t], 1.1);
        assert_true(op_element_matches(&limits, types[t], 1.1, rounded, 1));
        assert_false(op_element_matches(&limits, types[t], 1.1, rounded * (1 + 0x1p-20), 1));
        assert_false(op_element_matches(&limits, types[t], 1.1, INFINITY, 1));
        assert_true(op_element_matches(&limits, types[t], NAN, NAN, 1));
    }
}

static void a_typical_size_is_of_finite_elements(void **state)
{
    (void)state;
    /* Rows of 3, 5 apart: 3 4 inf | 0 nan -5 */
    float data[] = {3, 4, INFINITY, 1e9f, 1e9f, 0, NAN, -5, 1e9f, 1e9f};
    tensor view = tensor_make(data, DTYPE_F32, 2, (const int64_t[]){2, 3});
    view.stride[0] = 5 * sizeof *data;
    assert_float_equal(op_typical_size(&view), sqrt(50.0 / 4), 1e-12);
    view.shape[0] = 0;
    assert_true(op_typical_size(&view) == 0);
}

/* ---- Limits -----------------------------------------------------------------------------------
 */

/* What the operators' tables say, by the rule in op.h: sums in float32 err by the root of their
 * terms. */
static void limits_follow_the_tables(void **state)
{
    (void)state;
    int seen = 0;
    for (int code = 0; code < OP_COUNT; code++) {
        const op_info *op = op_get((op_code)code);
        op_case about;
        fixture f;
        assert_ok(op_case_parse(op, op->cases[0], &about, &error));
        assert_ok(fixture_create(&f, op, NULL, &about, 0, &error));
        assert_ok(fixture_fill(&f, FILL_NORMAL, 3, &error));
        const double terms = fmax(1, op_evaluate(op, &f.call, op->reduction));
        for (int t = 0; t < N_TYPES; t++) {
            const op_limits found = op_limits_of(op, NULL, &f.call, types[t], false);
            const op_tolerance *entry = op->tolerances;
            while (entry && entry->relative > 0 && entry->type != types[t])
                entry++;
            const bool listed = entry && entry->relative > 0;
            assert_int_equal(found.exact, !listed);
            const double scale = types[t] == DTYPE_F32 ? sqrt(terms) : 1;
            if (listed) assert_float_equal(found.relative, entry->relative * scale, 1e-12);
            if (listed) assert_float_equal(found.absolute, entry->absolute * scale, 1e-12);
            if (types[t] == DTYPE_F16) assert_true(found.floor == 0x1p-24);
            if (types[t] != DTYPE_F16) assert_true(found.floor == 8 * terms * 0x1p-126);
            assert_true(element_round(types[t], found.largest) == found.largest);
            assert_false(element_round(types[t], found.largest * 1.1) > found.largest * 1.05 &&
                         element_round(types[t], found.largest * 1.1) < INFINITY);
            seen += listed;
        }
        const op_limits oracle = op_limits_of(op, NULL, &f.call, DTYPE_F64, false);
        assert_int_equal(oracle.exact, !op->tolerances);
        if (op->tolerances) assert_true(oracle.relative == 1e-12 && oracle.absolute == 1e-12);
        fixture_destroy(&f);
    }
    assert_true(seen > OP_COUNT / 2);
}

/* A variant's own tolerances grow with the terms only where its roundings add up. */
static void coarse_variants_have_limits_of_their_own(void **state)
{
    (void)state;
    const op_info *op = op_get(OP_RMS_NORM);
    const op_tolerance own[] = {{.type = DTYPE_F32, .relative = 0.5, .absolute = 0.25}, {0}};
    const op_variant coarse = {.name = "coarse", .tolerances = own};
    op_case about;
    fixture f;
    assert_ok(op_case_parse(op, op->cases[0], &about, &error));
    assert_ok(fixture_create(&f, op, NULL, &about, 0, &error));
    assert_ok(fixture_fill(&f, FILL_NORMAL, 3, &error));
    const double root = sqrt(fmax(1, op_evaluate(op, &f.call, op->reduction)));
    op_limits found = op_limits_of(op, &coarse, &f.call, DTYPE_F32, false);
    assert_true(found.relative == 0.5 && found.absolute == 0.25);
    found = op_limits_of(op, &coarse, &f.call, DTYPE_F32, true);
    assert_float_equal(found.relative, 0.5 * root, 1e-12);
    assert_float_equal(found.absolute, 0.25 * root, 1e-12);
    assert_true(op_limits_of(op, &coarse, &f.call, DTYPE_F16, true).exact);
    fixture_destroy(&f);
}

/* ---- All of an output -------------------------------------------------------------------------
 */

typedef struct judged {
    fixture fixture;
    op_case about;
    oracle oracle;
    op_limits limits;
    double typical;
} judged;

/* A row norm in float32 with the reference's answer. */
static void open_judged(judged *j)
{
    const op_info *op = op_get(OP_RMS_NORM);
    assert_ok(op_case_parse(op, "n_tokens=4 hidden_size=96", &j->about, &error));
    assert_ok(fixture_create(&j->fixture, op, NULL, &j->about, 0, &error));
    assert_ok(fixture_fill(&j->fixture, FILL_NORMAL, 3, &error));
    fixture_arm(&j->fixture, POISON_NAN);
    assert_ok(oracle_create(&j->fixture, &j->oracle, &error));
    op_call call = fixture_call(&j->fixture);
    call.begin = 0;
    call.end = op->units(&call);
    op->reference(&call);
    j->limits = op_limits_of(op, NULL, &j->fixture.call, DTYPE_F32, false);
    j->typical = op_typical_size(&j->oracle.outputs[RMS_NORM_OUT]);
}

static void close_judged(judged *j)
{
    oracle_destroy(&j->oracle);
    fixture_destroy(&j->fixture);
}

static float *element(judged *j, int64_t row, int64_t i)
{
    return (float *)view_row(&j->fixture.call.tensors[RMS_NORM_OUT], row) + i;
}

static bool passes(judged *j, comparison *found, char detail[256])
{
    *found = (comparison){0};
    return compare_outputs(&j->fixture, &j->oracle, FILL_NORMAL, found, detail, 256);
}

/* Each element within its limit, and all of them together not: errors that do not average out. */
static void the_norm_of_all_errors_is_judged(void **state)
{
    (void)state;
    judged j;
    comparison found;
    char detail[256] = "";
    open_judged(&j);
    assert_true(passes(&j, &found, detail));
    assert_true(found.relative < j.limits.relative && !found.wrong_type);
    for (int64_t row = 0; row < 4; row++) {
        for (int64_t i = 0; i < 96; i++) {
            float *at = element(&j, row, i);
            *at += (float)(0.9 * (j.limits.absolute * j.typical + j.limits.relative * fabs(*at)));
        }
    }
    assert_false(passes(&j, &found, detail));
    if (!strstr(detail, "the error's norm is")) fail_msg("%s", detail);
    assert_true(found.relative > j.limits.relative);
    close_judged(&j);
}

/* The first, a middle and the last element: 10% off is refused, and named with both values. */
static void each_element_is_judged(void **state)
{
    (void)state;
    judged j;
    comparison found;
    char detail[256];
    static const struct {
        int64_t row, i;
        const char *index;
    } places[] = {{0, 0, "out[0, 0]: expected"}, {1, 40, "out[1, 40]: "}, {3, 95, "out[3, 95]: "}};
    open_judged(&j);
    for (size_t p = 0; p < sizeof places / sizeof *places; p++) {
        float *at = element(&j, places[p].row, places[p].i), kept = *at;
        *at = kept * 1.1f + 0.5f;
        assert_false(passes(&j, &found, detail));
        assert_non_null(strstr(detail, places[p].index));
        memset(at, 0xff, sizeof *at); /* the poison */
        assert_false(passes(&j, &found, detail));
        assert_non_null(strstr(detail, "was not written, expected"));
        *at = kept;
    }
    assert_true(passes(&j, &found, detail));
    close_judged(&j);
}

/* The largest error of an element is what is reported. */
static void the_largest_error_is_told(void **state)
{
    (void)state;
    judged j;
    comparison found;
    char detail[256];
    open_judged(&j);
    float *at = element(&j, 2, 7);
    *at += (float)(0.5 * j.limits.relative * fabs(*at));
    const double *expected = view_row(&j.oracle.outputs[RMS_NORM_OUT], 2);
    assert_true(passes(&j, &found, detail));
    assert_float_equal(found.absolute, fabs((double)*at - expected[7]), 1e-15);
    close_judged(&j);
}

/* A snapshot sees one bit, anywhere; any NaN is as good as another. */
static void runs_are_compared_by_bits(void **state)
{
    (void)state;
    judged j;
    snapshot then;
    char detail[256];
    open_judged(&j);
    uint32_t bits;
    float *at = element(&j, 1, 1);
    memset(at, 0xff, sizeof *at);
    assert_ok(snapshot_create(&j.fixture, &then, &error));
    assert_true(snapshot_equal(&j.fixture, &then, detail, sizeof detail));
    *at = NAN;
    assert_true(snapshot_equal(&j.fixture, &then, detail, sizeof detail));
    *at = 1;
    assert_false(snapshot_equal(&j.fixture, &then, detail, sizeof detail));
    assert_non_null(strstr(detail, "out[1, 1] is 1, was "));
    *at = NAN;
    for (int64_t p = 0; p < 4 * 96; p += 37) {
        at = element(&j, p / 96, p % 96);
        memcpy(&bits, at, sizeof bits);
        bits ^= 1;
        if (p != 97) memcpy(at, &bits, sizeof bits);
        if (p != 97) assert_false(snapshot_equal(&j.fixture, &then, detail, sizeof detail));
        bits ^= 1;
        memcpy(at, &bits, sizeof bits);
    }
    assert_true(snapshot_equal(&j.fixture, &then, detail, sizeof detail));
    snapshot_destroy(&then);
    close_judged(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_finite_must_be_the_same),
        cmocka_unit_test(an_overflow_must_be_near),
        cmocka_unit_test(an_element_may_differ_by_so_much),
        cmocka_unit_test(what_is_exact_is_rounded_and_no_more),
        cmocka_unit_test(a_typical_size_is_of_finite_elements),
        cmocka_unit_test(limits_follow_the_tables),
        cmocka_unit_test(coarse_variants_have_limits_of_their_own),
        cmocka_unit_test(the_norm_of_all_errors_is_judged),
        cmocka_unit_test(each_element_is_judged),
        cmocka_unit_test(the_largest_error_is_told),
        cmocka_unit_test(runs_are_compared_by_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
