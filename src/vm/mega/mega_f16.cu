/* As mega.cu, for weights in F16. */
#define MEGA_HALF 1
#include "vm/mega/one_sequence.cuh"

MEGA_KERNELS(1)
MEGA_KERNELS(2)
