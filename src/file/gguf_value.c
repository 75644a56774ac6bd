/* Typed reading of GGUF keys: see gguf.h. */
#include "file/gguf_part.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An integer of any width as (negative, bits): the widest signed and unsigned types in one
 * struct. */
typedef struct wide {
    bool negative;
    uint64_t bits; /* two's complement when negative */
} wide;

static wide wide_signed(int64_t value)
{
    return (wide){value < 0, (uint64_t)value};
}

static bool is_integer(gguf_type type)
{
    return type != GGUF_F32 && type != GGUF_F64 && type != GGUF_BOOL && type != GGUF_STRING &&
           type != GGUF_ARRAY;
}

/* The stored integer at p (which is not aligned). Stored little-endian, as the machine does. */
static wide load_integer(gguf_type type, const uint8_t *p)
{
    uint64_t bits = 0;
    memcpy(&bits, p, gguf_type_bytes(type));
    switch (type) {
    case GGUF_I8:
        return wide_signed((int8_t)bits);
    case GGUF_I16:
        return wide_signed((int16_t)bits);
    case GGUF_I32:
        return wide_signed((int32_t)bits);
    case GGUF_I64:
        return wide_signed((int64_t)bits);
    default:
        return (wide){false, bits};
    }
}

static double load_number(gguf_type type, const uint8_t *p)
{
    if (type == GGUF_F32) {
        float value;
        memcpy(&value, p, sizeof value);
        return (double)value;
    }
    if (type == GGUF_F64) {
        double value;
        memcpy(&value, p, sizeof value);
        return value;
    }
    wide value = load_integer(type, p);
    return value.negative ? (double)(int64_t)value.bits : (double)value.bits;
}

static qp_status wrong_type(const gguf_part *part, const gguf_value *value, const char *expected,
                            qp_error *error)
{
    char key[SLICE_QUOTE_SIZE], found[64];
    if (value->type == GGUF_ARRAY)
        snprintf(found, sizeof found, "an array of %s", gguf_type_name(value->element_type));
    else
        snprintf(found, sizeof found, "a value of type %s", gguf_type_name(value->type));
    return error_set(error, QP_FORMAT, "%s: key \"%s\" must be %s, found %s", part->path,
                     slice_quote(value->key, key), expected, found);
}

static qp_status too_large(const gguf_part *part, const gguf_value *value, uint64_t found,
                           qp_error *error)
{
    char key[SLICE_QUOTE_SIZE];
    return error_set(error, QP_FORMAT, "%s: key \"%s\" must be at most %" PRId64 ", found %" PRIu64,
                     part->path, slice_quote(value->key, key), INT64_MAX, found);
}

qp_status gguf_part_i64(const gguf_part *part, const char *key, int64_t *out, qp_error *error)
{
    const gguf_value *value = gguf_part_find(part, key);
    if (!value) return QP_OK;
    if (!is_integer(value->type)) return wrong_type(part, value, "an integer", error);
    wide found = load_integer(value->type, value->data);
    if (!found.negative && found.bits > INT64_MAX) return too_large(part, value, found.bits, error);
    *out = (int64_t)found.bits;
    return QP_OK;
}

qp_status gguf_get_i64(const gguf *file, const char *key, int64_t *out, qp_error *error)
{
    return gguf_part_i64(&file->parts[0], key, out, error);
}

qp_status gguf_get_double(const gguf *file, const char *key, double *out, qp_error *error)
{
    const gguf_part *part = &file->parts[0];
    const gguf_value *value = gguf_part_find(part, key);
    if (!value) return QP_OK;
    if (!is_integer(value->type) && value->type != GGUF_F32 && value->type != GGUF_F64)
        return wrong_type(part, value, "a number", error);
    *out = load_number(value->type, value->data);
    return QP_OK;
}

qp_status gguf_get_bool(const gguf *file, const char *key, bool *out, qp_error *error)
{
    const gguf_part *part = &file->parts[0];
    const gguf_value *value = gguf_part_find(part, key);
    if (!value) return QP_OK;
    if (value->type != GGUF_BOOL) return wrong_type(part, value, "a boolean", error);
    if (*value->data > 1) {
        char quoted[SLICE_QUOTE_SIZE];
        return error_set(error, QP_FORMAT, "%s: key \"%s\" must be 0 or 1, found %u", part->path,
                         slice_quote(value->key, quoted), *value->data);
    }
    *out = *value->data == 1;
    return QP_OK;
}

qp_status gguf_get_string(const gguf *file, const char *key, text_slice *out, qp_error *error)
{
    const gguf_part *part = &file->parts[0];
    const gguf_value *value = gguf_part_find(part, key);
    if (!value) return QP_OK;
    if (value->type != GGUF_STRING) return wrong_type(part, value, "a string", error);
    *out = gguf_stored_string(value->data);
    return QP_OK;
}

/* Memory for a copy of an array of 8-byte values. */
static void *array_memory(const gguf_value *value, qp_error *error)
{
    size_t count = (size_t)value->count;
    void *memory = calloc(count ? count : 1, 8);
    if (!memory) error_no_memory(error, "a copy of an array of a GGUF file", value->count * 8);
    return memory;
}

qp_status gguf_get_i64_array(const gguf *file, const char *key, int64_t **out, size_t *count,
                             qp_error *error)
{
    const gguf_part *part = &file->parts[0];
    const gguf_value *value = gguf_part_find(part, key);
    if (!value) return QP_OK;
    gguf_type type = value->element_type;
    if (value->type != GGUF_ARRAY || (!is_integer(type) && type != GGUF_BOOL))
        return wrong_type(part, value, "an array of integers", error);
    int64_t *values = array_memory(value, error);
    if (!values) return QP_NO_MEMORY;
    size_t stride = gguf_type_bytes(type);
    for (size_t i = 0; i < value->count; i++) {
        wide found = load_integer(type, value->data + i * stride);
        if (!found.negative && found.bits > INT64_MAX) {
            free(values);
            return too_large(part, value, found.bits, error);
        }
        values[i] = type == GGUF_BOOL ? found.bits != 0 : (int64_t)found.bits;
    }
    *out = values;
    *count = (size_t)value->count;
    return QP_OK;
}

qp_status gguf_get_double_array(const gguf *file, const char *key, double **out, size_t *count,
                                qp_error *error)
{
    const gguf_part *part = &file->parts[0];
    const gguf_value *value = gguf_part_find(part, key);
    if (!value) return QP_OK;
    gguf_type type = value->element_type;
    if (value->type != GGUF_ARRAY || (!is_integer(type) && type != GGUF_F32 && type != GGUF_F64))
        return wrong_type(part, value, "an array of numbers", error);
    double *values = array_memory(value, error);
    if (!values) return QP_NO_MEMORY;
    size_t stride = gguf_type_bytes(type);
    for (size_t i = 0; i < value->count; i++)
        values[i] = load_number(type, value->data + i * stride);
    *out = values;
    *count = (size_t)value->count;
    return QP_OK;
}

/* A slice for every string of the array. */
static const text_slice *build_table(const gguf_value *value, arena *memory, qp_error *error)
{
    text_slice *table = arena_alloc(memory, (size_t)value->count, sizeof *table);
    if (!table) {
        error_no_memory(error, "the table of an array of strings", value->count * sizeof *table);
        return NULL;
    }
    const uint8_t *p = value->data;
    for (size_t i = 0; i < value->count; i++) {
        table[i] = gguf_stored_string(p);
        p += sizeof(uint64_t) + table[i].length;
    }
    return table;
}

qp_status gguf_get_strings(gguf *file, const char *key, const text_slice **out, size_t *count,
                           qp_error *error)
{
    const gguf_part *part = &file->parts[0];
    const gguf_value *value = gguf_part_find(part, key);
    if (!value) return QP_OK;
    if (value->type != GGUF_ARRAY || value->element_type != GGUF_STRING)
        return wrong_type(part, value, "an array of strings", error);
    const text_slice **table = &file->strings[value - part->keys];
    if (!*table) *table = build_table(value, &file->memory, error);
    if (!*table) return QP_NO_MEMORY;
    *out = *table;
    *count = (size_t)value->count;
    return QP_OK;
}

/* One value that is not an array; returns the characters it takes, as snprintf() does. */
static int describe_scalar(gguf_type type, const uint8_t *p, char *text, size_t size)
{
    char quoted[SLICE_QUOTE_SIZE];
    if (type == GGUF_STRING)
        return snprintf(text, size, "\"%s\"", slice_quote(gguf_stored_string(p), quoted));
    if (type == GGUF_BOOL) return snprintf(text, size, "%s", *p ? "true" : "false");
    if (type == GGUF_F32) return snprintf(text, size, "%.7g", load_number(type, p));
    if (type == GGUF_F64) return snprintf(text, size, "%.15g", load_number(type, p));
    wide value = load_integer(type, p);
    if (value.negative) return snprintf(text, size, "%" PRId64, (int64_t)value.bits);
    return snprintf(text, size, "%" PRIu64, value.bits);
}

const char *gguf_value_describe(const gguf_value *value, char *text, size_t size)
{
    enum { SHOWN = 6 };
    gguf_type type = value->element_type;
    if (value->type != GGUF_ARRAY) {
        describe_scalar(type, value->data, text, size);
        return text;
    }
    int used = snprintf(text, size, "%" PRIu64 " x %s:", value->count, gguf_type_name(type));
    const uint8_t *p = value->data;
    for (uint64_t i = 0; i < value->count && used >= 0 && (size_t)used < size; i++) {
        if (i == SHOWN) {
            snprintf(text + used, size - (size_t)used, " ...");
            break;
        }
        used += snprintf(text + used, size - (size_t)used, " ");
        if ((size_t)used >= size) break;
        used += describe_scalar(type, p, text + used, size - (size_t)used);
        p += type == GGUF_STRING ? sizeof(uint64_t) + gguf_stored_string(p).length
                                 : gguf_type_bytes(type);
    }
    return text;
}
