/* Runs the GPU's kernels as variants: see device.h. */
#include "workbench/device.h"

#include "base/checked.h"
#include "op/bench/copies.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { GUARD = 256, GUARD_BYTE = 0xa5, MEMORY_BYTES = 64 << 20, WORKSPACE_BYTES = 64 << 20 };

/* One for the process, because an operator's kernel takes no context. */
static struct {
    cuda_device device;
    cuda_ops ops;
    cuda_buffer memory;
    cuda_pinned staging; /* a copy of that memory on the host */
    const cuda_kernel *kernel;
    pthread_mutex_t one_at_a_time;
    qp_error failure;
} bench = {.one_at_a_time = PTHREAD_MUTEX_INITIALIZER};

qp_status device_is_here(const char *what, qp_error *error)
{
    static const char node[] = "/dev/nvidiactl";
    if (access(node, F_OK) == 0) return QP_OK;
    return error_set(error, QP_DEVICE,
                     "%s: it takes an NVIDIA GPU, and there is none here (no %s); run it where "
                     "there is one",
                     what, node);
}

qp_status device_open(qp_error *error)
{
    TRY(cuda_device_open(&bench.device, error));
    TRY(cuda_ops_init(&bench.ops, &bench.device, WORKSPACE_BYTES, true, error));
    TRY(cuda_buffer_alloc(&bench.device, MEMORY_BYTES, "a call's tensors", &bench.memory, error));
    return cuda_pinned_alloc(&bench.device, MEMORY_BYTES, "a call's tensors", &bench.staging,
                             error);
}

void device_close(void)
{
    if (!bench.device.context) return;
    cuda_pinned_free(&bench.device, &bench.staging);
    cuda_buffer_free(&bench.device, &bench.memory);
    cuda_ops_free(&bench.ops);
    cuda_device_close(&bench.device);
}

cuda_device *device_gpu(void)
{
    return &bench.device;
}

cuda_ops *device_ops(void)
{
    return &bench.ops;
}

/* A range of the host's memory and its place in the staging memory. */
typedef struct carried {
    char *host;
    size_t bytes, at;
} carried;

/* The bytes from a tensor's address to the furthest end of a tensor of the call that begins
 * there. */
static size_t longest_span(const op_call *call, const void *data)
{
    size_t most = 0;
    for (int t = 0; t < OP_MAX_TENSORS; t++) {
        size_t bytes = call->tensors[t].data == data ? copies_span(&call->tensors[t]) : 0;
        if (bytes > most) most = bytes;
    }
    return most;
}

/* Assigns a place to every tensor; tensors that share memory get one place. Returns the bytes in
 * use, 0 if they are too many. */
static size_t place(const op_call *call, op_call *there, carried *ranges, int *n)
{
    size_t used = GUARD;
    *n = 0;
    for (int t = 0; t < OP_MAX_TENSORS; t++) {
        char *host = call->tensors[t].data;
        int known = 0;
        if (copies_span(&call->tensors[t]) == 0) continue;
        while (known < *n && ranges[known].host != host)
            known++;
        if (known == *n) {
            size_t shift = bench.kernel->aligned ? 0 : (uintptr_t)host % GUARD;
            carried range = {host, longest_span(call, host), used + shift};
            ranges[(*n)++] = range;
            used = round_up(range.at + range.bytes, GUARD) + GUARD;
            if (used > MEMORY_BYTES) return 0;
        }
        there->tensors[t].data = (void *)(uintptr_t)(bench.memory.address + ranges[known].at);
    }
    return used;
}

static qp_status carry_and_run(const op_call *call, qp_error *error)
{
    const cuda_driver *driver = bench.device.driver;
    op_call there = *call;
    carried ranges[OP_MAX_TENSORS];
    char *staging = bench.staging.data;
    int n;
    size_t used = place(call, &there, ranges, &n);
    if (used == 0)
        return error_set(error, QP_NO_MEMORY, "the call's tensors take more than %d MB",
                         MEMORY_BYTES >> 20);
    TRY(cuda_device_enter(&bench.device, error));
    memset(staging, GUARD_BYTE, used);
    for (int i = 0; i < n; i++)
        memcpy(staging + ranges[i].at, ranges[i].host, ranges[i].bytes);
    TRY(cuda_check(driver->copy_to_device(bench.memory.address, staging, used, bench.device.stream),
                   "carrying tensors to the GPU", error));
    if (bench.kernel->whole) {
        there.begin = 0;
        there.end = op_get(bench.kernel->op)->units(call);
    }
    TRY(cuda_ops_launch(&bench.ops, bench.kernel, &there, error));
    TRY(cuda_check(driver->copy_to_host(staging, bench.memory.address, used, bench.device.stream),
                   "carrying tensors from the GPU", error));
    TRY(cuda_device_wait(&bench.device, bench.kernel->name, error));
    size_t at = 0;
    for (int i = 0; i <= n; i++) {
        size_t end = i < n ? ranges[i].at : used;
        for (; at < end; at++)
            if ((unsigned char)staging[at] != GUARD_BYTE)
                return error_set(error, QP_DEVICE, "it wrote outside of the call's tensors");
        if (i == n) break;
        memcpy(ranges[i].host, staging + ranges[i].at, ranges[i].bytes);
        at += ranges[i].bytes;
    }
    return QP_OK;
}

/* An op_kernel: an error is stored, and the outputs stay unwritten. */
static void run(const op_call *call)
{
    qp_error error;
    if (call->begin >= call->end) return;
    pthread_mutex_lock(&bench.one_at_a_time);
    if (bench.failure.status == QP_OK && carry_and_run(call, &error) != QP_OK)
        bench.failure = error;
    pthread_mutex_unlock(&bench.one_at_a_time);
}

op_variant device_variant(const cuda_kernel *kernel)
{
    bench.kernel = kernel;
    return (op_variant){.name = kernel->name,
                        .kernel = run,
                        .accepts = kernel->accepts,
                        .tolerances = kernel->tolerances};
}

qp_status device_failure(qp_error *error)
{
    qp_error failure = bench.failure;
    bench.failure = (qp_error){0};
    if (failure.status == QP_OK) return QP_OK;
    return error_set(error, failure.status, "%s", failure.message);
}
