/* A model's weights on the GPU: see weights.h. */
#include "vm/cuda/weights.h"

#include "base/checked.h"
#include "plan/weights.h"

#include <stdlib.h>

/* Calls `visit` for every weight that holds elements, in the order of layers, so that weights that
 * are used together are near each other; weights of the whole model come first. */
typedef qp_status visit_weight(void *context, const program *p, int weight, qp_error *error);

static qp_status visit_all(const program *p, visit_weight *visit, void *context, qp_error *error)
{
    for (int64_t layer = -1; layer < p->config.n_layers; layer++)
        for (int slot = 0; slot < WEIGHT_COUNT; slot++)
            for (int bias = 0; bias < 2; bias++) {
                const int weight = program_find_weight(p, (weight_slot)slot, layer, bias);
                if (weight >= 0 && p->weights[weight].layer == layer &&
                    p->weights[weight].stored == weight)
                    TRY(visit(context, p, weight, error));
            }
    return QP_OK;
}

static qp_status add_bytes(void *context, const program *p, int weight, qp_error *error)
{
    (void)error;
    *(size_t *)context += round_up(tensor_bytes(&p->weights[weight].whole), CUDA_ALIGNMENT);
    return QP_OK;
}

size_t cuda_weights_bytes(const program *p)
{
    size_t bytes = 0;
    visit_all(p, add_bytes, &bytes, NULL);
    return bytes;
}

static qp_status place_one(void *context, const program *p, int weight, qp_error *error)
{
    cuda_weights *w = context;
    w->offsets[weight] = w->bytes;
    return add_bytes(&w->bytes, p, weight, error);
}

qp_status cuda_weights_place(const program *p, cuda_weights *out, qp_error *error)
{
    *out = (cuda_weights){.program = p};
    out->offsets = calloc((size_t)p->n_weights + 1, sizeof *out->offsets);
    if (!out->offsets)
        return error_no_memory(error, "the table of weights",
                               (size_t)p->n_weights * sizeof *out->offsets);
    TRY(visit_all(p, place_one, out, error));
    for (int i = 0; i < p->n_weights; i++)
        out->offsets[i] = out->offsets[p->weights[i].stored];
    return QP_OK;
}

typedef struct load_context {
    cuda_device *device;
    cuda_weights *weights;
    cuda_upload upload;
    progress *progress;
} load_context;

/* Generates elements (or blocks) of a synthetic tensor by a kernel. */
static qp_status make_on_device(load_context *load, const synthetic_stream *stream,
                                const tensor *view, cuda_address to, qp_error *error)
{
    enum { THREADS = 256, ELEMENTS_A_THREAD = 2 };
    cuda_device *device = load->device;
    bool blocks = dtype_is_quantized(view->type);
    uint64_t count = (uint64_t)(tensor_elements(view) / dtype_block_elements(view->type));
    uint64_t threads = blocks ? count : (count + ELEMENTS_A_THREAD - 1) / ELEMENTS_A_THREAD;
    uint32_t block_bytes = (uint32_t)dtype_block_bytes(view->type);
    synthetic_stream own = *stream;
    dtype type = view->type;
    void *plain[] = {&own, &type, &count, &to};
    void *quantized[] = {&own, &type, &count, &block_bytes, &to};
    uint64_t most = (uint64_t)device->n_multiprocessors * 64;
    uint64_t grid = (threads + THREADS - 1) / THREADS;
    cuda_function function = NULL;
    TRY(cuda_device_function(device, "synthetic_exact",
                             blocks ? "synthetic_blocks" : "synthetic_plain", 0, &function, error));
    return cuda_check(device->driver->launch(function, (unsigned)(grid < most ? grid : most), 1, 1,
                                             THREADS, 1, 1, 0, device->stream,
                                             blocks ? quantized : plain, NULL),
                      "making weights on the GPU", error);
}

/* Reads rows from the file, or generates them, directly into pinned memory. */
static qp_status copy_rows(load_context *load, const program *p, int weight, cuda_address to,
                           qp_error *error)
{
    const program_weight *w = &p->weights[weight];
    int64_t rows = w->whole.rank == 2 || w->bias ? w->whole.shape[0] : 1;
    size_t row_bytes = tensor_bytes(&w->whole) / (size_t)rows;
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
        TRY(program_read_weight(p, weight, row, count, piece, error));
        TRY(cuda_upload_send(&load->upload, to + (size_t)row * row_bytes, (size_t)count * row_bytes,
                             error));
        progress_advance(load->progress, (size_t)count * row_bytes);
    }
    return QP_OK;
}

static qp_status load_one(void *context, const program *p, int weight, qp_error *error)
{
    load_context *load = context;
    synthetic_stream stream;
    const tensor *whole = &p->weights[weight].whole;
    cuda_address to = load->weights->memory.address + load->weights->offsets[weight];
    if (!program_weight_stream(p, weight, &stream)) {
        TRY(copy_rows(load, p, weight, to, error));
        program_release_weight(p, weight);
        return QP_OK;
    }
    TRY(make_on_device(load, &stream, whole, to, error));
    progress_advance(load->progress, tensor_bytes(whole));
    return QP_OK;
}

qp_status cuda_weights_load(cuda_device *device, const program *p, progress *progress,
                            cuda_weights *out, qp_error *error)
{
    TRY(cuda_weights_place(p, out, error));
    TRY(cuda_buffer_alloc(device, out->bytes, "weights", &out->memory, error));
    load_context load = {.device = device, .weights = out, .progress = progress};
    progress_begin(progress, "copying weights to the GPU", program_weight_bytes(p));
    qp_status status = cuda_upload_begin(device, &load.upload, error);
    if (status == QP_OK) status = visit_all(p, load_one, &load, error);
    qp_status ended = cuda_upload_end(&load.upload, status == QP_OK ? error : NULL);
    progress_end(progress);
    return status == QP_OK ? ended : status;
}

void cuda_weights_free(const cuda_device *device, cuda_weights *weights)
{
    if (weights->offsets) cuda_buffer_free(device, &weights->memory);
    free(weights->offsets);
    *weights = (cuda_weights){0};
}

cuda_address cuda_weights_address(const cuda_weights *w, weight_slot slot, int64_t layer, bool bias)
{
    const int weight = program_find_weight(w->program, slot, layer, bias);
    return weight >= 0 ? w->memory.address + w->offsets[weight] : 0;
}
