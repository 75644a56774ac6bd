/* One head of one token: see attention.h. */
#include "op/attention/attention.h"

#include "op/element.h"
#include "op/row.h"

#include <math.h>

enum { TILE = 32 }; /* positions between two updates of the running maximum */

/* The softmax so far: weights are relative to exp(base). */
typedef struct running {
    double maximum; /* of the scores so far */
    double base;    /* maximum, or 0 while that is -inf */
    double sum;     /* of exp(score - base) */
    double *out;    /* (head_dim): of exp(score - base) * v */
} running;

qp_status attention_check_heads(const char *op, int64_t n_heads, int64_t n_kv_heads,
                                qp_error *error)
{
    if (n_kv_heads > 0 && n_heads % n_kv_heads == 0) return QP_OK;
    return error_set(error, QP_INVALID, "%s: n_heads %lld is not a multiple of n_kv_heads %lld", op,
                     (long long)n_heads, (long long)n_kv_heads);
}

int64_t attention_visible(bool causal, int64_t i, int64_t qo_length, int64_t kv_length)
{
    if (!causal) return kv_length;
    int64_t visible = kv_length - qo_length + i + 1;
    return visible < 0 ? 0 : visible;
}

attention_range attention_range_of(const attention_rule *rule, int64_t i, int64_t qo_length,
                                   int64_t kv_length)
{
    bool causal = rule->causal && !rule->mask;
    attention_range range = {.end = attention_visible(causal, i, qo_length, kv_length),
                             .mask = rule->mask,
                             .first_bit = i * kv_length};
    int64_t after_own = kv_length - qo_length + i + 1;
    if (rule->window > 0 && after_own > rule->window) range.first = after_own - rule->window;
    return range;
}

static int64_t count_seen(const attention_range *range)
{
    int64_t count = 0;
    if (!range->mask) return range->end > range->first ? range->end - range->first : 0;
    for (int64_t j = range->first; j < range->end; j++)
        count += attention_sees(range, j);
    return count;
}

double attention_pairs(const attention_rule *rule, int64_t qo_length, int64_t kv_length)
{
    double pairs = 0;
    for (int64_t i = 0; i < qo_length; i++) {
        attention_range range = attention_range_of(rule, i, qo_length, kv_length);
        pairs += (double)count_seen(&range);
    }
    return pairs;
}

/* The row of a cache at a position of the sequence, for one KV head. */
static const void *cache_row(const tensor *cache, const int32_t *pages, int64_t position,
                             int64_t kv_head)
{
    int64_t page_size = cache->shape[1];
    return (const char *)cache->data + pages[position / page_size] * cache->stride[0] +
           position % page_size * cache->stride[1] + kv_head * cache->stride[2];
}

/* Rescales the running softmax to a base that also suits `maximum`. */
static void rebase(running *state, double maximum, int64_t head_dim)
{
    if (!(maximum > state->maximum)) return;
    double base = maximum, shrink = exp(state->base - base);
    if (state->sum == 0) shrink = 0; /* all scores so far are -inf */
    state->sum *= shrink;
    for (int64_t i = 0; i < head_dim; i++)
        state->out[i] *= shrink;
    state->maximum = maximum;
    state->base = base;
}

/* Adds the positions of [first, first + TILE) that the row sees. */
static void add_tile(const attention_source *source, const attention_row *about, int64_t kv_head,
                     int64_t first, const double *q, running *state, double *row)
{
    const tensor *k = &source->k, *v = &source->v;
    int64_t head_dim = k->shape[3];
    double scores[TILE], maximum = state->maximum, cap = about->soft_cap;
    for (int64_t i = 0; i < TILE; i++) {
        if (!attention_sees(&about->range, first + i)) continue;
        row_load(k->type, cache_row(k, source->pages, first + i, kv_head), head_dim, row);
        scores[i] = row_dot(q, row, head_dim);
        if (cap != 0) scores[i] = cap * tanh(scores[i] / cap);
        if (scores[i] > maximum) maximum = scores[i];
    }
    rebase(state, maximum, head_dim);
    for (int64_t i = 0; i < TILE; i++) {
        if (!attention_sees(&about->range, first + i)) continue;
        double weight = exp(scores[i] - state->base);
        state->sum += weight;
        row_load(v->type, cache_row(v, source->pages, first + i, kv_head), head_dim, row);
        for (int64_t j = 0; j < head_dim; j++)
            state->out[j] += weight * row[j];
    }
}

static void finish(const attention_row *row, const running *state, int64_t head_dim)
{
    double *out = state->out;
    for (int64_t i = 0; i < head_dim; i++)
        out[i] = state->sum == 0 ? 0 : out[i] / state->sum;
    row_store(row->out->type, tensor_row2(row->out, row->token, row->head), head_dim, out);
    if (!row->lse->rank) return;
    static const double log2_e = 1.4426950408889634074;
    double lse = state->sum == 0 ? -INFINITY : state->base * log2_e + log2(state->sum);
    element_store(row->lse->type, tensor_row2(row->lse, row->token, row->head), 0, lse);
}

void attention_compute(const attention_source *source, const attention_row *row, void *scratch)
{
    int64_t n_heads = row->q->shape[1], head_dim = row->q->shape[2];
    int64_t kv_head = row->head / (n_heads / source->k.shape[2]);
    double *q = scratch; /* (head_dim), scaled */
    running state = {.maximum = -INFINITY, .out = q + head_dim};
    double *kv_row = state.out + head_dim;
    double scale = row->sm_scale != 0 ? row->sm_scale : 1 / sqrt((double)head_dim);

    row_load(row->q->type, tensor_row2(row->q, row->token, row->head), head_dim, q);
    for (int64_t i = 0; i < head_dim; i++) {
        q[i] *= scale;
        state.out[i] = 0;
    }
    int64_t first = row->range.first / TILE * TILE;
    for (; first < row->range.end; first += TILE)
        add_tile(source, row, kv_head, first, q, &state, kv_row);
    finish(row, &state, head_dim);
}
