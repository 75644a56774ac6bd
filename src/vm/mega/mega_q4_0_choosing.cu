/* As mega_q4_0.cu, for tokens that are chosen: see mega_choosing.cu. */
#define MEGA_CHOOSES 1
#define MEGA_BRICKS  0x04 /* 1 << BRICK_Q4_0 */
#include "vm/mega/one_sequence.cuh"

MEGA_KERNELS(0)
