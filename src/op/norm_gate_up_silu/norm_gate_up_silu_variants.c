/* norm_gate_up_silu from the variants of rms_norm, linear and silu_and_mul.
 *
 * Gate and up of some features lie side by side in scratch. The number of features depends on the
 * rows: one row takes its whole slice at once, many rows a few hundred features, so that a tile
 * stays in L2 and the preparation of x, which linear repeats for every tile, is still cheap.
 */
#include "op/compose.h"
#include "op/norm_gate_up_silu/norm_gate_up_silu.h"
#include "op/silu_and_mul/silu_and_mul.h"
#include "op/table.h"

#include "base/checked.h"

enum { TILE_FLOATS = 1 << 16, LEAST_FEATURES = 512, STEP = 64 };

static const compose_norm norm_gate_up_silu_norm = {
    .x = NORM_GATE_UP_SILU_X,
    .norm_weight = NORM_GATE_UP_SILU_NORM_WEIGHT,
    .eps = NORM_GATE_UP_SILU_EPS,
    .weights = {NORM_GATE_UP_SILU_GATE_WEIGHT, NORM_GATE_UP_SILU_UP_WEIGHT},
    .biases = {NORM_GATE_UP_SILU_GATE_BIAS, NORM_GATE_UP_SILU_UP_BIAS},
    .n = 2};

static int64_t units(const op_call *call)
{
    return op_norm_gate_up_silu.units(call);
}

static bool norm_gate_up_silu_accepts(const op_call *call)
{
    return call->tensors[NORM_GATE_UP_SILU_OUT].type == DTYPE_F32;
}

/* Features of a tile for this many rows. */
static int64_t tile_features(int64_t n_rows)
{
    int64_t features = n_rows > 0 ? TILE_FLOATS / n_rows : TILE_FLOATS;
    return features > LEAST_FEATURES ? features / STEP * STEP : LEAST_FEATURES;
}

/* Never less for fewer rows. */
static size_t tile_bytes(int64_t n_rows)
{
    int64_t few = 2 * TILE_FLOATS, most = 2 * LEAST_FEATURES * n_rows;
    return round_up((size_t)(most > few ? most : few) * sizeof(float), 64);
}

static size_t norm_gate_up_silu_scratch(const op_call *call, uint32_t level)
{
    int64_t n_rows = call->tensors[NORM_GATE_UP_SILU_X].shape[0];
    return tile_bytes(n_rows) + compose_scratch_bytes(call, &norm_gate_up_silu_norm, n_rows, level);
}

/* Features [first, end): gate, then up, in every row of the tile, then their activation. */
static void run_tile(const op_call *call, const compose_linear *parts, const tensor *normed,
                     uint32_t level, int64_t first, int64_t end)
{
    int64_t n_rows = normed->shape[0], n = end - first;
    tensor tile = tensor_2d(call->scratch, DTYPE_F32, n_rows, 2 * n);
    tensor gate = tensor_slice(tile, 1, 0, n), up = tensor_slice(tile, 1, n, n);
    compose_project_apart(call, &parts[0], normed, first, end, &gate);
    compose_project_apart(call, &parts[1], normed, first, end, &up);
    op_call silu = {.end = n_rows * n, .params[SILU_AND_MUL_ALPHA] = 1};
    silu.tensors[SILU_AND_MUL_X] = tile;
    silu.tensors[SILU_AND_MUL_OUT] =
        tensor_slice(call->tensors[NORM_GATE_UP_SILU_OUT], 1, first, n);
    compose_run(&op_silu_and_mul, level, &silu);
}

static void norm_gate_up_silu_compute(const op_call *call, uint32_t level)
{
    int64_t n_rows = call->tensors[NORM_GATE_UP_SILU_X].shape[0], step = tile_features(n_rows);
    compose_linear parts[COMPOSE_MOST];
    if (n_rows == 0) return;
    compose_linears(call, &norm_gate_up_silu_norm, level, parts);
    tensor normed = compose_rows(call, &norm_gate_up_silu_norm, n_rows, NULL, level,
                                 (char *)call->scratch + tile_bytes(n_rows));
    for (int64_t first = call->begin, end; first < call->end; first = end) {
        end = (first / step + 1) * step;
        if (end > call->end) end = call->end;
        run_tile(call, parts, &normed, level, first, end);
    }
}

/* The product combines an error of gate and one of up. */
static const op_tolerance coarse_tolerances[] = {{DTYPE_F32, 2e-2, 1e-1}, {0}};

COMPOSE_VARIANTS(norm_gate_up_silu, 32, coarse_tolerances)
