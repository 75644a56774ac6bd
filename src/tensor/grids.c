/* The tables of grids.h. */
#include "tensor/grids.h"

#define GRID const
#include "tensor/grids.inc"

const int8_t levels_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                               1,    13,   25,  38,  53,  69,  89,  113};

const int8_t levels_fp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
