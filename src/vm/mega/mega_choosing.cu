/* As mega.cu, for tokens that are chosen, in launches that may end before their last pass. These
 * are kernels of their own since warps that choose take registers from those that fetch: with both
 * in one, a pass that needs only the likeliest token took 8 us more. */
#define MEGA_CHOOSES 1
#include "vm/mega/one_sequence.cuh"

MEGA_KERNELS(1)
MEGA_KERNELS(2)
