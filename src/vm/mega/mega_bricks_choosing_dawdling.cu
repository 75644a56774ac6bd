/* As mega_dawdling.cu, for quantised weights and tokens that are chosen. */
#define MEGA_DAWDLES 1
#define MEGA_CHOOSES 1
#define MEGA_BRICKS  0x3e /* all of bricks.h */
#include "vm/mega/one_sequence.cuh"

MEGA_KERNEL(64, F16, true, 0, _dawdling)
