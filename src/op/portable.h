/* Functions in headers that C17 and CUDA C share: index arithmetic that kernels of both must do in
 * the same way. */
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define OP_FN __host__ __device__ static inline
#else
#define OP_FN static inline
#endif
