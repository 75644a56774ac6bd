/* Longest match at a position: see piece_trie.h. */
#include "text/piece_trie.h"

#include <stdlib.h>
#include <string.h>

/* A new node, or 0 when memory is out. */
static uint32_t new_node(piece_trie *trie, uint8_t byte)
{
    if (trie->count == 0) trie->count = 1;
    if (trie->count >= trie->capacity) {
        if (trie->capacity > UINT32_MAX / 2) return 0;
        uint32_t capacity = trie->capacity ? trie->capacity * 2 : 64;
        trie_node *nodes = realloc(trie->nodes, capacity * sizeof *nodes);
        if (!nodes) return 0;
        trie->nodes = nodes;
        trie->capacity = capacity;
    }
    trie->nodes[trie->count] = (trie_node){.id = -1, .byte = byte};
    return trie->count++;
}

static uint32_t find_child(const piece_trie *trie, uint32_t node, uint8_t byte)
{
    uint32_t child = trie->nodes[node].child;
    while (child && trie->nodes[child].byte != byte)
        child = trie->nodes[child].sibling;
    return child;
}

qp_status piece_trie_add(piece_trie *trie, const char *bytes, size_t length, int32_t id,
                         qp_error *error)
{
    uint32_t node = 0;
    for (size_t i = 0; i < length; i++) {
        uint8_t byte = (uint8_t)bytes[i];
        uint32_t next = i == 0 ? trie->roots[byte] : find_child(trie, node, byte);
        if (!next) {
            next = new_node(trie, byte);
            if (!next) return error_no_memory(error, "the added tokens", length);
            if (i == 0) {
                trie->roots[byte] = next;
            } else {
                trie->nodes[next].sibling = trie->nodes[node].child;
                trie->nodes[node].child = next;
            }
        }
        node = next;
    }
    if (node && trie->nodes[node].id < 0) trie->nodes[node].id = id;
    return QP_OK;
}

int32_t piece_trie_match(const piece_trie *trie, const char *text, size_t length, size_t *match)
{
    int32_t found = -1;
    uint32_t node = length ? trie->roots[(uint8_t)text[0]] : 0;
    for (size_t i = 1; node; i++) {
        if (trie->nodes[node].id >= 0) {
            found = trie->nodes[node].id;
            *match = i;
        }
        if (i >= length) break;
        node = find_child(trie, node, (uint8_t)text[i]);
    }
    return found;
}

void piece_trie_free(piece_trie *trie)
{
    free(trie->nodes);
    memset(trie, 0, sizeof *trie);
}
