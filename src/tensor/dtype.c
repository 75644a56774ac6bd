/* Element types: see dtype.h. */
#include "tensor/dtype.h"

#include <assert.h>
#include <string.h>
#include <strings.h>

typedef struct dtype_info {
    const char *name;
    int64_t elements;
    size_t bytes;
    int gguf;
    const char *safetensors;
} dtype_info;

static const dtype_info infos[DTYPE_COUNT] = {
#define DTYPE(name, elements, bytes, gguf, safetensors)                                            \
    [DTYPE_##name] = {#name, elements, bytes, gguf, safetensors},
#include "tensor/dtype.def"
#undef DTYPE
};

/* Every type has a line in the table. */
enum {
    N_LINES = 0
#define DTYPE(name, elements, bytes, gguf, safetensors) +1
#include "tensor/dtype.def"
#undef DTYPE
};
_Static_assert((int)N_LINES == (int)DTYPE_COUNT, "dtype.def and the enum dtype disagree");

const char *dtype_name(dtype type)
{
    return type < DTYPE_COUNT ? infos[type].name : "?";
}

int64_t dtype_block_elements(dtype type)
{
    return infos[type].elements;
}

size_t dtype_block_bytes(dtype type)
{
    return infos[type].bytes;
}

size_t dtype_row_bytes(dtype type, int64_t n)
{
    assert(n >= 0 && n % infos[type].elements == 0);
    return (size_t)(n / infos[type].elements) * infos[type].bytes;
}

bool dtype_is_quantized(dtype type)
{
    return infos[type].elements > 1;
}

dtype dtype_from_name(const char *name)
{
    for (int type = 0; type < DTYPE_COUNT; type++) {
        if (strcasecmp(infos[type].name, name) == 0) return (dtype)type;
    }
    return DTYPE_COUNT;
}

dtype dtype_from_gguf(uint32_t id)
{
    for (int type = 0; type < DTYPE_COUNT; type++) {
        if (infos[type].gguf >= 0 && (uint32_t)infos[type].gguf == id) return (dtype)type;
    }
    return DTYPE_COUNT;
}

dtype dtype_from_safetensors(const char *name)
{
    for (int type = 0; type < DTYPE_COUNT; type++) {
        const char *own = infos[type].safetensors;
        if (own && strcmp(own, name) == 0) return (dtype)type;
    }
    return DTYPE_COUNT;
}

int dtype_gguf_id(dtype type)
{
    return infos[type].gguf;
}
