/* Writes GGUF files: see gguf_write.h.
 *
 * Keys and tensor entries are collected in two buffers as the bytes that the file will hold.
 * gguf_writer_begin() then writes a header and those buffers.
 */
#include "file/gguf_write.h"

#include "base/checked.h"
#include "base/names.h"
#include "base/replace_file.h"
#include "base/strbuf.h"
#include "file/gguf_part.h"

#include <errno.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { GGUF_VERSION = 3, MAX_ALIGNMENT = 65536 };

struct gguf_writer {
    char *path;
    file_replacement file; /* its stream: NULL before begin and after finish */
    uint32_t alignment;
    strbuf keys;       /* as stored */
    strbuf infos;      /* as stored */
    name_entry *names; /* [n_keys + n_tensors], copies in memory, to find duplicates */
    size_t n_names, names_capacity;
    uint64_t n_keys, n_tensors;
    uint64_t *ends; /* [n_tensors], offset in the data section of each tensor's end */
    size_t ends_capacity;
    uint64_t data_bytes; /* of the data section so far, padding included */
    size_t current;      /* index of the tensor that the next byte belongs to */
    arena memory;
    qp_error failure; /* the first mistake of a gguf_put_* */
};

qp_status gguf_writer_create(const char *path, uint32_t alignment, gguf_writer **out,
                             qp_error *error)
{
    if (alignment && (alignment < GGUF_MIN_ALIGNMENT || alignment > MAX_ALIGNMENT ||
                      (alignment & (alignment - 1))))
        return error_set(error, QP_INVALID,
                         "%s: the alignment must be a power of two from %d to %d, found %u", path,
                         GGUF_MIN_ALIGNMENT, MAX_ALIGNMENT, alignment);
    gguf_writer *writer = calloc(1, sizeof *writer);
    if (writer) writer->path = strdup(path);
    if (!writer || !writer->path) {
        free(writer);
        return error_no_memory(error, "a GGUF writer", sizeof *writer);
    }
    writer->alignment = alignment ? alignment : GGUF_DEFAULT_ALIGNMENT;
    if (alignment) gguf_put_u32(writer, "general.alignment", alignment);
    *out = writer;
    return QP_OK;
}

static void fail(gguf_writer *writer, qp_status status, const char *what, text_slice name)
{
    if (writer->failure.status != QP_OK) return;
    char quoted[SLICE_QUOTE_SIZE];
    error_set(&writer->failure, status, "%s: \"%s\": %s", writer->path, slice_quote(name, quoted),
              what);
}

/* `array` with room for one more element of `size` bytes; NULL, and the old one intact, when memory
 * is out. */
static void *grow(void *array, size_t count, size_t *capacity, size_t size)
{
    if (count < *capacity) return array;
    size_t wanted = *capacity ? 2 * *capacity : 64;
    void *grown = realloc(array, wanted * size);
    if (grown) *capacity = wanted;
    return grown;
}

/* Remembers a name with '=' (key) or ':' (tensor) before it, for the search for duplicates. */
static void remember(gguf_writer *writer, char kind, text_slice name)
{
    size_t limit = kind == '=' ? GGUF_MAX_KEY_LENGTH : GGUF_MAX_TENSOR_NAME_LENGTH;
    if (name.length == 0 || name.length > limit)
        fail(writer, QP_INVALID, "the name is empty or too long", name);
    char *copy = arena_alloc(&writer->memory, name.length + 1, 1);
    name_entry *names =
        grow(writer->names, writer->n_names, &writer->names_capacity, sizeof *names);
    if (names) writer->names = names;
    if (!copy || !names) {
        fail(writer, QP_NO_MEMORY, "out of memory", name);
        return;
    }
    copy[0] = kind;
    memcpy(copy + 1, name.data, name.length);
    writer->names[writer->n_names] = (name_entry){{copy, name.length + 1}, writer->n_names};
    writer->n_names++;
}

static void append_u32(strbuf *buf, uint32_t value)
{
    strbuf_append(buf, &value, sizeof value);
}

static void append_u64(strbuf *buf, uint64_t value)
{
    strbuf_append(buf, &value, sizeof value);
}

static void append_string(strbuf *buf, text_slice text)
{
    append_u64(buf, text.length);
    strbuf_append(buf, text.data, text.length);
}

/* Appends a key's name and type; its value follows. */
static strbuf *begin_key(gguf_writer *writer, text_slice key, gguf_type type)
{
    remember(writer, '=', key);
    writer->n_keys++;
    append_string(&writer->keys, key);
    append_u32(&writer->keys, (uint32_t)type);
    return &writer->keys;
}

void gguf_put_scalar(gguf_writer *writer, const char *key, gguf_type type, const void *value)
{
    strbuf_append(begin_key(writer, slice_of(key), type), value, gguf_type_bytes(type));
}

void gguf_put_u16(gguf_writer *writer, const char *key, uint16_t value)
{
    gguf_put_scalar(writer, key, GGUF_U16, &value);
}

void gguf_put_u32(gguf_writer *writer, const char *key, uint32_t value)
{
    gguf_put_scalar(writer, key, GGUF_U32, &value);
}

void gguf_put_i32(gguf_writer *writer, const char *key, int32_t value)
{
    gguf_put_scalar(writer, key, GGUF_I32, &value);
}

void gguf_put_u64(gguf_writer *writer, const char *key, uint64_t value)
{
    gguf_put_scalar(writer, key, GGUF_U64, &value);
}

void gguf_put_f32(gguf_writer *writer, const char *key, float value)
{
    gguf_put_scalar(writer, key, GGUF_F32, &value);
}

void gguf_put_bool(gguf_writer *writer, const char *key, bool value)
{
    gguf_put_scalar(writer, key, GGUF_BOOL, &(uint8_t){value});
}

void gguf_put_string(gguf_writer *writer, const char *key, text_slice value)
{
    append_string(begin_key(writer, slice_of(key), GGUF_STRING), value);
}

static strbuf *begin_array(gguf_writer *writer, text_slice key, gguf_type element_type,
                           uint64_t count)
{
    strbuf *keys = begin_key(writer, key, GGUF_ARRAY);
    append_u32(keys, (uint32_t)element_type);
    append_u64(keys, count);
    return keys;
}

void gguf_put_strings(gguf_writer *writer, const char *key, const text_slice *values, size_t count)
{
    strbuf *keys = begin_array(writer, slice_of(key), GGUF_STRING, count);
    for (size_t i = 0; i < count; i++)
        append_string(keys, values[i]);
}

void gguf_put_array(gguf_writer *writer, const char *key, gguf_type element_type,
                    const void *values, size_t count)
{
    strbuf *keys = begin_array(writer, slice_of(key), element_type, count);
    strbuf_append(keys, values, count * gguf_type_bytes(element_type));
}

void gguf_put_value(gguf_writer *writer, const gguf_value *value)
{
    gguf_type type = value->element_type;
    strbuf *keys = value->type == GGUF_ARRAY ? begin_array(writer, value->key, type, value->count)
                                             : begin_key(writer, value->key, type);
    size_t bytes = (size_t)value->count * gguf_type_bytes(type);
    if (type == GGUF_STRING) {
        for (uint64_t i = 0; i < value->count; i++)
            bytes += sizeof(uint64_t) + gguf_stored_string(value->data + bytes).length;
    }
    strbuf_append(keys, value->data, bytes);
}

/* Bytes of a tensor, or false when a file cannot hold the shape. */
static bool tensor_size(dtype type, int rank, const int64_t *shape, uint64_t *bytes)
{
    if (rank < 1 || rank > GGUF_MAX_RANK || dtype_gguf_id(type) < 0) return false;
    int64_t block = dtype_block_elements(type);
    uint64_t blocks = 1;
    for (int d = 0; d < rank; d++) {
        int64_t n = shape[d];
        if (d == rank - 1) n = n % block == 0 ? n / block : 0;
        if (n < 1 || __builtin_mul_overflow(blocks, (uint64_t)n, &blocks)) return false;
    }
    return !__builtin_mul_overflow(blocks, dtype_block_bytes(type), bytes) &&
           *bytes < INT64_MAX / 2;
}

void gguf_put_tensor(gguf_writer *writer, text_slice name, dtype type, int rank,
                     const int64_t *shape)
{
    uint64_t bytes = 0;
    if (!tensor_size(type, rank, shape, &bytes)) {
        fail(writer, QP_INVALID, "a tensor of this shape cannot be stored", name);
        return;
    }
    remember(writer, ':', name);
    uint64_t *ends = grow(writer->ends, writer->n_tensors, &writer->ends_capacity, sizeof *ends);
    if (!ends) {
        fail(writer, QP_NO_MEMORY, "out of memory", name);
        return;
    }
    writer->ends = ends;
    uint64_t offset = writer->n_tensors ? writer->ends[writer->n_tensors - 1] : 0;
    offset = round_up(offset, writer->alignment);
    writer->ends[writer->n_tensors++] = offset + bytes;
    append_string(&writer->infos, name);
    append_u32(&writer->infos, (uint32_t)rank);
    for (int d = rank - 1; d >= 0; d--)
        append_u64(&writer->infos, (uint64_t)shape[d]);
    append_u32(&writer->infos, (uint32_t)dtype_gguf_id(type));
    append_u64(&writer->infos, offset);
}

/* Reports a name that was given twice and the first error of a gguf_put_* call. */
static qp_status check_contents(gguf_writer *writer, qp_error *error)
{
    if (writer->keys.failed || writer->infos.failed)
        return error_no_memory(error, "the keys of a GGUF file",
                               writer->keys.length + writer->infos.length);
    name_index index = name_index_build(writer->names, writer->n_names);
    const name_entry *twice = name_index_duplicate(&index);
    if (twice)
        fail(writer, QP_INVALID, "the name is given twice",
             (text_slice){twice->name.data + 1, twice->name.length - 1});
    if (writer->failure.status == QP_OK) return QP_OK;
    return error_set(error, writer->failure.status, "%s", writer->failure.message);
}

static qp_status write_failed(gguf_writer *writer, qp_error *error)
{
    int reason = errno;
    file_replacement_drop(&writer->file);
    return error_set(error, QP_IO, "%s: cannot write: %s; no file remains", writer->path,
                     strerror(reason));
}

static bool write_bytes(gguf_writer *writer, const void *bytes, size_t count)
{
    return count == 0 || fwrite(bytes, 1, count, writer->file.stream) == count;
}

static bool write_zeros(gguf_writer *writer, uint64_t count)
{
    static const char zeros[4096];
    for (uint64_t n; count > 0; count -= n) {
        n = count < sizeof zeros ? count : sizeof zeros;
        if (!write_bytes(writer, zeros, (size_t)n)) return false;
    }
    return true;
}

static bool write_head(gguf_writer *writer)
{
    const uint32_t version = GGUF_VERSION;
    const uint64_t counts[2] = {writer->n_tensors, writer->n_keys};
    uint64_t bytes =
        4 + sizeof version + sizeof counts + writer->keys.length + writer->infos.length;
    return write_bytes(writer, "GGUF", 4) && write_bytes(writer, &version, sizeof version) &&
           write_bytes(writer, counts, sizeof counts) &&
           write_bytes(writer, writer->keys.data, writer->keys.length) &&
           write_bytes(writer, writer->infos.data, writer->infos.length) &&
           write_zeros(writer, round_up(bytes, writer->alignment) - bytes);
}

/* Whether a file that may be one of a killed process begins as this writer's files do. */
static bool begins_as_gguf(int folder, const char *name)
{
    char magic[4];
    const int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    const ssize_t n = fd >= 0 ? read(fd, magic, sizeof magic) : -1;
    if (fd >= 0) close(fd);
    return n == 0 || (n == 4 && memcmp(magic, "GGUF", 4) == 0);
}

/* Removes what writers left in the folder that were killed. */
static void remove_left(const char *path)
{
    const char *slash = strrchr(path, '/');
    const int length = slash ? (int)(slash - path) + 1 : 2;
    char folder[2048], name[4096];
    if (snprintf(folder, sizeof folder, "%.*s", length, slash ? path : "./") >= (int)sizeof folder)
        return;
    DIR *all = opendir(folder);
    for (struct dirent *entry; all && (entry = readdir(all));) {
        if (!name_ends_with(entry->d_name, ".gguf.new") ||
            !begins_as_gguf(dirfd(all), entry->d_name))
            continue;
        snprintf(name, sizeof name, "%s%s", folder, entry->d_name);
        file_replacement_remove_left(name);
    }
    if (all) closedir(all);
}

/* Fails before anything is written if the disk has not enough room. Other programs may still take
 * the room, and file systems that do not report free space are not checked. */
static qp_status check_room(const gguf_writer *writer, qp_error *error)
{
    struct statvfs disk;
    if (fstatvfs(fileno(writer->file.stream), &disk) != 0 || disk.f_blocks == 0) return QP_OK;
    uint64_t data = writer->n_tensors ? writer->ends[writer->n_tensors - 1] : 0;
    uint64_t needed = data + writer->keys.length + writer->infos.length;
    uint64_t room = (uint64_t)disk.f_bavail * disk.f_frsize;
    if (needed <= room) return QP_OK;
    return error_set(error, QP_IO, "%s: the file takes %.2f GB, but only %.2f GB are free there",
                     writer->path, (double)needed * 1e-9, (double)room * 1e-9);
}

qp_status gguf_writer_begin(gguf_writer *writer, qp_error *error)
{
    TRY(check_contents(writer, error));
    remove_left(writer->path);
    TRY(file_replacement_begin(writer->path, 0666, &writer->file, error));
    TRY(check_room(writer, error));
    return write_head(writer) ? QP_OK : write_failed(writer, error);
}

static qp_status not_begun(const gguf_writer *writer, qp_error *error)
{
    return error_set(error, QP_INVALID, "%s: no file is being written", writer->path);
}

/* Pads to the next tensor when the current one is complete and another follows. */
static bool enter_tensor(gguf_writer *writer)
{
    uint64_t end = writer->ends[writer->current];
    if (writer->data_bytes < end || writer->current + 1 == writer->n_tensors) return true;
    writer->data_bytes = round_up(end, writer->alignment);
    writer->current++;
    return write_zeros(writer, writer->data_bytes - end);
}

qp_status gguf_writer_data(gguf_writer *writer, const void *bytes, size_t count, qp_error *error)
{
    if (!writer->file.stream) return not_begun(writer, error);
    if (count == 0) return QP_OK;
    if (writer->n_tensors > 0 && !enter_tensor(writer)) return write_failed(writer, error);
    uint64_t missing =
        writer->n_tensors > 0 ? writer->ends[writer->current] - writer->data_bytes : 0;
    if (count > missing)
        return error_set(error, QP_INVALID,
                         "%s: expected at most %llu more bytes of tensor %zu of %llu, found %zu",
                         writer->path, (unsigned long long)missing, writer->current + 1,
                         (unsigned long long)writer->n_tensors, count);
    if (!write_bytes(writer, bytes, count)) return write_failed(writer, error);
    writer->data_bytes += count;
    return QP_OK;
}

/* The last tensor is padded too: readers that map whole aligned spans expect it. */
static bool finish_data(gguf_writer *writer)
{
    uint64_t padded = round_up(writer->data_bytes, writer->alignment);
    return write_zeros(writer, padded - writer->data_bytes) && fflush(writer->file.stream) == 0;
}

qp_status gguf_writer_finish(gguf_writer *writer, qp_error *error)
{
    if (!writer->file.stream) return not_begun(writer, error);
    uint64_t expected = writer->n_tensors ? writer->ends[writer->n_tensors - 1] : 0;
    if (writer->data_bytes != expected)
        return error_set(error, QP_INVALID,
                         "%s: the tensors' data is incomplete: expected %llu bytes, found %llu",
                         writer->path, (unsigned long long)expected,
                         (unsigned long long)writer->data_bytes);
    if (!finish_data(writer)) return write_failed(writer, error);
    if (file_replacement_end(&writer->file, error) == QP_OK) return QP_OK;
    file_replacement_drop(&writer->file);
    return QP_IO;
}

void gguf_writer_destroy(gguf_writer *writer)
{
    if (!writer) return;
    file_replacement_drop(&writer->file);
    free(writer->path);
    free(writer->names);
    free(writer->ends);
    strbuf_free(&writer->keys);
    strbuf_free(&writer->infos);
    arena_free(&writer->memory);
    free(writer);
}
