/* Compares two views element by element: see diff_compare.h. */
#include "inspect/diff/diff_compare.h"

#include "op/element.h"
#include "op/fixed.h"
#include "op/view.h"

#include <math.h>
#include <string.h>

bool diff_same_kernel(const machine_kernel *a, const machine_kernel *b)
{
    return strcmp(a->name, b->name) == 0;
}

op_kernel *diff_rounding(const machine_kernel *kernel)
{
    return kernel->variant ? kernel->variant->rounded : NULL;
}

/* Half a unit in the last place of a value. */
static double rounding_of(dtype type)
{
    if (type == DTYPE_I64)
        return 0x1p-32; /* of integer sums: rounding of each part that is added */
    return type == DTYPE_F32 ? 0x1p-24 : type == DTYPE_F16 ? 0x1p-11 : 0x1p-8;
}

op_limits diff_limits(const op_info *op, const op_call *call, dtype type, const machine_kernel *a,
                      const machine_kernel *b)
{
    const machine_kernel *kernels[2] = {a, b};
    op_limits sum = op_limits_of(op, NULL, call, type, false);
    if (sum.exact) return sum;
    sum.exact = diff_same_kernel(a, b);
    sum.relative = sum.absolute = 0;
    for (int i = 0; i < 2 && !sum.exact; i++) {
        const op_variant *own = diff_rounding(kernels[i]) ? NULL : kernels[i]->variant;
        op_limits one = op_limits_of(op, own, call, type, false);
        sum.relative += kernels[i]->reference ? rounding_of(type) : one.relative;
        sum.absolute += kernels[i]->reference ? 0 : one.absolute;
    }
    return sum;
}

/* An element as a number. 64-bit integers are always sums in fixed point. */
static double load(dtype type, const void *row, int64_t i)
{
    return type == DTYPE_I64 ? fixed_to_double(((const int64_t *)row)[i])
                             : element_load(type, row, i);
}

/* A comparison in progress. */
typedef struct pass_sums {
    double error, expected; /* sums of squares */
    double absolute, share;
    diff_element worst;
} pass_sums;

static void set_element(diff_element *out, const tensor *view, int64_t row, int64_t i,
                        const diff_element *from)
{
    *out = *from;
    view_index(view, row, i, out->index, sizeof out->index);
}

/* The share of its tolerance that an element uses up; more than 1 if it is wrong. */
static double share_of(const op_limits *limits, dtype type, diff_element *e, double typical)
{
    double apart = fabs(e->found - e->expected);
    e->tolerance = limits->exact ? 0
                                 : limits->absolute * typical +
                                       limits->relative * fabs(e->expected) + limits->floor;
    if (!op_element_matches(limits, type, e->expected, e->found, typical))
        return isfinite(apart) && e->tolerance > 0 ? apart / e->tolerance : INFINITY;
    return isfinite(apart) && e->tolerance > 0 ? apart / e->tolerance : 0;
}

static void compare_row(const diff_views *views, int64_t row, const op_limits *limits,
                        diff_element *at, double typical, pass_sums *sums, diff_measure *m)
{
    const tensor *expected = &views->expected;
    dtype type = expected->type;
    bool shifted = views->oracle_found.rank > 0;
    const void *theirs = view_row(expected, row), *ours = view_row(&views->found, row);
    const void *from = shifted ? view_row(&views->oracle_expected, row) : NULL;
    const void *to = shifted ? view_row(&views->oracle_found, row) : NULL;
    for (int64_t i = 0; i < expected->shape[expected->rank - 1]; i++) {
        at->expected = load(type, theirs, i);
        at->found = load(type, ours, i);
        if (shifted) at->expected += load(type, to, i) - load(type, from, i);
        if (isfinite(at->expected)) sums->expected += at->expected * at->expected;
        if (at->expected == at->found) continue;
        double share = share_of(limits, type == DTYPE_I64 ? DTYPE_F64 : type, at, typical);
        double apart = fabs(at->found - at->expected);
        if (!isfinite(apart)) apart = share > 1 ? INFINITY : 0;
        sums->error += apart * apart;
        if (apart > sums->absolute) sums->absolute = apart;
        if (share > 1 && m->wrong++ == 0) set_element(&m->first, expected, row, i, at);
        if (share <= sums->share && sums->worst.index[0]) continue;
        sums->share = share;
        set_element(&sums->worst, expected, row, i, at);
    }
}

void diff_compare(const diff_views *views, const op_limits *limits, int pass, diff_measure *m)
{
    const tensor *expected = &views->expected;
    pass_sums sums = {0};
    diff_element at = {.pass = pass};
    double typical = op_typical_size(expected) * (expected->type == DTYPE_I64 ? 0x1p-32 : 1);
    int64_t elements = tensor_elements(expected), wrong = m->wrong;
    for (int64_t row = 0; row < view_rows(expected); row++)
        compare_row(views, row, limits, &at, typical, &sums, m);
    double norm = sqrt(sums.expected), error = sqrt(sums.error);
    double allowed = limits->exact ? 0 : limits->relative;
    double relative = error == 0 ? 0 : norm > 0 ? error / norm : INFINITY;
    double bound = allowed * norm + limits->floor * sqrt((double)elements);
    bool norm_wrong = !limits->exact && !(error <= bound);
    if (!limits->exact && error / bound > sums.share) sums.share = error / bound;
    if (norm_wrong && m->wrong == wrong && m->wrong++ == 0) {
        m->norm_wrong = true;
        m->first = sums.worst;
    }
    m->elements += elements;
    if (sums.absolute > m->absolute) m->absolute = sums.absolute;
    if (relative > m->relative) m->relative = relative;
    if (allowed > m->allowed) m->allowed = allowed;
    if (sums.worst.index[0] && (sums.share > m->share || !m->worst.index[0])) m->worst = sums.worst;
    if (sums.share > m->share) m->share = sums.share;
}

int64_t diff_likeliest(const float *row, int64_t n, float *margin)
{
    int64_t best = 0;
    float second = -INFINITY;
    for (int64_t i = 1; i < n; i++) {
        if (row[i] > row[best]) {
            second = row[best];
            best = i;
        } else if (row[i] > second) {
            second = row[i];
        }
    }
    *margin = row[best] - second;
    return best;
}
