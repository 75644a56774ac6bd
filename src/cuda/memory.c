/* The GPU's memory: see cuda/memory.h. */
#include "cuda/memory.h"

#include <assert.h>
#include <string.h>

static qp_status prefix_memory(const char *what, size_t bytes, qp_status status, qp_error *error)
{
    if (status == QP_OK) return QP_OK;
    return error_prefix(error, "%s, %.2f GB", what, (double)bytes * 1e-9);
}

qp_status cuda_buffer_alloc(const cuda_device *d, size_t bytes, const char *what, cuda_buffer *out,
                            qp_error *error)
{
    *out = (cuda_buffer){0};
    if (bytes == 0) return QP_OK;
    qp_status status = cuda_check(d->driver->memory_alloc(&out->address, bytes),
                                  "taking memory on the GPU", error);
    TRY(prefix_memory(what, bytes, status, error));
    out->bytes = bytes;
    return cuda_check(d->driver->memory_set(out->address, 0, bytes, d->stream),
                      "clearing memory on the GPU", error);
}

void cuda_buffer_free(const cuda_device *d, cuda_buffer *buffer)
{
    if (buffer->address) d->driver->memory_free(buffer->address);
    *buffer = (cuda_buffer){0};
}

qp_status cuda_pinned_alloc(const cuda_device *d, size_t bytes, const char *what, cuda_pinned *out,
                            qp_error *error)
{
    *out = (cuda_pinned){0};
    if (bytes == 0) return QP_OK;
    qp_status status =
        cuda_check(d->driver->host_alloc(&out->data, bytes, CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED),
                   "taking pinned memory", error);
    TRY(prefix_memory(what, bytes, status, error));
    memset(out->data, 0, bytes);
    return cuda_check(d->driver->host_address(&out->address, out->data, 0),
                      "showing pinned memory to the GPU", error);
}

void cuda_pinned_free(const cuda_device *d, cuda_pinned *pinned)
{
    if (pinned->data) d->driver->host_free(pinned->data);
    *pinned = (cuda_pinned){0};
}

qp_status cuda_upload_begin(const cuda_device *d, cuda_upload *out, qp_error *error)
{
    *out = (cuda_upload){.device = d};
    for (int i = 0; i < 2; i++) {
        TRY(cuda_pinned_alloc(d, CUDA_UPLOAD_PIECE, "staging memory", &out->pieces[i], error));
        TRY(cuda_check(d->driver->event_create(&out->copied[i], CUDA_EVENT_NO_TIMING),
                       "making an event", error));
    }
    return QP_OK;
}

qp_status cuda_upload_next(cuda_upload *u, void **piece, qp_error *error)
{
    *piece = u->pieces[u->next].data;
    return cuda_check(u->device->driver->event_synchronize(u->copied[u->next]),
                      "copying to the GPU", error);
}

qp_status cuda_upload_send(cuda_upload *u, cuda_address to, size_t bytes, qp_error *error)
{
    static const char operation[] = "copying to the GPU";
    const cuda_device *d = u->device;
    int i = u->next;
    assert(bytes <= CUDA_UPLOAD_PIECE);
    u->next = !i;
    TRY(cuda_check(d->driver->copy_to_device(to, u->pieces[i].data, bytes, d->stream), operation,
                   error));
    return cuda_check(d->driver->event_record(u->copied[i], d->stream), operation, error);
}

qp_status cuda_upload_end(cuda_upload *u, qp_error *error)
{
    if (!u->device) return QP_OK;
    qp_status status = cuda_device_wait(u->device, "copying to the GPU", error);
    for (int i = 0; i < 2; i++) {
        if (u->copied[i]) u->device->driver->event_destroy(u->copied[i]);
        cuda_pinned_free(u->device, &u->pieces[i]);
    }
    *u = (cuda_upload){0};
    return status;
}
