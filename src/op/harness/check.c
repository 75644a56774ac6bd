/* Checking a kernel on a case: see check.h. */
#include "op/harness/check.h"

#include "base/threads.h"
#include "op/harness/compare.h"

#include <stdio.h>
#include <string.h>

/* What is checked, and with which expectations. */
typedef struct checker {
    const op_info *op;
    const op_variant *variant; /* NULL: the reference */
    const check_runner *runner;
    op_case about;
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

bool check_status_is_one(int status)
{
    return status >= CHECK_PASSED && status <= CHECK_TIMEOUT;
}

/* Sets the verdict; returns false, so that a check can end with it. */
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

typedef struct shares {
    const op_info *op;
    op_kernel *kernel;
    const op_call *call;
    size_t scratch_stride;
} shares;

static void run_share(void *context, int worker, int n_workers)
{
    const shares *run = context;
    op_call call = *run->call;
    if (call.scratch) call.scratch = (char *)call.scratch + (size_t)worker * run->scratch_stride;
    thread_share(run->op->units(&call), worker, n_workers, &call.begin, &call.end);
    run->kernel(&call);
}

/* Units one by one from the last to the first, with empty slices in between. */
static void run_backwards(const op_info *op, op_kernel *kernel, op_call call)
{
    for (int64_t unit = op->units(&call); unit-- > 0;) {
        call.begin = call.end = unit;
        kernel(&call);
        call.end = unit + 1;
        kernel(&call);
    }
}

void check_run_call(const op_info *op, op_kernel *kernel, const op_call *call,
                    size_t scratch_stride, int n_threads, thread_pool *pool)
{
    if (n_threads == 0)
        run_backwards(op, kernel, *call);
    else
        thread_pool_run(pool, run_share, &(shares){op, kernel, call, scratch_stride});
}

/* Poisons, runs (n_threads as in check_runner), and looks for bytes that must not have changed. */
static bool run_once(checker *check, fixture *fixture, poison poison, int n_threads,
                     const char *name)
{
    char detail[256];
    check_status status = CHECK_RUNTIME_ERROR;
    fixture_arm(fixture, poison);
    check->verdict->runs++;
    if (!check->runner->run(check->runner->context, fixture, n_threads, &status, detail,
                            sizeof detail))
        return fail(check, status, name, detail);
    fixture_collect(fixture);
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
    if (!run_once(check, &check->aligned, POISON_NAN, 1, name)) return false;
    bool right =
        compare_outputs(&check->aligned, expected, check->fill, &found, detail, sizeof detail);
    check_verdict *verdict = check->verdict;
    /* With unusual inputs only the verdict counts: denormals may be flushed, and huge values have
     * huge errors. */
    if (check->fill == FILL_NORMAL) {
        if (found.relative > verdict->relative_error) verdict->relative_error = found.relative;
        if (found.absolute > verdict->absolute_error) verdict->absolute_error = found.absolute;
    }
    if (right) return true;
    return fail(check, found.wrong_type ? CHECK_INCORRECT_DTYPE : CHECK_INCORRECT_NUMERICAL, name,
                detail);
}

/* The other runs, which must repeat the first. */
static const struct way {
    const char *name;
    poison poison;
    int n_threads; /* as in check_runner, less than FIXTURE_WORKERS */
    bool shifted;
} ways[] = {
    {"again, with other garbage in the outputs and around the inputs", POISON_LARGE, 1, false},
    {"unit by unit, backwards", POISON_NAN, 0, false},
    {"on 2 threads", POISON_LARGE, 2, false},
    {"on 3 threads", POISON_LARGE, 3, false},
    {"on 7 threads", POISON_LARGE, 7, false},
    {"at addresses shifted by one element", POISON_NAN, 1, true},
};

/* All of them on random inputs. On each other kind of input only foreign code makes all; a kernel
 * of the program makes one, which differs from kind to kind and from case to case. */
static bool check_repetitions(checker *check, const snapshot *first)
{
    enum { WAYS = sizeof ways / sizeof *ways };
    const bool all = check->runner->is_elsewhere || check->fill == FILL_NORMAL;
    const size_t only = ((size_t)check->fill + strlen(check->about.text)) % WAYS;
    for (size_t i = 0; i < WAYS; i++) {
        if (!all && i != only) continue;
        fixture *fixture = ways[i].shifted ? &check->shifted : &check->aligned;
        if (!run_once(check, fixture, ways[i].poison, ways[i].n_threads, ways[i].name) ||
            !same_as_before(check, fixture, first, ways[i].name))
            return false;
    }
    return true;
}

/* The scratch memory that a kernel in another process asks for. */
static bool ask_scratch(checker *check, fixture *fixture)
{
    const check_runner *runner = check->runner;
    check_status status = CHECK_RUNTIME_ERROR;
    char detail[256];
    uint64_t bytes;
    qp_error error;
    if (!runner->scratch_bytes) return true;
    if (!runner->scratch_bytes(runner->context, fixture, &bytes, &status, detail, sizeof detail))
        return fail(check, status, "asked for its scratch memory", detail);
    if (bytes == UINT64_MAX) return true;
    return fixture_set_scratch(fixture, bytes, &error) == QP_OK || fail_call(check, &error);
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
    if (!ask_scratch(check, &check->aligned) || !ask_scratch(check, &check->shifted)) return false;
    bool passed = check_against_oracle(check, &expected);
    oracle_destroy(&expected);
    if (!passed || check->runner->is_brief) return passed;
    if (snapshot_create(&check->aligned, &first, &error) != QP_OK) return fail_call(check, &error);
    passed = check_repetitions(check, &first);
    snapshot_destroy(&first);
    return passed;
}

static void run_all(checker *check, uint64_t seed)
{
    qp_error error;
    const check_runner *runner = check->runner;
    check_status status = CHECK_RUNTIME_ERROR;
    char detail[400];
    if (fixture_create(&check->aligned, check->op, check->variant, &check->about, 0, &error) !=
            QP_OK ||
        fixture_create(&check->shifted, check->op, check->variant, &check->about, 1, &error) !=
            QP_OK ||
        (runner->is_elsewhere && (fixture_share(&check->aligned, &error) != QP_OK ||
                                  fixture_share(&check->shifted, &error) != QP_OK))) {
        fail_call(check, &error);
        return;
    }
    if (runner->begin && !runner->begin(runner->context, &status, detail, sizeof detail)) {
        check->verdict->status = status;
        snprintf(check->verdict->detail, CHECK_DETAIL_SIZE, "%s", detail);
        return;
    }
    for (int fill = 0; fill < FILL_COUNT; fill++) {
        check->fill = (fill_kind)fill;
        if (runner->is_brief && check->fill != FILL_NORMAL) continue;
        if (fill_applies(check->op, check->fill) && !check_fill(check, seed)) return;
    }
}

void check_kernel(const op_info *op, const op_variant *variant, const check_runner *runner,
                  const char *case_text, uint64_t seed, check_verdict *verdict)
{
    qp_error error;
    checker check = {.op = op, .variant = variant, .runner = runner, .verdict = verdict};
    *verdict = (check_verdict){.status = CHECK_PASSED};
    if (op_case_parse(op, case_text, &check.about, &error) != QP_OK) {
        fail_call(&check, &error);
        return;
    }
    run_all(&check, seed);
    fixture_destroy(&check.aligned);
    fixture_destroy(&check.shifted);
}

/* --- kernels of the program, in this process -------------------------------------------------- */

typedef struct local_runner {
    op_kernel *kernel;
    thread_pool *pools[FIXTURE_WORKERS]; /* by their number of threads */
} local_runner;

static bool run_here(void *context, const fixture *fixture, int n_threads, check_status *status,
                     char *detail, size_t size)
{
    local_runner *local = context;
    thread_pool **pool = &local->pools[n_threads];
    qp_error error;
    if (n_threads > 1 && !*pool && thread_pool_create(n_threads, pool, &error) != QP_OK) {
        *status = CHECK_RUNTIME_ERROR;
        snprintf(detail, size, "%s", error.message);
        return false;
    }
    op_call call = fixture_call(fixture);
    check_run_call(fixture->op, local->kernel, &call, fixture->scratch_stride, n_threads, *pool);
    return true;
}

void check_variant(const op_info *op, const op_variant *variant, const char *case_text,
                   uint64_t seed, check_verdict *verdict)
{
    local_runner local = {.kernel = variant ? variant->kernel : op->reference};
    check_runner runner = {.run = run_here, .context = &local};
    check_kernel(op, variant, &runner, case_text, seed, verdict);
    for (int i = 0; i < FIXTURE_WORKERS; i++)
        thread_pool_destroy(local.pools[i]);
}
