/* The table of pieces on which every tokenizer is built: see vocabulary.h. */
#include "text/vocabulary.h"

#include "file/slice.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

void vocabulary_init(vocabulary *vocabulary, vocabulary_kind kind)
{
    memset(vocabulary, 0, sizeof *vocabulary);
    vocabulary->kind = kind;
    vocabulary->key = hash_key_get();
    vocabulary->unknown_id = -1;
    for (int i = 0; i < 256; i++)
        vocabulary->byte_ids[i] = -1;
}

void vocabulary_free(vocabulary *vocabulary)
{
    strbuf_free(&vocabulary->text);
    free(vocabulary->pieces);
    free(vocabulary->names);
    free(vocabulary->merges);
    memset(vocabulary, 0, sizeof *vocabulary);
}

/* --- Pieces. --- */

static qp_status grow(vocabulary *vocabulary, int32_t count, qp_error *error)
{
    if (count <= vocabulary->capacity) return QP_OK;
    int32_t capacity = vocabulary->capacity < 512 ? 512 : vocabulary->capacity;
    while (capacity < count)
        capacity = capacity > INT32_MAX / 2 ? INT32_MAX : capacity * 2;
    size_t bytes = (size_t)capacity * sizeof *vocabulary->pieces;
    vocabulary_piece *pieces = realloc(vocabulary->pieces, bytes);
    if (!pieces) return error_no_memory(error, "a vocabulary", bytes);
    size_t old = (size_t)vocabulary->capacity;
    memset(pieces + old, 0, ((size_t)capacity - old) * sizeof *pieces);
    vocabulary->pieces = pieces;
    vocabulary->capacity = capacity;
    return QP_OK;
}

qp_status vocabulary_set(vocabulary *vocabulary, int64_t id, int64_t limit, const char *bytes,
                         size_t length, piece_type type, unsigned flags, const char *where,
                         qp_error *error)
{
    if (limit > INT32_MAX - 1) limit = INT32_MAX - 1;
    if (id < 0 || id >= limit)
        return error_set(error, QP_FORMAT,
                         "%s: token id %lld is not in 0 .. %lld, as the number of tokens in the "
                         "file would have it",
                         where, (long long)id, (long long)limit - 1);
    TRY(grow(vocabulary, (int32_t)id + 1, error));
    vocabulary_piece *piece = &vocabulary->pieces[id];
    char quoted[SLICE_QUOTE_SIZE];
    if (piece->type != PIECE_NONE)
        return error_set(error, QP_FORMAT, "%s: token id %lld occurs twice, the second time as %s",
                         where, (long long)id, slice_quote((text_slice){bytes, length}, quoted));
    size_t offset = vocabulary->text.length;
    if (offset > UINT32_MAX - length || length > UINT32_MAX)
        return error_set(error, QP_UNSUPPORTED, "%s: the tokens are longer than 4 GiB", where);
    if (!strbuf_append(&vocabulary->text, bytes, length))
        return error_no_memory(error, "a vocabulary's text", length);
    *piece = (vocabulary_piece){.offset = (uint32_t)offset,
                                .length = (uint32_t)length,
                                .type = (uint8_t)type,
                                .flags = (uint8_t)flags};
    if (id >= vocabulary->count) vocabulary->count = (int32_t)id + 1;
    if (type == PIECE_UNUSED) vocabulary->has_unused = true;
    return QP_OK;
}

/* --- Ids by bytes. --- */

static uint64_t hash_bytes(const vocabulary *vocabulary, const char *bytes, size_t length)
{
    return keyed_hash(vocabulary->key, bytes, length);
}

/* The slot with these bytes, or the empty slot where they belong. */
static uint64_t *find_slot(const vocabulary *vocabulary, const char *bytes, size_t length,
                           uint64_t hash)
{
    size_t at = (hash >> 16) & vocabulary->names_mask;
    for (;; at = (at + 1) & vocabulary->names_mask) {
        uint64_t *slot = &vocabulary->names[at];
        if (*slot == 0) return slot;
        if (*slot >> 32 != hash >> 32) continue;
        int32_t id = (int32_t)(uint32_t)*slot - 1;
        if (vocabulary->pieces[id].length == length &&
            memcmp(vocabulary_bytes(vocabulary, id), bytes, length) == 0)
            return slot;
    }
}

/* A power of two that leaves an open-addressing table at most half full. */
static size_t table_size(size_t count)
{
    size_t size = 16;
    while (size < count * 2)
        size *= 2;
    return size;
}

/* The token of each single byte: byte tokens, and in byte-level vocabularies pieces of length 1. */
static void index_byte(vocabulary *vocabulary, int32_t id)
{
    const vocabulary_piece *piece = &vocabulary->pieces[id];
    if (piece->length != 1) return;
    bool is_byte = vocabulary->kind == VOCABULARY_BYTES ? (piece->flags & PIECE_MODEL) != 0
                                                        : piece->type == PIECE_BYTE;
    int32_t *slot = &vocabulary->byte_ids[(uint8_t)*vocabulary_bytes(vocabulary, id)];
    if (is_byte && *slot < 0) *slot = id;
}

static bool has_space_after_other(const char *bytes, size_t length)
{
    for (size_t i = 1; i < length; i++) {
        if (bytes[i] == ' ' && bytes[i - 1] != ' ') return true;
    }
    return false;
}

qp_status vocabulary_index(vocabulary *vocabulary, qp_error *error)
{
    size_t size = table_size((size_t)vocabulary->count);
    vocabulary->names = calloc(size, sizeof *vocabulary->names);
    if (!vocabulary->names)
        return error_no_memory(error, "a vocabulary's index", size * sizeof *vocabulary->names);
    vocabulary->names_mask = size - 1;
    bool crosses_spaces = false;
    for (int32_t id = 0; id < vocabulary->count; id++) {
        const vocabulary_piece *piece = &vocabulary->pieces[id];
        index_byte(vocabulary, id);
        if (!(piece->flags & PIECE_MODEL) || piece->length == 0) continue;
        const char *bytes = vocabulary_bytes(vocabulary, id);
        uint64_t hash = hash_bytes(vocabulary, bytes, piece->length);
        uint64_t *slot = find_slot(vocabulary, bytes, piece->length, hash);
        if (*slot == 0) *slot = hash >> 32 << 32 | ((uint32_t)id + 1);
        if (piece->length > vocabulary->longest) vocabulary->longest = piece->length;
        crosses_spaces |= has_space_after_other(bytes, piece->length);
    }
    /* An unknown space could be fused with unknown text before it. */
    vocabulary->splits_at_spaces = !crosses_spaces && vocabulary_find(vocabulary, " ", 1) >= 0;
    return QP_OK;
}

int32_t vocabulary_find(const vocabulary *vocabulary, const char *bytes, size_t length)
{
    if (length == 0 || length > vocabulary->longest) return -1;
    uint64_t slot = *find_slot(vocabulary, bytes, length, hash_bytes(vocabulary, bytes, length));
    return (int32_t)(uint32_t)slot - 1;
}

/* --- Merges. --- */

qp_status vocabulary_reserve_merges(vocabulary *vocabulary, size_t count, qp_error *error)
{
    if (count > INT32_MAX)
        return error_set(error, QP_UNSUPPORTED, "a tokenizer with %zu merges", count);
    size_t size = table_size(count);
    vocabulary->merges = malloc(size * sizeof *vocabulary->merges);
    if (!vocabulary->merges)
        return error_no_memory(error, "a tokenizer's merges", size * sizeof *vocabulary->merges);
    memset(vocabulary->merges, 0xFF, size * sizeof *vocabulary->merges);
    vocabulary->merges_mask = size - 1;
    vocabulary->n_merges = 0;
    return QP_OK;
}

static qp_status missing_piece(text_slice part, uint32_t rank, const char *where, qp_error *error)
{
    char quoted[SLICE_QUOTE_SIZE];
    return error_set(error, QP_FORMAT, "%s: merge %u speaks of %s, which is not in the vocabulary",
                     where, rank, slice_quote(part, quoted));
}

/* The id of left + right. */
static int32_t find_joined(const vocabulary *vocabulary, int32_t left, int32_t right)
{
    const vocabulary_piece *a = &vocabulary->pieces[left], *b = &vocabulary->pieces[right];
    size_t length = (size_t)a->length + b->length;
    char small[256], *joined = length <= sizeof small ? small : malloc(length);
    if (!joined) return -1;
    memcpy(joined, vocabulary_bytes(vocabulary, left), a->length);
    memcpy(joined + a->length, vocabulary_bytes(vocabulary, right), b->length);
    int32_t id = vocabulary_find(vocabulary, joined, length);
    if (joined != small) free(joined);
    return id;
}

qp_status vocabulary_add_merge(vocabulary *vocabulary, const char *left, size_t left_length,
                               const char *right, size_t right_length, const char *where,
                               qp_error *error)
{
    uint32_t rank = vocabulary->n_merges;
    int32_t a = vocabulary_find(vocabulary, left, left_length);
    if (a < 0) return missing_piece((text_slice){left, left_length}, rank, where, error);
    int32_t b = vocabulary_find(vocabulary, right, right_length);
    if (b < 0) return missing_piece((text_slice){right, right_length}, rank, where, error);
    int32_t id = find_joined(vocabulary, a, b);
    if (id < 0) {
        char x[SLICE_QUOTE_SIZE], y[SLICE_QUOTE_SIZE];
        return error_set(error, QP_FORMAT, "%s: merge %u joins %s and %s to what is no token",
                         where, rank, slice_quote((text_slice){left, left_length}, x),
                         slice_quote((text_slice){right, right_length}, y));
    }
    uint64_t pair = (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
    size_t at = keyed_hash_number(vocabulary->key, pair) & vocabulary->merges_mask;
    while (vocabulary->merges[at].pair != MERGE_FREE && vocabulary->merges[at].pair != pair)
        at = (at + 1) & vocabulary->merges_mask;
    vocabulary->merges[at] = (merge_slot){.pair = pair, .rank = rank, .id = id};
    vocabulary->n_merges++;
    return QP_OK;
}
