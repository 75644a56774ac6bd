/* As mega_dawdling.cu, for tokens that are chosen. */
#define MEGA_DAWDLES 1
#define MEGA_CHOOSES 1
#include "vm/mega/one_sequence.cuh"

MEGA_KERNEL(64, F16, true, 1, _dawdling)
