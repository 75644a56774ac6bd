/* Parses one GGUF file: header, keys, tensor list, in one pass over the bytes.
 *
 * The file is untrusted. A cursor refuses to step past the end and remembers the key or tensor that
 * is being read, so that every message names it. Tables are allocated only after the file has been
 * found long enough for the number of entries that it promises.
 */
#include "file/gguf_part.h"

#include "base/checked.h"

#include <stdio.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are read as they are stored");

enum {
    MIN_KEY_BYTES = 8 + 1 + 4 + 1,
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8,
};

typedef struct cursor {
    gguf_part *part;
    size_t at;
    const char *noun; /* "key", "tensor": what is being read */
    text_slice name;  /* its name, once known */
    size_t number;    /* its number in the file, used until the name is known */
    qp_error *error;
} cursor;

static const struct {
    const char *name;
    size_t bytes;
} value_types[GGUF_TYPE_COUNT] = {
    [GGUF_U8] = {"u8", 1},       [GGUF_I8] = {"i8", 1},     [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},     [GGUF_U32] = {"u32", 4},   [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},     [GGUF_BOOL] = {"bool", 1}, [GGUF_STRING] = {"string", 0},
    [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8},   [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

/* ggml's names of the tensor types that are not in dtype.def, for messages and listings. */
static const struct {
    uint32_t id;
    const char *name;
} foreign_types[] = {{24, "I8"}, {25, "I16"}, {41, "Q1_0"}};

const char *gguf_type_name(gguf_type type)
{
    return (unsigned)type < GGUF_TYPE_COUNT ? value_types[type].name : "unknown";
}

size_t gguf_type_bytes(gguf_type type)
{
    return value_types[type].bytes;
}

text_slice gguf_stored_string(const uint8_t *p)
{
    uint64_t length;
    memcpy(&length, p, sizeof length);
    return (text_slice){(const char *)p + sizeof length, (size_t)length};
}

static const char *foreign_type_name(uint32_t id)
{
    for (size_t i = 0; i < sizeof foreign_types / sizeof *foreign_types; i++) {
        if (foreign_types[i].id == id) return foreign_types[i].name;
    }
    return "unknown";
}

/* Describes what the cursor reads: key "general.name", or "key 3" before its name is known. */
static const char *subject(const cursor *c, char text[SLICE_QUOTE_SIZE + 32])
{
    char quoted[SLICE_QUOTE_SIZE];
    if (c->name.data)
        snprintf(text, SLICE_QUOTE_SIZE + 32, "%s \"%s\"", c->noun, slice_quote(c->name, quoted));
    else
        snprintf(text, SLICE_QUOTE_SIZE + 32, "%s %zu", c->noun, c->number);
    return text;
}

/* error_set() with the file and the key or tensor in front. */
#define REFUSE(c, status, format, ...)                                                             \
    error_set((c)->error, status, "%s: %s: " format, (c)->part->path,                              \
              subject(c, (char[SLICE_QUOTE_SIZE + 32]){0}), __VA_ARGS__)

static uint64_t remaining(const cursor *c)
{
    return c->part->size - c->at;
}

/* Whether `bytes` more bytes exist; sets the error if not. */
static qp_status need(const cursor *c, uint64_t bytes)
{
    if (bytes <= remaining(c)) return QP_OK;
    return REFUSE(c, QP_FORMAT,
                  "the file is cut off or damaged: expected %llu bytes at offset %zu, found %llu",
                  (unsigned long long)bytes, c->at, (unsigned long long)remaining(c));
}

static qp_status read_bytes(cursor *c, void *out, size_t bytes)
{
    TRY(need(c, bytes));
    memcpy(out, c->part->data + c->at, bytes);
    c->at += bytes;
    return QP_OK;
}

/* Steps over a string; *out points into the file. */
static qp_status read_string(cursor *c, text_slice *out)
{
    uint64_t length;
    TRY(read_bytes(c, &length, sizeof length));
    TRY(need(c, length));
    *out = (text_slice){(const char *)c->part->data + c->at, (size_t)length};
    c->at += (size_t)length;
    return QP_OK;
}

static qp_status read_name(cursor *c, size_t limit, text_slice *out)
{
    text_slice name;
    TRY(read_string(c, &name));
    if (name.length == 0 || name.length > limit)
        return REFUSE(c, QP_FORMAT, "the name's length must be 1 to %zu bytes, found %zu", limit,
                      name.length);
    *out = c->name = name;
    return QP_OK;
}

static qp_status read_type(cursor *c, gguf_type *out)
{
    uint32_t type;
    TRY(read_bytes(c, &type, sizeof type));
    if (type >= GGUF_TYPE_COUNT)
        return REFUSE(c, QP_FORMAT, "expected a value type from 0 to %d, found %u",
                      GGUF_TYPE_COUNT - 1, type);
    *out = (gguf_type)type;
    return QP_OK;
}

/* Steps over `count` values of a type, checking each against the file's end. */
static qp_status skip_values(cursor *c, gguf_type type, uint64_t count)
{
    if (type == GGUF_STRING) {
        if (count > remaining(c) / 8)
            return need(c, count > UINT64_MAX / 8 ? UINT64_MAX : count * 8);
        text_slice ignored;
        for (uint64_t i = 0; i < count; i++)
            TRY(read_string(c, &ignored));
        return QP_OK;
    }
    size_t bytes = gguf_type_bytes(type);
    if (count > remaining(c) / bytes)
        return need(c, count > UINT64_MAX / bytes ? UINT64_MAX : count * bytes);
    c->at += (size_t)count * bytes;
    return QP_OK;
}

static qp_status read_key(cursor *c, gguf_value *value)
{
    TRY(read_name(c, GGUF_MAX_KEY_LENGTH, &value->key));
    TRY(read_type(c, &value->type));
    value->element_type = value->type;
    value->count = 1;
    if (value->type == GGUF_ARRAY) {
        TRY(read_type(c, &value->element_type));
        if (value->element_type == GGUF_ARRAY)
            return REFUSE(c, QP_UNSUPPORTED, "%s", "arrays of arrays are not supported");
        TRY(read_bytes(c, &value->count, sizeof value->count));
    }
    value->data = c->part->data + c->at;
    return skip_values(c, value->element_type, value->count);
}

static qp_status read_keys(cursor *c, arena *memory)
{
    gguf_part *part = c->part;
    part->keys = arena_alloc(memory, part->n_keys, sizeof *part->keys);
    name_entry *entries = arena_alloc(memory, part->n_keys, sizeof *entries);
    if (!part->keys || !entries)
        return error_no_memory(c->error, "the keys of a GGUF file", part->n_keys);
    c->noun = "key";
    for (size_t i = 0; i < part->n_keys; i++) {
        c->number = i;
        c->name = (text_slice){0};
        TRY(read_key(c, &part->keys[i]));
        entries[i] = (name_entry){part->keys[i].key, i};
    }
    part->key_index = name_index_build(entries, part->n_keys);
    const name_entry *twice = name_index_duplicate(&part->key_index);
    if (!twice) return QP_OK;
    c->name = twice->name;
    return REFUSE(c, QP_FORMAT, "%s", "the key occurs twice");
}

/* The dimensions as stored, innermost first, into shape, outermost first; *elements is their
 * product. */
static qp_status read_shape(cursor *c, stored_tensor *out, uint64_t *elements)
{
    uint32_t rank;
    TRY(read_bytes(c, &rank, sizeof rank));
    if (rank < 1 || rank > GGUF_MAX_RANK)
        return REFUSE(c, QP_FORMAT, "expected 1 to %d dimensions, found %u", GGUF_MAX_RANK, rank);
    out->rank = (int)rank;
    *elements = 1;
    for (int d = out->rank - 1; d >= 0; d--) {
        uint64_t n;
        TRY(read_bytes(c, &n, sizeof n));
        if (n < 1 || n > INT64_MAX)
            return REFUSE(c, QP_FORMAT, "dimension %d must be 1 or more, found %lld",
                          out->rank - 1 - d, (long long)n);
        if (__builtin_mul_overflow(*elements, n, elements) || *elements > INT64_MAX)
            return REFUSE(c, QP_FORMAT, "the product of its %u dimensions does not fit in 64 bits",
                          rank);
        out->shape[d] = (int64_t)n;
    }
    return QP_OK;
}

/* Reads the type and, where the type is known, the bytes that `elements` of it take. */
static qp_status read_element_type(cursor *c, stored_tensor *out, uint64_t elements)
{
    TRY(read_bytes(c, &out->type_id, sizeof out->type_id));
    out->type = dtype_from_gguf(out->type_id);
    if (out->type == DTYPE_COUNT) {
        out->type_name = foreign_type_name(out->type_id);
        return QP_OK;
    }
    out->type_name = dtype_name(out->type);
    uint64_t block = (uint64_t)dtype_block_elements(out->type);
    int64_t row = out->shape[out->rank - 1];
    if ((uint64_t)row % block != 0)
        return REFUSE(c, QP_FORMAT, "rows of %s must be a multiple of %llu elements, found %lld",
                      out->type_name, (unsigned long long)block, (long long)row);
    if (__builtin_mul_overflow(elements / block, dtype_block_bytes(out->type), &out->bytes))
        return REFUSE(c, QP_FORMAT, "its size in bytes does not fit in 64 bits%s", "");
    return QP_OK;
}

static qp_status read_tensor(cursor *c, stored_tensor *out)
{
    uint64_t elements = 0;
    TRY(read_name(c, GGUF_MAX_TENSOR_NAME_LENGTH, &out->name));
    TRY(read_shape(c, out, &elements));
    TRY(read_element_type(c, out, elements));
    out->part = c->part->number;
    return read_bytes(c, &out->offset, sizeof out->offset);
}

/* Converts offsets into the data section to offsets into the file, and sets the data pointers. */
static qp_status place_tensors(cursor *c)
{
    gguf_part *part = c->part;
    uint64_t start = (c->at + part->alignment - 1) & ~(part->alignment - 1);
    uint64_t available = start <= part->size ? part->size - start : 0;
    for (size_t i = 0; i < part->n_tensors; i++) {
        stored_tensor *stored = &part->tensors[i];
        c->name = stored->name;
        if (stored->offset % part->alignment != 0)
            return REFUSE(c, QP_FORMAT, "its offset must be a multiple of %llu, found %llu",
                          (unsigned long long)part->alignment, (unsigned long long)stored->offset);
        if (start > part->size || !range_inside(stored->offset, stored->bytes, available))
            return REFUSE(c, QP_FORMAT,
                          "the file is cut off or damaged: expected %llu bytes at offset %llu of "
                          "the data, found %llu bytes of data in all",
                          (unsigned long long)stored->bytes, (unsigned long long)stored->offset,
                          (unsigned long long)available);
        stored->offset += start;
        stored->data = part->data + stored->offset;
    }
    return QP_OK;
}

static qp_status read_tensors(cursor *c, arena *memory)
{
    gguf_part *part = c->part;
    part->tensors = arena_alloc(memory, part->n_tensors, sizeof *part->tensors);
    if (!part->tensors)
        return error_no_memory(c->error, "the tensor list of a GGUF file", part->n_tensors);
    c->noun = "tensor";
    for (size_t i = 0; i < part->n_tensors; i++) {
        c->number = i;
        c->name = (text_slice){0};
        TRY(read_tensor(c, &part->tensors[i]));
    }
    return place_tensors(c);
}

/* Reads a count of things that take at least `least` bytes each; they must fit into the rest of the
 * file. */
static qp_status read_count(cursor *c, const char *what, size_t *out)
{
    uint64_t count;
    c->name = slice_of(what);
    TRY(read_bytes(c, &count, sizeof count));
    if (count > c->part->size)
        return error_set(c->error, QP_FORMAT,
                         "%s: the header promises %llu %s, more than the file's %zu bytes can hold",
                         c->part->path, (unsigned long long)count, what, c->part->size);
    *out = (size_t)count;
    return QP_OK;
}

static qp_status check_version(cursor *c)
{
    gguf_part *part = c->part;
    c->name = slice_of("version");
    TRY(read_bytes(c, &part->version, sizeof part->version));
    if (part->version == 2 || part->version == 3) return QP_OK;
    if ((part->version & 0xffff) == 0 && part->version != 0)
        return error_set(c->error, QP_UNSUPPORTED,
                         "%s: this is a big-endian GGUF file; expected little-endian: convert it "
                         "again for this machine",
                         part->path);
    return error_set(c->error, QP_UNSUPPORTED,
                     "%s: expected GGUF version 2 or 3, found %u: convert it again with a newer "
                     "converter",
                     part->path, part->version);
}

static qp_status read_header(cursor *c)
{
    gguf_part *part = c->part;
    if (part->size < 4 || memcmp(part->data, "GGUF", 4) != 0)
        return error_set(c->error, QP_FORMAT,
                         "%s: not a GGUF file: expected it to begin with \"GGUF\"", part->path);
    c->at = 4;
    c->noun = "header";
    TRY(check_version(c));
    TRY(read_count(c, "tensors", &part->n_tensors));
    TRY(read_count(c, "keys", &part->n_keys));
    size_t keys, tensors, both;
    if (checked_mul(part->n_keys, MIN_KEY_BYTES, &keys) &&
        checked_mul(part->n_tensors, MIN_TENSOR_BYTES, &tensors) &&
        checked_add(keys, tensors, &both) && both <= remaining(c))
        return QP_OK;
    return error_set(c->error, QP_FORMAT,
                     "%s: the header promises %zu keys and %zu tensors, which do not fit into the "
                     "%llu bytes that follow",
                     part->path, part->n_keys, part->n_tensors, (unsigned long long)remaining(c));
}

static qp_status read_alignment(cursor *c)
{
    gguf_part *part = c->part;
    int64_t alignment = GGUF_DEFAULT_ALIGNMENT;
    TRY(gguf_part_i64(part, "general.alignment", &alignment, c->error));
    if (alignment < GGUF_MIN_ALIGNMENT || alignment > UINT32_MAX ||
        (alignment & (alignment - 1)) != 0)
        return error_set(c->error, QP_FORMAT,
                         "%s: key \"general.alignment\" must be a power of two of %d or more, "
                         "found %lld",
                         part->path, GGUF_MIN_ALIGNMENT, (long long)alignment);
    part->alignment = (uint64_t)alignment;
    return QP_OK;
}

qp_status gguf_part_parse(gguf_part *part, arena *memory, qp_error *error)
{
    cursor c = {.part = part, .error = error};
    TRY(read_header(&c));
    TRY(read_keys(&c, memory));
    TRY(read_alignment(&c));
    return read_tensors(&c, memory);
}

const gguf_value *gguf_part_find(const gguf_part *part, const char *key)
{
    ptrdiff_t i = name_index_find(&part->key_index, slice_of(key));
    return i == NAME_ABSENT ? NULL : &part->keys[i];
}
