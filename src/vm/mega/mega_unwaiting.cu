/* The megakernel that waits for no other block, only for its weights: its tokens are rubbish, its
 * time is what a pass takes where synchronisation costs nothing. See tests/tool_waits.c. */
#define MEGA_WAITS 0
#include "vm/mega/one_sequence.cuh"

MEGA_KERNEL(64, F16, true, 1, _unwaiting)
