/* safetensors models of one or more files: see safetensors.h. */
#include "file/safetensors_part.h"

#include "base/hash.h"
#include "base/json.h"
#include "base/names.h"
#include "base/strbuf.h"

#include <stdlib.h>
#include <string.h>

static const size_t index_limit = 100000000;

static qp_status open_shard(safetensors *file, int part, const char *path, qp_error *error)
{
    shard *shard = &file->shards[part];
    TRY(mapping_open(path, &shard->map, error));
    shard->path = shard->map.path;
    shard->data = shard->map.data;
    shard->size = shard->map.size;
    return safetensors_read_header(file, part, error);
}

/* Sorts the names of all shards' tensors. */
static qp_status index_names(safetensors *file, qp_error *error)
{
    size_t n = file->n_tensors;
    name_entry *entries = arena_alloc(&file->memory, n, sizeof *entries);
    file->copies = arena_alloc(&file->memory, n, sizeof *file->copies);
    if (!entries || !file->copies)
        return error_no_memory(error, "the tensor list of a model", n * sizeof *entries);
    for (size_t i = 0; i < n; i++)
        entries[i] = (name_entry){file->tensors[i].name, i};
    file->tensor_index = name_index_build(entries, n);
    const name_entry *twice = name_index_duplicate(&file->tensor_index);
    if (!twice) return QP_OK;
    return safetensors_refuse(&file->shards[file->tensors[twice->index].part], twice->name.data,
                              error, "the name occurs twice");
}

/* --- Sharded models --- */

static bool is_plain_name(const char *name)
{
    return *name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* "DIRECTORY/NAME", where DIRECTORY is that of `path`. */
static char *beside(arena *memory, const char *path, const char *name)
{
    const char *slash = strrchr(path, '/');
    size_t directory = slash ? (size_t)(slash - path) + 1 : 0, length = strlen(name);
    char *joined = arena_alloc(memory, directory + length + 1, 1);
    if (!joined) return NULL;
    memcpy(joined, path, directory);
    memcpy(joined + directory, name, length);
    return joined;
}

/* Lists the files that the weight map names, each once; checked before any is opened. */
static qp_status list_shards(safetensors *file, const cJSON *map, name_index *names,
                             qp_error *error)
{
    size_t count = 0, n = 0;
    for (const cJSON *item = map->child; item; item = item->next)
        count++;
    name_entry *entries = arena_alloc(&file->memory, count, sizeof *entries);
    if (!entries) return error_no_memory(error, "the list of shards", count * sizeof *entries);
    for (const cJSON *item = map->child; item; item = item->next) {
        char tensor[SLICE_QUOTE_SIZE], shard[SLICE_QUOTE_SIZE];
        slice_quote(slice_of(item->string), tensor);
        if (!cJSON_IsString(item))
            return error_set(error, QP_FORMAT,
                             "%s: \"weight_map\": tensor \"%s\": expected a file's name, found %s",
                             file->path, tensor, json_type_name(item));
        if (!is_plain_name(item->valuestring))
            return error_set(error, QP_FORMAT,
                             "%s: \"weight_map\": tensor \"%s\": expected the plain name of a file "
                             "beside the index, found \"%s\"",
                             file->path, tensor, slice_quote(slice_of(item->valuestring), shard));
        entries[n++] = (name_entry){slice_of(item->valuestring), 0};
    }
    *names = name_index_build(entries, n);
    n = 0;
    for (size_t i = 0; i < count; i++) { /* the sorted entries, each name once, numbered */
        if (n > 0 && slice_equals(entries[n - 1].name, entries[i].name)) continue;
        entries[n] = (name_entry){entries[i].name, n};
        n++;
    }
    names->count = n;
    return QP_OK;
}

static qp_status open_shards(safetensors *file, const name_index *names, qp_error *error)
{
    file->shards = calloc(names->count ? names->count : 1, sizeof *file->shards);
    if (!file->shards)
        return error_no_memory(error, "the list of shards", names->count * sizeof *file->shards);
    for (size_t i = 0; i < names->count; i++) {
        const char *path = beside(&file->memory, file->path, names->entries[i].name.data);
        if (!path) return error_no_memory(error, "a file's path", strlen(file->path));
        file->n_shards++; /* before it is opened, so that closing finds its mapping */
        if (open_shard(file, (int)i, path, error) != QP_OK)
            return error_prefix(error, "%s: shard %zu of %zu", file->path, i + 1, names->count);
    }
    return QP_OK;
}

/* Every tensor of the weight map must lie in the shard that the map says. */
static qp_status check_map(const safetensors *file, const cJSON *map, const name_index *names,
                           qp_error *error)
{
    for (const cJSON *item = map->child; item; item = item->next) {
        ptrdiff_t expected = name_index_find(names, slice_of(item->valuestring));
        const stored_tensor *stored = safetensors_find_tensor(file, item->string);
        if (stored && stored->part == expected) continue;
        char tensor[SLICE_QUOTE_SIZE];
        return error_set(error, QP_FORMAT, "%s: tensor \"%s\": expected it in %s, found it %s%s",
                         file->path, slice_quote(slice_of(item->string), tensor),
                         file->shards[expected].path, stored ? "in " : "nowhere",
                         stored ? file->shards[stored->part].path : "");
    }
    return QP_OK;
}

static qp_status open_map(safetensors *file, const cJSON *root, qp_error *error)
{
    const cJSON *map = json_get(root, "weight_map");
    if (!cJSON_IsObject(map) || !map->child)
        return error_set(error, QP_FORMAT,
                         "%s: \"weight_map\" must be an object with tensors' names, found %s",
                         file->path, map ? "an empty one or another type" : "nothing");
    name_index names;
    TRY(list_shards(file, map, &names, error));
    TRY(open_shards(file, &names, error));
    TRY(index_names(file, error));
    return check_map(file, map, &names, error);
}

static qp_status open_index(safetensors *file, qp_error *error)
{
    char *text;
    size_t length;
    cJSON *root = NULL;
    TRY(file_read_text(file->path, index_limit, &text, &length, error));
    qp_status status = json_parse_all(text, length, file->path, &root, error);
    free(text);
    TRY(status);
    status = open_map(file, root, error);
    cJSON_Delete(root);
    return status;
}

static qp_status open_single(safetensors *file, qp_error *error)
{
    file->shards = calloc(1, sizeof *file->shards);
    if (!file->shards) return error_no_memory(error, "a model's file", sizeof *file->shards);
    file->n_shards = 1;
    TRY(open_shard(file, 0, file->path, error));
    return index_names(file, error);
}

/* The file that a path means: itself, or the one that a directory holds. */
static qp_status resolve(safetensors *file, const char *path, qp_error *error)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    if (!file_is_directory(path)) {
        file->path = arena_strdup(&file->memory, path);
        return file->path ? QP_OK : error_no_memory(error, "a file's path", strlen(path) + 1);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        strbuf joined = {0};
        strbuf_printf(&joined, "%s/%s", path, names[i]);
        file->path = arena_strdup(&file->memory, strbuf_text(&joined));
        strbuf_free(&joined);
        if (!file->path) return error_no_memory(error, "a file's path", strlen(path) + 1);
        if (file_exists(file->path)) return QP_OK;
    }
    return error_set(error, QP_IO, "%s: expected %s or %s in this directory, found neither", path,
                     names[0], names[1]);
}

qp_status safetensors_open(const char *path, safetensors **out, qp_error *error)
{
    safetensors *file = calloc(1, sizeof *file);
    if (!file) return error_no_memory(error, "a model's files", sizeof *file);
    qp_status status = resolve(file, path, error);
    if (status == QP_OK)
        status = name_ends_with(file->path, ".json") ? open_index(file, error)
                                                     : open_single(file, error);
    if (status == QP_OK)
        *out = file;
    else
        safetensors_close(file);
    return status;
}

qp_status safetensors_open_memory(const void *data, size_t size, const char *name,
                                  safetensors **out, qp_error *error)
{
    safetensors *file = calloc(1, sizeof *file);
    if (file) file->shards = calloc(1, sizeof *file->shards);
    if (file) file->path = arena_strdup(&file->memory, name);
    if (!file || !file->shards || !file->path) {
        safetensors_close(file);
        return error_no_memory(error, "a model's files", sizeof *file);
    }
    file->n_shards = 1;
    file->shards[0] = (shard){.path = file->path, .data = data, .size = size};
    qp_status status = safetensors_read_header(file, 0, error);
    if (status == QP_OK) status = index_names(file, error);
    if (status == QP_OK)
        *out = file;
    else
        safetensors_close(file);
    return status;
}

uint64_t safetensors_stamp(const safetensors *file)
{
    uint64_t stamp = 0;
    for (int i = 0; i < file->n_shards; i++)
        stamp = hash_mix(stamp ^ file->shards[i].map.stamp);
    return stamp;
}

bool safetensors_read(const safetensors *file, const void *at, size_t bytes, void *dst)
{
    for (int i = 0; i < file->n_shards; i++)
        if (file->shards[i].map.data && mapping_read(&file->shards[i].map, at, bytes, dst))
            return true;
    return false;
}

void safetensors_close(safetensors *file)
{
    if (!file) return;
    for (size_t i = 0; file->copies && i < file->n_tensors; i++)
        free(file->copies[i]);
    for (int i = 0; i < file->n_shards; i++)
        mapping_close(&file->shards[i].map);
    free(file->shards);
    free(file->tensors);
    arena_free(&file->memory);
    free(file);
}

const char *safetensors_path(const safetensors *file)
{
    return file->path;
}

size_t safetensors_tensor_count(const safetensors *file)
{
    return file->n_tensors;
}

const stored_tensor *safetensors_tensor_at(const safetensors *file, size_t i)
{
    return &file->tensors[i];
}

const stored_tensor *safetensors_find_tensor(const safetensors *file, const char *name)
{
    ptrdiff_t i = name_index_find(&file->tensor_index, slice_of(name));
    return i == NAME_ABSENT ? NULL : &file->tensors[i];
}

/* The tensor's data, aligned for its elements: in the mapping, or a copy that is made once. */
static const void *aligned_data(safetensors *file, const stored_tensor *stored, qp_error *error)
{
    if ((uintptr_t)stored->data % dtype_block_bytes(stored->type) == 0) return stored->data;
    void **copy = &file->copies[stored - file->tensors];
    if (!*copy) {
        *copy = malloc(stored->bytes ? (size_t)stored->bytes : 1);
        if (*copy) memcpy(*copy, stored->data, (size_t)stored->bytes);
    }
    if (!*copy) error_no_memory(error, "an aligned copy of a tensor", stored->bytes);
    return *copy;
}

qp_status safetensors_get_tensor(safetensors *file, const char *name, tensor *out, qp_error *error)
{
    const stored_tensor *stored = safetensors_find_tensor(file, name);
    if (!stored) return QP_OK;
    if (stored->type == DTYPE_COUNT)
        return error_set(error, QP_UNSUPPORTED,
                         "%s: tensor \"%s\" has type %s; supported are F32, F16 and BF16",
                         file->shards[stored->part].path, name, stored->type_name);
    const void *data = aligned_data(file, stored, error);
    if (!data) return QP_NO_MEMORY;
    *out = tensor_make((void *)(uintptr_t)data, stored->type, stored->rank, stored->shape);
    return QP_OK;
}
