/* The tokens of a vocabulary as a trie of their bytes, in preorder: a walk that follows an
 * automaton reads it from front to back and jumps over subtrees that no text can enter.
 *
 * Control tokens are not text: their bytes are TRIE_CONTROL, which no UTF-8 text has, and then
 * their names. So a grammar allows a control token only if it says so.
 */
#pragma once

#include "base/status.h"
#include "text/tokenizer.h"

enum { TRIE_CONTROL = 0xFF, TRIE_MAX_PIECE = 4096 }; /* longer tokens are never allowed */

typedef struct trie_step {
    uint32_t end;    /* where the subtree of this node ends */
    uint32_t tokens; /* the node's first token in `tokens`; they end where the next node's begin */
    uint16_t depth;  /* bytes from the root to this node: 1 at least */
    uint8_t byte;    /* the last of them */
} trie_step;

typedef struct token_trie {
    trie_step *nodes; /* [n_nodes + 1]; the last has only `tokens` */
    uint32_t n_nodes;
    int32_t *tokens; /* [n_tokens] */
    uint32_t n_tokens;
    int32_t vocab_size;
    size_t longest; /* bytes of a token */
    size_t bytes;   /* that the trie takes */
    const tokenizer *tokenizer;
} token_trie;

/* token_trie_free() the result; the tokenizer must outlive it. */
qp_status token_trie_build(const tokenizer *tokenizer, token_trie **out, qp_error *error);
void token_trie_free(token_trie *trie);

/* The bytes of a token as the trie has them: at most TRIE_MAX_PIECE. 0: it is in no text. */
size_t token_trie_bytes(const token_trie *trie, int32_t token, char bytes[TRIE_MAX_PIECE]);
