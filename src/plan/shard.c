/* Cutting a model into ranks: see shard.h. */
#include "plan/shard.h"

#include "base/threads.h"

enum { TOGETHER = 32 }; /* output features that kernels take at a time, at most */

/* Where a shard of `total` begins and ends, in whole pieces. */
static program_span cut_pieces(int64_t total, int64_t piece, int rank, int ranks)
{
    int64_t begin, end;
    thread_share((total + piece - 1) / piece, rank, ranks, &begin, &end);
    begin = begin * piece < total ? begin * piece : total;
    end = end * piece < total ? end * piece : total;
    return (program_span){begin, end - begin};
}

/* A shard of features: equal ones if possible, in the largest pieces that kernels like; no smaller
 * pieces than `least`. */
static program_span cut_features(int64_t total, int64_t least, int rank, int ranks)
{
    int64_t piece = least;
    for (int64_t larger = TOGETHER; larger > least; larger /= 2) {
        if (larger % least != 0 || total % (larger * ranks) != 0) continue;
        piece = larger;
        break;
    }
    if (total % (piece * ranks) != 0 && total >= (int64_t)TOGETHER * ranks && TOGETHER % least == 0)
        piece = TOGETHER; /* unequal shares in any case */
    return cut_pieces(total, piece, rank, ranks);
}

/* KV heads, and the query heads that read them. */
static void cut_heads(const model_config *c, int rank, int ranks, program_shard *out)
{
    const int64_t group = c->n_heads / c->n_kv_heads;
    if (ranks <= c->n_kv_heads) {
        out->kv_heads = cut_pieces(c->n_kv_heads, 1, rank, ranks);
        out->heads = (program_span){out->kv_heads.first * group, out->kv_heads.count * group};
        return;
    }
    const int64_t head = rank * c->n_kv_heads / ranks;
    /* the ranks that have this KV head: those r with r * n_kv_heads / ranks == head */
    const int64_t first = (head * ranks + c->n_kv_heads - 1) / c->n_kv_heads;
    const int64_t end = ((head + 1) * ranks + c->n_kv_heads - 1) / c->n_kv_heads;
    const program_span part = cut_pieces(group, 1, (int)(rank - first), (int)(end - first));
    out->kv_heads = (program_span){head, 1};
    out->heads = (program_span){head * group + part.first, part.count};
}

/* Elements in the largest block of a slot's weights. */
static int64_t block_of(const model *model, const model_config *c, weight_slot slot)
{
    int64_t most = 1;
    for (int64_t layer = 0; model && layer < c->n_layers; layer++) {
        const dtype type = model_get_weight(model, slot, layer)->weight.type;
        const int64_t block = (int64_t)dtype_block_elements(type);
        if (block > most) most = block;
    }
    return most;
}

static qp_status check_shard(const char *what, int64_t total, program_span shard, int ranks,
                             qp_error *error)
{
    if (shard.count > 0) return QP_OK;
    return error_set(error, QP_INVALID,
                     "%d ranks cannot share %lld %s: a rank would have none; take fewer ranks",
                     ranks, (long long)total, what);
}

/* In the cut `reduce` heads are columns of the output projection. */
static qp_status check_blocks(const model_config *c, const plan_options *o, int64_t block, int rank,
                              const program_shard *shard, qp_error *error)
{
    if (o->cut != PLAN_REDUCE || shard->heads.first * c->head_dim % block == 0) return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "rank %d of %d begins at head %lld of %lld features, which is inside a block "
                     "of %lld: with --cut reduce ranks hold whole blocks of the output projection; "
                     "take other ranks, or --cut gather",
                     rank, o->ranks, (long long)shard->heads.first, (long long)c->head_dim,
                     (long long)block);
}

static void cut_rank(const model_config *c, const plan_options *o, int64_t down_block, int rank,
                     program_shard *out)
{
    const int64_t least = o->cut == PLAN_REDUCE ? down_block : 1;
    cut_heads(c, rank, o->ranks, out);
    out->intermediate = cut_features(c->intermediate_size, least, rank, o->ranks);
    out->hidden = (program_span){0, c->hidden_size};
    if (o->cut == PLAN_GATHER) out->hidden = cut_features(c->hidden_size, 1, rank, o->ranks);
    out->vocab = cut_features(c->vocab_size, 1, rank, o->ranks);
}

qp_status shard_of_rank(const model_config *c, const model *model, const plan_options *o,
                        program_shard *out, qp_error *error)
{
    const int64_t down = block_of(model, c, c->n_experts ? WEIGHT_DOWN_EXPERTS : WEIGHT_FFN_DOWN);
    const int64_t output = block_of(model, c, WEIGHT_ATTN_OUTPUT);
    for (int rank = 0; rank < o->ranks; rank++) {
        program_shard shard;
        cut_rank(c, o, down, rank, &shard);
        TRY(check_shard("heads", c->n_heads, shard.heads, o->ranks, error));
        TRY(check_shard("features of the FFN", c->intermediate_size, shard.intermediate, o->ranks,
                        error));
        TRY(check_shard("hidden features", c->hidden_size, shard.hidden, o->ranks, error));
        TRY(check_shard("tokens of the vocabulary", c->vocab_size, shard.vocab, o->ranks, error));
        TRY(check_blocks(c, o, output, rank, &shard, error));
        if (rank == o->rank) *out = shard;
    }
    return QP_OK;
}

static program_span times(program_span heads, int64_t head_dim)
{
    return (program_span){heads.first * head_dim, heads.count * head_dim};
}

void shard_cut_weight(const program *p, program_weight *w)
{
    const program_shard *own = &p->shard;
    const int64_t head_dim = p->whole.head_dim;
    const bool vector = w->whole.rank == 1, reduce = p->options.cut == PLAN_REDUCE;
    w->experts = weight_get_info(w->slot)->per_expert ? p->whole.n_experts : 1;
    w->rows = (program_span){0, vector && !w->bias ? 1 : w->whole.shape[0] / w->experts};
    w->columns = (program_span){0, vector ? (w->bias ? 1 : w->whole.shape[0]) : w->whole.shape[1]};
    if (p->options.ranks == 1) return;
    switch (w->slot) {
    case WEIGHT_ATTN_Q:
        w->rows = times(own->heads, head_dim);
        break;
    case WEIGHT_ATTN_K:
    case WEIGHT_ATTN_V:
        w->rows = times(own->kv_heads, head_dim);
        break;
    case WEIGHT_FFN_GATE:
    case WEIGHT_FFN_UP:
    case WEIGHT_GATE_EXPERTS:
    case WEIGHT_UP_EXPERTS:
        w->rows = own->intermediate;
        break;
    case WEIGHT_ATTN_OUTPUT:
        w->rows = own->hidden;
        if (reduce && !vector) w->columns = times(own->heads, head_dim);
        break;
    case WEIGHT_FFN_DOWN:
    case WEIGHT_DOWN_EXPERTS:
        w->rows = own->hidden;
        if (reduce && !vector) w->columns = own->intermediate;
        break;
    case WEIGHT_ATTN_SINKS:
        w->columns = own->heads;
        break;
    case WEIGHT_OUTPUT:
        w->rows = own->vocab;
        break;
    default: /* norms and the embedding, of which few rows are read: whole on every rank */
        break;
    }
}
