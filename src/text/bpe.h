/* Byte-pair merging of one word.
 *
 * The word's units (bytes or characters) form a doubly linked list. A heap holds the merges that
 * are possible now, best first and leftmost among equals. A merge removes two neighbours and adds
 * at most two candidates, so every word of n units takes O(n log n). This matters because words of
 * 200,000 spaces exist.
 */
#pragma once

#include "text/piece_trie.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

typedef struct bpe_symbol bpe_symbol;
typedef struct bpe_candidate bpe_candidate;

/* Working memory. Zero-initialise; bpe_scratch_free() at the end. */
typedef struct bpe_scratch {
    bpe_symbol *symbols;
    size_t symbols_capacity;
    bpe_candidate *heap;
    size_t heap_count, heap_capacity;
    uint32_t *unused_splits; /* by id: bytes of the left part of an unused piece, 0 unknown */
} bpe_scratch;

void bpe_scratch_free(bpe_scratch *scratch);

/* Appends the ids of the word. `whole` holds pieces that merging must neither split nor extend
 * (sentencepiece's user-defined symbols); NULL where there are none. */
qp_status bpe_encode(const vocabulary *vocabulary, const piece_trie *whole, bpe_scratch *scratch,
                     const char *word, size_t length, token_ids *ids, qp_error *error);
