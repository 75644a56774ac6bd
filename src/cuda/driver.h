/* The CUDA driver, found at run time: one executable runs with and without it.
 *
 * libcuda.so.1 is opened when a device is first asked for, and its functions are called through a
 * table; its types are declared here, so that the host side needs neither CUDA's headers nor its
 * libraries to be built. GPU code comes as images (fatbins) embedded in the program; a program
 * built without nvcc has none and says so.
 */
#pragma once

#include "base/status.h"
#include "cuda/features.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* CUDA's own types, by the driver's stable binary interface. */
typedef int cuda_result; /* CUresult; 0: success */
typedef int cuda_ordinal;
typedef uint64_t cuda_address; /* CUdeviceptr */
typedef struct CUctx_st *cuda_context;
typedef struct CUmod_st *cuda_module;
typedef struct CUfunc_st *cuda_function;
typedef struct CUstream_st *cuda_stream;
typedef struct CUevent_st *cuda_event;
typedef struct CUgraph_st *cuda_graph;
typedef struct CUgraphExec_st *cuda_graph_exec;
typedef struct cuda_launch_attribute { /* CUlaunchAttribute */
    int id;                            /* CUDA_LAUNCH_CLUSTER .. */
    char pad[4];
    union {
        char bytes[64];
        unsigned cluster[3]; /* blocks of a cluster */
        int early; /* 1: programmatic dependent launch: blocks may start before the previous kernel
                      has ended */
    } value;
} cuda_launch_attribute;
typedef struct cuda_launch { /* CUlaunchConfig */
    unsigned grid[3], block[3], shared_bytes;
    cuda_stream stream;
    cuda_launch_attribute *attributes;
    unsigned n_attributes;
} cuda_launch;

/* A side of a copy of rows: in memory of the GPU or, where `host` is set, of the host. */
typedef struct cuda_copy_side {
    size_t x_bytes, y;
    int kind; /* CUDA_MEMORY_HOST or CUDA_MEMORY_GPU */
    void *host;
    cuda_address gpu;
    void *array;
    size_t pitch; /* bytes from one row to the next */
} cuda_copy_side;
typedef struct cuda_copy_rows { /* CUDA_MEMCPY2D */
    cuda_copy_side from, to;
    size_t row_bytes, n_rows;
} cuda_copy_rows;

/* FUNCTION(member, symbol, parameters): the driver functions in use. */
#define CUDA_DRIVER_FUNCTIONS(FUNCTION)                                                            \
    FUNCTION(init, "cuInit", (unsigned flags))                                                     \
    FUNCTION(driver_version, "cuDriverGetVersion", (int *version))                                 \
    FUNCTION(error_name, "cuGetErrorName", (cuda_result error, const char **name))                 \
    FUNCTION(device_count, "cuDeviceGetCount", (int *count))                                       \
    FUNCTION(device_get, "cuDeviceGet", (cuda_ordinal * device, int ordinal))                      \
    FUNCTION(device_name, "cuDeviceGetName", (char *name, int size, cuda_ordinal device))          \
    FUNCTION(device_uuid, "cuDeviceGetUuid_v2", (char uuid[16], cuda_ordinal device))              \
    FUNCTION(device_attribute, "cuDeviceGetAttribute",                                             \
             (int *value, int attribute, cuda_ordinal device))                                     \
    FUNCTION(context_retain, "cuDevicePrimaryCtxRetain",                                           \
             (cuda_context * context, cuda_ordinal device))                                        \
    FUNCTION(context_release, "cuDevicePrimaryCtxRelease_v2", (cuda_ordinal device))               \
    FUNCTION(limit_set, "cuCtxSetLimit", (int limit, size_t value))                                \
    FUNCTION(context_set, "cuCtxSetCurrent", (cuda_context context))                               \
    FUNCTION(peer_possible, "cuDeviceCanAccessPeer",                                               \
             (int *possible, cuda_ordinal device, cuda_ordinal peer))                              \
    FUNCTION(peer_attribute, "cuDeviceGetP2PAttribute",                                            \
             (int *value, int attribute, cuda_ordinal device, cuda_ordinal peer))                  \
    FUNCTION(peer_enable, "cuCtxEnablePeerAccess", (cuda_context peer, unsigned flags))            \
    FUNCTION(memory_info, "cuMemGetInfo_v2", (size_t * free, size_t * total))                      \
    FUNCTION(memory_alloc, "cuMemAlloc_v2", (cuda_address * address, size_t bytes))                \
    FUNCTION(memory_free, "cuMemFree_v2", (cuda_address address))                                  \
    FUNCTION(memory_set, "cuMemsetD8Async",                                                        \
             (cuda_address address, unsigned char value, size_t bytes, cuda_stream stream))        \
    FUNCTION(host_alloc, "cuMemHostAlloc", (void **memory, size_t bytes, unsigned flags))          \
    FUNCTION(host_free, "cuMemFreeHost", (void *memory))                                           \
    FUNCTION(host_address, "cuMemHostGetDevicePointer_v2",                                         \
             (cuda_address * address, void *memory, unsigned flags))                               \
    FUNCTION(copy_to_device, "cuMemcpyHtoDAsync_v2",                                               \
             (cuda_address to, const void *from, size_t bytes, cuda_stream stream))                \
    FUNCTION(copy_to_host, "cuMemcpyDtoHAsync_v2",                                                 \
             (void *to, cuda_address from, size_t bytes, cuda_stream stream))                      \
    FUNCTION(copy_on_device, "cuMemcpyDtoDAsync_v2",                                               \
             (cuda_address to, cuda_address from, size_t bytes, cuda_stream stream))               \
    FUNCTION(copy_rows, "cuMemcpy2DAsync_v2", (const cuda_copy_rows *copy, cuda_stream stream))    \
    FUNCTION(stream_create, "cuStreamCreate", (cuda_stream * stream, unsigned flags))              \
    FUNCTION(stream_destroy, "cuStreamDestroy_v2", (cuda_stream stream))                           \
    FUNCTION(stream_synchronize, "cuStreamSynchronize", (cuda_stream stream))                      \
    FUNCTION(stream_query, "cuStreamQuery", (cuda_stream stream))                                  \
    FUNCTION(event_create, "cuEventCreate", (cuda_event * event, unsigned flags))                  \
    FUNCTION(event_destroy, "cuEventDestroy_v2", (cuda_event event))                               \
    FUNCTION(event_record, "cuEventRecord", (cuda_event event, cuda_stream stream))                \
    FUNCTION(event_synchronize, "cuEventSynchronize", (cuda_event event))                          \
    FUNCTION(stream_wait, "cuStreamWaitEvent",                                                     \
             (cuda_stream stream, cuda_event event, unsigned flags))                               \
    FUNCTION(event_elapsed, "cuEventElapsedTime",                                                  \
             (float *milliseconds, cuda_event from, cuda_event to))                                \
    FUNCTION(module_load, "cuModuleLoadData", (cuda_module * module, const void *image))           \
    FUNCTION(module_unload, "cuModuleUnload", (cuda_module module))                                \
    FUNCTION(module_function, "cuModuleGetFunction",                                               \
             (cuda_function * function, cuda_module module, const char *name))                     \
    FUNCTION(function_set, "cuFuncSetAttribute",                                                   \
             (cuda_function function, int attribute, int value))                                   \
    FUNCTION(launch, "cuLaunchKernel",                                                             \
             (cuda_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,           \
              unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,         \
              cuda_stream stream, void **parameters, void **extra))                                \
    FUNCTION(launch_with, "cuLaunchKernelEx",                                                      \
             (const cuda_launch *launch, cuda_function function, void **parameters, void **extra)) \
    FUNCTION(launch_cooperative, "cuLaunchCooperativeKernel",                                      \
             (cuda_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,           \
              unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,         \
              cuda_stream stream, void **parameters))                                              \
    FUNCTION(tensor_map, "cuTensorMapEncodeTiled",                                                 \
             (void *map, int type, unsigned rank, void *address, const uint64_t *sizes,            \
              const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave, \
              int swizzle, int promotion, int fill))                                               \
    FUNCTION(capture_begin, "cuStreamBeginCapture_v2", (cuda_stream stream, int mode))             \
    FUNCTION(capture_end, "cuStreamEndCapture", (cuda_stream stream, cuda_graph * graph))          \
    FUNCTION(graph_instantiate, "cuGraphInstantiateWithFlags",                                     \
             (cuda_graph_exec * exec, cuda_graph graph, unsigned long long flags))                 \
    FUNCTION(graph_launch, "cuGraphLaunch", (cuda_graph_exec exec, cuda_stream stream))            \
    FUNCTION(graph_exec_destroy, "cuGraphExecDestroy", (cuda_graph_exec exec))                     \
    FUNCTION(graph_destroy, "cuGraphDestroy", (cuda_graph graph))

typedef struct cuda_driver {
#define FUNCTION(member, symbol, parameters) cuda_result(*member) parameters;
    CUDA_DRIVER_FUNCTIONS(FUNCTION)
#undef FUNCTION
} cuda_driver;

/* Values of CUDA's enumerations that are passed to it. */
enum {
    CUDA_SUCCESS = 0,
    CUDA_NOT_READY = 600,
    CUDA_PEER_ACCESS_ALREADY_ENABLED = 704,
    CUDA_EVENT_NO_TIMING = 2,
    CUDA_MEMORY_HOST = 1, /* kinds of a copy's sides */
    CUDA_MEMORY_GPU = 2,
    CUDA_STREAM_NON_BLOCKING = 1,
    CUDA_HOST_PORTABLE = 1, /* flags of host_alloc */
    CUDA_HOST_MAPPED = 2,
    CUDA_FUNCTION_MAX_SHARED = 8, /* MAX_DYNAMIC_SHARED_SIZE_BYTES */
    CUDA_CAPTURE_THREAD_LOCAL = 1,
    CUDA_LAUNCH_CLUSTER = 4, /* ids of launch attributes */
    CUDA_LAUNCH_EARLY = 6,   /* PROGRAMMATIC_STREAM_SERIALIZATION */
    CUDA_LIMIT_L2_FETCH = 5, /* MAX_L2_FETCH_GRANULARITY, in bytes */
    CUDA_MAP_BF16 = 9,       /* of tensor maps; F16 is copied with the same value */
    CUDA_MAP_SWIZZLE_NONE = 0,
    CUDA_MAP_SWIZZLE_64 = 2,
    CUDA_MAP_SWIZZLE_128 = 3,
    CUDA_MAP_PROMOTION_128 = 2,
};

/* QP_OK for success, else QP_DEVICE (QP_NO_MEMORY where the GPU's memory is full) with the
 * operation's name, CUDA's name for the error, and what to do. `operation` is a phrase such as
 * "copying weights to the GPU". */
qp_status cuda_check(cuda_result result, const char *operation, qp_error *error);

/* GPU code embedded in the program, as fatbins; an entry without a name ends the list. */
typedef struct cuda_image {
    const char *name; /* of a .cu file without ".cu", or of a row of src/gpu_images.cmake */
    const void *data;
} cuda_image;
extern const cuda_image cuda_images[];

enum {
    CUDA_MAX_IMAGES = 96,
    CUDA_MAX_KERNELS = 256, /* kernels in the table at most */
    CUDA_KERNEL_NAME = 48,  /* bytes of a kernel's or an image's name at most */
};

/* A slot of the table of kernels. */
typedef struct cuda_found {
    char image[CUDA_KERNEL_NAME], name[CUDA_KERNEL_NAME]; /* "": empty */
    int shared_bytes;
    cuda_function function;
} cuda_found;

/* A GPU in use: its figures, its context, one stream for all work in order, and the modules loaded
 * from the images. */
typedef struct cuda_device {
    const cuda_driver *driver;
    cuda_ordinal ordinal;
    char name[96];
    int major, minor;  /* compute capability */
    uint32_t features; /* bits of cuda_feature */
    int n_multiprocessors;
    int l2_bytes, shared_bytes; /* shared_bytes: most dynamic shared memory of a block */
    int driver_version;         /* 13000: CUDA 13.0 */
    size_t memory_total;
    cuda_context context;
    cuda_stream stream;
    cuda_module modules[CUDA_MAX_IMAGES]; /* [image]; NULL: not loaded */
    cuda_found kernels[CUDA_MAX_KERNELS]; /* hash table, by name */
} cuda_device;

/* Takes the first GPU that can run the embedded code, or the GPU of that number. The context is
 * then current in this thread. cuda_device_close() the device, also after a failure. */
qp_status cuda_device_open(cuda_device *out, qp_error *error);
qp_status cuda_device_open_number(cuda_device *out, int number, qp_error *error);
void cuda_device_close(cuda_device *device);

/* The number of GPUs that this process sees. */
qp_status cuda_device_count(int *count, qp_error *error);

/* The GPU's figures, read without making a context on it. */
qp_status cuda_device_probe(cuda_device *out, qp_error *error);
qp_status cuda_device_probe_number(cuda_device *out, int number, qp_error *error);

enum { CUDA_UUID_BYTES = 16 };

/* A number that no other GPU of any host has. */
qp_status cuda_device_uuid(const cuda_device *device, char uuid[CUDA_UUID_BYTES], qp_error *error);

/* How one GPU reaches the memory of another. */
typedef struct cuda_link {
    bool direct;  /* its kernels can read and write that memory */
    bool atomics; /* and also do atomic operations on it, as over NVLink */
} cuda_link;
qp_status cuda_device_link(const cuda_device *device, const cuda_device *peer, cuda_link *out,
                           qp_error *error);

/* Lets the kernels of one GPU read and write the memory of another. Nothing is done if both are the
 * same GPU. QP_UNSUPPORTED if there is no link. Both devices are open; afterwards `device` is the
 * current one of this thread. */
qp_status cuda_device_reach(const cuda_device *device, const cuda_device *peer, qp_error *error);

/* Whether it has all of these features (bits of cuda_feature). */
static inline bool cuda_device_has(const cuda_device *device, uint32_t features)
{
    return (features & ~device->features) == 0;
}

/* A GPU that need not be installed: the figures of H100 and H200 ("sm_90") or B200 ("sm_100").
 * False: the architecture is not known. */
bool cuda_device_describe(const char *arch, cuda_device *out);

/* Peak FLOPs a second for products of 16-bit numbers, from the number of units and their clock; 0:
 * not known. */
double cuda_device_flops(const cuda_device *device);

/* Makes the device's context current in this thread: required before the first call from another
 * thread. */
qp_status cuda_device_enter(const cuda_device *device, qp_error *error);

/* Free bytes of the GPU's memory. */
qp_status cuda_device_free_memory(const cuda_device *device, size_t *bytes, qp_error *error);

/* Finds a kernel by its name, once, and loads its module when first needed. `shared_bytes`: dynamic
 * shared memory that it may use. */
qp_status cuda_device_function(cuda_device *device, const char *image, const char *kernel,
                               int shared_bytes, cuda_function *out, qp_error *error);

/* Replaces a kernel that has not been looked up yet: tests use it to run kernels with delays. */
void cuda_device_replace(cuda_device *device, const char *image, const char *kernel,
                         int shared_bytes, cuda_function function);

/* Waits for all work in the device's stream. `operation` names it in the error message. */
qp_status cuda_device_wait(const cuda_device *device, const char *operation, qp_error *error);
