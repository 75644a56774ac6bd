/* Vocabularies as tries: see token_trie.h. */
#include "grammar/token_trie.h"

#include <stdlib.h>
#include <string.h>

typedef struct piece {
    const char *bytes; /* without TRIE_CONTROL */
    uint32_t length;   /* with it */
    int32_t token;
    bool control;
} piece;

static uint8_t byte_of(const piece *p, size_t i)
{
    if (!p->control) return (uint8_t)p->bytes[i];
    return i == 0 ? TRIE_CONTROL : (uint8_t)p->bytes[i - 1];
}

/* False for what is in no text: holes, the unknown token, and bytes that UTF-8 does not have. */
static bool read_piece(const tokenizer *t, int32_t token, piece *out)
{
    size_t length;
    const char *bytes = tokenizer_piece(t, token, &length);
    const bool control = tokenizer_is_control(t, token);
    if (!bytes || length == 0 || length >= TRIE_MAX_PIECE) return false;
    if (token == tokenizer_special_ids(t).unknown || memchr(bytes, TRIE_CONTROL, length))
        return false;
    *out = (piece){bytes, (uint32_t)length + control, token, control};
    return true;
}

static int by_bytes(const void *left, const void *right)
{
    const piece *a = left, *b = right;
    if (a->control != b->control) return a->control ? 1 : -1;
    const size_t x = a->length - a->control, y = b->length - b->control;
    const int order = memcmp(a->bytes, b->bytes, x < y ? x : y);
    if (order) return order;
    return x != y ? (x < y ? -1 : 1) : (a->token > b->token) - (a->token < b->token);
}

static size_t common(const piece *a, const piece *b)
{
    size_t i = 0;
    while (i < a->length && i < b->length && byte_of(a, i) == byte_of(b, i))
        i++;
    return i;
}

/* Ends the subtrees of the nodes of the last piece below `depth`. */
static void close_nodes(token_trie *t, uint32_t *open, size_t *n_open, size_t depth)
{
    while (*n_open > depth)
        t->nodes[open[--*n_open]].end = t->n_nodes;
}

/* Lays the sorted pieces out. `open`: the node of each byte of the last piece. */
static void lay_out(token_trie *t, const piece *pieces, size_t n, uint32_t *open)
{
    size_t n_open = 0;
    for (size_t i = 0; i < n; i++) {
        close_nodes(t, open, &n_open, i ? common(&pieces[i - 1], &pieces[i]) : 0);
        for (; n_open < pieces[i].length; n_open++) {
            open[n_open] = t->n_nodes;
            t->nodes[t->n_nodes++] = (trie_step){.tokens = t->n_tokens,
                                                 .depth = (uint16_t)(n_open + 1),
                                                 .byte = byte_of(&pieces[i], n_open)};
        }
        t->tokens[t->n_tokens++] = pieces[i].token;
    }
    close_nodes(t, open, &n_open, 0);
    t->nodes[t->n_nodes] = (trie_step){.end = t->n_nodes, .tokens = t->n_tokens};
}

/* How many nodes the sorted pieces need. */
static size_t count_nodes(token_trie *t, const piece *pieces, size_t n)
{
    size_t nodes = 0;
    for (size_t i = 0; i < n; i++) {
        nodes += pieces[i].length - (i ? common(&pieces[i - 1], &pieces[i]) : 0);
        if (pieces[i].length > t->longest) t->longest = pieces[i].length;
    }
    return nodes;
}

static qp_status build(token_trie *t, piece *pieces, qp_error *error)
{
    uint32_t open[TRIE_MAX_PIECE + 1];
    size_t n = 0;
    for (int32_t token = 0; token < t->vocab_size; token++)
        n += read_piece(t->tokenizer, token, &pieces[n]);
    if (n) qsort(pieces, n, sizeof *pieces, by_bytes);
    const size_t nodes = count_nodes(t, pieces, n) + 1;
    t->bytes = nodes * sizeof *t->nodes + n * sizeof *t->tokens;
    t->nodes = calloc(nodes, sizeof *t->nodes);
    t->tokens = calloc(n + 1, sizeof *t->tokens);
    if (!t->nodes || !t->tokens || nodes > UINT32_MAX)
        return error_no_memory(error, "the trie of the vocabulary", t->bytes);
    lay_out(t, pieces, n, open);
    return QP_OK;
}

qp_status token_trie_build(const tokenizer *tokenizer, token_trie **out, qp_error *error)
{
    const int32_t size = tokenizer_vocab_size(tokenizer);
    token_trie *t = calloc(1, sizeof *t);
    piece *pieces = calloc((size_t)size + 1, sizeof *pieces);
    *out = NULL;
    if (t) *t = (token_trie){.vocab_size = size, .tokenizer = tokenizer};
    qp_status status =
        t && pieces ? build(t, pieces, error) : error_no_memory(error, "the trie", (size_t)size);
    free(pieces);
    if (status == QP_OK)
        *out = t;
    else
        token_trie_free(t);
    return status;
}

void token_trie_free(token_trie *t)
{
    if (!t) return;
    free(t->nodes);
    free(t->tokens);
    free(t);
}

size_t token_trie_bytes(const token_trie *t, int32_t token, char bytes[TRIE_MAX_PIECE])
{
    piece p;
    if (token < 0 || token >= t->vocab_size || !read_piece(t->tokenizer, token, &p)) return 0;
    for (size_t i = 0; i < p.length; i++)
        bytes[i] = (char)byte_of(&p, i);
    return p.length;
}
