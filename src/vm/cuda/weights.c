/* A model's weights on the GPU: see weights.h. */
#include "vm/cuda/weights.h"

#include "base/checked.h"

#include <stdlib.h>

/* Calls `visit` for every tensor of the model except a tied output; layer -1: the tensors of the
 * whole model. */
typedef qp_status visit_weight(void *context, weight_slot slot, int64_t layer, bool bias,
                               const tensor *view, qp_error *error);

static qp_status visit_slot(const model *m, weight_slot slot, int64_t layer, visit_weight *visit,
                            void *context, qp_error *error)
{
    const model_weight *weight = model_get_weight(m, slot, layer);
    if (slot == WEIGHT_OUTPUT && model_get_config(m)->tied) return QP_OK;
    if (weight->weight.rank == 0) return QP_OK;
    TRY(visit(context, slot, layer, false, &weight->weight, error));
    return weight->bias.rank ? visit(context, slot, layer, true, &weight->bias, error) : QP_OK;
}

/* Places weights layer by layer, so that weights that are used together are near each other. */
static qp_status visit_all(const model *m, visit_weight *visit, void *context, qp_error *error)
{
    int64_t n_layers = model_get_config(m)->n_layers;
    for (int64_t layer = -1; layer < n_layers; layer++) {
        for (int slot = 0; slot < WEIGHT_COUNT; slot++) {
            if (weight_get_info((weight_slot)slot)->per_layer == (layer >= 0))
                TRY(visit_slot(m, (weight_slot)slot, layer, visit, context, error));
        }
    }
    return QP_OK;
}

static qp_status add_bytes(void *context, weight_slot slot, int64_t layer, bool bias,
                           const tensor *view, qp_error *error)
{
    (void)slot, (void)layer, (void)bias, (void)error;
    *(size_t *)context += round_up(tensor_bytes(view), CUDA_ALIGNMENT);
    return QP_OK;
}

size_t cuda_weights_bytes(const model *m)
{
    size_t bytes = 0;
    visit_all(m, add_bytes, &bytes, NULL);
    return bytes;
}

typedef struct placing {
    cuda_weights *weights;
    size_t used;
} placing;

static qp_status place_one(void *context, weight_slot slot, int64_t layer, bool bias,
                           const tensor *view, qp_error *error)
{
    placing *p = context;
    (void)error;
    p->weights->offsets[layer + 1][slot][bias] = p->used;
    p->used += round_up(tensor_bytes(view), CUDA_ALIGNMENT);
    return QP_OK;
}

qp_status cuda_weights_place(const model *m, cuda_weights *out, qp_error *error)
{
    *out = (cuda_weights){.model = m};
    size_t rows = (size_t)model_get_config(m)->n_layers + 1;
    out->offsets = calloc(rows, sizeof *out->offsets);
    if (!out->offsets) return error_no_memory(error, "the table of weights", rows);
    return visit_all(m, place_one, &(placing){.weights = out}, error);
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
static qp_status copy_rows(load_context *load, weight_slot slot, int64_t layer, bool bias,
                           const tensor *view, cuda_address to, qp_error *error)
{
    int64_t rows = view->rank == 2 || bias ? view->shape[0] : 1;
    size_t row_bytes = tensor_bytes(view) / (size_t)rows;
    int64_t at_once = (int64_t)(CUDA_UPLOAD_PIECE / row_bytes);
    if (at_once == 0)
        return error_set(
            error, QP_UNSUPPORTED,
            "a row of %s takes more than the %d MB that are copied to the GPU at a time: "
            "use --device cpu",
            weight_get_info(slot)->name, CUDA_UPLOAD_PIECE >> 20);
    for (int64_t row = 0; row < rows; row += at_once) {
        int64_t count = rows - row < at_once ? rows - row : at_once;
        void *piece;
        TRY(cuda_upload_next(&load->upload, &piece, error));
        model_read_rows(load->weights->model, slot, layer, bias, row, count, piece);
        TRY(cuda_upload_send(&load->upload, to + (size_t)row * row_bytes, (size_t)count * row_bytes,
                             error));
        progress_advance(load->progress, (size_t)count * row_bytes);
    }
    return QP_OK;
}

static qp_status load_one(void *context, weight_slot slot, int64_t layer, bool bias,
                          const tensor *view, qp_error *error)
{
    load_context *load = context;
    synthetic_stream stream;
    cuda_address to = load->weights->memory.address + load->weights->offsets[layer + 1][slot][bias];
    if (!model_synthetic_stream(load->weights->model, slot, layer, bias, &stream)) {
        TRY(copy_rows(load, slot, layer, bias, view, to, error));
        if (!bias) model_release_weight(load->weights->model, slot, layer);
        return QP_OK;
    }
    TRY(make_on_device(load, &stream, view, to, error));
    progress_advance(load->progress, tensor_bytes(view));
    return QP_OK;
}

qp_status cuda_weights_load(cuda_device *device, const model *m, progress *progress,
                            cuda_weights *out, qp_error *error)
{
    TRY(cuda_weights_place(m, out, error));
    TRY(cuda_buffer_alloc(device, cuda_weights_bytes(m), "weights", &out->memory, error));
    load_context load = {.device = device, .weights = out, .progress = progress};
    progress_begin(progress, "copying weights to the GPU", model_weight_bytes(m));
    qp_status status = cuda_upload_begin(device, &load.upload, error);
    if (status == QP_OK) status = visit_all(m, load_one, &load, error);
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

bool cuda_weights_find(const cuda_weights *w, weight_slot slot, int64_t layer, bool bias,
                       size_t *offset)
{
    const model_weight *weight = model_get_weight(w->model, slot, layer < 0 ? 0 : layer);
    if (bias ? !weight->bias.rank : !weight->weight.rank) return false;
    if (slot == WEIGHT_OUTPUT && model_get_config(w->model)->tied) slot = WEIGHT_TOKEN_EMBD;
    int64_t row = weight_get_info(slot)->per_layer ? layer + 1 : 0;
    *offset = w->offsets[row][slot][bias];
    return true;
}

cuda_address cuda_weights_address(const cuda_weights *w, weight_slot slot, int64_t layer, bool bias)
{
    size_t offset;
    return cuda_weights_find(w, slot, layer, bias, &offset) ? w->memory.address + offset : 0;
}
