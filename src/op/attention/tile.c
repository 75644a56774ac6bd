/* Cuts the units of a slice into tiles: see tile.h. */
#include "op/attention/tile.h"

#include "base/checked.h"

#include <math.h>

size_t attention_tile_scratch(int64_t head_dim)
{
    size_t row = round_up((size_t)head_dim, 16), block = ATTENTION_BLOCK, queries = ATTENTION_TILE;
    size_t floats = 2 * queries * row            /* q, out */
                    + queries * block            /* scores */
                    + 2 * block * row            /* k, v */
                    + queries * (16 + 2 + 1 + 2) /* sums, maximum, shrink, seen, hidden */
                    + queries * (row + 16 + 1);  /* of the segments before: out, sums, maximum */
    return floats * sizeof(float) + 64;
}

int64_t attention_state_floats(int64_t head_dim)
{
    return (int64_t)round_up((size_t)head_dim, 16) + 16 /* sums */ + 16 /* maximum, padding */;
}

/* A rectangle of heads of tokens. */
typedef struct rectangle {
    int64_t token, n_tokens;
    int64_t head, n_heads;
} rectangle;

static float *states_of(const attention_slice *slice, int64_t unit)
{
    if (slice->task == ATTENTION_WHOLE) return NULL;
    return slice->states + unit * slice->n_segments * attention_state_floats(slice->q->shape[2]);
}

/* Passes the units of the slice that lie in the rectangle to the kernel. Its heads' groups have
 * `group` heads each, and token `token + i` sees ranges[i]. */
static void run_tile(const attention_slice *slice, attention_tile *tile, rectangle part,
                     int64_t group, const attention_range *ranges)
{
    int64_t n_heads = slice->q->shape[1], last = part.head + part.n_heads;
    tile->n_queries = 0;
    for (int64_t first = part.head, next; first < last; first = next) {
        next = (first / group + 1) * group;
        if (next > last) next = last;
        for (int64_t t = part.token; t < part.token + part.n_tokens; t++) {
            for (int64_t head = first; head < next; head++) {
                int64_t unit = t * n_heads + head;
                if (unit < slice->begin || unit >= slice->end) continue;
                tile->queries[tile->n_queries++] = (attention_query){
                    .q = tensor_row2(slice->q, t, head),
                    .out = tensor_row2(slice->out, t, head),
                    .lse = slice->lse->rank ? tensor_row2(slice->lse, t, head) : NULL,
                    .states = states_of(slice, unit),
                    .kv_head = head / group,
                    .range = ranges[t - part.token],
                };
            }
        }
    }
    if (tile->n_queries > 0) slice->kernel(tile, slice->scratch);
}

static attention_tile tile_of(const attention_slice *slice, const attention_source *source)
{
    int64_t head_dim = slice->q->shape[2];
    double scale = slice->sm_scale != 0 ? slice->sm_scale : 1 / sqrt((double)head_dim);
    static const double log2_e = 1.4426950408889634074;
    return (attention_tile){.source = source,
                            .task = slice->task,
                            .segment = slice->segment,
                            .n_segments = slice->n_segments,
                            .head_dim = head_dim,
                            .q_type = slice->q->type,
                            .out_type = slice->out->type,
                            .scale = (float)(scale * log2_e),
                            .soft_cap = (float)(slice->soft_cap * log2_e)};
}

void attention_sequence(const attention_slice *slice, const attention_source *source, int64_t first,
                        int64_t count, int64_t kv_length, const attention_rule *rule)
{
    int64_t n_heads = slice->q->shape[1], group = n_heads / source->k.shape[2];
    int64_t end_head = slice->end_head ? slice->end_head : n_heads;
    attention_tile tile = tile_of(slice, source);

    int64_t begin = slice->begin / n_heads, end = (slice->end + n_heads - 1) / n_heads;
    if (begin < first) begin = first;
    if (end > first + count) end = first + count;
    for (rectangle part = {.token = begin}; part.token < end; part.token += part.n_tokens) {
        /* As many tokens as there is room for, then as many groups. */
        attention_range ranges[ATTENTION_TILE];
        int64_t heads = group < ATTENTION_TILE ? group : ATTENTION_TILE;
        part.n_tokens = ATTENTION_TILE / heads;
        if (part.n_tokens > end - part.token) part.n_tokens = end - part.token;
        heads *= ATTENTION_TILE / (part.n_tokens * heads);
        for (int64_t i = 0; i < part.n_tokens; i++)
            ranges[i] = attention_range_of(rule, part.token + i - first, count, kv_length);
        for (part.head = slice->first_head; part.head < end_head; part.head += part.n_heads) {
            part.n_heads = end_head - part.head < heads ? end_head - part.head : heads;
            run_tile(slice, &tile, part, group, ranges);
        }
    }
}

void attention_token(const attention_slice *slice, const attention_source *source, int64_t token,
                     const attention_range *range)
{
    int64_t group = slice->q->shape[1] / source->k.shape[2];
    attention_tile tile = tile_of(slice, source);
    rectangle part = {.token = token, .n_tokens = 1, .head = slice->first_head};
    for (; part.head < slice->end_head; part.head += part.n_heads) {
        int64_t left = slice->end_head - part.head;
        part.n_heads = left < ATTENTION_TILE ? left : ATTENTION_TILE;
        run_tile(slice, &tile, part, group, range);
    }
}
