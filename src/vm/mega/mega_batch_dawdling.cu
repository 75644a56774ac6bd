/* As mega_dawdling.cu, for two to eight sequences. */
#define MEGA_DAWDLES 1
#include "vm/mega/several_sequences.cuh"

MEGA_BATCH(64, F16, true, _dawdling)
MEGA_BATCH(128, F16, true, _dawdling)
