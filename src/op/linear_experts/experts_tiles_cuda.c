/* linear_experts for many tokens: see linear_experts_cuda.h. */
#include "op/linear_experts/linear_experts_cuda.h"

#include "base/checked.h"
#include "op/linear/linear_cuda.h"
#include "op/linear_experts/experts_tiles.h"
#include "op/linear_experts/linear_experts.h"
#include "op/rows_cuda.h"

#include <math.h>
#include <stdio.h>

enum { SUM_THREADS = 256 };

/* x in BF16, and the activation of two rounded products. */
const op_tolerance cuda_experts_tolerances[] = {{DTYPE_F32, 1e-2, 5e-2}, {0}};

static const struct {
    dtype type;
    const char *name;
} types[] = {
#define TYPE(T) {DTYPE_##T, #T},
    EXPERTS_TILE_TYPES(TYPE)
#undef TYPE
};

static const struct {
    int rows, most;
} tile_rows[] = {
#define ROWS(rows, most) {rows, most},
    EXPERTS_TILE_ROWS(ROWS)
#undef ROWS
};

/* ---- sizes ---------------------------------------------------------------------------------- */

static int64_t choices_of(const op_call *call)
{
    const tensor *ids = &call->tensors[LINEAR_EXPERTS_IDS];
    return ids->shape[0] * ids->shape[1];
}

/* Rows of a tile, by how many an expert has if all have as many. */
static int rows_of(const op_call *call)
{
    const int64_t each = choices_of(call) / call->tensors[LINEAR_EXPERTS_WEIGHT].shape[0];
    int i = 0;
    while (each > tile_rows[i].most)
        i++;
    return tile_rows[i].rows;
}

/* The most tiles that choices can need: each expert that has any has one that may be partly empty.
 */
static int64_t most_tiles(const op_call *call, int rows)
{
    const int64_t n = choices_of(call), n_experts = call->tensors[LINEAR_EXPERTS_WEIGHT].shape[0];
    return n / rows + (n < n_experts ? n : n_experts);
}

/* Of what down stores for each choice, in elements: whole vectors. */
static int64_t parts_pitch(const op_call *call)
{
    return (int64_t)round_up((size_t)call->tensors[LINEAR_EXPERTS_WEIGHT].shape[1], 4);
}

static size_t x_bytes(const op_call *call)
{
    const tensor *x = &call->tensors[LINEAR_EXPERTS_X];
    return cuda_linear_bf16_bytes(x->shape[0] * x->shape[1], x->shape[2]);
}

static size_t parts_bytes(const op_call *call)
{
    const bool down = call->tensors[LINEAR_EXPERTS_SHARES].rank;
    return down ? round_up((size_t)(choices_of(call) * parts_pitch(call)) * 4, CUDA_ALIGNMENT) : 0;
}

/* Tables of groups, with room for any size of tiles. */
static size_t groups_bytes(const op_call *call)
{
    const int64_t n_experts = call->tensors[LINEAR_EXPERTS_WEIGHT].shape[0];
    const int64_t words =
        n_experts + 2 + choices_of(call) + 2 * most_tiles(call, tile_rows[0].rows);
    return round_up((size_t)words * 4, CUDA_ALIGNMENT);
}

/* Of down also for x of gate and up, whose columns are down's features. */
size_t cuda_experts_tiles_workspace(const op_call *call)
{
    const tensor *t = call->tensors;
    const bool down = t[LINEAR_EXPERTS_SHARES].rank;
    return x_bytes(call) + parts_bytes(call) + groups_bytes(call) +
           (down ? cuda_linear_bf16_bytes(t[LINEAR_EXPERTS_X].shape[0],
                                          t[LINEAR_EXPERTS_WEIGHT].shape[1])
                 : 0);
}

/* ---- what is accepted ----------------------------------------------------------------------- */

static bool on_vectors(const tensor *weight)
{
    return cuda_on_vectors(weight->data, weight->stride[0] | weight->stride[1]);
}

static bool copies(const tensor *weight)
{
    return weight->type == DTYPE_BF16;
}

static bool lies_well(const tensor *weight, const tensor *like)
{
    if (!weight->rank) return true;
    return copies(weight) == copies(like) && (!copies(weight) || on_vectors(weight));
}

/* Rows of x as a matrix: of tokens, or of choices. */
static bool is_matrix(const tensor *x)
{
    return x->shape[1] == 1 || x->stride[0] == x->shape[1] * x->stride[1];
}

bool cuda_experts_tiles_accepts(const op_call *call)
{
    const tensor *t = call->tensors, *weight = &t[LINEAR_EXPERTS_WEIGHT];
    return cuda_experts_in_f32(call) && lies_well(weight, weight) &&
           lies_well(&t[LINEAR_EXPERTS_UP_WEIGHT], weight) && weight->shape[0] <= EXPERTS_MOST &&
           weight->shape[2] > 0 && weight->shape[2] % 8 == 0 && weight->shape[2] < INT32_MAX / 8 &&
           weight->shape[1] < INT32_MAX / 8 && is_matrix(&t[LINEAR_EXPERTS_X]) &&
           t[LINEAR_EXPERTS_X].shape[0] > 0 && choices_of(call) < INT32_MAX / 8 &&
           t[LINEAR_EXPERTS_IDS].shape[1] <= EXPERTS_MOST &&
           most_tiles(call, rows_of(call)) < 65536;
}

bool cuda_experts_tiles_pays(const cuda_ops *ops, const op_call *call)
{
    (void)ops;
    return call->tensors[LINEAR_EXPERTS_X].shape[0] > CUDA_FEW_ROWS;
}

bool cuda_experts_tiles_both_accepts(const cuda_ops *ops, const op_call *calls)
{
    const int64_t between = calls[1].tensors[LINEAR_EXPERTS_WEIGHT].shape[2];
    return cuda_experts_are_both(calls) && cuda_experts_tiles_accepts(&calls[1]) &&
           cuda_experts_tiles_pays(ops, &calls[1]) && between % 2 == 0;
}

/* ---- launches ------------------------------------------------------------------------------- */

static experts_groups groups_at(const op_call *call, cuda_address at)
{
    const int64_t n_experts = call->tensors[LINEAR_EXPERTS_WEIGHT].shape[0];
    const int64_t n = choices_of(call);
    return (experts_groups){.first = cuda_host_form(at),
                            .choices = cuda_host_form(at + 4 * (cuda_address)(n_experts + 1)),
                            .n_tiles = cuda_host_form(at + 4 * (cuda_address)(n_experts + 1 + n)),
                            .tiles = cuda_host_form(at + 4 * (cuda_address)(n_experts + 2 + n))};
}

static qp_status group(cuda_ops *ops, const op_call *call, experts_groups groups, qp_error *error)
{
    const tensor *ids = &call->tensors[LINEAR_EXPERTS_IDS];
    experts_grouping run = {
        .groups = groups,
        .ids = ids->data,
        .ids_pitch = ids->stride[0] / 4,
        .n_choices = (int32_t)choices_of(call),
        .top_k = (int32_t)ids->shape[1],
        .n_experts = (int32_t)call->tensors[LINEAR_EXPERTS_WEIGHT].shape[0],
        .rows = rows_of(call),
    };
    cuda_start start = {.image = "experts_tiles",
                        .name = "run_experts_group",
                        .grid = {1, 1, 1},
                        .threads = EXPERTS_GROUP_THREADS,
                        .cluster = 1};
    return cuda_ops_start(ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(run)), error);
}

static void add_matrix(experts_tiles *run, int m, const tensor *weight, const tensor *bias)
{
    run->weight[m] = weight->data;
    run->expert_pitch[m] = weight->stride[0];
    run->row_pitch[m] = weight->stride[1];
    run->type[m] = (int32_t)weight->type;
    if (!bias->rank) return;
    run->bias[m] = bias->data;
    run->bias_pitch[m] = bias->stride[0];
    run->bias_type[m] = (int32_t)bias->type;
}

static experts_tiles arguments_of(const op_call *call, experts_groups groups, cuda_address x)
{
    const tensor *t = call->tensors, *out = &t[LINEAR_EXPERTS_OUT];
    const float limit = (float)call->params[LINEAR_EXPERTS_LIMIT];
    experts_tiles run = {
        .groups = groups,
        .x = cuda_host_form(x),
        .x_pitch = t[LINEAR_EXPERTS_X].shape[2],
        .shares = t[LINEAR_EXPERTS_SHARES].rank ? t[LINEAR_EXPERTS_SHARES].data : NULL,
        .shares_pitch = t[LINEAR_EXPERTS_SHARES].rank ? t[LINEAR_EXPERTS_SHARES].stride[0] / 4 : 0,
        .out = out->data,
        .out_token = out->stride[0] / 4,
        .out_choice = out->stride[1] / 4,
        .x_rows = (int32_t)t[LINEAR_EXPERTS_X].shape[1],
        .top_k = (int32_t)t[LINEAR_EXPERTS_IDS].shape[1],
        .n_columns = (int32_t)t[LINEAR_EXPERTS_WEIGHT].shape[2],
        .n_features = (int32_t)t[LINEAR_EXPERTS_WEIGHT].shape[1],
        .alpha = (float)call->params[LINEAR_EXPERTS_ALPHA],
        .limit = limit > 0 ? limit : INFINITY,
        .added = (float)call->params[LINEAR_EXPERTS_ADDED],
    };
    add_matrix(&run, 0, &t[LINEAR_EXPERTS_WEIGHT], &t[LINEAR_EXPERTS_BIAS]);
    if (t[LINEAR_EXPERTS_UP_WEIGHT].rank)
        add_matrix(&run, 1, &t[LINEAR_EXPERTS_UP_WEIGHT], &t[LINEAR_EXPERTS_UP_BIAS]);
    return run;
}

/* Rows of choices of `elements` each, in place of the call's output. */
static void store_choices(experts_tiles *run, cuda_address at, int64_t elements, bool narrow)
{
    run->out = cuda_host_form(at);
    run->out_choice = elements;
    run->out_token = run->top_k * elements;
    run->narrow = narrow;
}

static const char *type_name(const op_call *call)
{
    const tensor *weight = &call->tensors[LINEAR_EXPERTS_WEIGHT];
    const tensor *up = &call->tensors[LINEAR_EXPERTS_UP_WEIGHT];
    const bool same = (!up->rank || up->type == weight->type) &&
                      (weight->type != DTYPE_Q4_K || (on_vectors(weight) && on_vectors(up)));
    int i = 0;
    while (types[i].type != DTYPE_COUNT && !(same && types[i].type == weight->type))
        i++;
    return types[i].name;
}

static qp_status multiply(cuda_ops *ops, const op_call *call, const experts_tiles *run,
                          qp_error *error)
{
    experts_tiles own = *run;
    const int rows = rows_of(call);
    const int features = own.weight[1] ? EXPERTS_TILE_FEATURES / 2 : EXPERTS_TILE_FEATURES;
    cuda_start start = {.image = "experts_tiles",
                        .shared_most = ops->device->shared_bytes - CUDA_EXPERTS_STATIC,
                        .grid = {(unsigned)((own.n_features + features - 1) / features),
                                 (unsigned)most_tiles(call, rows), 1},
                        .threads = EXPERTS_TILE_THREADS,
                        .shared_bytes = (unsigned)EXPERTS_TILE_SHARED(rows),
                        .cluster = 1};
    snprintf(start.name, sizeof start.name, "run_experts_tiles_%s_%s_%d",
             own.weight[1] ? "up" : "down", type_name(call), rows);
    return cuda_ops_start(ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(own)), error);
}

static qp_status add_up(cuda_ops *ops, const op_call *call, cuda_address parts, qp_error *error)
{
    const tensor *t = call->tensors, *residual = &t[LINEAR_EXPERTS_RESIDUAL];
    experts_sums run = {
        .parts = cuda_host_form(parts),
        .parts_pitch = parts_pitch(call),
        .ids = t[LINEAR_EXPERTS_IDS].data,
        .residual = residual->rank ? residual->data : NULL,
        .out = t[LINEAR_EXPERTS_OUT].data,
        .ids_pitch = t[LINEAR_EXPERTS_IDS].stride[0] / 4,
        .residual_pitch = residual->rank ? residual->stride[0] / 4 : 0,
        .out_pitch = t[LINEAR_EXPERTS_OUT].stride[0] / 4,
        .top_k = (int32_t)t[LINEAR_EXPERTS_IDS].shape[1],
        .n_features = (int32_t)t[LINEAR_EXPERTS_WEIGHT].shape[1],
    };
    cuda_start start = {.image = "experts_tiles",
                        .name = "run_experts_sum",
                        .grid = {(unsigned)t[LINEAR_EXPERTS_OUT].shape[0], 1, 1},
                        .threads = SUM_THREADS,
                        .cluster = 1};
    return cuda_ops_start(ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(run)), error);
}

static qp_status narrow(cuda_ops *ops, const op_call *call, cuda_address to, qp_error *error)
{
    const tensor *x = &call->tensors[LINEAR_EXPERTS_X];
    tensor rows = tensor_2d(x->data, x->type, x->shape[0] * x->shape[1], x->shape[2]);
    rows.stride[0] = x->shape[1] == 1 ? x->stride[0] : x->stride[1];
    return cuda_narrow_rows(ops, &rows, 0, rows.shape[0], to, error);
}

/* Down, from x in BF16. */
static qp_status multiply_down(cuda_ops *ops, const op_call *call, experts_groups groups,
                               cuda_address x, cuda_address parts, qp_error *error)
{
    experts_tiles run = arguments_of(call, groups, x);
    store_choices(&run, parts, parts_pitch(call), false);
    TRY(multiply(ops, call, &run, error));
    return add_up(ops, call, parts, error);
}

qp_status cuda_experts_tiles(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                             const cuda_forms *forms, qp_error *error)
{
    const cuda_address x = cuda_narrow_place(ops), parts = x + x_bytes(call);
    const experts_groups groups = groups_at(call, parts + parts_bytes(call));
    (void)kernel, (void)forms;
    TRY(narrow(ops, call, x, error));
    TRY(group(ops, call, groups, error));
    if (call->tensors[LINEAR_EXPERTS_SHARES].rank)
        return multiply_down(ops, call, groups, x, parts, error);
    const experts_tiles run = arguments_of(call, groups, x);
    return multiply(ops, call, &run, error);
}

qp_status cuda_experts_tiles_both(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                                  qp_error *error)
{
    const cuda_address x = cuda_narrow_place(ops), between = x + x_bytes(&calls[0]);
    const cuda_address parts = between + x_bytes(&calls[1]);
    const experts_groups groups = groups_at(&calls[0], parts + parts_bytes(&calls[1]));
    experts_tiles up = arguments_of(&calls[0], groups, x);
    (void)forms;
    store_choices(&up, between, up.n_features, true);
    TRY(narrow(ops, &calls[0], x, error));
    TRY(group(ops, &calls[0], groups, error));
    TRY(multiply(ops, &calls[0], &up, error));
    return multiply_down(ops, &calls[1], groups, between, parts, error);
}
