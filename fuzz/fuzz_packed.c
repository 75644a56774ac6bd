/* Files of packed weights: only the very file that was written is loaded, and then it has its
 * bytes.
 *
 * The input's first byte decides. If it is even, the rest is the file. If it is odd, each three
 * bytes of the rest change a byte of a good file (where, with what).
 */
#include "vm/pack_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BYTES = 3000, CHANGE = 3 };

static struct {
    char folder[32], path[4096];
    thread_pool *pool;
    unsigned char packed[BYTES], *good;
    size_t size;
} state;

static void must(bool good)
{
    if (!good) abort();
}

static void remove_folder(void)
{
    unlink(state.path);
    rmdir(state.folder);
}

static pack_cache cache_of(void)
{
    return (pack_cache){.folder = state.folder, .most = UINT64_MAX, .key = {1, 2}};
}

static void open_state(void)
{
    qp_error error;
    strcpy(state.folder, "/tmp/quipu-fuzz-XXXXXX");
    must(mkdtemp(state.folder) != NULL);
    must(thread_pool_create(1, &state.pool, &error) == QP_OK);
    for (size_t i = 0; i < BYTES; i++)
        state.packed[i] = (unsigned char)(i * 7);
    pack_cache cache = cache_of();
    const buffer packed = {.data = state.packed, .bytes = BYTES};
    pack_cache_save(&cache, state.pool, 5, &packed, NULL);
    must(cache.saved);
    strcpy(state.path, cache.path);
    FILE *file = fopen(state.path, "rb");
    must(file != NULL && fseek(file, 0, SEEK_END) == 0);
    state.size = (size_t)ftell(file);
    rewind(file);
    state.good = malloc(state.size);
    must(state.good && fread(state.good, 1, state.size, file) == state.size);
    fclose(file);
    atexit(remove_folder);
}

static void write_file(const unsigned char *bytes, size_t size)
{
    FILE *file = fopen(state.path, "wb");
    must(file && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!state.pool) open_state();
    if (size == 0) return 0;
    unsigned char *file = malloc(state.size);
    must(file != NULL);
    memcpy(file, state.good, state.size);
    for (size_t i = 1; data[0] % 2 && i + CHANGE <= size; i += CHANGE)
        file[(size_t)(data[i] | data[i + 1] << 8) % state.size] = data[i + 2];
    if (data[0] % 2)
        write_file(file, state.size);
    else
        write_file(data + 1, size - 1);
    const bool same = data[0] % 2
                          ? memcmp(file, state.good, state.size) == 0
                          : size - 1 == state.size && memcmp(data + 1, state.good, size - 1) == 0;
    pack_cache cache = cache_of();
    buffer found = {0};
    if (pack_cache_load(&cache, state.pool, 5, BYTES, &found)) {
        must(found.bytes >= BYTES && memcmp(found.data, state.packed, BYTES) == 0);
        buffer_free(&found);
    } else {
        must(!same && cache.load_problem[0]);
    }
    free(file);
    return 0;
}
