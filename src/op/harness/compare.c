/* Comparing with the oracle and between runs: see compare.h. */
#include "op/harness/compare.h"

#include "op/element.h"
#include "op/tolerance.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_output(const fixture *fixture, int t)
{
    return fixture->op->tensors[t].direction != OP_IN && fixture->call.tensors[t].rank;
}

/* A contiguous tensor of the view's shape, zeroed; data NULL when memory is exhausted. */
static tensor tensor_like(const tensor *view, dtype type)
{
    tensor copy = tensor_make(NULL, type, view->rank, view->shape);
    size_t bytes = tensor_bytes(&copy);
    copy.data = calloc(bytes ? bytes : 1, 1);
    return copy;
}

static void copy_elements(const tensor *from, const tensor *to)
{
    int64_t n = from->shape[from->rank - 1];
    for (int64_t row = 0; row < view_rows(from); row++) {
        const void *in = view_row(from, row);
        void *out = view_row(to, row);
        if (from->type == to->type) memcpy(out, in, dtype_row_bytes(from->type, n));
        for (int64_t i = 0; i < n && from->type != to->type; i++)
            element_store(to->type, out, i, element_load(from->type, in, i));
    }
}

/* --- the oracle ------------------------------------------------------------------------------ */

qp_status oracle_create(const fixture *fixture, oracle *out, qp_error *error)
{
    const op_info *op = fixture->op;
    *out = (oracle){0};
    op_call call = fixture->call;
    for (int t = 0; t < op_n_tensors(op); t++) {
        if (!is_output(fixture, t)) continue;
        const tensor *view = &fixture->call.tensors[t];
        dtype type = op->tensors[t].types & OP_TYPE(F64) ? DTYPE_F64 : view->type;
        out->outputs[t] = call.tensors[t] = tensor_like(view, type);
        if (!call.tensors[t].data) goto no_memory;
        if (op_reads(op->tensors[t].direction)) copy_elements(view, &call.tensors[t]);
    }
    size_t scratch_bytes = op->scratch_bytes ? op->scratch_bytes(&call) : 0;
    call.scratch = malloc(scratch_bytes + 1);
    if (!call.scratch) goto no_memory;
    call.begin = 0;
    call.end = op->units(&call);
    if (call.begin < call.end) op->reference(&call);
    free(call.scratch);
    return QP_OK;
no_memory:
    oracle_destroy(out);
    return error_set(error, QP_NO_MEMORY, "%s: no memory for the expected outputs", op->name);
}

void oracle_destroy(oracle *oracle)
{
    for (int t = 0; t < OP_MAX_TENSORS; t++)
        free(oracle->outputs[t].data);
    *oracle = (struct oracle){0};
}

/* --- comparison with the oracle -------------------------------------------------------------- */

/* Sums over the elements of one output. */
typedef struct sums {
    double error; /* sum of squares */
    int64_t finite;
    double lean; /* of inexact elements, towards zero, in units in the last place */
    int64_t inexact;
} sums;

/* A unit in the last place of a narrow type at a normal value; 0 at others. */
static double narrow_unit(dtype type, double value)
{
    int exponent;
    frexp(value, &exponent); /* value = f * 2^exponent, f in [0.5, 1) */
    if (type == DTYPE_F16) return exponent - 1 < -14 ? 0 : ldexp(1, exponent - 11);
    if (type == DTYPE_BF16) return exponent - 1 < -126 ? 0 : ldexp(1, exponent - 8);
    if (type == DTYPE_F8)
        return exponent - 1 < -6 || fabs(value) > 448 ? 0 : ldexp(1, exponent - 4);
    return 0;
}

static void sums_add(sums *all, dtype type, double expected, double found)
{
    if (!isfinite(expected) || !isfinite(found)) return;
    all->error += (found - expected) * (found - expected);
    all->finite++;
    double unit = narrow_unit(type, expected);
    if (unit == 0 || fabs(element_round(type, expected) - expected) < 1e-3 * unit) return;
    all->lean += (fabs(expected) - fabs(found)) / unit;
    all->inexact++;
}

/* When values are few and distinct, so are their roundings: errors add up instead of averaging out.
 */
static op_limits limits_of(const fixture *fixture, fill_kind fill, dtype type)
{
    return op_limits_of(fixture->op, fixture->variant, &fixture->call, type, fill == FILL_TIES);
}

static void describe_element(const fixture *fixture, int t, int64_t row, int64_t i, double expected,
                             double found, char *detail, size_t size)
{
    char index[96];
    const char *name = fixture->op->tensors[t].name;
    view_index(&fixture->call.tensors[t], row, i, index, sizeof index);
    if (fixture_is_poison(fixture, t, row, i))
        snprintf(detail, size, "%s%s was not written, expected %.9g", name, index, expected);
    else
        snprintf(detail, size, "%s%s: expected %.9g, found %.9g", name, index, expected, found);
}

/* The output read as `type`, its own or another of the same or a smaller size. */
static bool compare_tensor(const fixture *fixture, int t, dtype type, const oracle *oracle,
                           fill_kind fill, sums *all, comparison *found, char *detail, size_t size)
{
    const tensor *view = &fixture->call.tensors[t], *expected = &oracle->outputs[t];
    op_limits allowed = limits_of(fixture, fill, type);
    double typical = op_typical_size(expected);
    for (int64_t row = 0; row < view_rows(view); row++) {
        const void *in = view_row(view, row), *reference = view_row(expected, row);
        for (int64_t i = 0; i < view->shape[view->rank - 1]; i++) {
            double ours = element_load(type, in, i);
            double theirs = element_load(expected->type, reference, i);
            if (!op_element_matches(&allowed, type, theirs, ours, typical)) {
                describe_element(fixture, t, row, i, theirs, ours, detail, size);
                return false;
            }
            sums_add(all, type, theirs, ours);
            double apart = fabs(ours - theirs);
            if (isfinite(apart) && apart > found->absolute) found->absolute = apart;
        }
    }
    double norm = typical * sqrt((double)all->finite), error = sqrt(all->error);
    double relative = norm > 0 ? error / norm : 0;
    if (relative > found->relative) found->relative = relative;
    if (allowed.exact ||
        error <= allowed.relative * norm + allowed.floor * sqrt((double)all->finite))
        return true;
    snprintf(detail, size, "%s: the error's norm is %.3g of the output's, allowed are %.3g",
             fixture->op->tensors[t].name, relative, allowed.relative);
    return false;
}

/* Rounding to nearest errs to both sides, by nothing on average; over 64 elements a quarter of a
 * unit is seven standard deviations. Where a variant's arithmetic is coarser, this says nothing
 * about its last rounding. */
static bool check_lean(const fixture *fixture, int t, const sums *all, char *detail, size_t size)
{
    if (fixture->variant && fixture->variant->tolerances) return true;
    double mean = all->inexact ? all->lean / (double)all->inexact : 0;
    if (all->inexact < 64 || fabs(mean) <= 0.25) return true;
    snprintf(detail, size,
             "%s: values lie %.2f units of the last place of %s %s zero on average; round to "
             "nearest, ties to even",
             fixture->op->tensors[t].name, fabs(mean), dtype_name(fixture->call.tensors[t].type),
             mean > 0 ? "towards" : "away from");
    return false;
}

/* Whether the output is right when read as another type: then the kernel wrote that type. */
static dtype find_other_type(const fixture *fixture, int t, const oracle *oracle, fill_kind fill)
{
    static const dtype others[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    const tensor *view = &fixture->call.tensors[t];
    if (view_rows(view) == 0 || dtype_is_quantized(view->type)) return view->type;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        sums all = {0};
        comparison ignored = {0};
        char detail[256];
        if (others[i] == view->type || op_typical_size(&oracle->outputs[t]) == 0) continue;
        if (dtype_block_bytes(others[i]) > dtype_block_bytes(view->type)) continue;
        if (limits_of(fixture, fill, others[i]).exact && fixture->op->tolerances) continue;
        if (compare_tensor(fixture, t, others[i], oracle, fill, &all, &ignored, detail,
                           sizeof detail))
            return others[i];
    }
    return view->type;
}

bool compare_outputs(const fixture *fixture, const oracle *oracle, fill_kind fill,
                     comparison *found, char *detail, size_t size)
{
    for (int t = 0; t < op_n_tensors(fixture->op); t++) {
        if (!is_output(fixture, t)) continue;
        sums all = {0};
        dtype type = fixture->call.tensors[t].type;
        if (!compare_tensor(fixture, t, type, oracle, fill, &all, found, detail, size)) {
            dtype other = find_other_type(fixture, t, oracle, fill);
            found->wrong_type = other != type;
            if (found->wrong_type)
                snprintf(detail, size, "%s is %s, but holds the right values as %s",
                         fixture->op->tensors[t].name, dtype_name(type), dtype_name(other));
            return false;
        }
        if (fill == FILL_NORMAL && !check_lean(fixture, t, &all, detail, size)) return false;
    }
    return true;
}

/* --- comparison between runs ----------------------------------------------------------------- */

qp_status snapshot_create(const fixture *fixture, snapshot *out, qp_error *error)
{
    *out = (snapshot){0};
    for (int t = 0; t < op_n_tensors(fixture->op); t++) {
        if (!is_output(fixture, t)) continue;
        const tensor *view = &fixture->call.tensors[t];
        out->outputs[t] = tensor_like(view, view->type);
        if (!out->outputs[t].data) {
            snapshot_destroy(out);
            return error_set(error, QP_NO_MEMORY, "%s: no memory for a copy of the outputs",
                             fixture->op->name);
        }
        size_t bytes = dtype_row_bytes(view->type, view->shape[view->rank - 1]);
        for (int64_t row = 0; row < view_rows(view); row++)
            memcpy(view_row(&out->outputs[t], row), view_row(view, row), bytes);
    }
    return QP_OK;
}

void snapshot_destroy(snapshot *snapshot)
{
    for (int t = 0; t < OP_MAX_TENSORS; t++)
        free(snapshot->outputs[t].data);
    *snapshot = (struct snapshot){0};
}

static bool row_equal(const tensor *a, const tensor *b, int64_t row, int64_t *at)
{
    const char *x = view_row(a, row), *y = view_row(b, row);
    size_t size = dtype_block_bytes(a->type);
    int64_t n = a->shape[a->rank - 1];
    if (memcmp(x, y, size * (size_t)n) == 0) return true;
    for (*at = 0; *at < n; ++*at) {
        if (memcmp(x + (size_t)*at * size, y + (size_t)*at * size, size) == 0) continue;
        if (!isnan(element_load(a->type, x, *at)) || !isnan(element_load(b->type, y, *at)))
            return false;
    }
    return true;
}

bool snapshot_equal(const fixture *fixture, const snapshot *snapshot, char *detail, size_t size)
{
    for (int t = 0; t < op_n_tensors(fixture->op); t++) {
        if (!is_output(fixture, t)) continue;
        const tensor *now = &fixture->call.tensors[t], *then = &snapshot->outputs[t];
        for (int64_t row = 0; row < view_rows(now); row++) {
            int64_t i;
            char index[96];
            if (row_equal(now, then, row, &i)) continue;
            view_index(now, row, i, index, sizeof index);
            snprintf(detail, size, "%s%s is %.9g, was %.9g before", fixture->op->tensors[t].name,
                     index, element_load(now->type, view_row(now, row), i),
                     element_load(then->type, view_row(then, row), i));
            return false;
        }
    }
    return true;
}
