/* Reads one safetensors header: a length, then a JSON object with a member for each tensor.
 *
 * The file is untrusted: each tensor's span and shape are checked against the file's length and
 * against each other before the tensor is used.
 */
#include "file/safetensors_part.h"

#include "base/json.h"
#include "file/extents.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PREFIX_BYTES = 8 };
static const uint64_t header_limit = 100000000; /* as the format's own library has it */

/* Element sizes of the format's types that quipu does not read: such tensors are listed but not
 * viewed. */
static const struct {
    const char *name;
    uint64_t bytes;
} foreign_types[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
    {"U16", 2},  {"I16", 2}, {"U32", 4}, {"U64", 8},     {"C64", 8},
};

qp_status safetensors_refuse(const shard *shard, const char *name, qp_error *error,
                             const char *format, ...)
{
    char text[512], quoted[SLICE_QUOTE_SIZE];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return error_set(error, QP_FORMAT, "%s: tensor \"%s\": %s", shard->path,
                     slice_quote(slice_of(name), quoted), text);
}

/* A whole number from 0 to 2^53. */
static bool read_whole(const cJSON *item, uint64_t *out)
{
    if (!cJSON_IsNumber(item)) return false;
    double value = item->valuedouble;
    if (!(value >= 0 && value <= 0x1p53) || value != floor(value)) return false;
    *out = (uint64_t)value;
    return true;
}

static qp_status read_type(const shard *shard, const cJSON *item, stored_tensor *out,
                           uint64_t *element_bytes, qp_error *error)
{
    const cJSON *type = json_get(item, "dtype");
    if (!cJSON_IsString(type))
        return safetensors_refuse(shard, item->string, error,
                                  "\"dtype\" must be a string, found %s", json_type_name(type));
    out->type = dtype_from_safetensors(type->valuestring);
    if (out->type != DTYPE_COUNT) {
        out->type_name = dtype_name(out->type);
        *element_bytes = dtype_block_bytes(out->type);
        return QP_OK;
    }
    for (size_t i = 0; i < sizeof foreign_types / sizeof *foreign_types; i++) {
        if (strcmp(foreign_types[i].name, type->valuestring) != 0) continue;
        out->type_name = foreign_types[i].name;
        *element_bytes = foreign_types[i].bytes;
        return QP_OK;
    }
    out->type_name = "unknown";
    *element_bytes = 0; /* any span is possible */
    return QP_OK;
}

/* A scalar (no dimensions) becomes a vector of one. */
static qp_status read_shape(const shard *shard, const cJSON *item, stored_tensor *out,
                            uint64_t *elements, qp_error *error)
{
    const cJSON *shape = json_get(item, "shape");
    if (!cJSON_IsArray(shape))
        return safetensors_refuse(shard, item->string, error,
                                  "\"shape\" must be an array, found %s", json_type_name(shape));
    *elements = 1;
    out->rank = 0;
    for (const cJSON *n = shape->child; n; n = n->next) {
        uint64_t size;
        if (out->rank == TENSOR_MAX_RANK)
            return safetensors_refuse(shard, item->string, error,
                                      "expected at most %d dimensions, found more",
                                      TENSOR_MAX_RANK);
        if (!read_whole(n, &size))
            return safetensors_refuse(
                shard, item->string, error,
                "dimension %d of \"shape\" must be a whole number of 0 or more", out->rank);
        if (__builtin_mul_overflow(*elements, size, elements) || *elements > INT64_MAX)
            return safetensors_refuse(shard, item->string, error,
                                      "the product of its dimensions does not fit in 64 bits");
        out->shape[out->rank++] = (int64_t)size;
    }
    if (out->rank == 0) out->shape[out->rank++] = 1;
    return QP_OK;
}

static qp_status read_span(const shard *shard, const cJSON *item, stored_tensor *out,
                           qp_error *error)
{
    const cJSON *offsets = json_get(item, "data_offsets");
    const cJSON *first = cJSON_IsArray(offsets) ? offsets->child : NULL;
    uint64_t begin, end, available = shard->size - shard->data_start;
    if (!first || !first->next || first->next->next || !read_whole(first, &begin) ||
        !read_whole(first->next, &end) || end < begin)
        return safetensors_refuse(
            shard, item->string, error,
            "\"data_offsets\" must be two whole numbers, the second not smaller");
    if (end > available)
        return safetensors_refuse(
            shard, item->string, error,
            "its data ends at byte %llu of the data, but the file holds %llu: the file "
            "is cut off or damaged",
            (unsigned long long)end, (unsigned long long)available);
    out->offset = shard->data_start + begin;
    out->bytes = end - begin;
    out->data = shard->data + out->offset;
    return QP_OK;
}

static qp_status read_tensor(const shard *shard, const cJSON *item, stored_tensor *out,
                             qp_error *error)
{
    uint64_t element_bytes = 0, elements = 0, expected;
    if (!cJSON_IsObject(item))
        return safetensors_refuse(shard, item->string, error, "expected an object, found %s",
                                  json_type_name(item));
    TRY(read_type(shard, item, out, &element_bytes, error));
    TRY(read_shape(shard, item, out, &elements, error));
    TRY(read_span(shard, item, out, error));
    if (element_bytes == 0) return QP_OK;
    if (__builtin_mul_overflow(elements, element_bytes, &expected))
        return safetensors_refuse(shard, item->string, error,
                                  "its size in bytes does not fit in 64 bits");
    if (expected != out->bytes)
        return safetensors_refuse(shard, item->string, error,
                                  "%llu elements of %s take %llu bytes, but \"data_offsets\" span "
                                  "%llu",
                                  (unsigned long long)elements, out->type_name,
                                  (unsigned long long)expected, (unsigned long long)out->bytes);
    return QP_OK;
}

/* Appends an entry to the list of tensors; entries move when it grows, names do not. */
static stored_tensor *new_tensor(safetensors *file, const char *name, int part, qp_error *error)
{
    if (file->n_tensors == file->capacity) {
        size_t wanted = file->capacity ? 2 * file->capacity : 256;
        stored_tensor *grown = realloc(file->tensors, wanted * sizeof *grown);
        if (!grown) {
            error_no_memory(error, "the tensor list of a model", wanted * sizeof *grown);
            return NULL;
        }
        file->tensors = grown;
        file->capacity = wanted;
    }
    char *copy = arena_strdup(&file->memory, name);
    if (!copy) {
        error_no_memory(error, "a tensor's name", strlen(name) + 1);
        return NULL;
    }
    stored_tensor *stored = &file->tensors[file->n_tensors++];
    *stored = (stored_tensor){.name = slice_of(copy), .part = part};
    return stored;
}

/* The tensors of one parsed header. */
static qp_status read_tensors(safetensors *file, int part, const cJSON *header, qp_error *error)
{
    const shard *shard = &file->shards[part];
    if (!cJSON_IsObject(header))
        return error_set(error, QP_FORMAT, "%s: the header must be a JSON object, found %s",
                         shard->path, json_type_name(header));
    size_t first = file->n_tensors;
    for (const cJSON *item = header->child; item; item = item->next) {
        if (strcmp(item->string, "__metadata__") == 0) continue;
        stored_tensor *stored = new_tensor(file, item->string, part, error);
        if (!stored) return QP_NO_MEMORY;
        TRY(read_tensor(shard, item, stored, error));
    }
    if (first == file->n_tensors) return QP_OK;
    return extents_check(file->tensors + first, file->n_tensors - first, shard->path, error);
}

qp_status safetensors_read_header(safetensors *file, int part, qp_error *error)
{
    shard *shard = &file->shards[part];
    uint64_t length;
    if (shard->size < PREFIX_BYTES)
        return error_set(error, QP_FORMAT,
                         "%s: not a safetensors file: expected at least %d bytes, found %zu",
                         shard->path, PREFIX_BYTES, shard->size);
    memcpy(&length, shard->data, sizeof length);
    if (length > header_limit || length > shard->size - PREFIX_BYTES)
        return error_set(error, QP_FORMAT,
                         "%s: the header's length must be at most %llu bytes, found %llu: not a "
                         "safetensors file, or one cut off",
                         shard->path,
                         length > header_limit ? (unsigned long long)header_limit
                                               : (unsigned long long)shard->size - PREFIX_BYTES,
                         (unsigned long long)length);
    shard->data_start = PREFIX_BYTES + length;
    cJSON *header = NULL;
    TRY(json_parse_all((const char *)shard->data + PREFIX_BYTES, (size_t)length, shard->path,
                       &header, error));
    qp_status status = read_tensors(file, part, header, error);
    cJSON_Delete(header);
    return status;
}
