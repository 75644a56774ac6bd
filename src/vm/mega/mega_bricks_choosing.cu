/* As mega_bricks.cu, for tokens that are chosen: see mega_choosing.cu. */
#define MEGA_CHOOSES 1
#define MEGA_BRICKS  0x3e /* all of bricks.h */
#include "vm/mega/one_sequence.cuh"

MEGA_KERNELS(0)
