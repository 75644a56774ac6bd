/* The driver's functions, for two GPUs like H200s on which everything completes at once and nothing
 * is computed. The clock advances by a microsecond for each launch. Several threads may call.
 */
#include "fake.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_IMAGE = 200,
    NOT_FOUND = 500,
    PEER_ALREADY = 704,
};

struct CUstream_st {
    int number;
    struct CUgraph_st *captured; /* NULL: launches run */
};
struct CUevent_st {
    uint64_t microseconds;
};
struct CUgraph_st {
    int number;
};
struct CUgraphExec_st {
    int number;
};
struct CUctx_st {
    int device;
    atomic_bool reaches[FAKE_DEVICES]; /* the memory of these */
};

static struct CUctx_st contexts[FAKE_DEVICES];
static _Thread_local cuda_context current;
static _Atomic uint64_t microseconds;
static atomic_int n_streams, n_graphs;

/* Every function has its symbol as its name, and the type that the program calls it by. */
#define EXPORT __attribute__((visibility("default"))) cuda_result
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

static void *take(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (!memory) abort();
    return memory;
}

static int stream_number(cuda_stream stream)
{
    return stream ? stream->number : 0;
}

/* What stands before a line: whether it is done now or becomes part of a graph. */
const char *fake_stream_mode(cuda_stream stream)
{
    return stream && stream->captured ? "capture " : "";
}

/* ---- the device ---------------------------------------------------------------------------- */

EXPORT cuInit(unsigned flags)
{
    (void)flags;
    return CUDA_SUCCESS;
}

EXPORT cuDriverGetVersion(int *version)
{
    *version = 13000;
    return CUDA_SUCCESS;
}

EXPORT cuGetErrorName(cuda_result error, const char **name)
{
    switch (error) {
    case INVALID_VALUE:
        *name = "CUDA_ERROR_INVALID_VALUE";
        break;
    case OUT_OF_MEMORY:
        *name = "CUDA_ERROR_OUT_OF_MEMORY";
        break;
    case INVALID_IMAGE:
        *name = "CUDA_ERROR_INVALID_IMAGE";
        break;
    case NOT_FOUND:
        *name = "CUDA_ERROR_NOT_FOUND";
        break;
    default:
        *name = "an error that the fake driver does not name";
    }
    return CUDA_SUCCESS;
}

EXPORT cuDeviceGetCount(int *count)
{
    *count = FAKE_DEVICES;
    return CUDA_SUCCESS;
}

EXPORT cuDeviceGet(cuda_ordinal *device, int ordinal)
{
    *device = ordinal;
    return ordinal >= 0 && ordinal < FAKE_DEVICES ? CUDA_SUCCESS : INVALID_VALUE;
}

EXPORT cuDeviceGetName(char *name, int size, cuda_ordinal device)
{
    (void)device;
    strncpy(name, "fake H200", (size_t)size);
    return CUDA_SUCCESS;
}

EXPORT cuDeviceGetUuid_v2(char uuid[CUDA_UUID_BYTES], cuda_ordinal device)
{
    memset(uuid, 1 + device, CUDA_UUID_BYTES);
    return CUDA_SUCCESS;
}

EXPORT cuDeviceGetAttribute(int *value, int attribute, cuda_ordinal device)
{
    static const struct {
        int attribute, value;
    } known[] = {
        {13 /* clock, kHz */, 1980000},
        {16 /* multiprocessors */, FAKE_MULTIPROCESSORS},
        {38 /* bytes of L2 */, 60 << 20},
        {75 /* compute capability */, 9},
        {76 /* its minor part */, 0},
        {95 /* cooperative launch */, 1},
        {97 /* shared memory of a block */, 232448},
    };
    (void)device;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i].attribute != attribute) continue;
        *value = known[i].value;
        return CUDA_SUCCESS;
    }
    return INVALID_VALUE;
}

EXPORT cuDevicePrimaryCtxRetain(cuda_context *out, cuda_ordinal device)
{
    contexts[device].device = device;
    *out = &contexts[device];
    return CUDA_SUCCESS;
}

EXPORT cuDevicePrimaryCtxRelease_v2(cuda_ordinal device)
{
    (void)device;
    return CUDA_SUCCESS;
}

EXPORT cuCtxSetLimit(int limit, size_t value)
{
    (void)limit, (void)value;
    return CUDA_SUCCESS;
}

EXPORT cuCtxSetCurrent(cuda_context context)
{
    current = context;
    return CUDA_SUCCESS;
}

EXPORT cuDeviceCanAccessPeer(int *possible, cuda_ordinal device, cuda_ordinal peer)
{
    *possible = device != peer;
    return CUDA_SUCCESS;
}

EXPORT cuDeviceGetP2PAttribute(int *value, int attribute, cuda_ordinal device, cuda_ordinal peer)
{
    (void)attribute;
    *value = device != peer;
    return CUDA_SUCCESS;
}

EXPORT cuCtxEnablePeerAccess(cuda_context peer, unsigned flags)
{
    (void)flags;
    if (!current || peer == current) return INVALID_VALUE;
    if (atomic_exchange(&current->reaches[peer->device], true)) return PEER_ALREADY;
    fake_log("GPU %d reaches GPU %d\n", current->device, peer->device);
    return CUDA_SUCCESS;
}

static int current_device(void)
{
    return current ? current->device : 0;
}

/* ---- memory -------------------------------------------------------------------------------- */

EXPORT cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    *free_bytes = fake_memory_free(current_device());
    *total = (size_t)141 << 30;
    return CUDA_SUCCESS;
}

EXPORT cuMemAlloc_v2(cuda_address *address, size_t bytes)
{
    *address = fake_memory_take(bytes, current_device());
    return *address ? CUDA_SUCCESS : OUT_OF_MEMORY;
}

EXPORT cuMemFree_v2(cuda_address address)
{
    return fake_memory_give(address);
}

EXPORT cuMemsetD8Async(cuda_address address, unsigned char value, size_t bytes, cuda_stream stream)
{
    char name[48];
    fake_log("%smemset stream %d: %s, %zu bytes of %d\n", fake_stream_mode(stream),
             stream_number(stream), fake_memory_name(address, name), bytes, value);
    if (value != 0) memset((void *)address, value, bytes); /* memory is zeros until it is written */
    return CUDA_SUCCESS;
}

EXPORT cuMemHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    (void)flags;
    *memory = (void *)fake_memory_take(bytes, FAKE_HOST);
    return *memory ? CUDA_SUCCESS : OUT_OF_MEMORY;
}

EXPORT cuMemFreeHost(void *memory)
{
    return fake_memory_give((cuda_address)memory);
}

EXPORT cuMemHostGetDevicePointer_v2(cuda_address *address, void *memory, unsigned flags)
{
    (void)flags;
    *address = (cuda_address)memory;
    return CUDA_SUCCESS;
}

static void log_copy(const char *kind, cuda_address at, const void *data, size_t bytes,
                     cuda_stream stream)
{
    enum { HASHED = 1 << 16 };
    char name[48];
    if (!fake_logs()) return;
    uint64_t hash = fake_hash(FAKE_HASH_BEGIN, data, bytes < HASHED ? bytes : HASHED);
    fake_log("%s%s stream %d: %s, %zu bytes, %016llx\n", fake_stream_mode(stream), kind,
             stream_number(stream), fake_memory_name(at, name), bytes, (unsigned long long)hash);
}

EXPORT cuMemcpyHtoDAsync_v2(cuda_address to, const void *from, size_t bytes, cuda_stream stream)
{
    log_copy("copy to device", to, from, bytes, stream);
    if (!stream || !stream->captured) memcpy((void *)to, from, bytes);
    return CUDA_SUCCESS;
}

EXPORT cuMemcpyDtoHAsync_v2(void *to, cuda_address from, size_t bytes, cuda_stream stream)
{
    log_copy("copy to host", from, (void *)from, bytes, stream);
    if (!stream || !stream->captured) memcpy(to, (void *)from, bytes);
    return CUDA_SUCCESS;
}

EXPORT cuMemcpyDtoDAsync_v2(cuda_address to, cuda_address from, size_t bytes, cuda_stream stream)
{
    log_copy("copy on device", to, (void *)from, bytes, stream);
    if (!stream || !stream->captured) memmove((void *)to, (void *)from, bytes);
    return CUDA_SUCCESS;
}

static char *side_of(const cuda_copy_side *side)
{
    char *at = side->kind == CUDA_MEMORY_HOST ? side->host : (char *)side->gpu;
    return at + side->y * side->pitch + side->x_bytes;
}

EXPORT cuMemcpy2DAsync_v2(const cuda_copy_rows *copy, cuda_stream stream)
{
    const char *from = side_of(&copy->from);
    char *to = side_of(&copy->to), name[2][48];
    fake_log("%scopy rows stream %d: %s to %s, %zu of %zu bytes\n", fake_stream_mode(stream),
             stream_number(stream), fake_memory_name((cuda_address)from, name[0]),
             fake_memory_name((cuda_address)to, name[1]), copy->n_rows, copy->row_bytes);
    for (size_t row = 0; row < copy->n_rows && (!stream || !stream->captured); row++)
        memmove(to + row * copy->to.pitch, from + row * copy->from.pitch, copy->row_bytes);
    return CUDA_SUCCESS;
}

/* ---- streams and events -------------------------------------------------------------------- */

EXPORT cuStreamCreate(cuda_stream *stream, unsigned flags)
{
    (void)flags;
    *stream = take(sizeof **stream);
    (*stream)->number = ++n_streams;
    return CUDA_SUCCESS;
}

EXPORT cuStreamDestroy_v2(cuda_stream stream)
{
    free(stream);
    return CUDA_SUCCESS;
}

static atomic_bool is_stuck;

void fake_stuck(bool stuck)
{
    atomic_store(&is_stuck, stuck);
}

static void await_work(void)
{
    while (atomic_load(&is_stuck))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

EXPORT cuStreamSynchronize(cuda_stream stream)
{
    (void)stream;
    await_work();
    return CUDA_SUCCESS;
}

EXPORT cuStreamQuery(cuda_stream stream)
{
    (void)stream;
    return atomic_load(&is_stuck) ? CUDA_NOT_READY : CUDA_SUCCESS;
}

EXPORT cuStreamWaitEvent(cuda_stream stream, cuda_event event, unsigned flags)
{
    (void)event, (void)flags;
    fake_log("%sstream %d waits\n", fake_stream_mode(stream), stream_number(stream));
    return CUDA_SUCCESS;
}

EXPORT cuEventCreate(cuda_event *event, unsigned flags)
{
    (void)flags;
    *event = take(sizeof **event);
    return CUDA_SUCCESS;
}

EXPORT cuEventDestroy_v2(cuda_event event)
{
    free(event);
    return CUDA_SUCCESS;
}

EXPORT cuEventRecord(cuda_event event, cuda_stream stream)
{
    (void)stream;
    event->microseconds = microseconds;
    return CUDA_SUCCESS;
}

EXPORT cuEventSynchronize(cuda_event event)
{
    (void)event;
    await_work();
    return CUDA_SUCCESS;
}

EXPORT cuEventElapsedTime(float *milliseconds, cuda_event from, cuda_event to)
{
    *milliseconds = (float)(to->microseconds - from->microseconds) / 1000;
    return CUDA_SUCCESS;
}

/* ---- modules ------------------------------------------------------------------------------- */

EXPORT cuModuleLoadData(cuda_module *module, const void *image)
{
    *module = fake_module_read(image);
    return *module ? CUDA_SUCCESS : INVALID_IMAGE;
}

EXPORT cuModuleUnload(cuda_module module)
{
    fake_module_free(module);
    return CUDA_SUCCESS;
}

EXPORT cuModuleGetFunction(cuda_function *function, cuda_module module, const char *name)
{
    for (cuda_function f = module->functions; f; f = f->next) {
        if (strcmp(f->name, name) != 0) continue;
        *function = f;
        return CUDA_SUCCESS;
    }
    return NOT_FOUND;
}

EXPORT cuFuncSetAttribute(cuda_function function, int attribute, int value)
{
    if (attribute == CUDA_FUNCTION_MAX_SHARED) function->max_shared = value;
    return CUDA_SUCCESS;
}

/* ---- launches ------------------------------------------------------------------------------ */

/* A kernel that the host listens to writes tokens into pinned memory, where -1 stands: each is 0.
 */
static void answer(cuda_function function, void **parameters)
{
    for (int p = 0; p < function->n_parameters; p++) {
        const char *at = parameters[p];
        for (unsigned i = 0; i + sizeof(uint64_t) <= function->parameters[p].bytes; i += 8) {
            uint64_t word, offset;
            memcpy(&word, at + i, sizeof word);
            if (word % 4 != 0 || fake_memory_find(word, &offset) < 0) continue;
            if (!fake_memory_is_host(word)) continue;
            for (int32_t *token = (int32_t *)word; *token == -1; token++)
                *token = 0;
        }
    }
}

static cuda_result run(cuda_function f, const cuda_launch *l, bool cooperative, void **parameters)
{
    uint64_t hash = FAKE_HASH_BEGIN;
    unsigned cluster = 1;
    int early = 0;
    for (unsigned i = 0; i < l->n_attributes; i++) {
        const cuda_launch_attribute *a = &l->attributes[i];
        if (a->id == CUDA_LAUNCH_CLUSTER) cluster = a->value.cluster[0];
        if (a->id == CUDA_LAUNCH_EARLY) early = a->value.early;
    }
    if (l->grid[0] == 0 || l->grid[1] == 0 || l->grid[2] == 0 || l->grid[0] % cluster != 0 ||
        l->block[0] == 0 || l->block[0] * l->block[1] * l->block[2] > 1024 ||
        (l->shared_bytes > 48 * 1024 && l->shared_bytes > (unsigned)f->max_shared))
        return INVALID_VALUE;
    microseconds++;
    for (int p = 0; p < f->n_parameters && fake_logs(); p++)
        hash = fake_parameter_take(hash, parameters[p], fake_parameter_bytes(f, p), false);
    fake_log("%slaunch %s stream %d: grid %u %u %u block %u shared %u cluster %u%s%s, %016llx\n",
             fake_stream_mode(l->stream), f->name, stream_number(l->stream), l->grid[0], l->grid[1],
             l->grid[2], l->block[0], l->shared_bytes, cluster, early ? " early" : "",
             cooperative ? " cooperative" : "", (unsigned long long)hash);
    for (int p = 0; p < f->n_parameters && fake_logs_words(); p++)
        fake_parameter_take(hash, parameters[p], fake_parameter_bytes(f, p), true);
    if (cooperative) answer(f, parameters);
    return CUDA_SUCCESS;
}

EXPORT cuLaunchKernelEx(const cuda_launch *launch, cuda_function function, void **parameters,
                        void **extra)
{
    (void)extra;
    return run(function, launch, false, parameters);
}

EXPORT cuLaunchKernel(cuda_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                      cuda_stream stream, void **parameters, void **extra)
{
    const cuda_launch launch = {.grid = {grid_x, grid_y, grid_z},
                                .block = {block_x, block_y, block_z},
                                .shared_bytes = shared_bytes,
                                .stream = stream};
    (void)extra;
    return run(function, &launch, false, parameters);
}

EXPORT cuLaunchCooperativeKernel(cuda_function function, unsigned grid_x, unsigned grid_y,
                                 unsigned grid_z, unsigned block_x, unsigned block_y,
                                 unsigned block_z, unsigned shared_bytes, cuda_stream stream,
                                 void **parameters)
{
    const cuda_launch launch = {.grid = {grid_x, grid_y, grid_z},
                                .block = {block_x, block_y, block_z},
                                .shared_bytes = shared_bytes,
                                .stream = stream};
    if (grid_x * grid_y * grid_z > FAKE_MULTIPROCESSORS) return INVALID_VALUE;
    return run(function, &launch, true, parameters);
}

/* A map as its arguments, the address first, so that it is logged like any other. */
EXPORT cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address,
                              const uint64_t *sizes, const uint64_t *strides, const uint32_t *box,
                              const uint32_t *steps, int interleave, int swizzle, int promotion,
                              int fill)
{
    struct {
        uint64_t address, sizes[5], strides[4];
        uint32_t box[5], type, rank, swizzle;
    } all = {.address = (uint64_t)address,
             .type = (uint32_t)type,
             .rank = rank,
             .swizzle = (uint32_t)swizzle};
    _Static_assert(sizeof all <= 128, "a CUtensorMap's bytes");
    (void)steps, (void)interleave, (void)promotion, (void)fill;
    if (rank < 1 || rank > 5 || all.address % 16 != 0) return INVALID_VALUE;
    for (unsigned i = 0; i < rank; i++) {
        all.sizes[i] = sizes[i];
        all.box[i] = box[i];
        if (sizes[i] == 0 || box[i] == 0 || box[i] > 256) return INVALID_VALUE;
    }
    for (unsigned i = 0; i + 1 < rank; i++) {
        all.strides[i] = strides[i];
        if (strides[i] % 16 != 0) return INVALID_VALUE;
    }
    memset(map, 0, 128);
    memcpy(map, &all, sizeof all);
    return CUDA_SUCCESS;
}

/* ---- graphs -------------------------------------------------------------------------------- */

EXPORT cuStreamBeginCapture_v2(cuda_stream stream, int mode)
{
    (void)mode;
    stream->captured = take(sizeof *stream->captured);
    stream->captured->number = ++n_graphs;
    fake_log("graph %d: begin, stream %d\n", stream->captured->number, stream->number);
    return CUDA_SUCCESS;
}

EXPORT cuStreamEndCapture(cuda_stream stream, cuda_graph *graph)
{
    *graph = stream->captured;
    stream->captured = NULL;
    fake_log("graph %d: end\n", (*graph)->number);
    return CUDA_SUCCESS;
}

EXPORT cuGraphInstantiateWithFlags(cuda_graph_exec *exec, cuda_graph graph,
                                   unsigned long long flags)
{
    (void)flags;
    *exec = take(sizeof **exec);
    (*exec)->number = graph->number;
    return CUDA_SUCCESS;
}

EXPORT cuGraphLaunch(cuda_graph_exec exec, cuda_stream stream)
{
    microseconds++;
    fake_log("graph %d: run, stream %d\n", exec->number, stream->number);
    return CUDA_SUCCESS;
}

EXPORT cuGraphExecDestroy(cuda_graph_exec exec)
{
    free(exec);
    return CUDA_SUCCESS;
}

EXPORT cuGraphDestroy(cuda_graph graph)
{
    free(graph);
    return CUDA_SUCCESS;
}
