/* Weights times vectors: the code for the image's weights, of 16 bits or quantised. */
#ifndef QUIPU_VM_MEGA_WEIGHTS_CUH
#define QUIPU_VM_MEGA_WEIGHTS_CUH

#include "vm/mega/block.cuh"

#if MEGA_QUANT_TYPES
#include "vm/mega/fragments.cuh"
#else
#include "vm/mega/product.cuh"
#endif

#endif
