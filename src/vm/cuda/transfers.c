/* Logits, tensors and pages of the cache between the GPU and the host: see executor.h. */
#include "vm/cuda/executor_parts.h"

#include <stdint.h>
#include <string.h>

/* Puts the copy of logits, rows [first, first + count), into the stream. */
static qp_status copy_logits(const cuda_executor *x, int64_t first, int64_t count, float *to,
                             qp_error *error)
{
    const size_t row = (size_t)x->program->config.vocab_size;
    const cuda_address from = cuda_executor_address(x, PLAN_LOGITS, 0);
    return cuda_check(x->device->driver->copy_to_host(
                          to + (size_t)first * row, from + (size_t)first * row * sizeof *to,
                          (size_t)count * row * sizeof *to, x->device->stream),
                      "copying logits from the GPU", error);
}

qp_status cuda_executor_read_logits(cuda_executor *x, const int32_t *rows, int64_t n_rows,
                                    float *out, qp_error *error)
{
    const cuda_device *d = x->device;
    const size_t row = (size_t)x->program->config.vocab_size;
    float *to = x->logits.data ? x->logits.data : out;
    TRY(cuda_device_enter(d, error));
    if (!rows) TRY(copy_logits(x, 0, n_rows, to, error));
    for (int64_t i = 0; rows && i < n_rows; i++)
        TRY(copy_logits(x, rows[i], 1, to, error));
    TRY(cuda_device_wait(d, "the forward pass", error));
    if (to == out) return QP_OK;
    if (!rows) memcpy(out, to, (size_t)n_rows * row * sizeof *out);
    for (int64_t i = 0; rows && i < n_rows; i++)
        memcpy(out + (size_t)rows[i] * row, to + (size_t)rows[i] * row, row * sizeof *out);
    return QP_OK;
}

cuda_address cuda_executor_address(const cuda_executor *x, plan_tensor_id id, int64_t layer)
{
    const plan_tensor *t = &x->program->tensors[id];
    cuda_address at = (cuda_address)(uintptr_t)x->memory.data[id];
    if (t->kind == PLAN_STATE && layer < 0) return at; /* of all slots */
    if (t->kind == PLAN_STATE) return at + (size_t)layer * (t->bytes / (size_t)t->dims[0].size);
    if (t->kind != PLAN_CACHE) return at;
    cuda_address cache = id == PLAN_K_CACHE ? x->k_cache.address : x->v_cache.address;
    return cache + (size_t)layer * x->memory.cache_layer_bytes;
}

qp_status cuda_executor_read(cuda_executor *x, plan_tensor_id id, int64_t layer, void *data,
                             size_t bytes, qp_error *error)
{
    const cuda_device *d = x->device;
    TRY(cuda_device_enter(d, error));
    if (id == PLAN_ALLOWED) TRY(cuda_executor_send_masks(x, error));
    TRY(cuda_check(
        d->driver->copy_to_host(data, cuda_executor_address(x, id, layer), bytes, d->stream),
        "copying a tensor from the GPU", error));
    return cuda_device_wait(d, "the forward pass", error);
}

qp_status cuda_executor_write(cuda_executor *x, plan_tensor_id id, int64_t layer, const void *data,
                              size_t bytes, qp_error *error)
{
    const cuda_device *d = x->device;
    TRY(cuda_device_enter(d, error));
    if (id == PLAN_ALLOWED)
        return cuda_masks_write(&x->masks, d, x->program, layer, data, bytes, error);
    return cuda_check(
        d->driver->copy_to_device(cuda_executor_address(x, id, layer), data, bytes, d->stream),
        "copying a tensor to the GPU", error);
}

/* Bytes of a page in the K or V cache of a layer. */
static size_t page_bytes(const cuda_executor *x)
{
    return x->program->tensors[PLAN_K_CACHE].bytes / (size_t)x->program->capacity.of[AXIS_PAGES];
}

/* Part `part` of a page: K of the first layer, V of the first layer, K of the second, ... */
static cuda_address page_part(const cuda_executor *x, int32_t page, int64_t part)
{
    const plan_tensor_id id = part % 2 ? PLAN_V_CACHE : PLAN_K_CACHE;
    return cuda_executor_address(x, id, part / 2) + (size_t)page * page_bytes(x);
}

qp_status cuda_executor_copy_page(cuda_executor *x, int32_t from, int32_t to, qp_error *error)
{
    const cuda_device *d = x->device;
    TRY(cuda_device_enter(d, error));
    for (int64_t part = 0; part < 2 * x->program->config.n_layers; part++)
        TRY(cuda_check(d->driver->copy_on_device(page_part(x, to, part), page_part(x, from, part),
                                                 page_bytes(x), d->stream),
                       "copying a page of the KV cache", error));
    return QP_OK;
}

qp_status cuda_executor_read_page(cuda_executor *x, int32_t page, void *data, qp_error *error)
{
    const cuda_device *d = x->device;
    const size_t bytes = page_bytes(x);
    TRY(cuda_device_enter(d, error));
    for (int64_t part = 0; part < 2 * x->program->config.n_layers; part++)
        TRY(cuda_check(d->driver->copy_to_host((char *)data + (size_t)part * bytes,
                                               page_part(x, page, part), bytes, d->stream),
                       "copying a page of the KV cache from the GPU", error));
    return cuda_device_wait(d, "copying a page of the KV cache from the GPU", error);
}

qp_status cuda_executor_write_page(cuda_executor *x, int32_t page, const void *data,
                                   qp_error *error)
{
    const cuda_device *d = x->device;
    const size_t bytes = page_bytes(x);
    TRY(cuda_device_enter(d, error));
    for (int64_t part = 0; part < 2 * x->program->config.n_layers; part++)
        TRY(cuda_check(d->driver->copy_to_device(page_part(x, page, part),
                                                 (const char *)data + (size_t)part * bytes, bytes,
                                                 d->stream),
                       "copying a page of the KV cache to the GPU", error));
    return cuda_device_wait(d, "copying a page of the KV cache to the GPU", error);
}
