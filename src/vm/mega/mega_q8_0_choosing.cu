/* As mega_q8_0.cu, for tokens that are chosen: see mega_choosing.cu. */
#define MEGA_CHOOSES 1
#define MEGA_BRICKS  0x02 /* 1 << BRICK_Q8_0 */
#include "vm/mega/one_sequence.cuh"

MEGA_KERNELS(0)
