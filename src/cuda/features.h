/* What GPUs differ in: instructions that only some have, and figures. A kernel's row states the
 * features that it needs (cuda_kernel.needs); no other code asks which GPU it is.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* One bit each. */
typedef enum cuda_feature {
    CUDA_WGMMA = 1 << 0,     /* matrix products of a warpgroup: 9.0 only */
    CUDA_CODE_90A = 1 << 1,  /* runs images that hold only code for sm_90a, without PTX */
    CUDA_BULK_COPY = 1 << 2, /* cp.async.bulk, with tensor maps: 9.0 */
    CUDA_TRANSACTION_BARRIERS = 1 << 3, /* mbarriers that count bytes: 9.0 */
    CUDA_DEPENDENT_LAUNCH = 1 << 4,     /* griddepcontrol: 9.0 */
    CUDA_CLUSTERS = 1 << 5,             /* blocks that read each other's shared memory: 9.0 */
    CUDA_E4M3 = 1 << 6,                 /* conversions and products of FP8: 8.9 */
} cuda_feature;

enum {
    /* Copies that the copy engine makes and an mbarrier counts. */
    CUDA_COPY_ENGINE = CUDA_BULK_COPY | CUDA_TRANSACTION_BARRIERS,
    /* Tiles that wgmma multiplies out of shared memory. */
    CUDA_WGMMA_TILES = CUDA_WGMMA | CUDA_COPY_ENGINE,
};

/* The features of a compute capability. */
uint32_t cuda_features_of(int major, int minor);

/* The first of the needed features that is missing, for messages: "wgmma"; NULL: all are there. */
const char *cuda_feature_missing(uint32_t features, uint32_t needed);

/* Multiprocessors of H100 and H200, assumed where there is no GPU to ask. */
enum { CUDA_USUAL_MULTIPROCESSORS = 132 };
