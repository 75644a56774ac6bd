/* Which kernels a pass is on the GPU: nodes of the plan, and those neighbours that are one launch.
 * For passes of few rows it is the number of launches that counts. See cuda_executor.h.
 */
#include "vm/cuda/executor.h"
#include "op/argmax/argmax.h"
#include "op/kv_append/kv_append.h"
#include "op/linear/linear.h"
#include "op/paged_prefill/paged_prefill.h"
#include "op/rope/rope.h"
#include "op/silu_and_mul/silu_and_mul.h"
#include "op/variants.h"
#include "vm/cuda_attention.h"
#include "vm/cuda_chain.h"
#include "vm/cuda_linear.h"
#include "vm/cuda_linear_eight.h"
#include "vm/cuda_linear_stream.h"
#include "vm/cuda_linear_wide.h"
#include "vm/cuda_rows.h"

enum { FEW_ROWS = 8 }; /* that linear takes as they are, whatever the weights' type */

static bool same_rows(const tensor *a, const tensor *b)
{
    return a->data == b->data && a->type == b->type && a->shape[0] == b->shape[0] &&
           a->shape[1] == b->shape[1] && a->stride[0] == b->stride[0];
}

static int first_output(op_code op)
{
    int t = 0;
    while (op_get(op)->tensors[t].direction != OP_OUT)
        t++;
    return t;
}

/* Whether a node, a product, takes its rows in BF16. */
static bool multiplies_narrowed(const cuda_executor *x, int node, const plan_sizes *sizes)
{
    op_call call;
    cuda_executor_bind(x, node, sizes, &call);
    const cuda_kernel *product = cuda_ops_choose(&x->ops, OP_LINEAR, &call);
    return product && product->whole;
}

/* Whether what a node writes is what the next node, behind which `end` lies, multiplies in BF16. */
static bool feeds_product(const cuda_executor *x, int node, int end, const plan_sizes *sizes,
                          const tensor *out)
{
    op_call next;
    if (node + 1 >= end || x->plan->nodes[node + 1].op != OP_LINEAR) return false;
    cuda_executor_bind(x, node + 1, sizes, &next);
    return same_rows(&next.tensors[LINEAR_X], out) && multiplies_narrowed(x, node + 1, sizes);
}

/* Whether a node's output is read by such products alone. What this pass's last node leaves may be
 * read by anybody, unless it is the plan's last one too. */
static bool feeds_products_alone(const cuda_executor *x, int node, int end, const plan_sizes *sizes)
{
    const program *plan = x->plan;
    int id = program_tensor_of(plan, node, first_output(plan->nodes[node].op));
    for (int n = node + 1; n < end; n++) {
        const op_code reader = plan->nodes[n].op;
        const op_info *op = op_get(reader);
        for (int t = 0; t < op_n_tensors(op); t++) {
            if (program_tensor_of(plan, n, t) != id) continue;
            if (op->tensors[t].direction == OP_OUT)
                return program_operand(plan, n, t)->columns == 0;
            if (reader != OP_LINEAR || t != LINEAR_X || !multiplies_narrowed(x, n, sizes))
                return false;
        }
    }
    return end == plan->n_nodes;
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

/* Whether two products of the same x are one: weights and outputs lie side by side. Of weights that
 * are decoded for cuBLASLt less is decoded at a time. */
static bool lies_behind(const op_call *first, const op_call *next)
{
    const tensor *a = first->tensors, *b = next->tensors;
    const tensor *w = &a[LINEAR_WEIGHT], *w2 = &b[LINEAR_WEIGHT];
    return same_rows(&a[LINEAR_X], &b[LINEAR_X]) && w->type == w2->type &&
           (w->type == DTYPE_BF16 || a[LINEAR_X].shape[0] <= FEW_ROWS) &&
           w->stride[0] == w2->stride[0] &&
           (char *)w->data + w->shape[0] * w->stride[0] == w2->data &&
           a[LINEAR_OUT].type == DTYPE_F32 && b[LINEAR_OUT].type == DTYPE_F32 &&
           a[LINEAR_OUT].stride[0] == b[LINEAR_OUT].stride[0] &&
           (float *)a[LINEAR_OUT].data + a[LINEAR_OUT].shape[1] == b[LINEAR_OUT].data &&
           !a[LINEAR_BIAS].rank && !b[LINEAR_BIAS].rank && !a[LINEAR_RESIDUAL].rank &&
           !b[LINEAR_RESIDUAL].rank;
}

/* Makes a product one with those behind it, as far as they are; returns how many it then is. */
static int join_products(const cuda_executor *x, int node, int end, const plan_sizes *sizes,
                         op_call *call)
{
    int n = node + 1;
    for (; n < end && x->plan->nodes[n].op == OP_LINEAR; n++) {
        op_call next;
        cuda_executor_bind(x, n, sizes, &next);
        if (!lies_behind(call, &next)) break;
        call->tensors[LINEAR_WEIGHT].shape[0] += next.tensors[LINEAR_WEIGHT].shape[0];
        call->tensors[LINEAR_OUT].shape[1] += next.tensors[LINEAR_OUT].shape[1];
        call->end = op_get(OP_LINEAR)->units(call);
    }
    return n - node;
}

/* Whether the node behind a rope puts into the cache what it turned; then that is its call. */
static bool appends_next(const cuda_executor *x, int node, int end, const plan_sizes *sizes,
                         const op_call *rope, op_call *append)
{
    if (node + 1 >= end || x->plan->nodes[node + 1].op != OP_KV_APPEND) return false;
    cuda_executor_bind(x, node + 1, sizes, append);
    return append->tensors[KV_APPEND_K].data == rope->tensors[ROPE_K].data &&
           append->end == rope->end && op_call_has_no_f64(rope) && op_call_has_no_f64(append);
}

/* Kernels of products that make an activation too; `narrows`: in BF16 alone. */
typedef struct activating_product {
    qp_status (*product)(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                         qp_error *error);
    bool (*activates)(const cuda_ops *ops, const op_call *product, const op_call *silu);
    qp_status (*launch)(cuda_ops *ops, const op_call *product, const op_call *silu,
                        qp_error *error);
    bool narrows;
} activating_product;

static const activating_product *activating_of(const cuda_kernel *kernel)
{
    static const activating_product all[] = {
        {cuda_linear_eight, cuda_linear_eight_activates, cuda_linear_eight_silu, false},
        {cuda_linear_stream, cuda_linear_stream_activates, cuda_linear_stream_silu, true},
        {cuda_linear_blas, cuda_linear_wide_activates, cuda_linear_wide_silu, true},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].product == kernel->launch) return &all[i];
    return NULL;
}

/* Whether a product's kernel makes the activation that node `next` is with it; then that is its
 * call. Nobody reads the product itself, nor an activation in BF16 alone otherwise. */
static bool activates(const cuda_executor *x, int next, int end, const plan_sizes *sizes,
                      const cuda_kernel *kernel, const op_call *product, op_call *silu)
{
    const activating_product *own = activating_of(kernel);
    if (!own || next >= end || x->plan->nodes[next].op != OP_SILU_AND_MUL) return false;
    cuda_executor_bind(x, next, sizes, silu);
    if (!own->activates(&x->ops, product, silu)) return false;
    return !own->narrows || feeds_product(x, next, end, sizes, &silu->tensors[SILU_AND_MUL_OUT]);
}

/* Whether a product's kernel makes what the next three nodes would but for attention with it: rope
 * and kv_append, whose calls these then are. Attention, the third, leaves nothing where q was. */
static bool turns(const cuda_executor *x, int next, int end, const plan_sizes *sizes,
                  const cuda_kernel *kernel, const op_call *product, op_call *rope, op_call *append)
{
    op_call attention;
    if (kernel->launch != cuda_linear_blas || next + 2 >= end ||
        x->plan->nodes[next].op != OP_ROPE || x->plan->nodes[next + 2].op != OP_PAGED_PREFILL)
        return false;
    cuda_executor_bind(x, next, sizes, rope);
    if (!appends_next(x, next, end, sizes, rope, append) ||
        !cuda_linear_wide_turns(&x->ops, product, rope, append))
        return false;
    cuda_executor_bind(x, next + 2, sizes, &attention);
    const cuda_kernel *reader = cuda_ops_choose(&x->ops, OP_PAGED_PREFILL, &attention);
    const tensor out = output_of(OP_PAGED_PREFILL, &attention);
    return attention.tensors[PAGED_PREFILL_Q].data == rope->tensors[ROPE_Q].data && reader &&
           reader->launch == cuda_prefill && x->ops.longest == 0 &&
           feeds_product(x, next + 2, end, sizes, &out);
}

/* Where every sequence of the pass decodes, and there are many, attention is paged_decode. */
static op_code take_decoding(const cuda_executor *x, op_code op, op_call *call)
{
    if (op != OP_PAGED_PREFILL || x->ops.longest == 0) return op;
    op_call decode = cuda_decode_of_prefill(call);
    if (!cuda_decode_accepts(&decode) || !cuda_decode_pays(&decode)) return op;
    *call = decode;
    return OP_PAGED_DECODE;
}

/* Gives the nodes at `node` that a kernel of the chain takes at once to it: how many, 0 for none.
 */
static int chain_nodes(const cuda_executor *x, int node, int end, const plan_sizes *sizes,
                       cuda_chain *chain)
{
    op_call call, behind;
    cuda_executor_bind(x, node, sizes, &call);
    switch (x->plan->nodes[node].op) {
    case OP_ALL_REDUCE:
        return x->plan->options.ranks == 1; /* of one: itself */
    case OP_EMBEDDING:
        return cuda_chain_gather(chain, &call);
    case OP_RMS_NORM:
        return cuda_chain_norm(chain, &call);
    case OP_ROPE:
        return appends_next(x, node, end, sizes, &call, &behind) &&
                       cuda_chain_rope(chain, &call, &behind)
                   ? 2
                   : 0;
    case OP_PAGED_PREFILL:
        return take_decoding(x, OP_PAGED_PREFILL, &call) == OP_PAGED_DECODE &&
               cuda_chain_attention(chain, &call);
    case OP_LINEAR: {
        int n = join_products(x, node, end, sizes, &call);
        if (node + n < end && x->plan->nodes[node + n].op == OP_SILU_AND_MUL) {
            cuda_executor_bind(x, node + n, sizes, &behind);
            if (cuda_chain_activated(chain, &call, &behind)) return n + 1;
        }
        return cuda_chain_product(chain, &call) ? n : 0;
    }
    default:
        return 0;
    }
}

/* Whether the chain that ends a pass finds the likeliest tokens in the stead of logits. */
static bool takes_likeliest(const cuda_executor *x, cuda_chain *chain)
{
    op_call call = {.end = x->likeliest.shape[0]};
    call.tensors[ARGMAX_LOGITS] =
        tensor_2d(x->memory.data[PLAN_LOGITS], DTYPE_F32, call.end, x->plan->config.vocab_size);
    call.tensors[ARGMAX_IDS] = x->likeliest;
    return cuda_chain_likeliest(chain, &call);
}

/* Runs as many nodes as make a chain, *count; 0 where they make none. */
static qp_status launch_chain(cuda_executor *x, int node, int end, const plan_sizes *sizes,
                              int *count, qp_error *error)
{
    cuda_chain chain, whole, normed;
    int n_normed = 0;
    *count = 0;
    if (x->marks || !x->early || !cuda_chain_begin(&x->ops, sizes->of[AXIS_TOKENS], &chain))
        return QP_OK;
    for (int n = node, taken; n < end; n += taken) {
        taken = chain_nodes(x, n, end, sizes, &chain);
        if (taken == 0) break;
        if (cuda_chain_ends_with_norm(&chain)) {
            normed = chain;
            n_normed = n + taken - node;
        }
        if (!cuda_chain_is_whole(&chain)) continue;
        whole = chain;
        *count = n + taken - node;
    }
    if (*count == 0) return QP_OK;
    if (cuda_chain_is_full(&chain) && node + *count < end && n_normed > 0 &&
        feeds_product(x, node + n_normed - 1, end, sizes, &normed.x)) {
        whole = normed;
        *count = n_normed;
    }
    if (x->likeliest.rank && node + *count == end && takes_likeliest(x, &whole))
        x->likeliest.rank = 0;
    x->ops.early |= x->follows; /* it waits for all but weights */
    return cuda_chain_launch(&whole, error);
}

/* Runs a node, and those behind it that are one launch with it: *count in all. `end`: behind the
 * last of this pass. */
static qp_status launch_node(cuda_executor *x, int node, int end, const plan_sizes *sizes,
                             int *count, qp_error *error)
{
    op_code op = x->plan->nodes[node].op;
    op_call call, rope, append, silu;
    *count = 1;
    if (op == OP_ALL_REDUCE && x->plan->options.ranks == 1) return QP_OK; /* of one: itself */
    cuda_executor_bind(x, node, sizes, &call);
    if (op == OP_LINEAR) *count = join_products(x, node, end, sizes, &call);
    if (op == OP_ROPE && appends_next(x, node, end, sizes, &call, &append)) {
        *count = 2;
        return cuda_rope_append(&x->ops, &call, &append, error);
    }
    if (op == OP_PAGED_PREFILL) cuda_linear_wide_take_q(&x->ops, &call.tensors[PAGED_PREFILL_Q]);
    op = take_decoding(x, op, &call);
    const cuda_kernel *kernel = cuda_ops_choose(&x->ops, op, &call);
    if (!kernel)
        return error_set(error, QP_UNSUPPORTED,
                         "the GPU has no kernel of %s for this model: use --device cpu",
                         op_get(op)->name);
    if (op == OP_LINEAR && activates(x, node + *count, end, sizes, kernel, &call, &silu)) {
        *count += 1;
        return activating_of(kernel)->launch(&x->ops, &call, &silu, error);
    }
    if (op == OP_LINEAR && turns(x, node + *count, end, sizes, kernel, &call, &rope, &append)) {
        *count += 2;
        return cuda_linear_wide_rope(&x->ops, &call, &rope, &append, error);
    }
    x->ops.turned.rank = 0;
    if (kernel->narrows) {
        const tensor out = output_of(op, &call);
        if (feeds_product(x, node, end, sizes, &out))
            cuda_ops_narrow_next(&x->ops, &out, feeds_products_alone(x, node, end, sizes));
    }
    return cuda_ops_launch(&x->ops, kernel, &call, error);
}

static qp_status mark(const cuda_executor *x, int node, qp_error *error)
{
    cuda_marks *m = x->marks;
    if (!m || m->count == m->capacity) return QP_OK;
    m->nodes[m->count] = node;
    return cuda_check(x->device->driver->event_record(m->events[m->count++], x->device->stream),
                      "marking an operator", error);
}

qp_status cuda_executor_launch(cuda_executor *x, const plan_sizes *sizes, int first, int last,
                               qp_error *error)
{
    const plan_step *steps = x->plan->steps;
    if (first == last) return QP_OK;
    int end = steps[last - 1].first_node + steps[last - 1].n_nodes;
    x->ops.narrowed.rank = 0;
    x->ops.early = false; /* the first one waits for the inputs' copy, and with it for all before */
    for (int n = steps[first].first_node, count; n < end; n += count) {
        TRY(mark(x, n, error));
        TRY(launch_chain(x, n, end, sizes, &count, error));
        if (count == 0) TRY(launch_node(x, n, end, sizes, &count, error));
        x->ops.early = x->early && !x->marks;
    }
    x->ops.early = false;
    return mark(x, end, error);
}
