/* The megakernel's instances for Q8_0 alone: less code, fewer registers. */
#define MEGA_BRICKS 0x02 /* 1 << BRICK_Q8_0 */
#include "vm/mega/one_sequence.cuh"

MEGA_KERNELS(0)
