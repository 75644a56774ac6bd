/* The megakernel for tests, with a cache in F16: warps sleep at random, so that races show.
 *
 * In one point it is made for compute-sanitizer's racecheck: every lane says by itself that it has
 * read a stage of the ring, and where tokens are chosen every thread that the logits are there.
 * Elsewhere the warp's first lane does, behind a __syncwarp(), and the first thread behind the
 * block's barrier, which order the others' reads before it; racecheck does not follow that order
 * through to who waits for the one, and would report each read of a stage against the copy that
 * fills it again. Being slow, it also takes patience. */
#define MEGA_DAWDLES 1
#include "vm/mega/one_sequence.cuh"

MEGA_KERNEL(64, F16, true, 1, _dawdling)
MEGA_KERNEL(128, F16, true, 1, _dawdling)
