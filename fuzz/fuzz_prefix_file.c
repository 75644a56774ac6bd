/* Files of the prompt cache: whatever is restored is a sound tree.
 *
 * The input's first byte decides what the rest is. If it is even, the rest is the file; if the rest
 * begins with "+", a good header goes before it. If it is odd, each four bytes of the rest (parent,
 * key, token, damage) become a record with a good checksum, so that the tree also gets hostile
 * records. */
#include "engine/engine.h"
#include "engine/prefix_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADER = 64, COUNT_AT = 48, SUM_AT = 56, PAGE = 4, RECORD = 4, MOST_RECORDS = 64 };

static struct {
    qp_engine *engine;
    int fd;
    char path[32];
    uint64_t header[HEADER / 8]; /* of this engine's files */
    size_t page_bytes;
} state = {.fd = -1};

static void must(bool good)
{
    if (!good) abort();
}

/* An engine, and the header of its file without pages. */
static void open_state(void)
{
    prefix_file_result result;
    qp_error error;
    const qp_engine_options options = {.size = sizeof options,
                                       .model = "synthetic:tiny",
                                       .device = "cpu",
                                       .threads = 1,
                                       .context = 32,
                                       .page_size = PAGE,
                                       .max_sessions = 1};
    must(qp_engine_open(&options, &state.engine, &error) == QP_OK);
    must(engine_open_prefixes(state.engine, &error) == QP_OK);
    char path[] = "/tmp/quipu-fuzz-XXXXXX", saved[sizeof path + 4];
    state.fd = mkstemp(path);
    snprintf(saved, sizeof saved, "%s.too", path);
    must(state.fd >= 0);
    must(prefix_file_save(state.engine, saved, UINT64_MAX, &result, &error) == QP_OK);
    FILE *file = fopen(saved, "rb");
    must(file && fread(state.header, HEADER, 1, file) == 1);
    fclose(file);
    unlink(saved);
    unlink(path);
    state.page_bytes = (size_t)state.header[5];
    snprintf(state.path, sizeof state.path, "/proc/self/fd/%d", state.fd);
}

static void put(const void *bytes, size_t n)
{
    must(write(state.fd, bytes, n) == (ssize_t)n);
}

static void put_header(uint64_t count)
{
    uint64_t header[HEADER / 8];
    memcpy(header, state.header, HEADER);
    header[COUNT_AT / 8] = count;
    header[SUM_AT / 8] = keyed_hash((hash_key){{3, 4}}, header, SUM_AT);
    put(header, HEADER);
}

/* parent: 255 is the root; damage: its lowest bit spoils the checksum. */
static void put_record(uint64_t index, const uint8_t bytes[RECORD])
{
    const size_t size = 16 + PAGE * sizeof(int32_t) + state.page_bytes;
    uint8_t *record = calloc(1, size + 8);
    must(record != NULL);
    const int64_t parent = bytes[0] == 255 ? -1 : bytes[0];
    const uint64_t key = bytes[1] & 3;
    const int32_t token = bytes[2] - 8;
    memcpy(record, &parent, sizeof parent);
    memcpy(record + 8, &key, sizeof key);
    for (size_t i = 0; i < PAGE; i++)
        memcpy(record + 16 + i * sizeof token, &token, sizeof token);
    const hash_key sealed = {{state.header[2], index}};
    const uint64_t sum = keyed_hash(sealed, record, size) ^ (bytes[3] & 1);
    memcpy(record + size, &sum, sizeof sum);
    put(record, size + 8);
    free(record);
}

static void write_file(const uint8_t *data, size_t size)
{
    const bool records = size > 0 && data[0] & 1;
    must(ftruncate(state.fd, 0) == 0 && lseek(state.fd, 0, SEEK_SET) == 0);
    if (size > 0) data++, size--;
    if (!records) {
        const bool headed = size > 0 && data[0] == '+';
        if (headed) put_header(3);
        put(data + headed, size - headed);
        return;
    }
    const size_t n = size / RECORD < MOST_RECORDS ? size / RECORD : MOST_RECORDS;
    put_header(size % RECORD ? UINT64_MAX : n);
    for (size_t i = 0; i < n; i++)
        put_record(i, data + i * RECORD);
}

/* Each node's parent is a node, and each is found by its path. */
static void check_tree(void)
{
    const prefix_tree *t = &state.engine->prefixes;
    int64_t kept = 0;
    for (int32_t page = 0; page < t->pool->n_pages; page++) {
        int32_t path[32 * PAGE];
        size_t depth = 0, most = sizeof path / sizeof *path / PAGE;
        bool same_key = true;
        if (!t->pool->kept[page]) continue;
        kept++;
        for (int32_t up = page; up >= 0; up = t->parents[up]) {
            must(t->pool->kept[up] && depth < most);
            depth++;
            same_key = same_key && t->keys[up] == t->keys[page];
            memcpy(path + (most - depth) * PAGE, t->tokens + up * PAGE, PAGE * sizeof *path);
        }
        prefix_walk walk = {0};
        prefix_tree_find(t, t->keys[page], path + (most - depth) * PAGE, depth * PAGE, &walk);
        must(!same_key || walk.n_pages == (int64_t)depth);
    }
    must(kept == t->n_nodes && kept == t->pool->n_idle);
}

/* Takes every page from the tree, and gives it back. */
static void empty_tree(void)
{
    page_pool *pool = &state.engine->pages;
    page_list list = {0};
    qp_error error;
    must(page_list_init(&list, pool->n_pages, &error) == QP_OK);
    must(page_list_resize(&list, pool, pool->n_pages * PAGE, &error) == QP_OK);
    page_list_free(&list, pool);
    must(state.engine->prefixes.n_nodes == 0 && pool->n_free == pool->n_pages);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    prefix_file_result result;
    qp_error error = {0};
    if (!state.engine) open_state();
    write_file(data, size);
    const qp_status status = prefix_file_restore(state.engine, state.path, &result, &error);
    must(status == QP_OK || strstr(error.message, state.path));
    must(status == QP_OK || result.pages == 0);
    must(result.pages == (uint64_t)state.engine->prefixes.n_nodes);
    check_tree();
    empty_tree();
    return 0;
}
