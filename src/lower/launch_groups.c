/* Launch rules that make groups: which nodes one launch runs, and in which form rows enter and
 * leave it. See launch_rules.h. */
#include "lower/launch_rules.h"

#include "op/linear/linear.h"
#include "op/linear/linear_f8_rows_cuda.h"
#include "op/paged_prefill/paged_prefill.h"
#include "op/rope/rope.h"
#include "op/rows_cuda.h"

#include <string.h>

/* ---- values and their readers --------------------------------------------------------------- */

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

/* Whether a node, a product, reads x in BF16, where `scales` is CUDA_F8_NONE, or else in FP8 with
 * these scales. */
static bool product_reads(const lowering *l, int at, int scales)
{
    const cuda_kernel *product = cuda_ops_choose(l->ops, OP_LINEAR, lower_call(l, at));
    if (!product) return false;
    return scales == CUDA_F8_NONE ? product->takes_narrowed : (int)product->takes_f8 == scales;
}

/* Whether the node after `at` is a product that reads `out` so. */
static bool next_reads(const lowering *l, int at, const tensor *out, int scales)
{
    return at + 1 < l->n_nodes && l->nodes[at + 1].op == OP_LINEAR &&
           lower_same_rows(&lower_call(l, at + 1)->tensors[LINEAR_X], out) &&
           product_reads(l, at + 1, scales);
}

bool lower_feeds_product(const lowering *l, int at, const tensor *out)
{
    return next_reads(l, at, out, CUDA_F8_NONE);
}

/* Whether only products that read x so read a node's output. After the pass's last node
 * any node may read it, unless that is also the program's last node. */
static bool only_feeds(const lowering *l, int at, int scales)
{
    const program *program = l->program;
    const lowered_node *nodes = l->nodes;
    const int id = program_tensor_of(program, nodes[at].node, first_output(nodes[at].op));
    int last = nodes[at].node;
    for (int i = at + 1; i < l->n_nodes; i++) {
        const int n = nodes[i].node;
        if (nodes[i].n_nodes == 0) continue;
        const op_info *op = op_get(program->nodes[n].op);
        last = n;
        for (int t = 0; t < op_n_tensors(op); t++) {
            if (program_tensor_of(program, n, t) != id) continue;
            if (op->tensors[t].direction == OP_OUT)
                return program_operand(program, n, t)->columns == 0;
            if (nodes[i].op != OP_LINEAR || t != LINEAR_X || !product_reads(l, i, scales))
                return false;
        }
    }
    return last + 1 == program->n_nodes;
}

/* ---- merge ---------------------------------------------------------------------------------- */

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
    return lower_same_rows(&a[LINEAR_X], &b[LINEAR_X]) && w->type == w2->type &&
           (w->type == DTYPE_BF16 || w->type == DTYPE_F8 ||
            a[LINEAR_X].shape[0] <= CUDA_FEW_ROWS) &&
           w->stride[0] == w2->stride[0] &&
           (char *)w->data + w->shape[0] * w->stride[0] == w2->data && scales_lie_next(w, w2) &&
           a[LINEAR_OUT].type == DTYPE_F32 && b[LINEAR_OUT].type == DTYPE_F32 &&
           a[LINEAR_OUT].stride[0] == b[LINEAR_OUT].stride[0] &&
           (float *)a[LINEAR_OUT].data + a[LINEAR_OUT].shape[1] == b[LINEAR_OUT].data &&
           biases_lie_next(&a[LINEAR_BIAS], &b[LINEAR_BIAS]) && !a[LINEAR_RESIDUAL].rank &&
           !b[LINEAR_RESIDUAL].rank;
}

int lower_merge(lowering *l, int at, op_call *call)
{
    int i = at + 1;
    if (!lower_takes(l, LOWER_RULE_merge) || lower_is_custom(l, OP_LINEAR, call)) return 1;
    for (; i < l->n_nodes && l->nodes[i].op == OP_LINEAR; i++) {
        const op_call *next = lower_call(l, i);
        if (lower_is_custom(l, OP_LINEAR, next)) break;
        if (!lies_next(call, next)) {
            if (lower_same_rows(&call->tensors[LINEAR_X], &next->tensors[LINEAR_X]))
                lower_refuse(l, LOWER_RULE_merge, i,
                             "its weight is not adjacent, or is decoded a part at a time");
            break;
        }
        call->tensors[LINEAR_WEIGHT].shape[0] += next->tensors[LINEAR_WEIGHT].shape[0];
        call->tensors[LINEAR_OUT].shape[1] += next->tensors[LINEAR_OUT].shape[1];
        call->tensors[LINEAR_BIAS].shape[0] += next->tensors[LINEAR_BIAS].shape[0];
        call->end = op_get(OP_LINEAR)->units(call);
    }
    return i - at;
}

/* The merged call takes the place of the last product's, so that the next node's follows it. */
int lower_merge_products(lowering *l, int at, lowered_group *g)
{
    op_call call = *lower_call(l, at);
    const int n = lower_merge(l, at, &call);
    if (n == 1) return 1;
    lower_took(l, LOWER_RULE_merge);
    g->call = l->nodes[at + n - 1].call;
    g->n_nodes = n;
    l->calls[g->call] = call;
    return n;
}

/* ---- fusions of a kernel --------------------------------------------------------------------- */

/* The rule that takes a fusion. */
static int rule_of(const cuda_fusion *fusion)
{
    static const struct {
        const char *name;
        int rule;
    } rules[] = {{"silu_and_mul", LOWER_RULE_silu},
                 {"rope, kv_append", LOWER_RULE_turn},
                 {"kv_append", LOWER_RULE_rope_append},
                 {"rms_norm", LOWER_RULE_reduce_norm},
                 {"all_reduce, rms_norm", LOWER_RULE_cut_rows},
                 {"argmax", LOWER_RULE_argmax},
                 {"rope, append", LOWER_RULE_norm_turn},
                 {"linear, route", LOWER_RULE_route},
                 {"linear_experts", LOWER_RULE_experts}};
    size_t i = 0;
    while (strcmp(rules[i].name, fusion->name) != 0)
        i++;
    return rules[i].rule;
}

/* Whether node `at` is attention that reads the q that a fusion moves, and feeds a product. */
static bool reads_moved(const lowering *l, int at, const tensor *q)
{
    if (at >= l->n_nodes || l->nodes[at].op != OP_PAGED_PREFILL || lower_all_decode(l))
        return false;
    const op_call *attention = lower_call(l, at);
    const cuda_kernel *reader = cuda_ops_choose(l->ops, OP_PAGED_PREFILL, attention);
    const tensor out = output_of(OP_PAGED_PREFILL, attention);
    return attention->tensors[PAGED_PREFILL_Q].data == q->data && reader && reader->takes_moved_q &&
           lower_feeds_product(l, at, &out);
}

/* Whether the nodes from `next` on are those of a fusion. The likeliest tokens are found in place
 * of logits only if a rule has added the node: the program's own leaves the logits to others. */
static bool has_nodes(const lowering *l, const cuda_fusion *fusion, int next)
{
    const lowered_node *nodes = l->nodes;
    if (next + fusion->n_with > l->n_nodes) return false;
    for (int i = 0; i < fusion->n_with; i++)
        if (nodes[next + i].op != fusion->with[i] || nodes[next + i].nothing ||
            (nodes[next + i].op == OP_ARGMAX && nodes[next + i].n_nodes > 0) ||
            lower_is_custom(l, fusion->with[i], lower_call(l, next + i)))
            return false;
    return true;
}

/* Why a fusion's nodes are not one launch; NULL: they are. */
static const char *refuse_fusion(const lowering *l, const cuda_kernel *kernel, const cuda_fusion *f,
                                 int last, const op_call *calls)
{
    if (f->sums && !(lower_ranks_are_alike(l->program) && only_feeds(l, last, CUDA_F8_NONE)))
        return "ranks differ, or another node than a product in BF16 reads the norm";
    if (!f->accepts(l->ops, calls)) return "the kernel does not take these shapes";
    if (f->moves_q && !reads_moved(l, last + 1, &calls[1].tensors[ROPE_Q]))
        return "the attention after it does not read q in the type of the cache";
    const tensor out = output_of(f->with[f->n_with - 1], &calls[f->n_with]);
    if (f->rounds && !next_reads(l, last, &out, (int)kernel->takes_f8))
        return "no product that reads FP8 follows";
    if (f->narrows && !f->rounds && !lower_feeds_product(l, last, &out))
        return "no product that reads BF16 follows";
    return NULL;
}

static bool fuses(const lowering *l, const cuda_kernel *kernel, const cuda_fusion *fusion, int next,
                  const op_call *calls)
{
    const int rule = rule_of(fusion);
    if (!lower_takes(l, rule) || !has_nodes(l, fusion, next)) return false;
    if (fusion->with[0] == OP_ROPE && !cuda_rope_is_appended(l->ops, &calls[1])) return false;
    const char *why = refuse_fusion(l, kernel, fusion, next + fusion->n_with - 1, calls);
    if (why) lower_refuse(l, rule, next, why);
    return !why;
}

/* A fusion of the chosen kernel, or of one that only runs so, which group->kernel then is. */
static const cuda_fusion *find_fusion(const lowering *l, int next, lowered_group *g)
{
    const op_call *calls = &l->calls[g->call];
    const cuda_kernel *kernels[] = {g->kernel, cuda_ops_fusing(l->ops, g->kernel, calls)};
    for (int i = 0; i < 2; i++)
        for (const cuda_fusion *f = kernels[i] ? kernels[i]->fusions : NULL; f && f->name; f++)
            if (fuses(l, kernels[i], f, next, calls)) {
                g->kernel = kernels[i];
                return f;
            }
    return NULL;
}

static void leave_narrowed(lowered_group *g, const tensor *rows, cuda_address at, bool in_f8)
{
    g->left.rows = *rows;
    g->left.at = at;
    g->left.in_f8 = in_f8;
}

/* The form in which a product reads x. Afterwards x is in BF16. */
static void take_x(const lowering *l, const tensor *x, lowered_group *g)
{
    const bool there = g->left.rows.rank == x->rank && lower_same_rows(&g->left.rows, x);
    g->input = !there ? LAUNCH_ROUNDS : g->left.in_f8 ? LAUNCH_F8 : LAUNCH_BF16;
    if (there) g->forms = (cuda_forms){.x = g->left.at, .x_in_f8 = g->left.in_f8};
    if (!there) leave_narrowed(g, x, cuda_narrow_place(l->ops), false);
}

/* The form in which a fusion leaves its output, and q for the attention at node `attention`. */
static void take_left(const lowering *l, int attention, lowered_group *g)
{
    const cuda_fusion *f = g->fusion;
    const op_call *calls = &l->calls[g->call];
    const tensor none = {0}, out = output_of(f->with[f->n_with - 1], &calls[f->n_with]);
    cuda_left left = {0};
    if (f->leaves) left = f->leaves(l->ops, calls, g->left.at);
    leave_narrowed(g, left.narrowed ? &out : &none, left.narrowed, left.in_f8);
    if (left.narrowed) g->output = left.in_f8 ? LAUNCH_F8 : LAUNCH_BF16;
    if (f->sums) g->left.cut_x = calls[0].tensors[LINEAR_OUT];
    if (!left.q.rank) return;
    lower_call(l, attention)->tensors[PAGED_PREFILL_Q] = left.q;
    l->nodes[attention].input = g->output = LAUNCH_Q;
}

int lower_fuse(lowering *l, int next, lowered_group *g)
{
    g->fusion = find_fusion(l, next, g);
    if (!g->fusion) return 0;
    const int n = g->fusion->n_with;
    lower_took(l, rule_of(g->fusion));
    g->epilogue = g->fusion->name;
    for (int i = 0; i < n; i++)
        g->n_nodes += l->nodes[next + i].n_nodes;
    if (g->kernel->takes_narrowed) take_x(l, &l->calls[g->call].tensors[LINEAR_X], g);
    take_left(l, next + n, g);
    return n;
}

/* ---- narrow, f8 ------------------------------------------------------------------------------ */

void lower_narrow(lowering *l, int at, lowered_group *g)
{
    const op_call *call = &l->calls[g->call];
    const tensor none = {0}, out = output_of(l->nodes[at].op, call);
    const cuda_kernel *kernel = g->kernel;
    if (kernel->takes_narrowed) {
        take_x(l, &call->tensors[LINEAR_X], g);
        return;
    }
    g->forms.n_chunks = l->of->n_chunks;
    leave_narrowed(g, &none, 0, false);
    if (!lower_takes(l, LOWER_RULE_narrow) || !kernel->narrows || !kernel->narrows(call)) return;
    if (!lower_feeds_product(l, at, &out)) {
        lower_refuse(l, LOWER_RULE_narrow, at, "no product that reads BF16 follows");
        return;
    }
    lower_took(l, LOWER_RULE_narrow);
    const bool rounds = lower_takes(l, LOWER_RULE_f8) && kernel->rounds && kernel->rounds(call);
    g->forms.out = cuda_narrow_place(l->ops);
    g->forms.out_alone = only_feeds(l, at, CUDA_F8_NONE);
    g->forms.out_by_rows = rounds && only_feeds(l, at, CUDA_F8_ROWS);
    g->forms.out_in_f8 = g->forms.out_by_rows || (rounds && only_feeds(l, at, CUDA_F8_GROUPS));
    if (g->forms.out_in_f8) lower_took(l, LOWER_RULE_f8);
    leave_narrowed(g, &out, g->forms.out, g->forms.out_in_f8);
    const bool alone = kernel->narrow_form == CUDA_NARROWS_ALONE ||
                       (kernel->narrow_form == CUDA_NARROWS_EITHER && g->forms.out_alone);
    g->output = !alone ? LAUNCH_BOTH : g->forms.out_in_f8 ? LAUNCH_F8 : LAUNCH_BF16;
}
