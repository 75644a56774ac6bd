/* The megakernel's instances for Q4_0, and Q6_K, which files of Q4_0 have for the embedding. */
#define MEGA_BRICKS 0x14 /* 1 << BRICK_Q4_0 | 1 << BRICK_Q6_K */
#include "vm/mega/one_sequence.cuh"

MEGA_KERNEL(64, F16, true, 0, , false)
MEGA_KERNEL(64, BF16, false, 0, , false)
MEGA_KERNEL(128, F16, true, 0, , false)
MEGA_KERNEL(128, BF16, false, 0, , false)
