/* Checking a kernel on a case: see check.h. */
#include "op/harness/check.h"

#include "base/threads.h"
#include "op/harness/compare.h"

#include <stdio.h>

enum { N_POOLS = 3 };
static const int pool_sizes[N_POOLS] = {2, 3, 7}; /* less than FIXTURE_WORKERS */

/* What is being checked, and against what. */
typedef struct checker {
    const op_info *op;
    const op_variant *variant; /* NULL: the reference */
    op_kernel *kernel;
    op_case about;
    thread_pool *pools[N_POOLS];
    fixture aligned, shifted;
    fill_kind fill;
    check_verdict *verdict;
} checker;

const char *check_status_name(check_status status)
{
    static const char *const names[] = {
        [CHECK_PASSED] = "PASSED",
        [CHECK_INCORRECT_SHAPE] = "INCORRECT_SHAPE",
        [CHECK_INCORRECT_NUMERICAL] = "INCORRECT_NUMERICAL",
        [CHECK_INCORRECT_DTYPE] = "INCORRECT_DTYPE",
        [CHECK_RUNTIME_ERROR] = "RUNTIME_ERROR",
        [CHECK_COMPILE_ERROR] = "COMPILE_ERROR",
        [CHECK_TIMEOUT] = "TIMEOUT",
    };
    return names[status];
}

/* Sets the verdict; false, so that a check can end in it. */
static bool fail(checker *check, check_status status, const char *run, const char *detail)
{
    check->verdict->status = status;
    snprintf(check->verdict->detail, CHECK_DETAIL_SIZE, "%s: %s, %s: %s", check->about.text,
             fill_name(check->fill), run, detail);
    return false;
}

static bool fail_call(checker *check, const qp_error *error)
{
    check->verdict->status =
        error->status == QP_INVALID ? CHECK_INCORRECT_SHAPE : CHECK_RUNTIME_ERROR;
    snprintf(check->verdict->detail, CHECK_DETAIL_SIZE, "%s: %.400s", check->about.text,
             error->message);
    return false;
}

/* --- ways to run ----------------------------------------------------------------------------- */

/* Units one by one from the last to the first, with slices of none in between. */
static void run_backwards(const checker *check, const fixture *fixture)
{
    op_call call = fixture->call;
    call.scratch = fixture_scratch(fixture);
    for (int64_t unit = check->op->units(&call); unit-- > 0;) {
        call.begin = call.end = unit;
        check->kernel(&call);
        call.end = unit + 1;
        check->kernel(&call);
    }
}

typedef struct shares {
    const checker *check;
    const fixture *fixture;
} shares;

static void run_share(void *context, int worker, int n_workers)
{
    const shares *run = context;
    op_call call = run->fixture->call;
    char *scratch = fixture_scratch(run->fixture);
    call.scratch = scratch ? scratch + (size_t)worker * run->fixture->scratch_stride : NULL;
    thread_share(run->check->op->units(&call), worker, n_workers, &call.begin, &call.end);
    run->check->kernel(&call);
}

/* Poisons, runs on the pool (NULL: this thread; backwards: unit by unit), and sees what was
 * touched. */
static bool run_once(checker *check, fixture *fixture, poison poison, thread_pool *pool,
                     bool backwards, const char *name)
{
    char detail[256];
    fixture_arm(fixture, poison);
    if (backwards)
        run_backwards(check, fixture);
    else
        thread_pool_run(pool, run_share, &(shares){check, fixture});
    check->verdict->runs++;
    if (fixture_intact(fixture, detail, sizeof detail)) return true;
    return fail(check, CHECK_RUNTIME_ERROR, name, detail);
}

static bool same_as_before(checker *check, const fixture *fixture, const snapshot *first,
                           const char *name)
{
    char detail[256];
    if (snapshot_equal(fixture, first, detail, sizeof detail)) return true;
    return fail(check, CHECK_INCORRECT_NUMERICAL, name, detail);
}

/* --- one kind of input ----------------------------------------------------------------------- */

static bool check_against_oracle(checker *check, const oracle *expected)
{
    static const char name[] = "whole";
    char detail[256];
    comparison found = {0};
    if (!run_once(check, &check->aligned, POISON_NAN, NULL, false, name)) return false;
    bool right =
        compare_outputs(&check->aligned, expected, check->fill, &found, detail, sizeof detail);
    check_verdict *verdict = check->verdict;
    /* Of unusual inputs only the verdict counts: denormals may be flushed, huge values are huge. */
    if (check->fill == FILL_NORMAL) {
        if (found.relative > verdict->relative_error) verdict->relative_error = found.relative;
        if (found.absolute > verdict->absolute_error) verdict->absolute_error = found.absolute;
    }
    if (right) return true;
    return fail(check, found.wrong_type ? CHECK_INCORRECT_DTYPE : CHECK_INCORRECT_NUMERICAL, name,
                detail);
}

/* The other runs, which must repeat the first. */
static bool check_repetitions(checker *check, const snapshot *first)
{
    static const char again[] = "again, with other garbage in the outputs and around the inputs",
                      backwards[] = "unit by unit, backwards",
                      shifted[] = "at addresses shifted by one element";
    fixture *fixture = &check->aligned;
    if (!run_once(check, fixture, POISON_LARGE, NULL, false, again) ||
        !same_as_before(check, fixture, first, again))
        return false;
    if (!run_once(check, fixture, POISON_NAN, NULL, true, backwards) ||
        !same_as_before(check, fixture, first, backwards))
        return false;
    for (int i = 0; i < N_POOLS; i++) {
        char threads[32];
        snprintf(threads, sizeof threads, "on %d threads", pool_sizes[i]);
        if (!run_once(check, fixture, POISON_LARGE, check->pools[i], false, threads) ||
            !same_as_before(check, fixture, first, threads))
            return false;
    }
    return run_once(check, &check->shifted, POISON_NAN, NULL, false, shifted) &&
           same_as_before(check, &check->shifted, first, shifted);
}

static bool check_fill(checker *check, uint64_t seed)
{
    qp_error error;
    oracle expected;
    snapshot first;
    if (fixture_fill(&check->aligned, check->fill, seed, &error) != QP_OK ||
        fixture_fill(&check->shifted, check->fill, seed, &error) != QP_OK ||
        oracle_create(&check->aligned, &expected, &error) != QP_OK)
        return fail_call(check, &error);
    bool passed = check_against_oracle(check, &expected);
    oracle_destroy(&expected);
    if (!passed) return false;
    if (snapshot_create(&check->aligned, &first, &error) != QP_OK) return fail_call(check, &error);
    passed = check_repetitions(check, &first);
    snapshot_destroy(&first);
    return passed;
}

static void run_all(checker *check, uint64_t seed)
{
    qp_error error;
    if (fixture_create(&check->aligned, check->op, check->variant, &check->about, 0, &error) !=
            QP_OK ||
        fixture_create(&check->shifted, check->op, check->variant, &check->about, 1, &error) !=
            QP_OK) {
        fail_call(check, &error);
        return;
    }
    for (int i = 0; i < N_POOLS; i++) {
        if (thread_pool_create(pool_sizes[i], &check->pools[i], &error) != QP_OK) {
            fail_call(check, &error);
            return;
        }
    }
    for (int fill = 0; fill < FILL_COUNT; fill++) {
        check->fill = (fill_kind)fill;
        if (fill_applies(check->op, check->fill) && !check_fill(check, seed)) return;
    }
}

void check_variant(const op_info *op, const op_variant *variant, const char *case_text,
                   uint64_t seed, check_verdict *verdict)
{
    qp_error error;
    checker check = {.op = op,
                     .variant = variant,
                     .kernel = variant ? variant->kernel : op->reference,
                     .verdict = verdict};
    *verdict = (check_verdict){.status = CHECK_PASSED};
    if (op_case_parse(op, case_text, &check.about, &error) != QP_OK) {
        fail_call(&check, &error);
        return;
    }
    run_all(&check, seed);
    for (int i = 0; i < N_POOLS; i++)
        thread_pool_destroy(check.pools[i]);
    fixture_destroy(&check.aligned);
    fixture_destroy(&check.shifted);
}
