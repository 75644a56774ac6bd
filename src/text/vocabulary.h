/* A vocabulary: pieces by id, ids by piece, and which two pieces merge into which.
 *
 * Every source of tokenizers (tokenizer.json, tokenizer.model, GGUF, ...) fills this one table. A
 * piece is stored as the bytes that it stands for in a text: GPT-2's byte letters are decoded,
 * U+2581 is a space, "<0x0A>" is a byte. Merging runs over those bytes too, so pieces need no
 * second form. There are two indexes, both with open addressing: a name table of 64-bit slots and a
 * pair table of 16-byte slots. Their hashes have a secret key, because a file could contain pieces
 * that are chosen to collide.
 */
#pragma once

#include "base/keyed_hash.h"
#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Numbered as in sentencepiece's model files and GGUF's tokenizer.ggml.token_type. */
typedef enum piece_type {
    PIECE_NONE = 0, /* a hole in the ids */
    PIECE_NORMAL = 1,
    PIECE_UNKNOWN = 2,
    PIECE_CONTROL = 3,
    PIECE_USER_DEFINED = 4,
    PIECE_UNUSED = 5, /* sentencepiece: may appear on the way to a longer piece, not in the end */
    PIECE_BYTE = 6,
} piece_type;

enum {
    PIECE_MODEL = 1,       /* merging can produce it; indexed by its bytes */
    PIECE_ADDED = 2,       /* found in the text before any other processing */
    PIECE_NORMALIZED = 4,  /* found after normalization */
    PIECE_LSTRIP = 8,      /* absorbs the white space before it */
    PIECE_RSTRIP = 16,     /* absorbs the white space after it */
    PIECE_SINGLE_WORD = 32 /* found only between characters that are not part of words */
};

typedef struct vocabulary_piece {
    uint32_t offset; /* offset in the vocabulary's text */
    uint32_t length;
    float score; /* sentencepiece: higher scores merge first */
    uint8_t type;
    uint8_t flags;
} vocabulary_piece;

typedef struct merge_slot {
    uint64_t pair; /* left id << 32 | right id; MERGE_FREE marks an empty slot */
    uint32_t rank; /* lower ranks merge first */
    int32_t id;    /* the piece that the two merge into */
} merge_slot;

#define MERGE_FREE UINT64_MAX

typedef enum vocabulary_kind {
    VOCABULARY_BYTES,  /* merges by rank over bytes */
    VOCABULARY_CHARS,  /* merges by rank over characters, bytes where a character has no piece */
    VOCABULARY_SCORES, /* sentencepiece: two neighbours merge if together they are a piece */
} vocabulary_kind;

typedef struct vocabulary {
    vocabulary_kind kind;
    bool ignore_merges; /* a word that equals a piece becomes that piece, whatever the merges say */
    bool fuse_unknown;  /* neighbouring unknown characters become one token */
    bool has_unused;
    bool splits_at_spaces; /* no piece has a space after another character, so no merge crosses such
                              a place */
    int32_t unknown_id;    /* -1: text without a piece is left out */
    int32_t byte_ids[256];

    strbuf text;
    vocabulary_piece *pieces;
    int32_t count;
    int32_t capacity;
    size_t longest; /* bytes of the longest PIECE_MODEL piece */

    hash_key key;
    uint64_t *names; /* hash's upper half << 32 | id + 1; 0 is empty */
    size_t names_mask;
    merge_slot *merges;
    size_t merges_mask;
    uint32_t n_merges;
} vocabulary;

void vocabulary_init(vocabulary *vocabulary, vocabulary_kind kind);
void vocabulary_free(vocabulary *vocabulary);

/* Sets the piece of an id; ids may come in any order below `limit`, an upper bound from the
 * source's size. QP_FORMAT for an id beyond it, and for an id that is set twice. */
qp_status vocabulary_set(vocabulary *vocabulary, int64_t id, int64_t limit, const char *bytes,
                         size_t length, piece_type type, unsigned flags, const char *where,
                         qp_error *error);

/* Builds the name index and byte_ids over the pieces set so far. Of two equal pieces the lower id
 * wins. */
qp_status vocabulary_index(vocabulary *vocabulary, qp_error *error);

/* After vocabulary_index(): room for `count` merges, then each in rising rank. `left` and `right`
 * are bytes; a piece that is not in the vocabulary is QP_FORMAT. A repeated pair keeps the later
 * rank. */
qp_status vocabulary_reserve_merges(vocabulary *vocabulary, size_t count, qp_error *error);
qp_status vocabulary_add_merge(vocabulary *vocabulary, const char *left, size_t left_length,
                               const char *right, size_t right_length, const char *where,
                               qp_error *error);

/* The PIECE_MODEL piece with these bytes; -1 when there is none. */
int32_t vocabulary_find(const vocabulary *vocabulary, const char *bytes, size_t length);

/* The merge of two pieces; NULL when there is none. */
static inline const merge_slot *vocabulary_find_merge(const vocabulary *vocabulary, int32_t left,
                                                      int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t at = keyed_hash_number(vocabulary->key, pair) & vocabulary->merges_mask;
    for (;; at = (at + 1) & vocabulary->merges_mask) {
        const merge_slot *slot = &vocabulary->merges[at];
        if (slot->pair == pair) return slot;
        if (slot->pair == MERGE_FREE) return NULL;
    }
}

static inline const char *vocabulary_bytes(const vocabulary *vocabulary, int32_t id)
{
    return strbuf_text(&vocabulary->text) + vocabulary->pieces[id].offset;
}
