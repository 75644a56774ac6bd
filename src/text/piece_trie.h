/* A set of pieces, with a search for the longest one that begins at a position of a text. */
#pragma once

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct trie_node {
    uint32_t child;   /* first child, 0 for none */
    uint32_t sibling; /* next child of the same parent, 0 for none */
    int32_t id;       /* id of the piece that ends here, -1 for none */
    uint8_t byte;
} trie_node;

/* Zero-initialise; piece_trie_free() at the end. */
typedef struct piece_trie {
    trie_node *nodes; /* nodes[0] is unused: 0 means none */
    uint32_t count;
    uint32_t capacity;
    uint32_t roots[256]; /* by first byte */
} piece_trie;

/* Empty pieces are ignored; of equal pieces the first stays. */
qp_status piece_trie_add(piece_trie *trie, const char *bytes, size_t length, int32_t id,
                         qp_error *error);

/* The id of the longest piece at the start of the text, *match its bytes; -1 when there is none. */
int32_t piece_trie_match(const piece_trie *trie, const char *text, size_t length, size_t *match);

void piece_trie_free(piece_trie *trie);
