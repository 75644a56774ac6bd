/* The megakernel's instances for Q4_0 alone: less code, fewer registers. */
#define MEGA_BRICKS 0x04 /* 1 << BRICK_Q4_0 */
#include "vm/mega/one_sequence.cuh"

MEGA_KERNELS(0)
