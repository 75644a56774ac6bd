/* Makes launch lists: decides which of the program's nodes are one launch. See launch_list.h.
 *
 * The time of a pass of few rows depends on the number of launches. At each node the list takes the
 * first of these that is possible: a chain, as long as possible; a product merged with the products
 * after it, with a fusion of its kernel; a single kernel.
 */
#include "vm/cuda/launch_list.h"

#include "op/all_gather/all_gather.h"
#include "op/argmax/argmax.h"
#include "op/attention/attention_cuda.h"
#include "op/exchange_cuda.h"
#include "op/linear/linear.h"
#include "op/linear/linear_f8_rows_cuda.h"
#include "op/paged_prefill/paged_prefill.h"
#include "op/rope/rope.h"
#include "op/rows_cuda.h"
#include "vm/cuda/wanted_rows.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { DIRECT_ROWS = 8 /* that linear takes directly, whatever the weights' type */ };

typedef struct builder {
    const launch_setting *setting;
    const launch_class *of;
    const program *program;
    int end;     /* after the last node */
    bool early;  /* kernels may start before their predecessor has ended */
    bool chains; /* rows are enough for chains */
    bool finds;  /* the likeliest tokens are yet to be found */
    cuda_ops ops;
    tensor narrowed; /* the rows that are in BF16; rank 0: none */
    cuda_address narrowed_at;
    bool narrowed_in_f8; /* they are in FP8 instead */
    wanted_rows wanted;
    tensor q, moved_q; /* q, and the moved copy of it that attention reads; rank 0: none */
    launch_list *list;
    launch_sink *sink;
    void *context; /* of `sink` */
} builder;

/* ---- operands ------------------------------------------------------------------------------ */

static void bind(const builder *b, int node, op_call *call)
{
    wanted_rows_bind(&b->wanted, b->setting, b->of, node, call);
}

static bool same_rows(const tensor *a, const tensor *b)
{
    return a->data == b->data && a->type == b->type && a->shape[0] == b->shape[0] &&
           a->shape[1] == b->shape[1] && a->stride[0] == b->stride[0];
}

static bool same_view(const tensor *a, const tensor *b)
{
    return a->rank == b->rank && same_rows(a, b);
}

/* The index of an operator's first output. For operators that only work in place it is the first
 * tensor, which no product reads next. */
static int first_output(op_code op)
{
    const op_info *info = op_get(op);
    const int n = op_n_tensors(info);
    int t = 0;
    while (t < n && info->tensors[t].direction != OP_OUT)
        t++;
    return t < n ? t : 0;
}

/* The first output among a call's tensors; its heads as one row. */
static tensor output_of(op_code op, const op_call *call)
{
    tensor out = call->tensors[first_output(op)];
    if (out.rank == 3 && out.stride[1] == out.shape[2] * out.stride[2]) {
        out.rank = 2;
        out.shape[1] *= out.shape[2];
        out.stride[1] = out.stride[2];
    }
    return out;
}

/* ---- what the next nodes need --------------------------------------------------------------- */

/* The kernel of a node, a product. */
static const cuda_kernel *product_of(const builder *b, int node)
{
    op_call call;
    bind(b, node, &call);
    return cuda_ops_choose(&b->ops, OP_LINEAR, &call);
}

/* Whether a node, a product, takes its rows in BF16. */
static bool multiplies_narrowed(const builder *b, int node)
{
    const cuda_kernel *product = product_of(b, node);
    return product && product->takes_narrowed;
}

/* Whether what a node writes is what the next node, a product, reads. */
static bool is_multiplied(const builder *b, int node, const tensor *out)
{
    op_call next;
    if (node + 1 >= b->end || b->program->nodes[node + 1].op != OP_LINEAR) return false;
    bind(b, node + 1, &next);
    return same_rows(&next.tensors[LINEAR_X], out);
}

/* Whether what a node writes is what the next node multiplies in BF16. */
static bool feeds_product(const builder *b, int node, const tensor *out)
{
    return is_multiplied(b, node, out) && multiplies_narrowed(b, node + 1);
}

/* Whether a node, a product, takes its rows in FP8: with scales of groups, or of rows. */
static bool multiplies_f8_groups(const builder *b, int node)
{
    const cuda_kernel *product = product_of(b, node);
    return product && product->takes_f8 == CUDA_F8_GROUPS;
}
static bool multiplies_f8_rows(const builder *b, int node)
{
    const cuda_kernel *product = product_of(b, node);
    return product && product->takes_f8 == CUDA_F8_ROWS;
}

/* Whether only such products, by multiplies_...(), read a node's output. Any node may read the
 * output of the pass's last node, unless it is also the program's last node. */
static bool feeds_alone(const builder *b, int node, bool (*takes)(const builder *b, int node))
{
    const program *program = b->program;
    int id = program_tensor_of(program, node, first_output(program->nodes[node].op));
    for (int n = node + 1; n < b->end; n++) {
        const op_code reader = program->nodes[n].op;
        const op_info *op = op_get(reader);
        for (int t = 0; t < op_n_tensors(op); t++) {
            if (program_tensor_of(program, n, t) != id) continue;
            if (op->tensors[t].direction == OP_OUT)
                return program_operand(program, n, t)->columns == 0;
            if (reader != OP_LINEAR || t != LINEAR_X || !takes(b, n)) return false;
        }
    }
    return b->end == program->n_nodes;
}

static bool all_decode(const builder *b)
{
    return b->of->n_chunks > 0 && b->of->n_decode == 0;
}

/* Whether a kernel from outside runs a call. */
static bool is_given(const builder *b, op_code op, const op_call *call)
{
    return cuda_ops_given(b->ops.given, op, call);
}

/* If all sequences of the pass decode, attention runs as paged_decode where that pays. */
static op_code take_decoding(const builder *b, op_code op, op_call *call)
{
    if (op != OP_PAGED_PREFILL || !all_decode(b) || is_given(b, op, call)) return op;
    return cuda_take_decoding(&b->ops, call);
}

/* ---- entries ------------------------------------------------------------------------------- */

static qp_status add_entry(builder *b, const launch_entry *entry, qp_error *error)
{
    launch_list *l = b->list;
    assert(l->n_entries < l->capacity);
    launch_entry *own = &l->entries[l->n_entries++];
    *own = *entry;
    own->n_records = l->recording.n_records - own->record;
    for (int i = 0; i < own->n_records; i++)
        l->recording.records[own->record + i].early = b->early && l->n_entries > 1;
    /* What follows copies of a carrier is launched after they have ended. */
    b->early = !(b->ops.carrier && own->kernel && own->kernel->needs_ranks);
    return b->sink ? b->sink(b->context, l, own, error) : QP_OK;
}

static launch_entry entry_at(const builder *b, int node)
{
    return (launch_entry){.node = node, .n_nodes = 1, .record = b->list->recording.n_records};
}

static void leave_narrowed(builder *b, const tensor *rows, cuda_address at)
{
    b->narrowed = *rows;
    b->narrowed_at = at;
    b->narrowed_in_f8 = false;
}

/* Matrices of FP8 may have scales of rows elsewhere. */
static bool scales_lie_next(const tensor *w, const tensor *w2)
{
    if (cuda_f8_has_rows(w) != cuda_f8_has_rows(w2)) return false;
    return !cuda_f8_has_rows(w) ||
           cuda_f8_row_scales(w) + (cuda_address)w->shape[0] * 4 == cuda_f8_row_scales(w2);
}

/* Whether two products of the same x can be merged: their weights and outputs are adjacent. Weights
 * that are decoded for cuBLASLt are not merged, so that less is decoded at a time. */
static bool lies_next(const op_call *first, const op_call *next)
{
    const tensor *a = first->tensors, *b = next->tensors;
    const tensor *w = &a[LINEAR_WEIGHT], *w2 = &b[LINEAR_WEIGHT];
    return same_rows(&a[LINEAR_X], &b[LINEAR_X]) && w->type == w2->type &&
           (w->type == DTYPE_BF16 || w->type == DTYPE_F8 || a[LINEAR_X].shape[0] <= DIRECT_ROWS) &&
           w->stride[0] == w2->stride[0] &&
           (char *)w->data + w->shape[0] * w->stride[0] == w2->data && scales_lie_next(w, w2) &&
           a[LINEAR_OUT].type == DTYPE_F32 && b[LINEAR_OUT].type == DTYPE_F32 &&
           a[LINEAR_OUT].stride[0] == b[LINEAR_OUT].stride[0] &&
           (float *)a[LINEAR_OUT].data + a[LINEAR_OUT].shape[1] == b[LINEAR_OUT].data &&
           !a[LINEAR_BIAS].rank && !b[LINEAR_BIAS].rank && !a[LINEAR_RESIDUAL].rank &&
           !b[LINEAR_RESIDUAL].rank;
}

/* Merges a product with those after it, as many as possible; returns the number of products. */
static int join_products(const builder *b, int node, op_call *call)
{
    int n = node + 1;
    if (is_given(b, OP_LINEAR, call)) return 1;
    for (; n < b->end && b->program->nodes[n].op == OP_LINEAR; n++) {
        op_call next;
        bind(b, n, &next);
        if (!lies_next(call, &next) || is_given(b, OP_LINEAR, &next)) break;
        call->tensors[LINEAR_WEIGHT].shape[0] += next.tensors[LINEAR_WEIGHT].shape[0];
        call->tensors[LINEAR_OUT].shape[1] += next.tensors[LINEAR_OUT].shape[1];
        call->end = op_get(OP_LINEAR)->units(call);
    }
    return n - node;
}

/* ---- chains -------------------------------------------------------------------------------- */

/* Whether products have the same shapes on all ranks up to the logits, so that all ranks make the
 * same chains. */
static bool ranks_are_alike(const program *p)
{
    const int64_t n = p->options.ranks, kv = p->whole.n_kv_heads;
    return p->whole.n_heads % n == 0 && (kv % n == 0 || n % kv == 0) &&
           p->whole.intermediate_size % n == 0;
}

/* Appends to the chain the nodes from `node` on that one step takes together; returns how many, or
 * 0. */
static int chain_nodes(const builder *b, int node, cuda_chain *chain)
{
    op_call calls[2];
    bind(b, node, &calls[0]);
    if (is_given(b, b->program->nodes[node].op, &calls[0])) return 0;
    switch (b->program->nodes[node].op) {
    case OP_ALL_REDUCE:
        return program_is_noop(b->program, node) ||
               (ranks_are_alike(b->program) && cuda_chain_reduce(chain, &calls[0]));
    case OP_EMBEDDING:
        return cuda_chain_gather(chain, &calls[0]);
    case OP_RMS_NORM:
        return cuda_chain_norm(chain, &calls[0]);
    case OP_ROPE:
        if (node + 1 >= b->end || b->program->nodes[node + 1].op != OP_KV_APPEND) return 0;
        bind(b, node + 1, &calls[1]);
        return !is_given(b, OP_KV_APPEND, &calls[1]) && cuda_rope_is_appended(&b->ops, calls) &&
                       cuda_chain_rope(chain, &calls[0], &calls[1])
                   ? 2
                   : 0;
    case OP_PAGED_PREFILL:
        return take_decoding(b, OP_PAGED_PREFILL, &calls[0]) == OP_PAGED_DECODE &&
               !is_given(b, OP_PAGED_DECODE, &calls[0]) && cuda_chain_attention(chain, &calls[0]);
    case OP_LINEAR: {
        int n = join_products(b, node, &calls[0]);
        if (node + n < b->end && b->program->nodes[node + n].op == OP_SILU_AND_MUL) {
            bind(b, node + n, &calls[1]);
            if (!is_given(b, OP_SILU_AND_MUL, &calls[1]) &&
                cuda_chain_activated(chain, &calls[0], &calls[1]))
                return n + 1;
        }
        return cuda_chain_product(chain, &calls[0]) ? n : 0;
    }
    default:
        return 0;
    }
}

/* The likeliest token of each row of logits. */
static op_call likeliest_call(const builder *b)
{
    const int64_t n = b->of->sizes.of[AXIS_OUTPUTS];
    op_call call = {.end = n};
    call.tensors[ARGMAX_LOGITS] = tensor_2d(b->setting->memory.data[PLAN_LOGITS], DTYPE_F32, n,
                                            b->program->config.vocab_size);
    call.tensors[ARGMAX_IDS] =
        tensor_1d(cuda_host_form(cuda_area_address(LAUNCH_LIKELIEST, 0)), DTYPE_I32, n);
    return call;
}

static qp_status keep_step_nodes(builder *b, const cuda_chain *chain, launch_entry *entry,
                                 qp_error *error)
{
    launch_list *l = b->list;
    const int n = l->n_step_nodes + chain->run.n_steps;
    int *larger = realloc(l->step_nodes, (size_t)n * sizeof *larger);
    if (!larger) return error_no_memory(error, "a chain's steps", (size_t)n * sizeof *larger);
    l->step_nodes = larger;
    memcpy(larger + l->n_step_nodes, chain->nodes, (size_t)chain->run.n_steps * sizeof *larger);
    entry->step = l->n_step_nodes;
    l->n_step_nodes = n;
    return QP_OK;
}

/* Makes a chain of as many nodes as possible; *count is their number, 0 if no chain is possible.
 * *likeliest: whether the chain also finds the likeliest tokens. */
static qp_status add_chain(builder *b, int node, int *count, bool *likeliest, qp_error *error)
{
    cuda_chain chain, whole, normed;
    int n_normed = 0;
    *count = 0;
    /* Chains of weights in FP8 leave x in F16, which other kernels do not take. */
    const bool in_f8 = b->setting->packed && b->setting->packed->in_f8;
    const tensor none = {0}, *narrowed = b->narrowed_in_f8 ? &none : &b->narrowed;
    if (!b->chains || !cuda_chain_begin(&b->ops, b->of->sizes.of[AXIS_TOKENS], narrowed,
                                        b->narrowed_at, b->of->n_chunks, &chain))
        return QP_OK;
    if (b->setting->packed)
        cuda_chain_pack(&chain, b->setting->packed,
                        cuda_area_address(in_f8 ? LAUNCH_WEIGHTS : LAUNCH_DECODED, 0),
                        cuda_area_address(LAUNCH_PACKED, 0));
    chain.tiles = b->setting->tiles;
    for (int n = node, taken; n < b->end; n += taken) {
        const int n_steps = chain.run.n_steps;
        taken = chain_nodes(b, n, &chain);
        if (taken == 0) break;
        if (chain.run.n_steps > n_steps) chain.nodes[n_steps] = n;
        if (cuda_chain_ends_with_norm(&chain) && !in_f8) {
            normed = chain;
            n_normed = n + taken - node;
        }
        if (!cuda_chain_is_whole(&chain)) continue;
        whole = chain;
        *count = n + taken - node;
    }
    if (*count == 0) return QP_OK;
    if (cuda_chain_is_full(&chain) && node + *count < b->end && n_normed > 0 &&
        feeds_product(b, node + n_normed - 1, &normed.x)) {
        whole = normed;
        *count = n_normed;
    }
    const op_call argmax = likeliest_call(b);
    const bool found = *likeliest && node + *count == b->end && !is_given(b, OP_ARGMAX, &argmax) &&
                       cuda_chain_likeliest(&whole, &argmax);
    if (found) *likeliest = false;
    launch_entry entry = entry_at(b, node);
    entry.n_nodes = *count;
    entry.chain = true;
    entry.follows = true; /* before that it may only read weights */
    entry.epilogue = found ? "argmax" : NULL;
    entry.input =
        narrowed->rank && whole.run.steps[0].kind == CHAIN_PRODUCT ? LAUNCH_BF16 : LAUNCH_PLAIN;
    const int n_steps = whole.run.n_steps;
    TRY(cuda_chain_launch(&whole, error));
    if (whole.run.n_steps > n_steps) whole.nodes[n_steps] = node + *count - 1; /* adds parts */
    TRY(keep_step_nodes(b, &whole, &entry, error));
    entry.output = whole.x.rank ? LAUNCH_BF16 : LAUNCH_PLAIN;
    leave_narrowed(b, &whole.x, whole.x_at);
    return add_entry(b, &entry, error);
}

/* ---- fused launches ------------------------------------------------------------------------ */

/* Whether the node after those of a fusion is attention that reads the q that the fusion moves, and
 * feeds a product. */
static bool is_read_moved(const builder *b, int node, const tensor *q)
{
    op_call attention;
    if (node >= b->end || b->program->nodes[node].op != OP_PAGED_PREFILL || all_decode(b))
        return false;
    bind(b, node, &attention);
    const cuda_kernel *reader = cuda_ops_choose(&b->ops, OP_PAGED_PREFILL, &attention);
    const tensor out = output_of(OP_PAGED_PREFILL, &attention);
    return attention.tensors[PAGED_PREFILL_Q].data == q->data && reader && reader->takes_moved_q &&
           feeds_product(b, node, &out);
}

/* Whether the nodes from `next` on are those of a fusion; then their calls follow calls[0]. */
static bool fuses(const builder *b, const cuda_kernel *kernel, const cuda_fusion *fusion, int next,
                  op_call *calls)
{
    const program_node *nodes = b->program->nodes;
    if (next + fusion->n_with > b->end) return false;
    for (int i = 0; i < fusion->n_with; i++) {
        if (nodes[next + i].op != fusion->with[i]) return false;
        bind(b, next + i, &calls[1 + i]);
        if (is_given(b, fusion->with[i], &calls[1 + i])) return false;
    }
    const int last = next + fusion->n_with - 1;
    if (fusion->n_with == 2 && !cuda_rope_is_appended(&b->ops, &calls[1])) return false;
    if (!fusion->accepts(&b->ops, calls)) return false;
    if (fusion->moves_q && !is_read_moved(b, last + 1, &calls[1].tensors[ROPE_Q])) return false;
    const tensor out = output_of(nodes[last].op, &calls[fusion->n_with]);
    if (fusion->rounds)
        return is_multiplied(b, last, &out) &&
               (kernel->takes_f8 == CUDA_F8_ROWS ? multiplies_f8_rows(b, last + 1)
                                                 : multiplies_f8_groups(b, last + 1));
    return !fusion->narrows || feeds_product(b, last, &out);
}

static const cuda_fusion *find_fusion(const builder *b, const cuda_kernel *kernel, int next,
                                      op_call *calls)
{
    for (const cuda_fusion *f = kernel->fusions; f && f->name; f++)
        if (fuses(b, kernel, f, next, calls)) return f;
    return NULL;
}

/* The form in which a product reads x. Afterwards x is in BF16. */
static cuda_forms take_x(builder *b, const tensor *x, launch_entry *entry)
{
    cuda_forms forms = {0};
    bool there = same_view(&b->narrowed, x);
    entry->input = !there ? LAUNCH_ROUNDS : b->narrowed_in_f8 ? LAUNCH_F8 : LAUNCH_BF16;
    if (there) forms.x = b->narrowed_at, forms.x_in_f8 = b->narrowed_in_f8;
    if (!there) leave_narrowed(b, x, cuda_narrow_place(&b->ops));
    return forms;
}

static qp_status add_fused(builder *b, const cuda_fusion *fusion, const op_call *calls,
                           launch_entry *entry, qp_error *error)
{
    const tensor none = {0};
    cuda_forms forms = {0};
    cuda_left left = {0};
    entry->n_nodes += fusion->n_with;
    entry->epilogue = fusion->name;
    if (entry->kernel->takes_narrowed) forms = take_x(b, &calls[0].tensors[LINEAR_X], entry);
    if (fusion->leaves) left = fusion->leaves(&b->ops, calls, b->narrowed_at);
    TRY(fusion->launch(&b->ops, calls, &forms, error));
    if (left.narrowed) {
        const tensor out = output_of(fusion->with[fusion->n_with - 1], &calls[fusion->n_with]);
        leave_narrowed(b, &out, left.narrowed);
        b->narrowed_in_f8 = left.in_f8;
        entry->output = left.in_f8 ? LAUNCH_F8 : LAUNCH_BF16;
    } else {
        leave_narrowed(b, &none, 0);
    }
    if (left.q.rank) {
        b->q = calls[1].tensors[ROPE_Q];
        b->moved_q = left.q;
        entry->output = LAUNCH_Q;
    }
    return add_entry(b, entry, error);
}

/* ---- single launches ----------------------------------------------------------------------- */

static cuda_forms forms_of(builder *b, op_code op, const op_call *call, launch_entry *entry)
{
    const tensor none = {0}, out = output_of(op, call);
    cuda_forms forms = {.n_chunks = b->of->n_chunks};
    const cuda_kernel *kernel = entry->kernel;
    if (kernel->takes_narrowed) {
        forms = take_x(b, &call->tensors[LINEAR_X], entry);
        return forms;
    }
    leave_narrowed(b, &none, 0);
    if (!kernel->narrows || !kernel->narrows(call) || !feeds_product(b, entry->node, &out))
        return forms;
    forms.out = cuda_narrow_place(&b->ops);
    forms.out_alone = feeds_alone(b, entry->node, multiplies_narrowed);
    forms.out_by_rows =
        kernel->rounds && kernel->rounds(call) && feeds_alone(b, entry->node, multiplies_f8_rows);
    forms.out_in_f8 = forms.out_by_rows || (kernel->rounds && kernel->rounds(call) &&
                                            feeds_alone(b, entry->node, multiplies_f8_groups));
    leave_narrowed(b, &out, forms.out);
    b->narrowed_in_f8 = forms.out_in_f8;
    const bool alone = kernel->narrow_form == CUDA_NARROWS_ALONE ||
                       (kernel->narrow_form == CUDA_NARROWS_EITHER && forms.out_alone);
    entry->output = !alone ? LAUNCH_BOTH : forms.out_in_f8 ? LAUNCH_F8 : LAUNCH_BF16;
    return forms;
}

static void take_moved_q(builder *b, tensor *q, launch_entry *entry)
{
    if (b->q.rank && b->q.rank == q->rank && same_rows(&b->q, q)) {
        *q = b->moved_q;
        entry->input = LAUNCH_Q;
    }
    b->q.rank = 0;
}

/* Whether attention is two launches: of prompts, and of the sequences that decode beside them. A
 * tile of paged_prefill has a hundred rows, of which a sequence with one token uses a few. */
static bool is_split(const builder *b, const launch_entry *entry, const op_call *call)
{
    op_call decode, others;
    if (entry->kernel->op != OP_PAGED_PREFILL || b->of->n_decode == 0 || entry->kernel->given)
        return false;
    cuda_split_prefill(call, b->of->n_decode, &decode, &others);
    return !is_given(b, OP_PAGED_DECODE, &decode) && cuda_decode_accepts(&decode) &&
           cuda_decode_pays(&b->ops, &decode) &&
           cuda_ops_choose(&b->ops, OP_PAGED_PREFILL, &others) == entry->kernel;
}

/* The second launch runs while the first one's last blocks do. */
static qp_status launch_split(builder *b, const launch_entry *entry, const op_call *call,
                              const cuda_forms *forms, qp_error *error)
{
    op_call decode, others;
    cuda_forms own = *forms, first = *forms;
    own.beside = first.beside = true;
    first.out_rows = call->tensors[PAGED_PREFILL_Q].shape[0];
    cuda_split_prefill(call, b->of->n_decode, &decode, &others);
    TRY(entry->kernel->launch(&b->ops, entry->kernel, &others, &own, error));
    const cuda_kernel *kernel = cuda_ops_choose(&b->ops, OP_PAGED_DECODE, &decode);
    return kernel->launch(&b->ops, kernel, &decode, &first, error);
}

/* Gathers the rows that go on to the end of the pass from attention's output, which may be there in
 * BF16 alone, and from x. */
static qp_status gather_wanted(builder *b, op_call *output, qp_error *error)
{
    tensor attended = output->tensors[LINEAR_X];
    if (same_view(&b->narrowed, &attended))
        attended = tensor_2d(cuda_host_form(b->narrowed_at), DTYPE_BF16, attended.shape[0],
                             attended.shape[1]);
    return wanted_rows_gather(&b->wanted, b->setting, &b->ops, &attended, output, error);
}

/* Whether a node gathers logits of which only the likeliest tokens are wanted. */
static bool gathers_for_likeliest(const builder *b, int node)
{
    return b->finds && !b->ops.carrier && node + 1 == b->end &&
           b->program->nodes[node].op == OP_ALL_GATHER && !program_is_noop(b->program, node);
}

/* Each rank finds the likeliest of its own columns: logits are not gathered. */
static qp_status add_likeliest_of_ranks(builder *b, int node, qp_error *error)
{
    const op_call ids = likeliest_call(b);
    launch_entry entry = entry_at(b, node);
    op_call call;
    bind(b, node, &call);
    entry.kernel = cuda_ops_choose(&b->ops, OP_ALL_GATHER, &call);
    entry.epilogue = "argmax";
    b->finds = false;
    TRY(cuda_exchange_likeliest(&b->ops, &call.tensors[ALL_GATHER_PART],
                                (int64_t)call.params[ALL_GATHER_FIRST], &ids.tensors[ARGMAX_IDS],
                                error));
    return add_entry(b, &entry, error);
}

/* Adds a node and the nodes after it that are one launch with it; *count is their number. */
static qp_status add_node(builder *b, int node, int *count, qp_error *error)
{
    op_code op = b->program->nodes[node].op;
    op_call calls[1 + CUDA_MAX_FUSED];
    launch_entry entry = entry_at(b, node);
    *count = 1;
    if (program_is_noop(b->program, node) || node == b->wanted.gather)
        return add_entry(b, &entry, error);
    bind(b, node, &calls[0]);
    if (node == b->wanted.output) TRY(gather_wanted(b, &calls[0], error));
    if (op == OP_LINEAR) *count = entry.n_nodes = join_products(b, node, &calls[0]);
    if (op == OP_PAGED_PREFILL) take_moved_q(b, &calls[0].tensors[PAGED_PREFILL_Q], &entry);
    op = take_decoding(b, op, &calls[0]);
    entry.kernel = cuda_ops_choose(&b->ops, op, &calls[0]);
    if (!entry.kernel)
        return error_set(error, QP_UNSUPPORTED,
                         "the GPU has no kernel of %s for this model: use --device cpu",
                         op_get(op)->name);
    const cuda_fusion *fusion = find_fusion(b, entry.kernel, node + *count, calls);
    if (fusion) {
        *count += fusion->n_with;
        return add_fused(b, fusion, calls, &entry, error);
    }
    const cuda_forms forms = forms_of(b, op, &calls[0], &entry);
    if (is_split(b, &entry, &calls[0]))
        TRY(launch_split(b, &entry, &calls[0], &forms, error));
    else
        TRY(entry.kernel->launch(&b->ops, entry.kernel, &calls[0], &forms, error));
    return add_entry(b, &entry, error);
}

/* Adds a launch that finds the likeliest token of each row of logits, if no kernel has found it. */
static qp_status add_likeliest(builder *b, qp_error *error)
{
    const op_call call = likeliest_call(b);
    launch_entry entry = entry_at(b, b->end);
    entry.n_nodes = 0;
    entry.kernel = cuda_ops_choose(&b->ops, OP_ARGMAX, &call);
    b->early = false;
    TRY(entry.kernel->launch(&b->ops, entry.kernel, &call, &(cuda_forms){0}, error));
    return add_entry(b, &entry, error);
}

static qp_status build(builder *b, int node, qp_error *error)
{
    b->finds = b->of->likeliest;
    for (int count; node < b->end; node += count) {
        count = 0;
        if (gathers_for_likeliest(b, node)) {
            TRY(add_likeliest_of_ranks(b, node, error));
            count = 1;
            continue;
        }
        TRY(add_chain(b, node, &count, &b->finds, error));
        if (count == 0) TRY(add_node(b, node, &count, error));
    }
    return b->finds ? add_likeliest(b, error) : QP_OK;
}

/* ---- lists --------------------------------------------------------------------------------- */

/* At most one entry for each node, and one for the likeliest tokens. */
static qp_status allocate(launch_list *list, int n_nodes, qp_error *error)
{
    list->capacity = n_nodes + 1;
    list->entries = calloc((size_t)list->capacity, sizeof *list->entries);
    if (list->entries) return QP_OK;
    return error_no_memory(error, "a list of launches",
                           (size_t)list->capacity * sizeof *list->entries);
}

qp_status launch_list_make(const launch_setting *setting, const launch_class *of, launch_sink *sink,
                           void *context, launch_list *out, qp_error *error)
{
    const program_step *steps = setting->program->steps;
    *out = (launch_list){.of = *of};
    builder b = {.setting = setting,
                 .of = of,
                 .program = setting->program,
                 .early = true,
                 .chains =
                     of->sizes.of[AXIS_TOKENS] > setting->ops.few_rows && !setting->without_chains,
                 .ops = setting->ops,
                 .list = out,
                 .sink = sink,
                 .context = context};
    if (of->first == of->last) return QP_OK;
    const int begin = steps[of->first].first_node;
    b.end = steps[of->last - 1].first_node + steps[of->last - 1].n_nodes;
    b.wanted = wanted_rows_find(b.program, of, begin, b.end);
    b.ops.recording = &out->recording;
    TRY(allocate(out, b.end - begin, error));
    return build(&b, begin, error);
}

void launch_list_free(launch_list *list)
{
    free(list->entries);
    free(list->step_nodes);
    cuda_recording_free(&list->recording);
    *list = (launch_list){0};
}

const char *launch_kernel_name(const cuda_record *record)
{
    return record->is_product ? "cublasLt" : record->start.name;
}
