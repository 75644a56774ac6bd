/* Fused operators from the variants of their parts: see compose.h. */
#include "op/compose.h"

#include "base/checked.h"
#include "op/fixed.h"
#include "op/linear/linear.h"
#include "op/linear/linear_rounded.h"
#include "op/rms_norm/rms_norm.h"
#include "op/table.h"

#include <assert.h>

const op_tolerance compose_coarse_tolerances[] = {
    {DTYPE_F32, 2e-2, 6e-2}, {DTYPE_F16, 2e-2, 6e-2}, {DTYPE_BF16, 3e-2, 7e-2}, {0}};

const op_tolerance compose_fine_tolerances[] = {
    {DTYPE_F32, 2e-4, 2e-3}, {DTYPE_F16, 1e-3, 4e-3}, {DTYPE_BF16, 8e-3, 3e-2}, {0}};

const op_tolerance compose_bf16_tolerances[] = {
    {DTYPE_F32, 8e-3, 4e-2}, {DTYPE_F16, 8e-3, 4e-2}, {DTYPE_BF16, 1.5e-2, 5e-2}, {0}};

enum { ALIGNMENT = 64 };

static bool is_float(dtype type)
{
    return type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16;
}

/* An expert's part of a tensor that has `rank` dimensions for each; others are returned as they
 * are.
 */
static tensor expert_of(const tensor *all, int rank, int64_t expert)
{
    tensor one = *all;
    if (all->rank <= rank) return one;
    if (all->data) one.data = tensor_row(all, expert);
    one.rank = rank;
    for (int d = 0; d < rank; d++) {
        one.shape[d] = all->shape[d + 1];
        one.stride[d] = all->stride[d + 1];
    }
    return one;
}

/* A projection of `n_rows` normalised rows, without data except the weight's. */
static op_call linear_call(const op_call *call, const compose_norm *norm, int which, int64_t expert,
                           int64_t n_rows)
{
    const tensor weight = expert_of(&call->tensors[norm->weights[which]], 2, expert);
    op_call linear = {0};
    linear.tensors[LINEAR_X] = tensor_2d(NULL, DTYPE_F32, n_rows, weight.shape[1]);
    linear.tensors[LINEAR_WEIGHT] = weight;
    linear.tensors[LINEAR_BIAS] = expert_of(&call->tensors[norm->biases[which]], 1, expert);
    linear.tensors[LINEAR_OUT] = tensor_2d(NULL, DTYPE_F32, n_rows, weight.shape[0]);
    return linear;
}

#define ROUNDED(bits)                                                                              \
    {                                                                                              \
        .name = "rounded", .kernel = linear_rounded_##bits, .scratch_bytes = linear_rounded_bytes  \
    }

/* The best variant of linear at a level; NULL: there is none. */
static const op_variant *choose_linear(const op_call *linear, uint32_t level)
{
    static const op_variant reference = {.name = "reference", .kernel = linear_reference};
    static const op_variant rounded[] = {ROUNDED(8), ROUNDED(16), ROUNDED(bf16)};
    const op_variant *variant;
    op_select(&op_linear, level & ~(uint32_t)COMPOSE_ROUNDED, linear, &variant);
    if (!(level & COMPOSE_ROUNDED) || !variant) return variant;
    for (size_t i = 0; i < sizeof rounded / sizeof *rounded; i++) {
        if (variant->rounded == rounded[i].kernel) return &rounded[i];
    }
    return &reference;
}

static size_t packed_bytes_of(const op_variant *variant, const op_call *linear)
{
    if (!variant || !variant->packed_bytes) return 0;
    return round_up(variant->packed_bytes(linear), ALIGNMENT);
}

/* How many projections the call has. */
static int count_projections(const op_call *call, const compose_norm *norm)
{
    int n = 0;
    while (n < norm->n && call->tensors[norm->weights[n]].rank)
        n++;
    return n;
}

int compose_linears(const op_call *call, const compose_norm *norm, uint32_t level,
                    compose_linear out[COMPOSE_MOST])
{
    size_t packed_at = 0;
    const int n = count_projections(call, norm);
    for (int i = 0; i < n; i++) {
        const tensor *weight = &call->tensors[norm->weights[i]];
        out[i].call = linear_call(call, norm, i, 0, call->tensors[norm->x].shape[0]);
        out[i].variant = choose_linear(&out[i].call, level);
        out[i].packed_at = packed_at;
        out[i].packed_each = packed_bytes_of(out[i].variant, &out[i].call);
        out[i].n_experts = weight->rank == 3 ? weight->shape[0] : 1;
        packed_at += out[i].packed_each * (size_t)out[i].n_experts;
    }
    return n;
}

compose_linear compose_expert(const op_call *call, const compose_norm *norm, int which,
                              const compose_linear *part, int64_t expert)
{
    compose_linear one = *part;
    one.call = linear_call(call, norm, which, expert, part->call.tensors[LINEAR_X].shape[0]);
    one.packed_at += (size_t)expert * part->packed_each;
    return one;
}

bool compose_accepts(const op_call *call, const compose_norm *norm, uint32_t level, bool coarse)
{
    bool quantised = false;
    compose_linear parts[COMPOSE_MOST];
    dtype type = call->tensors[norm->x].type;
    if (type != DTYPE_F32 && type != DTYPE_I64) return false;
    if (norm->norm_weight >= 0 && call->tensors[norm->norm_weight].type != DTYPE_F32) return false;
    const int n = compose_linears(call, norm, level, parts);
    for (int i = 0; i < n; i++) {
        if (!parts[i].variant) return false;
        quantised = quantised || !is_float(parts[i].call.tensors[LINEAR_WEIGHT].type);
    }
    return quantised == coarse;
}

size_t compose_packed_bytes(const op_call *call, const compose_norm *norm, uint32_t level)
{
    compose_linear parts[COMPOSE_MOST];
    const compose_linear *last = &parts[compose_linears(call, norm, level, parts) - 1];
    return last->packed_at + last->packed_each * (size_t)last->n_experts;
}

/* Which expert's weights a slice reads is only known when it runs. */
size_t compose_packed_first(const op_call *call, const compose_norm *norm, uint32_t level)
{
    compose_linear parts[COMPOSE_MOST];
    compose_linears(call, norm, level, parts);
    return parts[0].n_experts == 1 ? parts[0].packed_each : 0;
}

void compose_pack(const op_call *call, const compose_norm *norm, uint32_t level, int64_t units,
                  void *packed)
{
    compose_linear parts[COMPOSE_MOST];
    const int n = compose_linears(call, norm, level, parts);
    for (int i = 0; i < n; i++) {
        const op_variant *variant = parts[i].variant;
        if (!variant->pack) continue;
        int64_t rows = parts[i].call.tensors[LINEAR_WEIGHT].shape[0], step = variant->pack_units;
        int64_t panels = (rows + step - 1) / step;
        int64_t begin = call->begin * panels / units * step;
        int64_t end = call->end * panels / units * step;
        for (int64_t e = 0; e < parts[i].n_experts && begin < end; e++) {
            compose_linear one = compose_expert(call, norm, i, &parts[i], e);
            one.call.begin = begin;
            one.call.end = end < rows ? end : rows;
            variant->pack(&one.call, (char *)packed + one.packed_at);
        }
    }
}

static size_t rows_bytes(const op_call *call, const compose_norm *norm, int64_t n_rows)
{
    const tensor *x = &call->tensors[norm->x];
    return round_up((size_t)(n_rows * x->shape[x->rank - 1]) * sizeof(float), ALIGNMENT);
}

size_t compose_scratch_bytes(const op_call *call, const compose_norm *norm, int64_t n_rows,
                             uint32_t level)
{
    size_t most = 0;
    const int n = count_projections(call, norm);
    for (int i = 0; i < n; i++) {
        op_call linear = linear_call(call, norm, i, 0, n_rows);
        const op_variant *variant = choose_linear(&linear, level);
        size_t bytes = variant && variant->scratch_bytes ? variant->scratch_bytes(&linear)
                                                         : op_linear.scratch_bytes(&linear);
        if (bytes > most) most = bytes;
    }
    return rows_bytes(call, norm, n_rows) + round_up(most, ALIGNMENT);
}

/* Rows of sums in fixed point as floats, where they will be normalised. */
static tensor load_sums(const op_call *norm)
{
    const tensor *x = &norm->tensors[RMS_NORM_X], *out = &norm->tensors[RMS_NORM_OUT];
    for (int64_t row = 0; row < norm->end; row++)
        fixed_load_f32(tensor_row(x, row), x->shape[1], tensor_row(out, row));
    return *out;
}

tensor compose_rows(const op_call *call, const compose_norm *norm, int64_t n_rows,
                    const int32_t *which, uint32_t level, void *to)
{
    const tensor *x = &call->tensors[norm->x];
    tensor rows = tensor_2d(to, DTYPE_F32, n_rows, x->shape[1]);
    op_call part = {.end = which ? 1 : n_rows};
    part.tensors[RMS_NORM_WEIGHT] = call->tensors[norm->norm_weight];
    part.params[RMS_NORM_EPS] = call->params[norm->eps];
    for (int64_t row = 0; row < n_rows; row += part.end) {
        part.tensors[RMS_NORM_X] = which ? tensor_slice(*x, 0, which[row], 1) : *x;
        part.tensors[RMS_NORM_OUT] = which ? tensor_slice(rows, 0, row, 1) : rows;
        if (x->type == DTYPE_I64) part.tensors[RMS_NORM_X] = load_sums(&part);
        compose_run(&op_rms_norm, level, &part);
    }
    return rows;
}

/* The scratch follows the rows. */
void compose_project(const op_call *call, const compose_linear *part, const tensor *rows,
                     int64_t begin, int64_t end, const tensor *out)
{
    op_call linear = part->call;
    linear.tensors[LINEAR_X] = *rows;
    linear.tensors[LINEAR_OUT] = *out;
    linear.packed = call->packed ? (const char *)call->packed + part->packed_at : NULL;
    linear.scratch = (char *)rows->data + round_up(tensor_bytes(rows), ALIGNMENT);
    linear.begin = begin;
    linear.end = end;
    part->variant->kernel(&linear);
}

/* linear counts columns of out from feature 0, which has no place here. */
void compose_project_apart(const op_call *call, const compose_linear *part, const tensor *rows,
                           int64_t begin, int64_t end, const tensor *out)
{
    tensor from_first = *out;
    from_first.data = (void *)((uintptr_t)out->data - (size_t)begin * sizeof(float));
    from_first.shape[1] = end;
    compose_project(call, part, rows, begin, end, &from_first);
}

void compose_run(const op_info *op, uint32_t level, const op_call *part)
{
    op_select(op, level & ~(uint32_t)COMPOSE_ROUNDED, part, NULL)(part);
}
