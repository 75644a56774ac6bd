/* Runs a program on the GPU: see executor.h. */
#include "vm/cuda/executor_parts.h"

#include "base/checked.h"
#include "plan/weights.h"
#include "op/carrier_cuda.h"
#include "op/linear/linear.h"
#include "op/linear/linear_chain_cuda.h"
#include "op/paged_decode/paged_decode.h"
#include "op/attention/attention_cuda.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { PINNED_LOGITS = 64 << 20 }; /* bytes; more outputs go through pageable memory */

/* ---- memory -------------------------------------------------------------------------------- */

size_t cuda_executor_input_bytes(const program *p)
{
    size_t bytes = 0;
    for (int id = 0; id < PLAN_NAMED; id++)
        if (p->tensors[id].kind == PLAN_INPUT) bytes += round_up(p->tensors[id].bytes, 16);
    return round_up(bytes, CUDA_ALIGNMENT);
}

size_t cuda_executor_token_bytes(const program *p)
{
    return round_up(p->tensors[PLAN_NEXT].bytes, CUDA_ALIGNMENT);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Attention's workspace when as many sequences as possible decode with full contexts. */
static size_t decoding_workspace(const program *p, const cuda_kernel *custom,
                                 const op_call *attention)
{
    op_call call = cuda_decode_of_prefill(attention);
    const int64_t rows = call.tensors[PAGED_DECODE_Q].shape[0];
    call.tensors[PAGED_DECODE_Q].shape[0] = p->options.max_sequences;
    const bool decodes =
        (p->options.max_sequences > 1 || cuda_single_is_batch(p)) && cuda_decode_accepts(&call);
    const cuda_kernel *kernel = cuda_ops_custom(custom, OP_PAGED_DECODE, &call);
    size_t bytes = decodes ? cuda_decode_workspace_of(&call, rows, p->options.context) : 0;
    if (p->config.n_experts && cuda_decode_accepts(&call)) {
        call.tensors[PAGED_DECODE_Q].shape[0] = 1; /* lower_is_single() */
        bytes = larger(bytes, cuda_decode_few_workspace(&call));
        call.tensors[PAGED_DECODE_Q].shape[0] = p->options.max_sequences;
    }
    return kernel && kernel->workspace ? larger(bytes, kernel->workspace(&call)) : bytes;
}

/* The largest workspace that any node's kernel needs at the program's capacity. */
static size_t workspace_bytes(const program *p, const cuda_kernel *custom)
{
    size_t most = 0;
    for (int n = 0; n < p->n_nodes; n++) {
        op_call call;
        program_bind(p, n, NULL, p->capacity.of, &call);
        const op_code op = p->nodes[n].op;
        const program_weight *w = op == OP_LINEAR ? program_weight_of(p, n, LINEAR_WEIGHT) : NULL;
        if (w && cuda_weights_in_panels(p, w->stored)) {
            call.tensors[LINEAR_WEIGHT].type = DTYPE_F8;
            call.tensors[LINEAR_WEIGHT].stride[2] = cuda_weights_by_rows(p, w->stored);
        }
        size_t bytes = cuda_ops_workspace(custom, op, &call);
        if (op == OP_PAGED_PREFILL) bytes = larger(bytes, decoding_workspace(p, custom, &call));
        most = larger(most, bytes);
    }
    return round_up(most, CUDA_ALIGNMENT);
}

/* After the activations: the sums of this pass, then those of the next. */
static size_t sums_offset(const program *p)
{
    return round_up(p->arena_bytes, CUDA_ALIGNMENT);
}

static size_t sums_bytes(const program *p)
{
    return p->tensors[PLAN_SUMS].bytes + p->tensors[PLAN_SUMS_NEXT].bytes;
}

cuda_bytes cuda_executor_count(const program *p, const cuda_kernel *custom)
{
    cuda_bytes bytes = {.weights = cuda_weights_bytes(p),
                        .arena = sums_bytes(p) ? sums_offset(p) + sums_bytes(p) : p->arena_bytes,
                        .kv_cache = 2 * p->tensors[PLAN_K_CACHE].bytes * (size_t)p->config.n_layers,
                        .rope_table = program_count_bytes(p, 0).rope_table,
                        .state = program_count_bytes(p, 0).state,
                        .inputs = CUDA_GROUPS * CUDA_GROUP *
                                  (cuda_executor_input_bytes(p) + cuda_executor_token_bytes(p)),
                        .workspace = workspace_bytes(p, custom) + CUDA_OWN_WORKSPACE};
    bytes.total = bytes.weights + bytes.arena + bytes.kv_cache + bytes.rope_table + bytes.state +
                  bytes.inputs + bytes.workspace;
    return bytes;
}

static qp_status check_memory(const cuda_executor *x, qp_error *error)
{
    cuda_bytes need = cuda_executor_count(x->program, x->ops.custom);
    size_t available;
    TRY(cuda_device_free_memory(x->device, &available, error));
    if (need.total <= available) return QP_OK;
    const double gib = 1 << 30;
    return error_set(
        error, QP_NO_MEMORY,
        "%s needs %.2f GiB on the GPU (weights %.2f, KV cache %.2f for %lld times "
        "%lld positions, activations %.2f), but %.2f GiB of %s are free; a smaller "
        "--context or --chunk needs less",
        program_model_path(x->program), (double)need.total / gib, (double)need.weights / gib,
        (double)need.kv_cache / gib, (long long)x->program->options.max_sequences,
        (long long)x->program->options.context, (double)(need.arena + need.workspace) / gib,
        (double)available / gib, x->device->name);
}

static void place_tensors(cuda_executor *x)
{
    for (int id = 0; id < x->program->n_tensors; id++) {
        const plan_tensor *t = &x->program->tensors[id];
        if (t->kind == PLAN_ACTIVATION || t->kind == PLAN_OUTPUT)
            x->memory.data[id] = cuda_host_form(x->arena.address + t->offset);
    }
    cuda_address sums = x->arena.address + sums_offset(x->program);
    if (sums_bytes(x->program)) {
        x->memory.data[PLAN_SUMS] = cuda_host_form(sums);
        x->memory.data[PLAN_SUMS_NEXT] =
            cuda_host_form(sums + x->program->tensors[PLAN_SUMS].bytes);
    }
    cuda_address state = x->state.address;
    for (int id = 0; id < x->program->n_tensors; id++) {
        if (x->program->tensors[id].kind != PLAN_STATE) continue;
        x->memory.data[id] = cuda_host_form(state);
        state += x->program->tensors[id].bytes;
    }
    x->memory.data[PLAN_ROPE_TABLE] = cuda_host_form(x->rope_table.address);
    x->memory.data[PLAN_ROPE_LOCAL] =
        cuda_host_form(x->rope_table.address + x->program->tensors[PLAN_ROPE_TABLE].bytes);
    x->memory.data[PLAN_K_CACHE] = cuda_host_form(x->k_cache.address);
    x->memory.data[PLAN_V_CACHE] = cuda_host_form(x->v_cache.address);
    x->memory.cache_layer_bytes = x->program->tensors[PLAN_K_CACHE].bytes;
}

static qp_status find_weights(cuda_executor *x, qp_error *error)
{
    x->weight_data = calloc((size_t)x->program->n_weights + 1, sizeof *x->weight_data);
    if (!x->weight_data) return error_no_memory(error, "addresses of weights", 0);
    for (int i = 0; i < x->program->n_weights; i++)
        x->weight_data[i] = cuda_host_form(x->weights.memory.address + x->weights.rows_at[i]);
    x->memory.weights = x->weight_data;
    return QP_OK;
}

/* Bytes that stay free beside copies of weights, for the megakernel's order of them and for other
 * programs. */
static size_t kept_free(const cuda_executor *x)
{
    return 2 * x->weights.bytes;
}

/* Whether there is room for `copies` bytes of copies. */
static qp_status check_copies(const cuda_executor *x, size_t copies, bool *fit, qp_error *error)
{
    const bool demanded = x->program->options.bf16_copies == PLAN_COPIES_ON;
    size_t available;
    TRY(cuda_device_free_memory(x->device, &available, error));
    *fit = copies + (demanded ? 0 : kept_free(x)) <= available;
    if (*fit || !demanded) return QP_OK;
    return error_set(error, QP_NO_MEMORY,
                     "copies of the weights in BF16 take %.2f GiB, but %.2f GiB of the GPU are "
                     "free: use --bf16-copies off",
                     (double)copies / 0x1p30, (double)available / 0x1p30);
}

static qp_status decode_weights(cuda_executor *x, qp_error *error)
{
    cuda_weights *w = &x->weights;
    bool fit;
    w->packs = w->packs && cuda_device_has(x->device, CUDA_CHAIN_NEEDS);
    if (!w->decodes && !w->packs) return QP_OK;
    TRY(check_copies(x, cuda_weights_copies(w), &fit, error));
    w->decodes = w->decodes && fit;
    w->packs = w->packs && fit;
    return fit ? cuda_weights_decode(&x->ops, w, error) : QP_OK;
}

/* The launches of passes in which two sequences decode: they have all products of chains. */
static launch_class class_of_chains(const program *p)
{
    launch_class of = {
        .sizes = p->capacity, .last = p->logits_end, .n_chunks = 1, .likeliest = true};
    program_set_outputs(of.sizes.of, 2);
    of.sizes.of[AXIS_TOKENS] = of.sizes.of[AXIS_SEQUENCES] = 2;
    of.sizes.of[AXIS_SEQUENCE_ENDS] = 3;
    program_set_phase(&of.sizes);
    return of;
}

/* Stores the weights of chains as tiles too, if several sequences may decode and there is room. */
static qp_status tile_weights(cuda_executor *x, qp_error *error)
{
    const launch_class of = class_of_chains(x->program);
    cuda_tiles *tiles = &x->tiles;
    launch_list list;
    size_t available;
    if (x->ops.few_rows > 1 || !cuda_weights_have_tiles(x->program)) return QP_OK;
    qp_status status = launch_list_make(&x->setting, &of, NULL, NULL, &list, error);
    for (int i = 0; i < list.n_entries && status == QP_OK; i++)
        if (list.entries[i].chain)
            status = cuda_tiles_add(
                tiles, cuda_recording_argument(&list.recording, list.entries[i].record, 0), error);
    launch_list_free(&list);
    TRY(status);
    TRY(cuda_device_free_memory(x->device, &available, error));
    if (tiles->n_parts == 0 || tiles->bytes + kept_free(x) > available) return QP_OK;
    const cuda_address areas[CUDA_MAX_AREAS] = {[LAUNCH_WEIGHTS] = x->weights.memory.address,
                                                [LAUNCH_DECODED] = x->weights.decoded.address};
    tiles->area = LAUNCH_TILES;
    TRY(cuda_tiles_make(tiles, x->device, areas, error));
    x->setting.tiles = tiles;
    return QP_OK;
}

static qp_status allocate(cuda_executor *x, progress *progress, qp_error *error)
{
    const program *p = x->program;
    cuda_device *d = x->device;
    const cuda_kernel *custom = x->ops.custom;
    cuda_bytes bytes = cuda_executor_count(p, custom);
    TRY(cuda_buffer_alloc(d, bytes.arena, "activations", &x->arena, error));
    TRY(cuda_buffer_alloc(d, bytes.rope_table, "the RoPE table", &x->rope_table, error));
    TRY(cuda_buffer_alloc(d, bytes.kv_cache / 2, "the KV cache", &x->k_cache, error));
    TRY(cuda_buffer_alloc(d, bytes.kv_cache / 2, "the KV cache", &x->v_cache, error));
    TRY(cuda_buffer_alloc(d, bytes.inputs, "inputs", &x->inputs, error));
    TRY(cuda_buffer_alloc(d, bytes.state, "the state of sequences", &x->state, error));
    progress_stage_ended(progress, "taking memory on the GPU");
    TRY(cuda_ops_init(&x->ops, d, bytes.workspace - CUDA_OWN_WORKSPACE, true, error));
    x->ops.custom = custom;
    progress_stage_ended(progress, "opening cuBLASLt");
    x->ops.few_rows = cuda_few_rows(p, d);
    TRY(decode_weights(x, error));
    TRY(launch_setting_init(&x->setting, p, &x->weights, d, x->ops.blas, x->ops.has_blas,
                            x->ops.workspace.bytes, error));
    x->setting.ops.custom = custom;
    TRY(tile_weights(x, error));
    progress_stage_ended(progress, "arranging weights on the GPU");
    size_t logits = p->tensors[PLAN_LOGITS].bytes;
    if (logits <= PINNED_LOGITS) TRY(cuda_pinned_alloc(d, logits, "logits", &x->logits, error));
    place_tensors(x);
    return QP_OK;
}

/* Every pass clears the sums of the next one; this clears those of the first pass. */
static qp_status clear_sums(cuda_executor *x, qp_error *error)
{
    size_t bytes = sums_bytes(x->program);
    if (bytes == 0) return QP_OK;
    void *zeros = calloc(1, bytes);
    if (!zeros) return error_no_memory(error, "sums", bytes);
    qp_status status =
        cuda_check(x->device->driver->copy_to_device(x->arena.address + sums_offset(x->program),
                                                     zeros, bytes, x->device->stream),
                   "clearing sums", error);
    if (status == QP_OK) status = cuda_device_wait(x->device, "clearing sums", error);
    free(zeros);
    return status;
}

void cuda_executor_begin_pass(cuda_executor *x)
{
    void *cleared = x->memory.data[PLAN_SUMS_NEXT];
    x->memory.data[PLAN_SUMS_NEXT] = x->memory.data[PLAN_SUMS];
    x->memory.data[PLAN_SUMS] = cleared;
}

static qp_status copy_angles(cuda_executor *x, const float *angles, size_t bytes, qp_error *error)
{
    return cuda_check(
        x->device->driver->copy_to_device(x->rope_table.address, angles, bytes, x->device->stream),
        "copying the RoPE table to the GPU", error);
}

qp_status cuda_executor_copy_angles(cuda_executor *x, const batch *batch, qp_error *error)
{
    const size_t row = (size_t)x->program->config.rope.dim * sizeof *batch->angles;
    if (!batch->angles) return QP_OK;
    return copy_angles(x, batch->angles, (size_t)batch_tokens(batch) * row, error);
}

/* The RoPE table of a model whose angles do not depend on a sequence's length. */
static qp_status make_table(cuda_executor *x, qp_error *error)
{
    const size_t bytes = program_count_bytes(x->program, 0).rope_table;
    if (program_has_dynamic_rope(x->program)) return QP_OK;
    float *table = malloc(bytes);
    if (!table) return error_no_memory(error, "the RoPE table", bytes);
    program_make_tables(x->program, table);
    qp_status status = copy_angles(x, table, bytes, error);
    if (status == QP_OK) status = cuda_device_wait(x->device, "preparing the GPU", error);
    free(table);
    return status;
}

qp_status cuda_executor_init(cuda_executor *x, cuda_device *device, const program *program,
                             const exchange *exchange, struct cuda_carrier *carrier,
                             const cuda_kernel *custom, thread_pool *pool, progress *progress,
                             qp_error *error)
{
    *x = (cuda_executor){
        .program = program, .device = device, .exchange = exchange, .ops.custom = custom};
    if (carrier && !carrier->nccl) x->graphs = CUDA_GRAPHS_NEVER;
    TRY(check_memory(x, error));
    TRY(cuda_weights_load(device, program, pool, progress, &x->weights, error));
    progress_stage_ended(progress, "copying weights to the GPU");
    TRY(find_weights(x, error));
    TRY(allocate(x, progress, error));
    if (carrier) launch_setting_carry(&x->setting, carrier);
    TRY(clear_sums(x, error));
    TRY(make_table(x, error));
    TRY(cuda_device_wait(device, "preparing the GPU", error));
    progress_stage_ended(progress, "taking memory on the GPU");
    return QP_OK;
}

qp_status cuda_executor_join(cuda_executor *x, comm *group, qp_error *error)
{
    x->setting.ops.pusher = &x->pusher;
    return cuda_pusher_open(&x->pusher, x->device, group, error);
}

void cuda_executor_free(cuda_executor *x)
{
    cuda_device *d = x->device;
    if (!d || !d->context) return;
    d->driver->context_set(d->context);
    d->driver->stream_synchronize(d->stream);
    for (int i = 0; i < CUDA_MAX_GRAPHS; i++)
        if (x->passes[i].graph) d->driver->graph_exec_destroy(x->passes[i].graph);
    cuda_executor_free_lists(x);
    cuda_pusher_close(&x->pusher);
    cuda_ops_free(&x->ops);
    for (int i = 0; i < CUDA_GROUPS; i++)
        if (x->ended[i]) d->driver->event_destroy(x->ended[i]);
    if (x->copies) d->driver->stream_destroy(x->copies);
    cuda_pinned_free(d, &x->staged);
    cuda_pinned_free(d, &x->tokens);
    cuda_pinned_free(d, &x->logits);
    cuda_pinned_free(d, &x->masks.all);
    cuda_buffer_free(d, &x->state);
    cuda_buffer_free(d, &x->inputs);
    cuda_buffer_free(d, &x->v_cache);
    cuda_buffer_free(d, &x->k_cache);
    cuda_buffer_free(d, &x->rope_table);
    cuda_buffer_free(d, &x->arena);
    cuda_tiles_free(d, &x->tiles);
    cuda_weights_free(d, &x->weights);
    free(x->weight_data);
    *x = (cuda_executor){0};
}

/* ---- running ------------------------------------------------------------------------------- */

cuda_address cuda_executor_inputs(const cuda_executor *x, int group, int pass)
{
    return x->inputs.address +
           (size_t)(group * CUDA_GROUP + pass) * cuda_executor_input_bytes(x->program);
}

void cuda_executor_place_inputs(cuda_executor *x, const batch *batch, int group, int pass)
{
    cuda_address slot = cuda_executor_inputs(x, group, pass);
    for (int id = 0; id < x->program->n_tensors; id++) {
        if (x->program->tensors[id].kind != PLAN_INPUT) continue;
        size_t at = (size_t)((char *)batch->of[id] - (char *)batch->memory);
        x->memory.data[id] = cuda_host_form(slot + at);
    }
}

qp_status cuda_executor_send_masks(cuda_executor *x, qp_error *error)
{
    return cuda_masks_send(&x->masks, x->device, cuda_executor_address(x, PLAN_ALLOWED, 0), error);
}

qp_status cuda_executor_take_inputs(cuda_executor *x, const batch *batch, qp_error *error)
{
    cuda_executor_place_inputs(x, batch, 0, 0);
    TRY(cuda_device_enter(x->device, error));
    TRY(cuda_executor_copy_angles(x, batch, error));
    TRY(cuda_executor_send_masks(x, error));
    return cuda_check(x->device->driver->copy_to_device(x->inputs.address, batch->memory,
                                                        batch->memory_bytes, x->device->stream),
                      "copying inputs to the GPU", error);
}
