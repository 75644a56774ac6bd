/* A model's weights on the GPU: as stored, each at an aligned address. Weights of files are copied
 * once from the mapping; synthetic ones are generated on the GPU. */
#ifndef QUIPU_VM_CUDA_WEIGHTS_H
#define QUIPU_VM_CUDA_WEIGHTS_H

#include "base/log.h"
#include "model/model.h"
#include "cuda/memory.h"

typedef struct cuda_weights {
    const model *model;
    cuda_buffer memory;
    /* [layer + 1][slot][weight, bias]: offsets; row 0 is the whole model's. */
    size_t (*offsets)[WEIGHT_COUNT][2];
} cuda_weights;

/* The exact number of bytes that the weights take on the GPU. */
size_t cuda_weights_bytes(const model *model);

/* Lays out the weights without allocating memory. cuda_weights_free() it, also after a failure. */
qp_status cuda_weights_place(const model *model, cuda_weights *out, qp_error *error);

/* Allocates the memory and fills it. cuda_weights_free() it, also after a failure. */
qp_status cuda_weights_load(cuda_device *device, const model *model, progress *progress,
                            cuda_weights *out, qp_error *error);
void cuda_weights_free(const cuda_device *device, cuda_weights *weights);

/* The offset of a weight or of its bias; false: there is none. */
bool cuda_weights_find(const cuda_weights *weights, weight_slot slot, int64_t layer, bool bias,
                       size_t *offset);

/* Its address; 0: there is none. */
cuda_address cuda_weights_address(const cuda_weights *weights, weight_slot slot, int64_t layer,
                                  bool bias);

#endif
