/* The megakernel's instances for Q4_0 alone: less code, fewer registers. */
#define MEGA_BRICKS 0x04 /* 1 << BRICK_Q4_0 */
#include "vm/mega/one_sequence.cuh"

MEGA_KERNEL(64, F16, true, 0, , false)
MEGA_KERNEL(64, BF16, false, 0, , false)
MEGA_KERNEL(128, F16, true, 0, , false)
MEGA_KERNEL(128, BF16, false, 0, , false)
