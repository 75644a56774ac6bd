/* Launches as records: made before there is memory, printed, bound to memory, and run any number of
 * times.
 *
 * While records are made, an address is symbolic: an area and an offset in it (cuda_area_address).
 * Binding replaces symbolic addresses by real ones and encodes tensor maps. Some areas move from
 * run to run; the parameter words that point into them are set before each run. A run then only
 * calls the driver.
 */
#pragma once

#include "cuda/blas.h"

enum {
    CUDA_MAX_AREAS = 192,
    CUDA_MAX_ARGUMENTS = 7,
    CUDA_MAP_BYTES = 128, /* of a CUtensorMap */
};

/* ---- addresses ----------------------------------------------------------------------------- */

/* Symbolic addresses keep the alignment of the offset. */
cuda_address cuda_area_address(int area, size_t offset);

/* Whether it is a symbolic address; if so, gives its area and offset. */
bool cuda_area_find(cuda_address address, int *area, size_t *offset);

/* ---- tensor maps --------------------------------------------------------------------------- */

/* Tiles of a matrix of 16-bit elements, in shared memory in the 128-byte swizzle, or in the 64-byte
 * swizzle if a box's rows have 32 elements: with a wider one they would lie 128 bytes apart. Sizes
 * are in elements, innermost first. Strides are in bytes, for all dimensions except the innermost.
 */
typedef struct cuda_map {
    cuda_address address;
    uint64_t sizes[5], strides[4];
    uint32_t box[5];
    uint32_t rank;
} cuda_map;

/* Writes a map's description in place of the map, in a parameter at a multiple of 64 bytes; binding
 * encodes it. False if the GPU cannot have such a map. */
bool cuda_map_describe(const cuda_map *map, char at[CUDA_MAP_BYTES]);

/* Reads a description back; false if there is none. */
bool cuda_map_read(const char at[CUDA_MAP_BYTES], cuda_map *map);

/* Encodes it at once. */
qp_status cuda_map_encode(const cuda_device *device, const cuda_map *map, char at[CUDA_MAP_BYTES],
                          qp_error *error);

/* ---- records ------------------------------------------------------------------------------- */

/* How a kernel is started. */
typedef struct cuda_start {
    const char *image; /* static text */
    char name[CUDA_KERNEL_NAME];
    int shared_most; /* most dynamic shared memory of the kernel; 0: 48 KB */
    unsigned grid[3], threads, shared_bytes;
    /* 0: the kernel starts when the previous one has ended. n: programmatic dependent launch, in
     * clusters of n blocks; the kernel may start earlier and waits by itself. */
    unsigned cluster;
} cuda_start;

typedef struct cuda_argument {
    const void *data;
    size_t bytes; /* 0: the end of a list */
} cuda_argument;
#define CUDA_ARGUMENT(value)                                                                       \
    {                                                                                              \
        &(value), sizeof(value)                                                                    \
    }

/* Puts launches of its own into a stream: a custom kernel (op/cuda_ops.h). Returns CUDA's
 * error; 0: success. */
typedef int cuda_host_launch(const void *context, const void *argument, cuda_stream stream);

typedef struct cuda_record {
    cuda_start start;
    bool early;           /* may start before its predecessor has ended, if start.cluster is set */
    bool is_product;      /* made by cuBLASLt: `product` instead of a kernel */
    cuda_product product; /* addresses, symbolic like those in parameters */
    cuda_host_launch *host; /* is called with its only parameter; NULL: a kernel or a product */
    const void *host_context;
    cuda_function function;        /* once bound */
    size_t at[CUDA_MAX_ARGUMENTS]; /* in the recording's bytes */
    int n_arguments;
} cuda_record;

/* A parameter word that is set before each run. */
typedef struct cuda_patch {
    size_t at;
    int area;
    size_t offset;
} cuda_patch;

typedef struct cuda_recording {
    cuda_record *records;
    int n_records, capacity;
    char *bytes; /* parameters, each at a multiple of 64 */
    size_t n_bytes, bytes_capacity;
    cuda_patch *patches;
    int n_patches, patch_capacity;
    int n_bound; /* records that cuda_recording_bind() has seen, and the bytes of their parameters
                  */
    size_t bytes_bound;
} cuda_recording;

void cuda_recording_free(cuda_recording *recording);

/* Records a kernel's launch, with a list of arguments. A grid without blocks is skipped. */
qp_status cuda_recording_add(cuda_recording *recording, const cuda_start *start,
                             const cuda_argument *arguments, qp_error *error);

/* Records a product of cuBLASLt. */
qp_status cuda_recording_add_product(cuda_recording *recording, const cuda_product *product,
                                     qp_error *error);

/* Records a function that makes the launches itself. `name` is for messages. */
qp_status cuda_recording_add_host(cuda_recording *recording, const char *name,
                                  cuda_host_launch *launch, const void *context,
                                  cuda_argument argument, qp_error *error);

/* A parameter of a record. */
void *cuda_recording_argument(const cuda_recording *recording, int record, int argument);

/* Finds kernels, encodes maps, and replaces symbolic addresses, of all records since the last call.
 * `areas`: the address of each area, or 0 for areas that move. */
qp_status cuda_recording_bind(cuda_recording *recording, cuda_device *device,
                              const cuda_address areas[CUDA_MAX_AREAS], qp_error *error);

/* Sets the words that point into areas that move. */
void cuda_recording_set(cuda_recording *recording, const cuda_address areas[CUDA_MAX_AREAS]);

/* Enqueues a record on the device's stream. `early`: it may start before its predecessor has
 * ended. */
qp_status cuda_recording_run(const cuda_recording *recording, int record, bool early,
                             const cuda_device *device, cuda_blas *blas, cuda_address workspace,
                             qp_error *error);

/* Starts a kernel at once. */
qp_status cuda_start_kernel(cuda_device *device, const cuda_start *start,
                            const cuda_argument *arguments, bool early, qp_error *error);
