/* The GPU's memory: allocations, and copies to it through pinned staging memory. */
#pragma once

#include "cuda/driver.h"

enum { CUDA_ALIGNMENT = 256 }; /* alignment of every tensor on the GPU */

/* Memory on the GPU; address 0 when empty. */
typedef struct cuda_buffer {
    cuda_address address;
    size_t bytes;
} cuda_buffer;

/* `what` names the memory in the error message. Zeroed. */
qp_status cuda_buffer_alloc(const cuda_device *device, size_t bytes, const char *what,
                            cuda_buffer *out, qp_error *error);
void cuda_buffer_free(const cuda_device *device, cuda_buffer *buffer);

/* Pinned host memory, which the GPU can access while a kernel runs; zeroed. */
typedef struct cuda_pinned {
    void *data;
    cuda_address address; /* its address for kernels */
} cuda_pinned;

qp_status cuda_pinned_alloc(const cuda_device *device, size_t bytes, const char *what,
                            cuda_pinned *out, qp_error *error);
void cuda_pinned_free(const cuda_device *device, cuda_pinned *pinned);

/* Copies much memory to the GPU through two pinned buffers, so that reading a file and copying
 * overlap. */
typedef struct cuda_upload {
    const cuda_device *device;
    cuda_pinned pieces[2];
    cuda_event copied[2];
    int next;
} cuda_upload;

enum { CUDA_UPLOAD_PIECE = 32 << 20 };

/* cuda_upload_end() it, also after a failure. */
qp_status cuda_upload_begin(const cuda_device *device, cuda_upload *out, qp_error *error);

/* The buffer for the next piece, of at most CUDA_UPLOAD_PIECE bytes; cuda_upload_send() copies
 * it. */
qp_status cuda_upload_next(cuda_upload *upload, void **piece, qp_error *error);
qp_status cuda_upload_send(cuda_upload *upload, cuda_address to, size_t bytes, qp_error *error);

/* Waits for the copies. */
qp_status cuda_upload_end(cuda_upload *upload, qp_error *error);
