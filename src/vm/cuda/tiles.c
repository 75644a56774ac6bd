/* Weights in BF16 as chains' tiles: see tiles.h. */
#include "vm/cuda/tiles.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

static int64_t n_tiles_of(const tiles_part *part)
{
    return (part->rows + part->tile_rows - 1) / part->tile_rows;
}

static size_t bytes_of(const tiles_part *part)
{
    return (size_t)(n_tiles_of(part) * part->tile_rows * part->columns) * 2;
}

/* What a product with a tensor map of rows reads. False: it has none. */
static bool part_of(const chain_product *p, tiles_part *out)
{
    cuda_map map;
    if (p->tiled || !cuda_map_read(p->weight_map, &map)) return false;
    const bool pairs = p->end == CHAIN_SILU;
    *out = (tiles_part){.from = map.address,
                        .pitch = (int64_t)map.strides[0],
                        .rows = p->n_features * (pairs ? 2 : 1),
                        .columns = p->n_depths * LINEAR_STREAM_DEPTH,
                        .tile_rows = chain_tile_rows(p),
                        .pairs = pairs};
    return true;
}

static const tiles_part *find(const cuda_tiles *tiles, const tiles_part *part)
{
    for (int i = 0; i < tiles->n_parts; i++) {
        const tiles_part *own = &tiles->parts[i];
        if (own->from == part->from && own->pitch == part->pitch && own->rows == part->rows &&
            own->columns == part->columns && own->tile_rows == part->tile_rows &&
            own->pairs == part->pairs)
            return own;
    }
    return NULL;
}

static qp_status add(cuda_tiles *tiles, tiles_part *part, qp_error *error)
{
    if (tiles->n_parts == tiles->capacity) {
        const int capacity = tiles->capacity ? 2 * tiles->capacity : 128;
        tiles_part *larger = realloc(tiles->parts, (size_t)capacity * sizeof *larger);
        if (!larger)
            return error_no_memory(error, "the table of tiles", (size_t)capacity * sizeof *larger);
        tiles->parts = larger;
        tiles->capacity = capacity;
    }
    part->at = tiles->bytes;
    tiles->bytes += round_up(bytes_of(part), CUDA_ALIGNMENT);
    tiles->parts[tiles->n_parts++] = *part;
    return QP_OK;
}

qp_status cuda_tiles_add(cuda_tiles *tiles, const linear_chain *chain, qp_error *error)
{
    for (int s = 0; s < chain->n_steps && !chain->packed; s++) {
        tiles_part part;
        if (chain->steps[s].kind != CHAIN_PRODUCT || !part_of(&chain->steps[s].of.product, &part) ||
            find(tiles, &part))
            continue;
        TRY(add(tiles, &part, error));
    }
    return QP_OK;
}

qp_status cuda_tiles_make(cuda_tiles *tiles, cuda_device *device,
                          const cuda_address areas[CUDA_MAX_AREAS], qp_error *error)
{
    enum { THREADS = 256, BLOCKS = 2048 };
    cuda_function kernel;
    TRY(cuda_buffer_alloc(device, tiles->bytes, "weights as tiles", &tiles->memory, error));
    TRY(cuda_device_function(device, "linear_packed", "tile_matrix", 0, &kernel, error));
    for (int i = 0; i < tiles->n_parts; i++) {
        const tiles_part *part = &tiles->parts[i];
        int area;
        size_t offset;
        if (!cuda_area_find(part->from, &area, &offset) || !areas[area])
            return error_set(error, QP_INVALID, "a weight of a chain lies nowhere");
        tiled_matrix m = {.from = areas[area] + offset,
                          .to = tiles->memory.address + part->at,
                          .row_bytes = part->pitch,
                          .rows = part->rows,
                          .columns = part->columns,
                          .tile_rows = part->tile_rows,
                          .pairs = part->pairs};
        TRY(cuda_check(device->driver->launch(kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0,
                                              device->stream, (void *[]){&m}, NULL),
                       "arranging weights", error));
    }
    return cuda_device_wait(device, "arranging weights", error);
}

void cuda_tiles_take(const cuda_tiles *tiles, chain_product *p)
{
    tiles_part part;
    const tiles_part *own = part_of(p, &part) ? find(tiles, &part) : NULL;
    if (!own) return;
    memset(p->weight_map, 0, sizeof p->weight_map);
    p->tiles = cuda_area_address(tiles->area, own->at);
    p->tiled = true;
}

void cuda_tiles_free(const cuda_device *device, cuda_tiles *tiles)
{
    if (tiles->memory.address) cuda_buffer_free(device, &tiles->memory);
    free(tiles->parts);
    *tiles = (cuda_tiles){0};
}
