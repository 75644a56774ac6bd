/* The parts of a launch list's builder that chains and other launches share: see launch_builder.h.
 */
#include "vm/cuda/launch_builder.h"

#include "op/argmax/argmax.h"
#include "op/attention/attention_cuda.h"
#include "op/linear/linear.h"
#include "op/linear/linear_f8_rows_cuda.h"

#include <assert.h>

enum { DIRECT_ROWS = 8 /* that linear takes directly, whatever the weights' type */ };

/* ---- operands ------------------------------------------------------------------------------ */

void launch_bind_node(const launch_builder *b, int node, op_call *call)
{
    wanted_rows_bind(&b->wanted, b->setting, b->of, node, call);
}

bool launch_same_rows(const tensor *a, const tensor *b)
{
    return a->data == b->data && a->type == b->type && a->shape[0] == b->shape[0] &&
           a->shape[1] == b->shape[1] && a->stride[0] == b->stride[0];
}

bool launch_same_view(const tensor *a, const tensor *b)
{
    return a->rank == b->rank && launch_same_rows(a, b);
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

tensor launch_output_of(op_code op, const op_call *call)
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
static const cuda_kernel *product_of(const launch_builder *b, int node)
{
    op_call call;
    launch_bind_node(b, node, &call);
    return cuda_ops_choose(&b->ops, OP_LINEAR, &call);
}

bool launch_multiplies_narrowed(const launch_builder *b, int node)
{
    const cuda_kernel *product = product_of(b, node);
    return product && product->takes_narrowed;
}

bool launch_is_multiplied(const launch_builder *b, int node, const tensor *out)
{
    op_call next;
    if (node + 1 >= b->end || b->program->nodes[node + 1].op != OP_LINEAR) return false;
    launch_bind_node(b, node + 1, &next);
    return launch_same_rows(&next.tensors[LINEAR_X], out);
}

bool launch_feeds_product(const launch_builder *b, int node, const tensor *out)
{
    return launch_is_multiplied(b, node, out) && launch_multiplies_narrowed(b, node + 1);
}

bool launch_multiplies_f8_groups(const launch_builder *b, int node)
{
    const cuda_kernel *product = product_of(b, node);
    return product && product->takes_f8 == CUDA_F8_GROUPS;
}

bool launch_multiplies_f8_rows(const launch_builder *b, int node)
{
    const cuda_kernel *product = product_of(b, node);
    return product && product->takes_f8 == CUDA_F8_ROWS;
}

bool launch_feeds_alone(const launch_builder *b, int node, launch_takes *takes)
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

bool launch_ranks_are_alike(const program *p)
{
    const int64_t n = p->options.ranks, kv = p->whole.n_kv_heads;
    return p->whole.n_heads % n == 0 && (kv % n == 0 || n % kv == 0) &&
           p->whole.intermediate_size % n == 0;
}

bool launch_all_decode(const launch_builder *b)
{
    return b->of->n_chunks > 0 && b->of->n_decode == 0;
}

bool launch_is_custom(const launch_builder *b, op_code op, const op_call *call)
{
    return cuda_ops_custom(b->ops.custom, op, call);
}

op_code launch_take_decoding(const launch_builder *b, op_code op, op_call *call)
{
    if (op != OP_PAGED_PREFILL || !launch_all_decode(b) || launch_is_custom(b, op, call)) return op;
    return cuda_take_decoding(&b->ops, call);
}

/* Matrices of FP8 may have scales of rows elsewhere. */
static bool scales_lie_next(const tensor *w, const tensor *w2)
{
    if (cuda_f8_has_rows(w) != cuda_f8_has_rows(w2)) return false;
    return !cuda_f8_has_rows(w) ||
           cuda_f8_row_scales(w) + (cuda_address)w->shape[0] * 4 == cuda_f8_row_scales(w2);
}

/* Whether both products have biases, next to each other, or neither has one. */
static bool biases_lie_next(const tensor *a, const tensor *b)
{
    if (!a->rank || !b->rank) return a->rank == b->rank;
    return a->type == b->type && (char *)a->data + tensor_bytes(a) == b->data;
}

/* Whether two products of the same x can be merged: their weights and outputs are adjacent. Weights
 * that are decoded for cuBLASLt are not merged, so that less is decoded at a time. */
static bool lies_next(const op_call *first, const op_call *next)
{
    const tensor *a = first->tensors, *b = next->tensors;
    const tensor *w = &a[LINEAR_WEIGHT], *w2 = &b[LINEAR_WEIGHT];
    return launch_same_rows(&a[LINEAR_X], &b[LINEAR_X]) && w->type == w2->type &&
           (w->type == DTYPE_BF16 || w->type == DTYPE_F8 || a[LINEAR_X].shape[0] <= DIRECT_ROWS) &&
           w->stride[0] == w2->stride[0] &&
           (char *)w->data + w->shape[0] * w->stride[0] == w2->data && scales_lie_next(w, w2) &&
           a[LINEAR_OUT].type == DTYPE_F32 && b[LINEAR_OUT].type == DTYPE_F32 &&
           a[LINEAR_OUT].stride[0] == b[LINEAR_OUT].stride[0] &&
           (float *)a[LINEAR_OUT].data + a[LINEAR_OUT].shape[1] == b[LINEAR_OUT].data &&
           biases_lie_next(&a[LINEAR_BIAS], &b[LINEAR_BIAS]) && !a[LINEAR_RESIDUAL].rank &&
           !b[LINEAR_RESIDUAL].rank;
}

int launch_join_products(const launch_builder *b, int node, op_call *call)
{
    int n = node + 1;
    if (launch_is_custom(b, OP_LINEAR, call)) return 1;
    for (; n < b->end && b->program->nodes[n].op == OP_LINEAR; n++) {
        op_call next;
        launch_bind_node(b, n, &next);
        if (!lies_next(call, &next) || launch_is_custom(b, OP_LINEAR, &next)) break;
        call->tensors[LINEAR_WEIGHT].shape[0] += next.tensors[LINEAR_WEIGHT].shape[0];
        call->tensors[LINEAR_OUT].shape[1] += next.tensors[LINEAR_OUT].shape[1];
        call->tensors[LINEAR_BIAS].shape[0] += next.tensors[LINEAR_BIAS].shape[0];
        call->end = op_get(OP_LINEAR)->units(call);
    }
    return n - node;
}

op_call launch_likeliest_call(const launch_builder *b)
{
    const int64_t n = b->of->sizes.of[AXIS_OUTPUTS];
    op_call call = {.end = n};
    call.tensors[ARGMAX_LOGITS] = tensor_2d(b->setting->memory.data[PLAN_LOGITS], DTYPE_F32, n,
                                            b->program->config.vocab_size);
    call.tensors[ARGMAX_IDS] =
        tensor_1d(cuda_host_form(cuda_area_address(LAUNCH_LIKELIEST, 0)), DTYPE_I32, n);
    return call;
}

/* ---- entries ------------------------------------------------------------------------------- */

qp_status launch_add_entry(launch_builder *b, const launch_entry *entry, qp_error *error)
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

launch_entry launch_entry_at(const launch_builder *b, int node)
{
    return (launch_entry){.node = node, .n_nodes = 1, .record = b->list->recording.n_records};
}

void launch_leave_narrowed(launch_builder *b, const tensor *rows, cuda_address at)
{
    b->narrowed = *rows;
    b->narrowed_at = at;
    b->narrowed_in_f8 = false;
}
