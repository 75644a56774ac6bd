/* What launch lists are made from, in areas: see launch_setting.h. */
#include "vm/cuda/launch_setting.h"

#include "cuda/ranks.h"
#include "lower/launches.h"
#include "op/linear/linear.h"
#include "op/linear/linear_chain_cuda.h"

#include <stdlib.h>

/* The exchange with the other ranks, in areas. */
static void place_exchange(launch_setting *setting)
{
    const plan_options *o = &setting->program->options;
    setting->exchange = (exchange){.rounds = cuda_area_address(LAUNCH_COUNTERS, 0),
                                   .failure = cuda_area_address(LAUNCH_FAILURE, 0),
                                   .limit_ns = CUDA_RANKS_LIMIT_NS,
                                   .rank = o->rank,
                                   .n_ranks = o->ranks};
    for (int rank = 0; rank < o->ranks && rank < EXCHANGE_RANKS; rank++)
        setting->exchange.receive[rank] = cuda_area_address(LAUNCH_RECEIVE + rank, 0);
    setting->ops.exchange = &setting->exchange;
}

int cuda_few_rows(const program *program, const cuda_device *device)
{
    if (program->options.few_alike || !cuda_device_has(device, CUDA_CHAIN_NEEDS))
        return CUDA_FEW_ROWS;
    if (cuda_single_is_batch(program)) return 0;
    return program->options.max_sequences > 1 ? 1 : CUDA_FEW_ROWS;
}

static qp_status place_decoded(launch_setting *setting, const cuda_weights *weights,
                               qp_error *error)
{
    const int n = setting->program->n_weights;
    setting->decoded = calloc((size_t)n + 1, sizeof *setting->decoded);
    if (!setting->decoded)
        return error_no_memory(error, "places of weights", (size_t)n * sizeof *setting->decoded);
    for (int i = 0; i < n; i++)
        if (weights->decoded_at[i] != CUDA_AS_STORED)
            setting->decoded[i] =
                cuda_host_form(cuda_area_address(LAUNCH_DECODED, weights->decoded_at[i]));
    return QP_OK;
}

qp_status launch_setting_init(launch_setting *setting, const program *program,
                              const cuda_weights *weights, cuda_device *device, cuda_blas *blas,
                              bool has_blas, size_t workspace_bytes, qp_error *error)
{
    *setting = (launch_setting){
        .program = program,
        .rules = lower_launch_rules(program),
        .memory = {.cache_layer_bytes = program->tensors[PLAN_K_CACHE].bytes},
        .ops = {.device = device,
                .blas = blas,
                .has_blas = has_blas,
                .few_rows = cuda_few_rows(program, device),
                .workspace = {cuda_area_address(LAUNCH_WORKSPACE, 0), workspace_bytes}}};
    setting->weights = calloc((size_t)program->n_weights + 1, sizeof *setting->weights);
    setting->panels = calloc((size_t)program->n_weights + 1, sizeof *setting->panels);
    setting->scales = calloc((size_t)program->n_weights + 1, sizeof *setting->scales);
    if (!setting->weights || !setting->panels || !setting->scales)
        return error_no_memory(error, "places of weights",
                               (size_t)program->n_weights * sizeof *setting->weights);
    for (int i = 0; i < program->n_weights; i++) {
        setting->weights[i] =
            cuda_host_form(cuda_area_address(LAUNCH_WEIGHTS, weights->rows_at[i]));
        if (!cuda_weights_in_panels(program, program->weights[i].stored)) continue;
        setting->panels[i] = cuda_host_form(cuda_area_address(LAUNCH_WEIGHTS, weights->offsets[i]));
        if (cuda_weights_by_rows(program, program->weights[i].stored))
            setting->scales[i] = (int64_t)(weights->scales_at[i] - weights->offsets[i]);
    }
    if (weights->decodes) TRY(place_decoded(setting, weights, error));
    if (program->options.ranks > 1) place_exchange(setting);
    if (weights->packs && cuda_device_has(device, CUDA_CHAIN_NEEDS))
        setting->packed = &weights->packed;
    for (int id = 0; id < program->n_tensors; id++)
        setting->memory.data[id] = cuda_host_form(cuda_area_address(LAUNCH_TENSORS + id, 0));
    setting->memory.weights = setting->weights;
    return QP_OK;
}

void launch_setting_carry(launch_setting *setting, struct cuda_carrier *carrier)
{
    setting->ops.exchange = NULL;
    setting->ops.carrier = carrier;
}

void launch_setting_free(launch_setting *setting)
{
    free(setting->weights);
    free(setting->panels);
    free(setting->scales);
    free(setting->decoded);
    *setting = (launch_setting){0};
}

/* Products read matrices of FP8 in panels, or as rows that have their scales elsewhere. */
static void take_panels(const launch_setting *setting, int node, op_call *call)
{
    tensor *weight = &call->tensors[LINEAR_WEIGHT];
    const program_weight *of = program_weight_of(setting->program, node, LINEAR_WEIGHT);
    const void *panels = setting->panels[of - setting->program->weights];
    if (!panels) return;
    weight->data = (void *)(uintptr_t)panels;
    weight->type = DTYPE_F8;
    weight->stride[2] = setting->scales[of - setting->program->weights];
    if (weight->stride[2]) weight->stride[0] = weight->shape[1];
}

/* Products of more than few rows read a weight in BF16, if it is there. */
static void take_decoded(const launch_setting *setting, int node, op_call *call)
{
    tensor *weight = &call->tensors[LINEAR_WEIGHT];
    const program_weight *of = program_weight_of(setting->program, node, LINEAR_WEIGHT);
    const void *decoded = setting->decoded[of - setting->program->weights];
    if (!decoded || call->tensors[LINEAR_X].shape[0] <= setting->ops.few_rows) return;
    weight->data = (void *)(uintptr_t)decoded;
    weight->type = DTYPE_BF16;
    weight->stride[0] = 2 * weight->shape[1];
    weight->stride[1] = 2;
}

void launch_bind(const launch_setting *setting, const program_sizes *sizes, int node, op_call *call)
{
    program_bind(setting->program, node, &setting->memory, sizes->of, call);
    if (setting->program->nodes[node].op != OP_LINEAR) return;
    take_panels(setting, node, call);
    if (setting->decoded) take_decoded(setting, node, call);
}
