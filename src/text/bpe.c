/* Byte-pair merging: see bpe.h. */
#include "text/bpe.h"

#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { NO_SYMBOL = -1, UNRESOLVED = -2, MAX_WORD = 1 << 30 };

/* A stretch of the word. Merging extends the left one of two and empties the right one. */
struct bpe_symbol {
    uint32_t offset;
    uint32_t length; /* bytes; 0 once merged into its left neighbour */
    int32_t left, right;
    int32_t id; /* UNRESOLVED until it is looked up; -1: the stretch has no piece */
    bool whole; /* neither split nor extended */
};

/* Two neighbours that may merge. Symbols only grow, so a candidate is still valid exactly if its
 * two symbols together are as long as they were. */
struct bpe_candidate {
    uint64_t order; /* priority << 32 | index of the left symbol: the smallest is next */
    uint32_t length;
    int32_t id;
};

void bpe_scratch_free(bpe_scratch *scratch)
{
    free(scratch->symbols);
    free(scratch->heap);
    free(scratch->unused_splits);
    memset(scratch, 0, sizeof *scratch);
}

/* --- The heap. --- */

static bool heap_push(bpe_scratch *scratch, bpe_candidate candidate)
{
    if (scratch->heap_count == scratch->heap_capacity) {
        size_t capacity = scratch->heap_capacity ? scratch->heap_capacity * 2 : 64;
        bpe_candidate *heap = realloc(scratch->heap, capacity * sizeof *heap);
        if (!heap) return false;
        scratch->heap = heap;
        scratch->heap_capacity = capacity;
    }
    bpe_candidate *heap = scratch->heap;
    size_t at = scratch->heap_count++;
    while (at > 0 && heap[(at - 1) / 2].order > candidate.order) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = candidate;
    return true;
}

static bpe_candidate heap_pop(bpe_scratch *scratch)
{
    bpe_candidate *heap = scratch->heap, top = heap[0], last = heap[--scratch->heap_count];
    size_t at = 0, count = scratch->heap_count;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= count) break;
        if (child + 1 < count && heap[child + 1].order < heap[child].order) child++;
        if (heap[child].order >= last.order) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return top;
}

/* --- Units of the word. --- */

static bpe_symbol *add_symbol(bpe_scratch *scratch, size_t *count, size_t offset, size_t length,
                              int32_t id)
{
    bpe_symbol *symbol = &scratch->symbols[*count];
    *symbol = (bpe_symbol){.offset = (uint32_t)offset,
                           .length = (uint32_t)length,
                           .left = (int32_t)*count - 1,
                           .right = (int32_t)*count + 1,
                           .id = id};
    ++*count;
    return symbol;
}

/* One symbol for each byte. A byte without a token is left out, as the format demands. */
static size_t split_bytes(const vocabulary *vocabulary, bpe_scratch *scratch, const char *word,
                          size_t length)
{
    size_t count = 0;
    for (size_t i = 0; i < length; i++) {
        int32_t id = vocabulary->byte_ids[(uint8_t)word[i]];
        if (id >= 0) add_symbol(scratch, &count, i, 1, id);
    }
    return count;
}

/* Whether each byte of the stretch has a byte token. */
static bool has_bytes(const vocabulary *vocabulary, const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (vocabulary->byte_ids[(uint8_t)text[i]] < 0) return false;
    }
    return true;
}

/* One symbol for each character; for a character without a piece, its bytes, or unknown. */
static size_t split_chars(const vocabulary *vocabulary, bpe_scratch *scratch, const char *word,
                          size_t length)
{
    size_t count = 0;
    bool after_unknown = false;
    for (size_t i = 0, n; i < length; i += n) {
        n = utf8_sequence(word + i, length - i);
        if (n == 0) n = 1;
        int32_t id = vocabulary_find(vocabulary, word + i, n);
        bool is_unknown = id < 0 && !has_bytes(vocabulary, word + i, n);
        if (id >= 0) {
            add_symbol(scratch, &count, i, n, id);
        } else if (!is_unknown) {
            for (size_t j = 0; j < n; j++)
                add_symbol(scratch, &count, i + j, 1, vocabulary->byte_ids[(uint8_t)word[i + j]]);
        } else if (after_unknown && vocabulary->fuse_unknown) {
            scratch->symbols[count - 1].length += (uint32_t)n;
        } else if (vocabulary->unknown_id >= 0) {
            add_symbol(scratch, &count, i, n, vocabulary->unknown_id);
        }
        after_unknown = is_unknown && vocabulary->unknown_id >= 0;
    }
    return count;
}

/* sentencepiece: one symbol for each character, but a user-defined piece is one symbol. */
static size_t split_pieces(const piece_trie *whole, bpe_scratch *scratch, const char *word,
                           size_t length)
{
    size_t count = 0;
    for (size_t i = 0, n; i < length; i += n) {
        int32_t id = whole ? piece_trie_match(whole, word + i, length - i, &n) : -1;
        if (id < 0) {
            n = utf8_sequence(word + i, length - i);
            if (n == 0) n = 1;
        }
        add_symbol(scratch, &count, i, n, id < 0 ? UNRESOLVED : id)->whole = id >= 0;
    }
    return count;
}

/* --- Merging. --- */

/* Smaller for larger scores: a float's bits, mapped so that they compare like unsigned numbers. */
static uint32_t score_priority(float score)
{
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    if (bits == 0x80000000u) bits = 0; /* -0 equals 0 */
    return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}

/* Puts the merge of the symbols `left` and `right` on the heap if there is one. */
static bool consider(const vocabulary *vocabulary, bpe_scratch *scratch, const char *word,
                     int32_t left, int32_t right)
{
    if (left == NO_SYMBOL || right == NO_SYMBOL) return true;
    const bpe_symbol *a = &scratch->symbols[left], *b = &scratch->symbols[right];
    bpe_candidate candidate = {.length = a->length + b->length};
    uint32_t priority;
    if (vocabulary->kind == VOCABULARY_SCORES) {
        if (a->whole || b->whole) return true;
        candidate.id = vocabulary_find(vocabulary, word + a->offset, candidate.length);
        if (candidate.id < 0) return true;
        const vocabulary_piece *piece = &vocabulary->pieces[candidate.id];
        priority = score_priority(piece->score);
        if (piece->type == PIECE_UNUSED) scratch->unused_splits[candidate.id] = a->length;
    } else {
        const merge_slot *merge = vocabulary_find_merge(vocabulary, a->id, b->id);
        if (!merge) return true;
        candidate.id = merge->id;
        priority = merge->rank;
    }
    candidate.order = (uint64_t)priority << 32 | (uint32_t)left;
    return heap_push(scratch, candidate);
}

static bool merge_all(const vocabulary *vocabulary, bpe_scratch *scratch, const char *word,
                      size_t count)
{
    scratch->heap_count = 0;
    for (size_t i = 1; i < count; i++) {
        if (!consider(vocabulary, scratch, word, (int32_t)i - 1, (int32_t)i)) return false;
    }
    while (scratch->heap_count > 0) {
        bpe_candidate best = heap_pop(scratch);
        int32_t at = (int32_t)(uint32_t)best.order;
        bpe_symbol *left = &scratch->symbols[at];
        if (left->length == 0 || left->right == NO_SYMBOL) continue;
        bpe_symbol *right = &scratch->symbols[left->right];
        if (left->length + right->length != best.length) continue;
        left->length = best.length;
        left->id = best.id;
        left->right = right->right;
        right->length = 0;
        if (left->right != NO_SYMBOL) scratch->symbols[left->right].left = at;
        if (!consider(vocabulary, scratch, word, left->left, at)) return false;
        if (!consider(vocabulary, scratch, word, at, left->right)) return false;
    }
    return true;
}

/* --- From symbols to ids. --- */

/* A stretch without a piece: its bytes' tokens, or unknown (once for neighbours). */
static qp_status push_fallback(const vocabulary *vocabulary, const char *text, size_t length,
                               bool *after_unknown, token_ids *ids, qp_error *error)
{
    if (!has_bytes(vocabulary, text, length)) {
        bool fused = *after_unknown && vocabulary->fuse_unknown;
        *after_unknown = true;
        if (fused || vocabulary->unknown_id < 0) return QP_OK;
        return token_ids_push(ids, vocabulary->unknown_id, error);
    }
    *after_unknown = false;
    for (size_t i = 0; i < length; i++)
        TRY(token_ids_push(ids, vocabulary->byte_ids[(uint8_t)text[i]], error));
    return QP_OK;
}

/* sentencepiece: an unused piece is split again into the two pieces that it was last merged
 * from. */
static qp_status push_piece(const vocabulary *vocabulary, bpe_scratch *scratch, const char *text,
                            size_t length, int32_t id, bool *after_unknown, token_ids *ids,
                            qp_error *error)
{
    if (id == UNRESOLVED) id = vocabulary_find(vocabulary, text, length);
    if (id < 0) return push_fallback(vocabulary, text, length, after_unknown, ids, error);
    uint32_t split = 0;
    if (vocabulary->pieces[id].type == PIECE_UNUSED) split = scratch->unused_splits[id];
    if (split == 0 || split >= length) {
        *after_unknown = false;
        return token_ids_push(ids, id, error);
    }
    TRY(push_piece(vocabulary, scratch, text, split, UNRESOLVED, after_unknown, ids, error));
    return push_piece(vocabulary, scratch, text + split, length - split, UNRESOLVED, after_unknown,
                      ids, error);
}

static qp_status push_all(const vocabulary *vocabulary, bpe_scratch *scratch, const char *word,
                          size_t count, token_ids *ids, qp_error *error)
{
    bool after_unknown = false;
    for (int32_t i = count > 0 ? 0 : NO_SYMBOL; i != NO_SYMBOL; i = scratch->symbols[i].right) {
        const bpe_symbol *symbol = &scratch->symbols[i];
        if (vocabulary->kind == VOCABULARY_SCORES)
            TRY(push_piece(vocabulary, scratch, word + symbol->offset, symbol->length, symbol->id,
                           &after_unknown, ids, error));
        else
            TRY(token_ids_push(ids, symbol->id, error));
    }
    return QP_OK;
}

static qp_status prepare(const vocabulary *vocabulary, bpe_scratch *scratch, size_t length,
                         qp_error *error)
{
    if (length > MAX_WORD)
        return error_set(error, QP_INVALID, "a word of %zu bytes to tokenize, at most %d", length,
                         MAX_WORD);
    if (length > scratch->symbols_capacity) {
        size_t capacity = length < 64 ? 64 : length;
        free(scratch->symbols);
        scratch->symbols_capacity = 0;
        scratch->symbols = malloc(capacity * sizeof *scratch->symbols);
        if (!scratch->symbols)
            return error_no_memory(error, "a word's symbols", capacity * sizeof(bpe_symbol));
        scratch->symbols_capacity = capacity;
    }
    if (vocabulary->has_unused && !scratch->unused_splits) {
        size_t count = (size_t)vocabulary->count;
        scratch->unused_splits = calloc(count, sizeof *scratch->unused_splits);
        if (!scratch->unused_splits)
            return error_no_memory(error, "the unused pieces", count * sizeof(uint32_t));
    }
    return QP_OK;
}

static qp_status encode_stretch(const vocabulary *vocabulary, const piece_trie *whole,
                                bpe_scratch *scratch, const char *word, size_t length,
                                token_ids *ids, qp_error *error)
{
    TRY(prepare(vocabulary, scratch, length, error));
    size_t count;
    if (vocabulary->kind == VOCABULARY_BYTES)
        count = split_bytes(vocabulary, scratch, word, length);
    else if (vocabulary->kind == VOCABULARY_CHARS)
        count = split_chars(vocabulary, scratch, word, length);
    else
        count = split_pieces(whole, scratch, word, length);
    if (count > 0) scratch->symbols[count - 1].right = NO_SYMBOL;
    if (!merge_all(vocabulary, scratch, word, count))
        return error_no_memory(error, "the merges of a word", count * sizeof(bpe_candidate));
    return push_all(vocabulary, scratch, word, count, ids, error);
}

/* Bytes before the first space that follows another character. */
static size_t before_space(const char *text, size_t length)
{
    size_t at = 0;
    while (at < length && text[at] == ' ')
        at++;
    const char *space = at < length ? memchr(text + at, ' ', length - at) : NULL;
    return space ? (size_t)(space - text) : length;
}

qp_status bpe_encode(const vocabulary *vocabulary, const piece_trie *whole, bpe_scratch *scratch,
                     const char *word, size_t length, token_ids *ids, qp_error *error)
{
    if (vocabulary->kind != VOCABULARY_SCORES && (vocabulary->ignore_merges || length == 1)) {
        int32_t id = vocabulary_find(vocabulary, word, length);
        if (id >= 0) return token_ids_push(ids, id, error);
    }
    /* Without a pre-tokenizer the whole text is one word; short stretches stay in the cache. */
    for (size_t n; length > 0; word += n, length -= n) {
        n = vocabulary->splits_at_spaces ? before_space(word, length) : length;
        TRY(encode_stretch(vocabulary, whole, scratch, word, n, ids, error));
    }
    return QP_OK;
}
