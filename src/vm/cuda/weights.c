/* A model's weights on the GPU: see weights.h. */
#include "vm/cuda/weights.h"

#include "base/checked.h"
#include "op/linear/linear.h"
#include "op/linear/linear_f8_cuda.h"
#include "op/linear/linear_f8_rows_cuda.h"
#include "plan/weights.h"

#include <stdlib.h>

/* Calls `visit` for every weight that holds elements, in the order of layers, so that weights that
 * are used together are near each other; weights of the whole model come first, a layer's biases
 * after its matrices. */
typedef qp_status visit_weight(void *context, const program *p, int weight, qp_error *error);

static qp_status visit_all(const program *p, visit_weight *visit, void *context, qp_error *error)
{
    for (int64_t layer = -1; layer < p->config.n_layers; layer++)
        for (int part = 0; part < PROGRAM_WEIGHT_PARTS; part++)
            for (int slot = 0; slot < WEIGHT_COUNT; slot++) {
                const int weight = program_find_weight_part(p, (weight_slot)slot, layer, part);
                if (weight >= 0 && p->weights[weight].layer == layer &&
                    p->weights[weight].stored == weight)
                    TRY(visit(context, p, weight, error));
            }
    return QP_OK;
}

/* Whether a node reads the weight: a product's, or another one's. */
static bool is_read(const program *p, int weight, bool product)
{
    for (int n = 0; n < p->n_nodes; n++) {
        const op_code op = p->nodes[n].op;
        for (int t = 0; t < op_n_tensors(op_get(op)); t++) {
            const program_weight *read = program_weight_of(p, n, t);
            if (read && read->stored == weight && (op == OP_LINEAR) == product) return true;
        }
    }
    return false;
}

bool cuda_weights_in_panels(const program *p, int weight)
{
    const tensor part = program_weight_part(&p->weights[weight]);
    return part.type == DTYPE_F8_128 && part.rank == 2 && is_read(p, weight, true);
}

bool cuda_weights_by_rows(const program *p, int weight)
{
    const tensor part = program_weight_part(&p->weights[weight]);
    return p->config.fp8_by_rows && cuda_weights_in_panels(p, weight) &&
           cuda_f8_rows_can(part.shape[0], part.shape[1]);
}

bool cuda_weights_in_f8(const program *p)
{
    for (int i = 0; i < p->n_weights; i++)
        if (p->weights[i].stored == i && cuda_weights_by_rows(p, i)) return true;
    return false;
}

static bool multiplies_bf16_alone(const program *p)
{
    for (int i = 0; i < p->n_weights; i++) {
        const tensor part = program_weight_part(&p->weights[i]);
        if (part.rank == 2 && part.type != DTYPE_BF16 && is_read(p, i, true)) return false;
    }
    return true;
}

bool cuda_single_is_batch(const program *p)
{
    return cuda_weights_in_f8(p) || (p->options.kv_type == DTYPE_F8 && multiplies_bf16_alone(p));
}

/* Biases lie next to each other, as matrices do, so that products can be merged. */
static size_t alignment_of(const program *p, int weight)
{
    enum { BIAS_ALIGNMENT = 16 };
    return p->weights[weight].bias ? BIAS_ALIGNMENT : CUDA_ALIGNMENT;
}

static size_t stored_bytes(const program *p, int weight)
{
    const tensor part = program_weight_part(&p->weights[weight]);
    return round_up(tensor_bytes(&part), alignment_of(p, weight));
}

/* Whole panels lie next to each other, as rows do, so that products can be merged. */
static size_t panel_bytes(const program *p, int weight)
{
    const tensor part = program_weight_part(&p->weights[weight]);
    const size_t numbers = (size_t)(part.shape[0] * part.shape[1]);
    return round_up(cuda_weights_by_rows(p, weight) ? numbers
                                                    : cuda_f8_bytes(part.shape[0], part.shape[1]),
                    CUDA_ALIGNMENT);
}

static size_t scale_bytes(const program *p, int weight)
{
    const tensor part = program_weight_part(&p->weights[weight]);
    return cuda_weights_by_rows(p, weight) ? (size_t)part.shape[0] * 4 : 0;
}

static qp_status add_bytes(void *context, const program *p, int weight, qp_error *error)
{
    (void)error;
    size_t *bytes = context;
    const bool panels = cuda_weights_in_panels(p, weight);
    *bytes = round_up(*bytes, alignment_of(p, weight));
    if (panels) *bytes += panel_bytes(p, weight);
    if (!panels || is_read(p, weight, false)) *bytes += stored_bytes(p, weight);
    return QP_OK;
}

static qp_status add_scales(void *context, const program *p, int weight, qp_error *error)
{
    (void)error;
    *(size_t *)context += scale_bytes(p, weight);
    return QP_OK;
}

size_t cuda_weights_bytes(const program *p)
{
    size_t bytes = 0, scales = 0;
    visit_all(p, add_bytes, &bytes, NULL);
    visit_all(p, add_scales, &scales, NULL);
    return round_up(bytes, CUDA_ALIGNMENT) + round_up(scales, CUDA_ALIGNMENT);
}

static size_t decoded_bytes(const tensor *part)
{
    return round_up((size_t)(part->shape[0] * part->shape[1]) * 2, CUDA_ALIGNMENT);
}

/* Whether products read the weight, or one that is tied to it, in another type than BF16, as rows.
 */
static bool is_decoded(const program *p, int weight)
{
    const tensor part = program_weight_part(&p->weights[weight]);
    return part.rank == 2 && part.type != DTYPE_BF16 && part.shape[1] % 8 == 0 &&
           !cuda_weights_in_panels(p, weight) && is_read(p, weight, true);
}

static qp_status place_one(void *context, const program *p, int weight, qp_error *error)
{
    cuda_weights *w = context;
    w->offsets[weight] = w->rows_at[weight] = round_up(w->bytes, alignment_of(p, weight));
    w->scales_at[weight] = w->scale_bytes;
    w->scale_bytes += scale_bytes(p, weight);
    if (cuda_weights_in_panels(p, weight)) w->rows_at[weight] += panel_bytes(p, weight);
    w->decoded_at[weight] = CUDA_AS_STORED;
    if (is_decoded(p, weight)) {
        const tensor part = program_weight_part(&p->weights[weight]);
        w->decoded_at[weight] = w->decoded_bytes;
        w->decoded_bytes += decoded_bytes(&part);
    }
    return add_bytes(&w->bytes, p, weight, error);
}

/* A tied weight is a part of the rows that another one holds: the bytes of those before it. */
static size_t bytes_before_tied(const program *p, int weight, bool decoded)
{
    const program_weight *w = &p->weights[weight], *of = &p->weights[w->stored];
    const size_t row_bytes = decoded ? (size_t)w->whole.shape[1] * 2
                                     : tensor_bytes(&w->whole) / (size_t)w->whole.shape[0];
    return (size_t)(w->rows.first - of->rows.first) * row_bytes;
}

/* The order of chains, of quantised weights. */
static qp_status place_levels(const program *p, cuda_weights *out, qp_error *error)
{
    TRY(cuda_packed_place(p, out->decoded_at, false, &out->packed, error));
    out->packs = out->decodes && out->packed.n_parts > 0 && p->options.max_sequences > 1 &&
                 p->options.ranks == 1 && !p->options.few_alike;
    return QP_OK;
}

/* Of weights in FP8 with a scale a row: chains take passes of a single row too. */
static qp_status place_numbers(const program *p, cuda_weights *out, qp_error *error)
{
    size_t *at = calloc((size_t)p->n_weights + 1, sizeof *at);
    if (!at) return error_no_memory(error, "the table of weights", (size_t)p->n_weights);
    for (int i = 0; i < p->n_weights; i++)
        at[i] = cuda_weights_by_rows(p, p->weights[i].stored) ? out->offsets[i] : CUDA_AS_STORED;
    const qp_status status = cuda_packed_place(p, at, true, &out->packed, error);
    free(at);
    out->packs = out->packed.n_parts > 0 && p->options.bf16_copies != PLAN_COPIES_OFF;
    return status;
}

qp_status cuda_weights_place(const program *p, cuda_weights *out, qp_error *error)
{
    *out = (cuda_weights){.program = p};
    out->offsets = calloc((size_t)p->n_weights + 1, sizeof *out->offsets);
    out->rows_at = calloc((size_t)p->n_weights + 1, sizeof *out->rows_at);
    out->decoded_at = calloc((size_t)p->n_weights + 1, sizeof *out->decoded_at);
    out->scales_at = calloc((size_t)p->n_weights + 1, sizeof *out->scales_at);
    if (!out->offsets || !out->rows_at || !out->decoded_at || !out->scales_at)
        return error_no_memory(error, "the table of weights",
                               (size_t)p->n_weights * sizeof *out->offsets);
    TRY(visit_all(p, place_one, out, error));
    out->bytes = round_up(out->bytes, CUDA_ALIGNMENT);
    for (int i = 0; i < p->n_weights; i++)
        if (p->weights[i].stored == i) out->scales_at[i] += out->bytes;
    out->bytes += round_up(out->scale_bytes, CUDA_ALIGNMENT);
    for (int i = 0; i < p->n_weights; i++) {
        if (p->weights[i].stored == i) continue;
        out->scales_at[i] = out->scales_at[p->weights[i].stored];
        const size_t decoded = out->decoded_at[p->weights[i].stored];
        out->offsets[i] = out->offsets[p->weights[i].stored] + bytes_before_tied(p, i, false);
        out->rows_at[i] = out->rows_at[p->weights[i].stored] + bytes_before_tied(p, i, false);
        out->decoded_at[i] = decoded;
        if (decoded != CUDA_AS_STORED) out->decoded_at[i] += bytes_before_tied(p, i, true);
    }
    out->decodes = out->decoded_bytes > 0 && p->options.bf16_copies != PLAN_COPIES_OFF;
    return cuda_weights_in_f8(p) ? place_numbers(p, out, error) : place_levels(p, out, error);
}

typedef struct load_context {
    cuda_device *device;
    cuda_weights *weights;
    cuda_upload upload;
    cuda_buffer stored; /* for a matrix as stored that is only needed in panels */
    thread_pool *pool;
    progress *progress;
} load_context;

/* Rows [first, first + count) of a weight, which threads read into `piece` together, because one
 * thread reads several times slower than the GPU takes them. */
typedef struct read_task {
    const program *program;
    int weight;
    int64_t first, count;
    char *piece;
    size_t row_bytes;
    qp_error *errors; /* [workers] */
} read_task;

static void read_share(void *context, int worker, int n_workers)
{
    const read_task *task = context;
    int64_t begin, end;
    thread_share(task->count, worker, n_workers, &begin, &end);
    if (begin == end) return;
    program_read_weight(task->program, task->weight, task->first + begin, end - begin,
                        task->piece + (size_t)begin * task->row_bytes, &task->errors[worker]);
}

static qp_status read_together(const load_context *load, read_task *task, qp_error *error)
{
    enum { ALONE = 1 << 20 }; /* bytes for which no thread is worth waking */
    const int n = load->pool ? thread_pool_size(load->pool) : 1;
    const bool alone = n == 1 || (size_t)task->count * task->row_bytes < ALONE;
    if (alone)
        return program_read_weight(task->program, task->weight, task->first, task->count,
                                   task->piece, error);
    task->errors = calloc((size_t)n, sizeof *task->errors);
    if (!task->errors) return error_no_memory(error, "reading weights", sizeof *task->errors);
    thread_pool_run(load->pool, read_share, task);
    qp_status status = QP_OK;
    for (int i = 0; i < n && status == QP_OK; i++)
        if (task->errors[i].status != QP_OK)
            status = error_set(error, task->errors[i].status, "%s", task->errors[i].message);
    free(task->errors);
    return status;
}

/* Launches a kernel that makes synthetic weights: about `threads` threads for each of `rows`. */
static qp_status launch_maker(cuda_device *device, const char *name, uint64_t threads,
                              uint64_t rows, void **arguments, qp_error *error)
{
    enum { THREADS = 256 };
    const uint64_t most = (uint64_t)device->n_multiprocessors * 64;
    const uint64_t grid = (threads + THREADS - 1) / THREADS;
    cuda_function function = NULL;
    TRY(cuda_device_function(device, "synthetic_exact", name, 0, &function, error));
    return cuda_check(device->driver->launch(function, (unsigned)(grid < most ? grid : most),
                                             (unsigned)rows, 1, THREADS, 1, 1, 0, device->stream,
                                             arguments, NULL),
                      "making weights on the GPU", error);
}

/* Generates elements (or blocks) of a synthetic tensor by a kernel. */
static qp_status make_whole(cuda_device *device, const synthetic_stream *stream, const tensor *view,
                            cuda_address to, qp_error *error)
{
    enum { ELEMENTS_A_THREAD = 2, THREADS_A_BLOCK_OF_F8 = 32 };
    synthetic_stream own = *stream;
    dtype type = view->type;
    uint64_t count = (uint64_t)(tensor_elements(view) / dtype_block_elements(type));
    uint32_t block_bytes = (uint32_t)dtype_block_bytes(type);
    void *plain[] = {&own, &type, &count, &to};
    void *quantized[] = {&own, &type, &count, &block_bytes, &to};
    uint64_t per_row = (uint64_t)(view->shape[view->rank - 1] / dtype_block_elements(type));
    void *f8[] = {&own, &count, &per_row, &to};
    if (type == DTYPE_F8_128)
        return launch_maker(device, "synthetic_f8", count * THREADS_A_BLOCK_OF_F8, 1, f8, error);
    if (dtype_is_quantized(type))
        return launch_maker(device, "synthetic_blocks", count, 1, quantized, error);
    return launch_maker(device, "synthetic_plain",
                        (count + ELEMENTS_A_THREAD - 1) / ELEMENTS_A_THREAD, 1, plain, error);
}

/* The same of a rank's part. Whole rows lie together, as if they were one. */
static qp_status make_part(cuda_device *device, const synthetic_stream *stream,
                           const program_weight *w, cuda_address to, qp_error *error)
{
    synthetic_stream own = *stream;
    dtype type = w->whole.type;
    const uint64_t block = (uint64_t)dtype_block_elements(type);
    uint64_t pitch = (w->whole.rank == 2 ? (uint64_t)w->whole.shape[1] : 1) / block;
    uint64_t columns = (uint64_t)w->columns.count / block, rows = (uint64_t)w->rows.count;
    uint64_t first = (uint64_t)w->rows.first * pitch + (uint64_t)w->columns.first / block;
    uint32_t block_bytes = (uint32_t)dtype_block_bytes(type);
    void *plain[] = {&own, &type, &first, &pitch, &columns, &to};
    void *quantized[] = {&own, &type, &first, &pitch, &columns, &block_bytes, &to};
    if (columns == pitch) {
        columns *= rows;
        rows = 1;
    }
    const bool blocks = dtype_is_quantized(type);
    return launch_maker(device, blocks ? "synthetic_blocks_part" : "synthetic_plain_part", columns,
                        rows, blocks ? quantized : plain, error);
}

/* Reads rows from the file, or generates them, directly into pinned memory. */
static qp_status copy_rows(load_context *load, const program *p, int weight, cuda_address to,
                           qp_error *error)
{
    const program_weight *w = &p->weights[weight];
    const tensor part = program_weight_part(w);
    const int64_t rows = w->rows.count;
    const size_t row_bytes = tensor_bytes(&part) / (size_t)rows;
    int64_t at_once = (int64_t)(CUDA_UPLOAD_PIECE / row_bytes);
    if (at_once == 0)
        return error_set(
            error, QP_UNSUPPORTED,
            "a row of %s takes more than the %d MB that are copied to the GPU at a time: "
            "use --device cpu",
            weight_get_info(w->slot)->name, CUDA_UPLOAD_PIECE >> 20);
    for (int64_t row = 0; row < rows; row += at_once) {
        int64_t count = rows - row < at_once ? rows - row : at_once;
        void *piece;
        TRY(cuda_upload_next(&load->upload, &piece, error));
        read_task task = {p, weight, row, count, piece, row_bytes, NULL};
        TRY(read_together(load, &task, error));
        TRY(cuda_upload_send(&load->upload, to + (size_t)row * row_bytes, (size_t)count * row_bytes,
                             error));
        progress_advance(load->progress, (size_t)count * row_bytes);
    }
    return QP_OK;
}

/* Copies or makes a weight as stored. */
static qp_status load_stored(load_context *load, const program *p, int weight, cuda_address to,
                             qp_error *error)
{
    synthetic_stream stream;
    const program_weight *w = &p->weights[weight];
    const tensor part = program_weight_part(w);
    const bool whole = tensor_elements(&part) == tensor_elements(&w->whole);
    if (!program_weight_stream(p, weight, &stream)) {
        TRY(copy_rows(load, p, weight, to, error));
        program_release_weight(p, weight);
        return QP_OK;
    }
    TRY(whole ? make_whole(load->device, &stream, &part, to, error)
              : make_part(load->device, &stream, w, to, error));
    progress_advance(load->progress, tensor_bytes(&part));
    return QP_OK;
}

static qp_status load_one(void *context, const program *p, int weight, qp_error *error)
{
    load_context *load = context;
    const cuda_address memory = load->weights->memory.address;
    const bool panels = cuda_weights_in_panels(p, weight);
    const bool kept = !panels || is_read(p, weight, false);
    const cuda_address rows = kept ? memory + load->weights->rows_at[weight] : load->stored.address;
    tensor part = program_weight_part(&p->weights[weight]);
    TRY(load_stored(load, p, weight, rows, error));
    if (!panels) return QP_OK;
    cuda_ops ops = {.device = load->device};
    part.data = cuda_host_form(rows);
    const cuda_address to = memory + load->weights->offsets[weight];
    if (!cuda_weights_by_rows(p, weight)) return cuda_f8_arrange(&ops, &part, to, error);
    return cuda_f8_rows_arrange(&ops, &part, to, memory + load->weights->scales_at[weight], error);
}

/* Room for the largest matrix that is only kept in panels. */
static qp_status take_room(load_context *load, const program *p, qp_error *error)
{
    size_t most = 0;
    for (int i = 0; i < p->n_weights; i++) {
        if (p->weights[i].stored != i || !cuda_weights_in_panels(p, i) || is_read(p, i, false))
            continue;
        if (stored_bytes(p, i) > most) most = stored_bytes(p, i);
    }
    return cuda_buffer_alloc(load->device, most, "a matrix as stored", &load->stored, error);
}

qp_status cuda_weights_load(cuda_device *device, const program *p, thread_pool *pool,
                            progress *progress, cuda_weights *out, qp_error *error)
{
    TRY(cuda_weights_place(p, out, error));
    TRY(cuda_buffer_alloc(device, out->bytes, "weights", &out->memory, error));
    load_context load = {.device = device, .weights = out, .pool = pool, .progress = progress};
    progress_begin(progress, "copying weights to the GPU", program_weight_bytes(p));
    qp_status status = cuda_upload_begin(device, &load.upload, error);
    if (status == QP_OK) status = take_room(&load, p, error);
    if (status == QP_OK) status = visit_all(p, load_one, &load, error);
    qp_status ended = cuda_upload_end(&load.upload, status == QP_OK ? error : NULL);
    cuda_buffer_free(device, &load.stored);
    progress_end(progress);
    return status == QP_OK ? ended : status;
}

qp_status cuda_weights_decode(cuda_ops *ops, cuda_weights *w, qp_error *error)
{
    const program *p = w->program;
    if (w->decodes)
        TRY(cuda_buffer_alloc(ops->device, w->decoded_bytes, "weights in BF16", &w->decoded,
                              error));
    for (int i = 0; i < p->n_weights && w->decodes; i++) {
        if (p->weights[i].stored != i || w->decoded_at[i] == CUDA_AS_STORED) continue;
        tensor part = program_weight_part(&p->weights[i]);
        const cuda_address to = w->decoded.address + w->decoded_at[i];
        part.data = cuda_host_form(w->memory.address + w->offsets[i]);
        TRY(cuda_narrow_rows(ops, &part, 0, part.shape[0], to, error));
    }
    if (w->packs)
        TRY(cuda_packed_make(p, ops->device, w->memory.address, w->offsets, w->scales_at,
                             &w->packed, error));
    return cuda_device_wait(ops->device, "decoding weights to BF16", error);
}

size_t cuda_weights_copies(const cuda_weights *w)
{
    return (w->decodes ? w->decoded_bytes : 0) + (w->packs ? w->packed.bytes : 0);
}

bool cuda_weights_have_tiles(const program *p)
{
    return p->options.max_sequences > 1 && !p->options.few_alike &&
           p->options.bf16_copies != PLAN_COPIES_OFF;
}

size_t cuda_weights_tiles(const cuda_weights *w)
{
    const program *p = w->program;
    size_t bytes = 0;
    if (w->packs || !cuda_weights_have_tiles(p)) return 0;
    for (int i = 0; i < p->n_weights; i++) {
        const tensor part = program_weight_part(&p->weights[i]);
        const bool is_bf16 = part.type == DTYPE_BF16 || w->decoded_at[i] != CUDA_AS_STORED;
        if (p->weights[i].stored == i && part.rank == 2 && is_bf16 && is_read(p, i, true))
            bytes += decoded_bytes(&part);
    }
    return bytes;
}

void cuda_weights_free(const cuda_device *device, cuda_weights *weights)
{
    if (weights->offsets) cuda_buffer_free(device, &weights->memory);
    if (weights->offsets) cuda_buffer_free(device, &weights->decoded);
    cuda_packed_free(device, &weights->packed);
    free(weights->offsets);
    free(weights->rows_at);
    free(weights->scales_at);
    free(weights->decoded_at);
    *weights = (cuda_weights){0};
}

cuda_address cuda_weights_address(const cuda_weights *w, weight_slot slot, int64_t layer)
{
    const int weight = program_find_weight(w->program, slot, layer, false);
    return weight >= 0 ? w->memory.address + w->offsets[weight] : 0;
}

cuda_address cuda_weights_rows(const cuda_weights *w, weight_slot slot, int64_t layer)
{
    const int weight = program_find_weight(w->program, slot, layer, false);
    return weight >= 0 ? w->memory.address + w->rows_at[weight] : 0;
}

cuda_address cuda_weights_scales(const cuda_weights *w, weight_slot slot, int64_t layer)
{
    const int weight = program_find_weight(w->program, slot, layer, false);
    return weight >= 0 ? w->memory.address + w->scales_at[weight] : 0;
}
