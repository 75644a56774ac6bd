/* GGUF models of one or more files: see gguf.h.
 *
 * The parts of a split are found by name: gguf-split writes NAME-00001-of-0000N.gguf, with split.no
 * counted from 0 and split.count in each.
 */
#include "file/gguf_part.h"

#include "base/buffer.h"
#include "base/hash.h"
#include "file/extents.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "-00001-of-00003.gguf" */
enum { SPLIT_DIGITS = 5, SPLIT_SUFFIX_LENGTH = 1 + SPLIT_DIGITS + 4 + SPLIT_DIGITS + 5 };
enum { SUFFIX_SIZE = 40, MAX_SPLITS = 65535 }; /* split.count is a u16 */

static void write_suffix(char suffix[SUFFIX_SIZE], int number, int count)
{
    snprintf(suffix, SUFFIX_SIZE, "-%05d-of-%05d.gguf", number + 1, count);
}

/* Whether the path ends like that of part `number` of `count`. */
static bool has_suffix(const char *path, int number, int count)
{
    char suffix[SUFFIX_SIZE];
    write_suffix(suffix, number, count);
    size_t length = strlen(path), n = strlen(suffix);
    return length > n && strcmp(path + length - n, suffix) == 0;
}

/* The path of another part, from the path of a part. */
static char *sibling_path(const char *path, int number, int count, arena *memory)
{
    char *sibling = arena_strdup(memory, path);
    char suffix[SUFFIX_SIZE];
    write_suffix(suffix, number, count);
    if (sibling)
        memcpy(sibling + strlen(sibling) - SPLIT_SUFFIX_LENGTH, suffix, SPLIT_SUFFIX_LENGTH);
    return sibling;
}

/* Reads split.no and split.count; {0, 1} for a file that is not split. */
static qp_status read_split(const gguf_part *part, int *number, int *count, qp_error *error)
{
    int64_t no = 0, n = 1;
    TRY(gguf_part_i64(part, "split.count", &n, error));
    if (n < 0 || n > MAX_SPLITS)
        return error_set(error, QP_FORMAT,
                         "%s: key \"split.count\" must be from 0 to %d, found %lld", part->path,
                         MAX_SPLITS, (long long)n);
    *number = 0;
    *count = 1;
    if (n <= 1) return QP_OK;
    TRY(gguf_part_i64(part, "split.no", &no, error));
    if (no < 0 || no >= n)
        return error_set(error, QP_FORMAT,
                         "%s: key \"split.no\" must be from 0 to %lld, found %lld", part->path,
                         (long long)n - 1, (long long)no);
    *number = (int)no;
    *count = (int)n;
    return QP_OK;
}

/* Refuses to open a split from anything but a first part of the right name. */
static qp_status check_first(gguf *file, int number, int count, qp_error *error)
{
    const gguf_part *part = &file->parts[0];
    char suffix[SUFFIX_SIZE];
    write_suffix(suffix, number, count);
    if (!part->map.data)
        return error_set(
            error, QP_UNSUPPORTED,
            "%s: key \"split.count\" is %d: a split model cannot be opened from memory", part->path,
            count);
    if (!has_suffix(part->path, number, count))
        return error_set(error, QP_FORMAT,
                         "%s: this is part %d of %d of a split model, whose name must end in "
                         "\"%s\": rename it as it was",
                         part->path, number + 1, count, suffix);
    if (number == 0) return QP_OK;
    const char *first = sibling_path(part->path, 0, count, &file->memory);
    return error_set(error, QP_INVALID, "%s: this is part %d of %d of a split model: pass %s",
                     part->path, number + 1, count, first ? first : "the first part");
}

static qp_status open_part(gguf *file, gguf_part *part, const char *path, int number,
                           qp_error *error)
{
    TRY(mapping_open(path, &part->map, error));
    part->path = part->map.path;
    part->data = part->map.data;
    part->size = part->map.size;
    part->number = number;
    return gguf_part_parse(part, &file->memory, error);
}

static qp_status open_siblings(gguf *file, int count, qp_error *error)
{
    gguf_part *parts = calloc((size_t)count, sizeof *parts);
    if (!parts) return error_no_memory(error, "the parts of a split model", (unsigned)count);
    parts[0] = file->parts[0];
    free(file->parts);
    file->parts = parts;
    for (int i = 1; i < count; i++) {
        const char *path = sibling_path(parts[0].path, i, count, &file->memory);
        if (!path) return error_no_memory(error, "a file's path", strlen(parts[0].path));
        file->n_parts++; /* before the part is opened, so that gguf_close() finds its mapping */
        if (open_part(file, &parts[i], path, i, error) != QP_OK)
            return error_prefix(error, "%s: part %d of %d", parts[0].path, i + 1, count);
        int number, found;
        TRY(read_split(&parts[i], &number, &found, error));
        if (number != i || found != count)
            return error_set(error, QP_FORMAT,
                             "%s: expected part %d of %d of a split model, found part %d of %d",
                             path, i + 1, count, number + 1, found);
    }
    return QP_OK;
}

/* Lists the tensors of all parts and sorts their names. */
static qp_status gather_tensors(gguf *file, qp_error *error)
{
    for (int i = 0; i < file->n_parts; i++)
        file->n_tensors += file->parts[i].n_tensors;
    file->tensors = arena_alloc(&file->memory, file->n_tensors, sizeof *file->tensors);
    name_entry *entries = arena_alloc(&file->memory, file->n_tensors, sizeof *entries);
    if (!file->tensors || !entries)
        return error_no_memory(error, "the tensor list of a GGUF file",
                               file->n_tensors * sizeof *file->tensors);
    size_t n = 0;
    for (int i = 0; i < file->n_parts; i++) {
        const gguf_part *part = &file->parts[i];
        TRY(extents_check(part->tensors, part->n_tensors, part->path, error));
        for (size_t t = 0; t < part->n_tensors; t++, n++) {
            file->tensors[n] = part->tensors[t];
            entries[n] = (name_entry){part->tensors[t].name, n};
        }
    }
    file->tensor_index = name_index_build(entries, n);
    const name_entry *twice = name_index_duplicate(&file->tensor_index);
    if (!twice) return QP_OK;
    char name[SLICE_QUOTE_SIZE];
    return error_set(error, QP_FORMAT, "%s: tensor \"%s\" occurs twice",
                     file->parts[file->tensors[twice->index].part].path,
                     slice_quote(twice->name, name));
}

static qp_status check_tensor_total(const gguf *file, qp_error *error)
{
    int64_t total = (int64_t)file->n_tensors;
    TRY(gguf_get_i64(file, "split.tensors.count", &total, error));
    if (total == (int64_t)file->n_tensors) return QP_OK;
    return error_set(error, QP_FORMAT,
                     "%s: key \"split.tensors.count\" promises %lld tensors in %d parts, found %zu",
                     gguf_path(file), (long long)total, file->n_parts, file->n_tensors);
}

/* Builds the model from its parsed first part. */
static qp_status complete(gguf *file, qp_error *error)
{
    int number, count;
    TRY(read_split(&file->parts[0], &number, &count, error));
    if (count > 1) {
        TRY(check_first(file, number, count, error));
        TRY(open_siblings(file, count, error));
    }
    TRY(gather_tensors(file, error));
    if (count > 1) TRY(check_tensor_total(file, error));
    size_t n_keys = file->parts[0].n_keys;
    file->strings = arena_alloc(&file->memory, n_keys, sizeof *file->strings);
    if (!file->strings)
        return error_no_memory(error, "tables of strings", n_keys * sizeof *file->strings);
    return QP_OK;
}

/* Allocates a model with room for one part. */
static gguf *new_file(qp_error *error)
{
    gguf *file = calloc(1, sizeof *file);
    if (file) file->parts = calloc(1, sizeof *file->parts);
    if (file && file->parts) {
        file->n_parts = 1;
        return file;
    }
    free(file);
    error_no_memory(error, "a GGUF file", sizeof *file + sizeof *file->parts);
    return NULL;
}

qp_status gguf_open(const char *path, gguf **out, qp_error *error)
{
    gguf *file = new_file(error);
    if (!file) return QP_NO_MEMORY;
    qp_status status = open_part(file, &file->parts[0], path, 0, error);
    if (status == QP_OK) status = complete(file, error);
    if (status == QP_OK)
        *out = file;
    else
        gguf_close(file);
    return status;
}

qp_status gguf_open_memory(const void *data, size_t size, const char *name, gguf **out,
                           qp_error *error)
{
    gguf *file = new_file(error);
    if (!file) return QP_NO_MEMORY;
    gguf_part *part = &file->parts[0];
    part->data = data;
    part->size = size;
    part->path = arena_strdup(&file->memory, name);
    qp_status status = part->path ? gguf_part_parse(part, &file->memory, error)
                                  : error_no_memory(error, "a file's name", strlen(name) + 1);
    if (status == QP_OK) status = complete(file, error);
    if (status == QP_OK)
        *out = file;
    else
        gguf_close(file);
    return status;
}

void gguf_close(gguf *file)
{
    if (!file) return;
    for (int i = 0; i < file->n_parts; i++)
        mapping_close(&file->parts[i].map);
    free(file->parts);
    arena_free(&file->memory);
    free(file);
}

uint64_t gguf_stamp(const gguf *file)
{
    uint64_t stamp = 0;
    for (int i = 0; i < file->n_parts; i++)
        stamp = hash_mix(stamp ^ file->parts[i].map.stamp);
    return stamp;
}

void gguf_release_pages(const gguf *file)
{
    for (int i = 0; i < file->n_parts; i++)
        buffer_release_pages(file->parts[i].map.data, file->parts[i].map.size);
}

bool gguf_read(const gguf *file, const void *at, size_t bytes, void *dst)
{
    for (int i = 0; i < file->n_parts; i++)
        if (file->parts[i].map.data && mapping_read(&file->parts[i].map, at, bytes, dst))
            return true;
    return false;
}

const char *gguf_path(const gguf *file)
{
    return file->parts[0].path;
}

size_t gguf_key_count(const gguf *file)
{
    return file->parts[0].n_keys;
}

const gguf_value *gguf_key_at(const gguf *file, size_t i)
{
    return &file->parts[0].keys[i];
}

const gguf_value *gguf_find(const gguf *file, const char *key)
{
    return gguf_part_find(&file->parts[0], key);
}

size_t gguf_tensor_count(const gguf *file)
{
    return file->n_tensors;
}

const stored_tensor *gguf_tensor_at(const gguf *file, size_t i)
{
    return &file->tensors[i];
}

const stored_tensor *gguf_find_tensor(const gguf *file, const char *name)
{
    ptrdiff_t i = name_index_find(&file->tensor_index, slice_of(name));
    return i == NAME_ABSENT ? NULL : &file->tensors[i];
}

qp_status gguf_get_tensor(const gguf *file, const char *name, tensor *out, qp_error *error)
{
    const stored_tensor *stored = gguf_find_tensor(file, name);
    if (!stored) return QP_OK;
    if (stored->type == DTYPE_COUNT)
        return error_set(error, QP_UNSUPPORTED,
                         "%s: tensor \"%s\" has type %s (number %u in GGUF), which is not "
                         "supported: use a file with other types, such as Q4_K_M or Q8_0",
                         file->parts[stored->part].path, name, stored->type_name, stored->type_id);
    *out = tensor_make((void *)(uintptr_t)stored->data, stored->type, stored->rank, stored->shape);
    return QP_OK;
}
