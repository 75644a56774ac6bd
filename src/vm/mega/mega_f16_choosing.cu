/* As mega_f16.cu, for tokens that are chosen: see mega_choosing.cu. */
#define MEGA_CHOOSES 1
#define MEGA_HALF    1
#include "vm/mega/one_sequence.cuh"

MEGA_KERNELS(1)
MEGA_KERNELS(2)
