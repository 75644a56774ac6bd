/* Dealing the units of a slice into tiles: see tile.h. */
#include "op/attention/tile.h"

#include "base/checked.h"

#include <math.h>

size_t attention_tile_scratch(int64_t head_dim)
{
    size_t row = round_up((size_t)head_dim, 16), block = ATTENTION_BLOCK, queries = ATTENTION_TILE;
    size_t floats = 2 * queries * row         /* q, out */
                    + queries * block         /* scores */
                    + 2 * block * row         /* k, v */
                    + queries * (16 + 2 + 1); /* sums, maximum, shrink, seen */
    return floats * sizeof(float) + 64;
}

/* Sends heads [first_head, last_head) of `n` tokens from `token` on, as far as they are units of
 * the slice, to the kernel. */
static void run_tile(const attention_slice *slice, attention_tile *tile, int64_t token, int64_t n,
                     int64_t first_head, int64_t last_head, const int64_t *n_visible)
{
    int64_t n_heads = slice->q->shape[1];
    tile->n_queries = 0;
    for (int64_t t = token; t < token + n; t++) {
        for (int64_t head = first_head; head < last_head; head++) {
            int64_t unit = t * n_heads + head;
            if (unit < slice->begin || unit >= slice->end) continue;
            tile->queries[tile->n_queries++] = (attention_query){
                .q = tensor_row2(slice->q, t, head),
                .out = tensor_row2(slice->out, t, head),
                .lse = slice->lse->rank ? (float *)tensor_row(slice->lse, t) + head : NULL,
                .n_visible = n_visible[t - token],
            };
        }
    }
    if (tile->n_queries > 0) slice->kernel(tile, slice->scratch);
}

void attention_sequence(const attention_slice *slice, const attention_source *source, int64_t first,
                        int64_t count, int64_t kv_length, bool causal)
{
    int64_t n_heads = slice->q->shape[1], n_kv_heads = source->k.shape[2];
    int64_t head_dim = slice->q->shape[2], group = n_heads / n_kv_heads;
    double scale = slice->sm_scale != 0 ? slice->sm_scale : 1 / sqrt((double)head_dim);
    attention_tile tile = {.source = source,
                           .head_dim = head_dim,
                           .q_type = slice->q->type,
                           .out_type = slice->out->type,
                           .scale = (float)(scale * 1.4426950408889634074)};

    int64_t heads = group < ATTENTION_TILE ? group : ATTENTION_TILE; /* of a token in a tile */
    int64_t tokens = ATTENTION_TILE / heads;
    int64_t begin = slice->begin / n_heads, end = (slice->end + n_heads - 1) / n_heads;
    if (begin < first) begin = first;
    if (end > first + count) end = first + count;
    for (int64_t token = begin; token < end; token += tokens) {
        int64_t n = end - token < tokens ? end - token : tokens, n_visible[ATTENTION_TILE];
        for (int64_t i = 0; i < n; i++)
            n_visible[i] = attention_visible(causal, token + i - first, count, kv_length);
        for (tile.kv_head = 0; tile.kv_head < n_kv_heads; tile.kv_head++) {
            int64_t last = (tile.kv_head + 1) * group;
            for (int64_t head = last - group; head < last; head += heads)
                run_tile(slice, &tile, token, n, head, head + heads < last ? head + heads : last,
                         n_visible);
        }
    }
}
