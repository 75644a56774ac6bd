/* The megakernel's instances for two to eight sequences. */
#include "vm/mega/several_sequences.cuh"

MEGA_BATCH(64, F16, true, )
MEGA_BATCH(64, BF16, false, )
MEGA_BATCH(128, F16, true, )
MEGA_BATCH(128, BF16, false, )
