/* The tables of grids.h and levels.h. */
#include "tensor/grids.h"
#include "tensor/levels.h"

#define GRID const
#include "tensor/grids.inc"

#define LEVEL(level) level,
const int8_t levels_iq4[16] = {LEVELS_IQ4(LEVEL)};
const int8_t levels_fp4[16] = {LEVELS_FP4(LEVEL)};
