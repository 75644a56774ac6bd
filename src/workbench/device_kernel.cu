/* The other side of a candidate's launcher: a kernel for the host that carries a call's tensors to
 * the device, lets the launcher compute there, and carries everything back. So a launcher is held
 * to all that a kernel is held to: what it writes where nothing may be written comes back too.
 *
 * Compiled with the candidate; LAUNCH and KERNEL are the two functions' names. START is the
 * launcher as a model calls it, which says whether CUDA took the launches.
 */
#include "quipu_kernel.h"

#include <cuda_runtime.h>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" void LAUNCH(const op_call *call, cudaStream_t stream);
extern "C" size_t SCRATCH_BYTES(const op_call *call) __attribute__((weak));
extern "C" void KERNEL(const op_call *call);
extern "C" int START(const op_call *call, void *stream);

enum { GUARD = 256, GUARD_BYTE = 0xa5 };

static void must(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    abort();
}

static int64_t block_elements(dtype type)
{
    switch (type) {
    case DTYPE_Q8_0:
    case DTYPE_Q4_0:
    case DTYPE_Q4_1:
    case DTYPE_Q5_0:
    case DTYPE_Q5_1:
    case DTYPE_Q8_1:
        return 32;
    case DTYPE_Q2_K:
    case DTYPE_Q3_K:
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
    case DTYPE_Q6_K:
    case DTYPE_Q8_K:
        return 256;
    default:
        return 1;
    }
}

/* Bytes from a view's first element to the end of its last. */
static size_t span_of(const tensor *view)
{
    if (view->rank == 0 || !view->data) return 0;
    int last = view->rank - 1;
    int64_t bytes = view->shape[last] / block_elements(view->type) * view->stride[last];
    for (int d = 0; d < last; d++) {
        if (view->shape[d] == 0) return 0;
        bytes += (view->shape[d] - 1) * view->stride[d];
    }
    return (size_t)bytes;
}

/* A range of the host's memory and its copy, which is aligned no better. */
typedef struct range {
    char *host, *memory, *device;
    size_t bytes;
} range;

static range range_to_device(char *host, size_t bytes)
{
    range r = {host, NULL, NULL, bytes};
    must(cudaMalloc((void **)&r.memory, bytes + 3 * GUARD), "cudaMalloc");
    r.device = r.memory + GUARD + (uintptr_t)host % GUARD;
    must(cudaMemset(r.memory, GUARD_BYTE, bytes + 3 * GUARD), "cudaMemset");
    must(cudaMemcpy(r.device, host, bytes, cudaMemcpyHostToDevice), "to the device");
    return r;
}

static void range_to_host(range *r)
{
    unsigned char guard[2 * GUARD];
    size_t before = (size_t)(r->device - r->memory), after = 3 * GUARD - before;
    must(cudaMemcpy(guard, r->memory, before, cudaMemcpyDeviceToHost), "from the device");
    for (size_t i = 0; i < before; i++)
        if (guard[i] != GUARD_BYTE) must(cudaErrorIllegalAddress, "wrote before a tensor");
    must(cudaMemcpy(guard, r->device + r->bytes, after, cudaMemcpyDeviceToHost), "from the device");
    for (size_t i = 0; i < after; i++)
        if (guard[i] != GUARD_BYTE) must(cudaErrorIllegalAddress, "wrote behind a tensor");
    must(cudaMemcpy(r->host, r->device, r->bytes, cudaMemcpyDeviceToHost), "from the device");
    must(cudaFree(r->memory), "cudaFree");
}

extern "C" void KERNEL(const op_call *call)
{
    static std::mutex one_at_a_time;
    std::lock_guard<std::mutex> lock(one_at_a_time);
    op_call there = *call;
    range ranges[OP_MAX_TENSORS];
    int n = 0;
    for (int t = 0; t < OP_MAX_TENSORS; t++) {
        size_t bytes = span_of(&call->tensors[t]);
        if (bytes == 0) continue;
        int known = 0;
        while (known < n && ranges[known].host != call->tensors[t].data)
            known++;
        if (known == n) ranges[n++] = range_to_device((char *)call->tensors[t].data, bytes);
        there.tensors[t].data = ranges[known].device;
    }
    size_t scratch = SCRATCH_BYTES ? SCRATCH_BYTES(call) : 0;
    there.scratch = NULL;
    if (scratch) must(cudaMalloc(&there.scratch, scratch), "cudaMalloc");
    LAUNCH(&there, 0);
    must(cudaGetLastError(), "launch");
    must(cudaDeviceSynchronize(), "kernel");
    if (scratch) must(cudaFree(there.scratch), "cudaFree");
    for (int i = 0; i < n; i++)
        range_to_host(&ranges[i]);
}

extern "C" int START(const op_call *call, void *stream)
{
    LAUNCH(call, (cudaStream_t)stream);
    return cudaGetLastError();
}
