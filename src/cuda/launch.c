/* Launches as records: see cuda/launch.h. */
#include "cuda/launch.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGNMENT = 64, /* alignment of parameters, which tensor maps need */
    AREA_SHIFT = 44,
    TAG_SHIFT = 52,
};
/* The upper bits of a symbolic address. No GPU address has them, and neither half of a parameter
 * that is a size or a usual float32 looks like them. */
static const uint64_t tag = UINT64_C(0xa7c) << TAG_SHIFT;
static const uint64_t map_tag =
    UINT64_C(0x7175697075206d61); /* marks a description of a tensor map */

/* ---- addresses ----------------------------------------------------------------------------- */

cuda_address cuda_area_address(int area, size_t offset)
{
    assert(area < CUDA_MAX_AREAS && offset >> AREA_SHIFT == 0);
    return tag | (uint64_t)area << AREA_SHIFT | offset;
}

bool cuda_area_find(cuda_address address, int *area, size_t *offset)
{
    if (address >> TAG_SHIFT << TAG_SHIFT != tag) return false;
    *area = (int)(address >> AREA_SHIFT & 0xff);
    *offset = address & ((UINT64_C(1) << AREA_SHIFT) - 1);
    return *area < CUDA_MAX_AREAS;
}

/* ---- tensor maps --------------------------------------------------------------------------- */

typedef struct map_description {
    uint64_t tag;
    cuda_map map;
} map_description;
_Static_assert(sizeof(map_description) <= CUDA_MAP_BYTES, "a description lies where the map will");

bool cuda_map_describe(const cuda_map *map, char at[CUDA_MAP_BYTES])
{
    map_description description = {.tag = map_tag, .map = *map};
    bool valid = map->rank >= 1 && map->rank <= 5 && map->address % 16 == 0;
    for (uint32_t i = 0; valid && i < map->rank; i++)
        valid = map->sizes[i] > 0 && map->sizes[i] <= UINT32_MAX && map->box[i] > 0 &&
                map->box[i] <= 256 && (i == 0 || map->strides[i - 1] % 16 == 0);
    if (!valid) return false;
    memset(at, 0, CUDA_MAP_BYTES);
    memcpy(at, &description, sizeof description);
    return true;
}

bool cuda_map_read(const char at[CUDA_MAP_BYTES], cuda_map *map)
{
    map_description description;
    memcpy(&description, at, sizeof description);
    *map = description.map;
    return description.tag == map_tag;
}

qp_status cuda_map_encode(const cuda_device *device, const cuda_map *map, char at[CUDA_MAP_BYTES],
                          qp_error *error)
{
    static const uint32_t steps[5] = {1, 1, 1, 1, 1};
    const int swizzle = map->box[0] <= 32 ? CUDA_MAP_SWIZZLE_64 : CUDA_MAP_SWIZZLE_128;
    return cuda_check(device->driver->tensor_map(
                          at, CUDA_MAP_BF16, map->rank, (void *)(uintptr_t)map->address, map->sizes,
                          map->strides, map->box, steps, 0, swizzle, CUDA_MAP_PROMOTION_128, 0),
                      "describing a matrix to the GPU", error);
}

/* ---- recording ----------------------------------------------------------------------------- */

void cuda_recording_free(cuda_recording *r)
{
    free(r->records);
    free(r->bytes);
    free(r->patches);
    *r = (cuda_recording){0};
}

static qp_status add_record(cuda_recording *r, cuda_record **out, qp_error *error)
{
    if (r->n_records == r->capacity) {
        int capacity = r->capacity ? 2 * r->capacity : 64;
        cuda_record *larger = realloc(r->records, (size_t)capacity * sizeof *larger);
        if (!larger) return error_no_memory(error, "launches", (size_t)capacity * sizeof *larger);
        r->records = larger;
        r->capacity = capacity;
    }
    *out = &r->records[r->n_records++];
    **out = (cuda_record){0};
    return QP_OK;
}

/* Reserves room for a parameter and returns its place. */
static qp_status take_bytes(cuda_recording *r, size_t bytes, size_t *at, qp_error *error)
{
    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (r->n_bytes + bytes > r->bytes_capacity) {
        size_t capacity = 2 * r->bytes_capacity + bytes + (1 << 14);
        capacity = (capacity + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        char *larger = aligned_alloc(ALIGNMENT, capacity);
        if (!larger) return error_no_memory(error, "parameters of launches", capacity);
        if (r->n_bytes) memcpy(larger, r->bytes, r->n_bytes);
        free(r->bytes);
        r->bytes = larger;
        r->bytes_capacity = capacity;
    }
    *at = r->n_bytes;
    r->n_bytes += bytes;
    return QP_OK;
}

static bool is_empty(const cuda_start *start)
{
    return start->grid[0] == 0 || start->grid[1] == 0 || start->grid[2] == 0;
}

static qp_status add_argument(cuda_recording *r, cuda_record *record, const cuda_argument *a,
                              qp_error *error)
{
    assert(record->n_arguments < CUDA_MAX_ARGUMENTS);
    size_t *at = &record->at[record->n_arguments++];
    TRY(take_bytes(r, a->bytes, at, error));
    size_t padded = r->n_bytes - *at;
    memcpy(r->bytes + *at, a->data, a->bytes);
    memset(r->bytes + *at + a->bytes, 0, padded - a->bytes);
    return QP_OK;
}

qp_status cuda_recording_add(cuda_recording *r, const cuda_start *start,
                             const cuda_argument *arguments, qp_error *error)
{
    cuda_record *record = NULL;
    if (is_empty(start)) return QP_OK;
    TRY(add_record(r, &record, error));
    record->start = *start;
    for (const cuda_argument *a = arguments; a->bytes; a++)
        TRY(add_argument(r, record, a, error));
    return QP_OK;
}

qp_status cuda_recording_add_host(cuda_recording *r, const char *name, cuda_host_launch *launch,
                                  const void *context, cuda_argument argument, qp_error *error)
{
    cuda_record *record = NULL;
    TRY(add_record(r, &record, error));
    snprintf(record->start.name, sizeof record->start.name, "%s", name);
    record->host = launch;
    record->host_context = context;
    return add_argument(r, record, &argument, error);
}

qp_status cuda_recording_add_product(cuda_recording *r, const cuda_product *product,
                                     qp_error *error)
{
    cuda_record *record = NULL;
    TRY(add_record(r, &record, error));
    record->is_product = true;
    record->product = *product;
    return QP_OK;
}

void *cuda_recording_argument(const cuda_recording *r, int record, int argument)
{
    return r->bytes + r->records[record].at[argument];
}

/* ---- binding ------------------------------------------------------------------------------- */

static qp_status add_patch(cuda_recording *r, cuda_patch patch, qp_error *error)
{
    if (r->n_patches == r->patch_capacity) {
        int capacity = r->patch_capacity ? 2 * r->patch_capacity : 64;
        cuda_patch *larger = realloc(r->patches, (size_t)capacity * sizeof *larger);
        if (!larger) return error_no_memory(error, "launches", (size_t)capacity * sizeof *larger);
        r->patches = larger;
        r->patch_capacity = capacity;
    }
    r->patches[r->n_patches++] = patch;
    return QP_OK;
}

/* The area's address after binding; other words stay. */
static cuda_address bound(cuda_address address, const cuda_address *areas)
{
    int area;
    size_t offset;
    return cuda_area_find(address, &area, &offset) && areas[area] ? areas[area] + offset : address;
}

static qp_status bind_map(char *at, cuda_device *device, const cuda_address *areas, qp_error *error)
{
    map_description description;
    memcpy(&description, at, sizeof description);
    description.map.address = bound(description.map.address, areas);
    return cuda_map_encode(device, &description.map, at, error);
}

static qp_status bind_words(cuda_recording *r, cuda_device *device, const cuda_address *areas,
                            qp_error *error)
{
    for (size_t at = r->bytes_bound; at < r->n_bytes; at += sizeof(uint64_t)) {
        uint64_t word;
        int area;
        size_t offset;
        memcpy(&word, r->bytes + at, sizeof word);
        if (word == map_tag && at % ALIGNMENT == 0) {
            TRY(bind_map(r->bytes + at, device, areas, error));
            at += CUDA_MAP_BYTES - sizeof word;
        } else if (cuda_area_find(word, &area, &offset)) {
            if (!areas[area]) TRY(add_patch(r, (cuda_patch){at, area, offset}, error));
            word = bound(word, areas);
            memcpy(r->bytes + at, &word, sizeof word);
        }
    }
    r->bytes_bound = r->n_bytes;
    return QP_OK;
}

qp_status cuda_recording_bind(cuda_recording *r, cuda_device *device,
                              const cuda_address areas[CUDA_MAX_AREAS], qp_error *error)
{
    for (; r->n_bound < r->n_records; r->n_bound++) {
        cuda_record *record = &r->records[r->n_bound];
        cuda_product *p = &record->product;
        p->x = bound(p->x, areas);
        p->weight = bound(p->weight, areas);
        p->residual = bound(p->residual, areas);
        p->x_scales = bound(p->x_scales, areas);
        p->weight_scales = bound(p->weight_scales, areas);
        p->out = bound(p->out, areas);
        if (!record->is_product && !record->host)
            TRY(cuda_device_function(device, record->start.image, record->start.name,
                                     record->start.shared_most, &record->function, error));
    }
    return bind_words(r, device, areas, error);
}

void cuda_recording_set(cuda_recording *r, const cuda_address areas[CUDA_MAX_AREAS])
{
    for (int i = 0; i < r->n_patches; i++) {
        const cuda_patch *patch = &r->patches[i];
        cuda_address address = areas[patch->area] + patch->offset;
        memcpy(r->bytes + patch->at, &address, sizeof address);
    }
}

/* ---- launching ----------------------------------------------------------------------------- */

static qp_status check_start(cuda_result result, const char *name, qp_error *error)
{
    char operation[96];
    if (result == CUDA_SUCCESS) return QP_OK;
    snprintf(operation, sizeof operation, "launching %s", name);
    return cuda_check(result, operation, error);
}

static qp_status start(const cuda_device *device, const cuda_start *how, cuda_function function,
                       void **arguments, bool early, qp_error *error)
{
    cuda_launch_attribute attributes[2];
    cuda_launch launch = {.grid = {how->grid[0], how->grid[1], how->grid[2]},
                          .block = {how->threads, 1, 1},
                          .shared_bytes = how->shared_bytes,
                          .stream = device->stream,
                          .attributes = attributes};
    if (how->cluster > 1)
        attributes[launch.n_attributes++] = (cuda_launch_attribute){
            .id = CUDA_LAUNCH_CLUSTER, .value.cluster = {how->cluster, 1, 1}};
    if (how->cluster > 0 && early)
        attributes[launch.n_attributes++] =
            (cuda_launch_attribute){.id = CUDA_LAUNCH_EARLY, .value.early = 1};
    return check_start(device->driver->launch_with(&launch, function, arguments, NULL), how->name,
                       error);
}

qp_status cuda_recording_run(const cuda_recording *r, int number, bool early,
                             const cuda_device *device, cuda_blas *blas, cuda_address workspace,
                             qp_error *error)
{
    const cuda_record *record = &r->records[number];
    void *arguments[CUDA_MAX_ARGUMENTS];
    if (record->is_product)
        return cuda_blas_multiply(blas, &record->product, workspace, device->stream, error);
    if (record->host)
        return check_start(
            record->host(record->host_context, r->bytes + record->at[0], device->stream),
            record->start.name, error);
    for (int i = 0; i < record->n_arguments; i++)
        arguments[i] = r->bytes + record->at[i];
    return start(device, &record->start, record->function, arguments, early, error);
}

qp_status cuda_start_kernel(cuda_device *device, const cuda_start *how,
                            const cuda_argument *arguments, bool early, qp_error *error)
{
    void *pointers[CUDA_MAX_ARGUMENTS];
    cuda_function function;
    if (is_empty(how)) return QP_OK;
    for (int i = 0; arguments[i].bytes; i++) {
        assert(i < CUDA_MAX_ARGUMENTS);
        pointers[i] = (void *)(uintptr_t)arguments[i].data;
    }
    TRY(cuda_device_function(device, how->image, how->name, how->shared_most, &function, error));
    return start(device, how, function, pointers, early, error);
}
