/* The peak loop of AMX's BF16 tile product: four sums from two left and two right factors. */
#include "op/bench/peak.h"

#include "base/amx.h"

double peak_matrix_amx(int64_t n, double *operations)
{
    _Alignas(64) float sums[16][16] = {{0}};
    amx_configure(16);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int64_t k = 0; k < n; k++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, 64);
    _tile_release();
    *operations = (double)n * 4 * 16 * 16 * 32 * 2;
    return (double)sums[0][0];
}
