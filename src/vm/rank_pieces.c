/* Tensors that ranks have parts of: see ranks.h. */
#include "vm/ranks.h"

#include <string.h>

static void add(rank_pieces *p, int64_t whole, int64_t own, int64_t count, size_t element)
{
    p->of[p->n].whole = (size_t)whole * element;
    p->of[p->n].own = (size_t)own * element;
    p->of[p->n++].bytes = (size_t)count * element;
}

static void set_rows(rank_pieces *p, int64_t whole, int64_t own, size_t element)
{
    p->whole_row = (size_t)whole * element;
    p->own_row = (size_t)own * element;
}

/* q, k and v of the rank's heads; only q where rules leave no more. */
static void attention_pieces(const program *own, rank_pieces *p)
{
    const model_config *c = &own->config, *all = &own->whole;
    const program_span q = own->shard.heads, kv = own->shard.kv_heads;
    const int64_t dh = c->head_dim, q_all = config_q_hidden_units(all),
                  kv_all = config_kv_hidden_units(all);
    const plan_tensor *t = &own->tensors[PLAN_ATTN];
    if (t->rank == 0) return; /* rules have left none */
    const bool fused = t->dims[t->rank - 1].size == q.count * dh;
    add(p, q.first * dh, 0, q.count * dh, sizeof(float));
    set_rows(p, fused ? q_all : q_all + 2 * kv_all,
             fused ? q.count * dh : (q.count + 2 * kv.count) * dh, sizeof(float));
    p->gathered = PLAN_ATTN_ALL;
    p->gathered_bytes = (size_t)q_all * sizeof(float);
    if (own->tensors[PLAN_QK_ALL].rank) p->qk_bytes = (size_t)(q_all + kv_all) * sizeof(float);
    if (fused) return;
    add(p, q_all + kv.first * dh, q.count * dh, kv.count * dh, sizeof(float));
    add(p, q_all + kv_all + kv.first * dh, (q.count + kv.count) * dh, kv.count * dh, sizeof(float));
}

/* Gate and up; what the activation leaves where rules leave no more. */
static void ffn_pieces(const program *own, rank_pieces *p)
{
    const program_span f = own->shard.intermediate;
    const int64_t all = own->whole.intermediate_size;
    const plan_tensor *t = &own->tensors[PLAN_FFN];
    if (t->rank == 0) return;
    const int parts = t->dims[t->rank - 1].size == f.count ? 1 : 2;
    set_rows(p, parts * all, parts * f.count, sizeof(float));
    for (int i = 0; i < parts; i++)
        add(p, i * all + f.first, i * f.count, f.count, sizeof(float));
    p->gathered = PLAN_FFN_ALL;
    p->gathered_bytes = (size_t)all * sizeof(float);
}

/* Of a mixture a row is what the activation leaves of one of a token's choices. */
static void expert_pieces(const program *own, rank_pieces *p)
{
    const program_span f = own->shard.intermediate;
    const int64_t all = own->whole.intermediate_size;
    add(p, f.first, 0, f.count, sizeof(float));
    set_rows(p, all, f.count, sizeof(float));
    p->gathered = PLAN_FFN_ALL;
    p->gathered_bytes = p->whole_row;
}

/* Consecutive heads, each of `bytes`. */
static void head_pieces(program_span heads, int64_t all, size_t bytes, rank_pieces *p)
{
    add(p, heads.first, 0, heads.count, bytes);
    set_rows(p, all, heads.count, bytes);
}

rank_pieces rank_pieces_of(const program *own, plan_tensor_id id)
{
    rank_pieces p = {.gathered = PLAN_NAMED};
    const plan_options *o = &own->options;
    const model_config *all = &own->whole;
    const size_t head = (size_t)all->head_dim;
    if (id == PLAN_ATTN) attention_pieces(own, &p);
    if (id == PLAN_FFN) ffn_pieces(own, &p);
    if (id == PLAN_EXPERTS) expert_pieces(own, &p);
    if (id == PLAN_K_CACHE || id == PLAN_V_CACHE)
        head_pieces(own->shard.kv_heads, all->n_kv_heads,
                    (size_t)o->page_size * head * dtype_block_bytes(o->kv_type), &p);
    if (id == PLAN_PART_VALUES)
        head_pieces(own->shard.heads, all->n_heads, (size_t)o->kv_partitions * head * sizeof(float),
                    &p);
    if (id == PLAN_ATTN_SUMS) head_pieces(own->shard.heads, all->n_heads, sizeof(float), &p);
    if (id == PLAN_PART_SUMS)
        head_pieces(own->shard.heads, all->n_heads, (size_t)o->kv_partitions * sizeof(float), &p);
    if (id == PLAN_X && o->cut == PLAN_GATHER) { /* before it is gathered, own columns are new */
        add(&p, own->shard.hidden.first, own->shard.hidden.first, own->shard.hidden.count,
            sizeof(float));
        set_rows(&p, all->hidden_size, all->hidden_size, sizeof(float));
        p.gathered = PLAN_X;
        p.gathered_bytes = p.whole_row;
    }
    if (id == PLAN_SUMS && o->sums) { /* all have the embedding */
        p.sums_after = (size_t)all->hidden_size;
        p.whole_row = own->tensors[id].bytes / (size_t)own->capacity.of[AXIS_TOKENS];
    }
    if (!(o->ranks > 1 && o->cut == PLAN_GATHER)) p.gathered = PLAN_NAMED;
    return p;
}

void rank_pieces_join(const rank_pieces *p, size_t rows, const void *own, void *whole)
{
    for (size_t row = 0; row < rows; row++)
        for (int i = 0; i < p->n; i++)
            memcpy((char *)whole + row * p->whole_row + p->of[i].whole,
                   (const char *)own + row * p->own_row + p->of[i].own, p->of[i].bytes);
}

void rank_pieces_add(const rank_pieces *p, size_t bytes, const void *own, void *whole)
{
    const int64_t *from = own;
    int64_t *to = whole;
    const size_t row = p->whole_row / sizeof *to;
    for (size_t i = 0; p->sums_after > 0 && i < bytes / sizeof *to; i++)
        if (i % row >= p->sums_after) to[i] += from[i];
}

void rank_pieces_split(const rank_pieces *p, size_t rows, const void *whole, void *own)
{
    for (size_t row = 0; row < rows; row++)
        for (int i = 0; i < p->n; i++)
            memcpy((char *)own + row * p->own_row + p->of[i].own,
                   (const char *)whole + row * p->whole_row + p->of[i].whole, p->of[i].bytes);
}
