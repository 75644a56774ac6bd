/* As mega_bricks.cu, for tokens that are chosen: see mega_choosing.cu. */
#define MEGA_CHOOSES 1
#include "vm/mega/mega_bricks.cu"
