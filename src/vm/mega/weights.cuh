/* Weights times vectors: the code for the image's weights, of 16 bits or quantised. */
#pragma once

#include "vm/mega/block.cuh"

#if MEGA_QUANT_TYPES
#include "vm/mega/fragments.cuh"
#else
#include "vm/mega/product.cuh"
#endif
