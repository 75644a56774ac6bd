/* linear_experts from the variants of linear and silu_and_mul.
 *
 * The rows that chose an expert are copied together and multiplied with its packed weights, some
 * features at a time: gate and up lie side by side in scratch, as in norm_gate_up_silu. Each
 * expert's weights are packed by themselves, as linear packs a matrix.
 */
#include "op/compose.h"
#include "op/linear_experts/linear_experts.h"
#include "op/silu_and_mul/silu_and_mul.h"
#include "op/table.h"

#include "base/checked.h"

#include <string.h>

enum {
    ROWS = 128,        /* choices of an expert at a time */
    TILE = 512 * ROWS, /* products at a time */
    STEP = 64,         /* features at a time are a multiple of it */
};

static const compose_norm linear_experts_norm = {
    .x = LINEAR_EXPERTS_X,
    .norm_weight = -1,
    .eps = -1,
    .weights = {LINEAR_EXPERTS_WEIGHT, LINEAR_EXPERTS_UP_WEIGHT},
    .biases = {LINEAR_EXPERTS_BIAS, LINEAR_EXPERTS_UP_BIAS},
    .n = 2};

static int64_t units(const op_call *call)
{
    return op_linear_experts.units(call);
}

static bool linear_experts_accepts(const op_call *call)
{
    static const int floats[] = {LINEAR_EXPERTS_OUT, LINEAR_EXPERTS_RESIDUAL, LINEAR_EXPERTS_SHARES,
                                 LINEAR_EXPERTS_BIAS, LINEAR_EXPERTS_UP_BIAS};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        const tensor *t = &call->tensors[floats[i]];
        if (t->rank && t->type != DTYPE_F32) return false;
    }
    return true;
}

/* Rows at a time: never fewer for larger batches. */
static int64_t rows_together(const op_call *call)
{
    const tensor *ids = &call->tensors[LINEAR_EXPERTS_IDS];
    const int64_t choices = ids->shape[0] * ids->shape[1];
    return choices < ROWS ? choices : ROWS;
}

/* A tile: gate and up. */
static size_t tile_bytes(const op_call *call)
{
    const int64_t all = rows_together(call) * units(call);
    return round_up((size_t)(2 * (all < TILE ? all : TILE)) * sizeof(float), 64);
}

static size_t linear_experts_scratch(const op_call *call, uint32_t level)
{
    return expert_rows_bytes(call) + tile_bytes(call) +
           compose_scratch_bytes(call, &linear_experts_norm, rows_together(call), level);
}

/* A call at work. */
typedef struct job {
    const op_call *call;
    uint32_t level;
    expert_rows rows;
    compose_linear parts[COMPOSE_MOST];
    int n_parts;
    float *tile;
    void *gathered; /* rows of x, then linear's scratch */
} job;

/* Copies the rows of x that choices need. */
static tensor gather(const job *j, const int32_t *choices, int64_t count)
{
    const int64_t in_features = j->call->tensors[LINEAR_EXPERTS_X].shape[2];
    tensor rows = tensor_2d(j->gathered, DTYPE_F32, count, in_features);
    for (int64_t r = 0; r < count; r++)
        memcpy(tensor_row(&rows, r), expert_rows_x(j->call, &j->rows, choices[r]),
               (size_t)in_features * sizeof(float));
    return rows;
}

/* The outputs of an expert for these rows, features [first, end): (count, end - first). */
static tensor multiply(const job *j, int64_t expert, const tensor *rows, int64_t first, int64_t end)
{
    const int64_t n = end - first, count = rows->shape[0];
    tensor tile = tensor_2d(j->tile, DTYPE_F32, count, j->n_parts * n);
    for (int i = 0; i < j->n_parts; i++) {
        const tensor out = tensor_slice(tile, 1, i * n, n);
        const compose_linear part =
            compose_expert(j->call, &linear_experts_norm, i, &j->parts[i], expert);
        compose_project_apart(j->call, &part, rows, first, end, &out);
    }
    tensor outputs = tensor_slice(tile, 1, 0, n);
    if (j->n_parts == 1) return outputs;
    op_call silu = {.end = count * n};
    silu.tensors[SILU_AND_MUL_X] = tile;
    silu.tensors[SILU_AND_MUL_OUT] = outputs;
    memcpy(silu.params, j->call->params, LINEAR_EXPERTS_PARAMS * sizeof *silu.params);
    compose_run(&op_silu_and_mul, j->level, &silu);
    return outputs;
}

/* Writes the outputs of choices, or adds them to their tokens' sums. */
static void put(const job *j, const int32_t *choices, const tensor *outputs, int64_t first)
{
    const bool sums = j->call->tensors[LINEAR_EXPERTS_SHARES].rank != 0;
    const int64_t n = outputs->shape[1];
    for (int64_t r = 0; r < outputs->shape[0]; r++) {
        const float *from = tensor_row(outputs, r);
        float *to = (float *)expert_rows_out(j->call, &j->rows, choices[r]) + first;
        if (!sums) {
            memcpy(to, from, (size_t)n * sizeof *to);
            continue;
        }
        const float share = (float)expert_rows_share(j->call, &j->rows, choices[r]);
        for (int64_t i = 0; i < n; i++)
            to[i] += share * from[i];
    }
}

/* The sums begin with the residual. */
static void begin_sums(const op_call *call)
{
    const tensor *residual = &call->tensors[LINEAR_EXPERTS_RESIDUAL];
    const tensor *out = &call->tensors[LINEAR_EXPERTS_OUT];
    const size_t bytes = (size_t)(call->end - call->begin) * sizeof(float);
    if (!call->tensors[LINEAR_EXPERTS_SHARES].rank) return;
    for (int64_t t = 0; t < out->shape[0]; t++) {
        float *to = (float *)tensor_row(out, t) + call->begin;
        const float *from = residual->rank ? (float *)tensor_row(residual, t) + call->begin : NULL;
        if (!from)
            memset(to, 0, bytes);
        else if (from != to)
            memcpy(to, from, bytes);
    }
}

static void linear_experts_compute(const op_call *call, uint32_t level)
{
    char *scratch = call->scratch;
    job j = {.call = call, .level = level, .rows = expert_rows_find(call, scratch)};
    j.tile = (float *)(scratch + expert_rows_bytes(call));
    j.gathered = (char *)j.tile + tile_bytes(call);
    j.n_parts = compose_linears(call, &linear_experts_norm, level, j.parts);
    begin_sums(call);
    for (int64_t e = 0; e < j.rows.n_experts; e++)
        for (int64_t c = j.rows.first[e], next; c < j.rows.first[e + 1]; c = next) {
            next = c + ROWS < j.rows.first[e + 1] ? c + ROWS : j.rows.first[e + 1];
            const int32_t *choices = j.rows.choices + c;
            const tensor rows = gather(&j, choices, next - c);
            const int64_t step = TILE / (next - c) / STEP * STEP;
            for (int64_t first = call->begin, end; first < call->end; first = end) {
                end = first + step < call->end ? first + step : call->end;
                const tensor outputs = multiply(&j, e, &rows, first, end);
                put(&j, choices, &outputs, first);
            }
        }
}

/* The product of the activation combines an error of gate and one of up. */
static const op_tolerance coarse_tolerances[] = {{DTYPE_F32, 2e-2, 1e-1}, {0}};

COMPOSE_VARIANTS(linear_experts, 32, coarse_tolerances)
