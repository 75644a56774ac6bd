/* Setting up AMX's eight tile registers, for files compiled for them.
 *
 * Layout of the configuration: Intel 64 and IA-32 Architectures Software Developer's Manual, volume
 * 1, chapter 18. Compilers do not know that the instructions read and write memory through the
 * addresses they are given, so barriers stand around them.
 */
#pragma once

#include <stdint.h>

#if defined(__AMX_TILE__) || defined(__AMXTILE__) /* gcc, clang */

#include <immintrin.h>

/* Stores before it are in memory, loads after it read memory. */
#define amx_barrier() __asm__ volatile("" ::: "memory")

/* Tiles 0 to 5 (sums and left factors): `rows` rows of 64 bytes; 6 and 7 (right factors): 16. */
static inline void amx_configure(int rows)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    _Static_assert(sizeof config == 64, "what ldtilecfg reads");
    for (int tile = 0; tile < 8; tile++) {
        config.row_bytes[tile] = 64;
        config.rows[tile] = (uint8_t)(tile < 6 ? rows : 16);
    }
    __asm__ volatile("" ::"r"(&config) : "memory");
    _tile_loadconfig(&config);
}

#endif
