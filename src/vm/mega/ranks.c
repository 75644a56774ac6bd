/* Several ranks: where each pushes its sums (ranks.cuh), and the logits of all. */
#include "op/cuda_ops.h"
#include "vm/mega/parts.h"

#include <limits.h>
#include <stdlib.h>

enum { TAG_RECEIVE = 0x6d656761 };

/* What a rank tells the others. */
typedef struct rank_place {
    cuda_address receive;
    int32_t n_blocks;
} rank_place;

const char *mega_ranks_refusal(const program *p)
{
    const plan_options *o = &p->options;
    if (o->ranks == 1) return NULL;
    if (o->ranks > EXCHANGE_RANKS) return "the megakernel runs up to 8 ranks";
    if (o->cut != PLAN_REDUCE) return "the megakernel adds sums of ranks, which is --cut reduce";
    if (p->shard.heads.count != p->shard.kv_heads.count * (p->whole.n_heads / p->whole.n_kv_heads))
        return "the megakernel's ranks have whole KV heads, and there are more ranks than KV heads";
    return NULL;
}

size_t mega_count_receive(const program *p, int n_blocks)
{
    const model_config *c = &p->config;
    if (p->options.ranks == 1) return 0;
    return mega_receive_bytes(p->options.ranks, (int)c->n_layers, (int)c->hidden_size, n_blocks);
}

/* Every rank gives its place and gets those of all, when its buffer is clear. */
static qp_status tell_place(const cuda_mega *m, comm *group, const comm_part **out, qp_error *error)
{
    rank_place *own = comm_stage(group, sizeof *own);
    if (own) *own = (rank_place){m->receive.address, m->n_blocks};
    *out = own ? comm_exchange(group, TAG_RECEIVE, sizeof *own, sizeof *own, COMM_SLOW) : NULL;
    return *out ? QP_OK : comm_check(group, error);
}

/* A block takes a multiprocessor, and blocks of all ranks wait for each other. */
static qp_status check_room(const cuda_mega *m, qp_error *error)
{
    const cuda_device *d = m->executor->device;
    const int ranks = m->executor->ops.beside,
              most = ranks ? d->n_multiprocessors / ranks : INT_MAX;
    if (m->n_blocks <= most) return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "the megakernels of %d ranks with %d blocks each do not fit on one GPU, which "
                     "has %d multiprocessors: give --workers %d",
                     ranks, m->n_blocks, d->n_multiprocessors, most);
}

qp_status mega_connect_ranks(cuda_mega *m, comm *group, qp_error *error)
{
    const program *p = m->executor->program;
    const cuda_device *d = m->executor->device;
    mega_ranks *r = &m->arguments.ranks;
    const comm_part *parts;
    r->count = p->options.ranks;
    r->rank = p->options.rank;
    r->vocab_first = (int32_t)p->shard.vocab.first;
    r->vocab_count = (int32_t)p->shard.vocab.count;
    if (r->count == 1) return QP_OK;
    TRY(check_room(m, error));
    TRY(cuda_buffer_alloc(d, mega_count_receive(p, m->n_blocks), "the exchange between ranks",
                          &m->receive, error));
    TRY(cuda_device_wait(d, "preparing the exchange between ranks", error));
    TRY(tell_place(m, group, &parts, error));
    for (int i = 0; i < r->count; i++) {
        const rank_place *place = parts[i].data;
        r->receive[i] = place->receive;
        if (place->n_blocks != m->n_blocks)
            return error_set(error, QP_UNSUPPORTED,
                             "the megakernel has %d blocks on rank %d and %d on rank %d: take GPUs "
                             "of one kind, or give --workers",
                             m->n_blocks, r->rank, place->n_blocks, i);
    }
    return QP_OK;
}

qp_status mega_gather_logits(cuda_mega *m, const batch *b, qp_error *error)
{
    cuda_executor *x = m->executor;
    const program *p = x->program;
    const program_step *last = &p->steps[p->logits_end - 1];
    const int node = last->first_node + last->n_nodes - 1;
    op_call call;
    if (p->options.ranks == 1) return QP_OK;
    program_bind(p, node, &x->memory, b->sizes.of, &call);
    x->ops.exchange = x->exchange;
    return cuda_ops_launch(&x->ops, cuda_ops_choose(&x->ops, OP_ALL_GATHER, &call), &call, error);
}
