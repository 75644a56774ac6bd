/* What host and GPU share of the kernels for two to eight sequences of quantised weights. */
#pragma once

#include "vm/mega/fragments.h"

/* Tiles of 16 rows that are multiplied between two barriers. */
enum { FRAGMENT_TURN_TILES = 2 };

/* Units in a chunk, each 16 rows by 2,048 columns, so that it is about as large as a chunk of the
 * cache. */
OP_FN int fragment_chunk_units(int kind)
{
    return kind == FRAGMENT_Q4_0 ? 2 : 1;
}
