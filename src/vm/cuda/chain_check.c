/* Chains as records: see chain_check.h. */
#include "vm/cuda/chain_check.h"

#include "cuda/launch.h"

#include <string.h>

/* ---- text ---------------------------------------------------------------------------------- */

static void print_product(const chain_product *p, strbuf *out)
{
    static const char *const ends[] = {
        [CHAIN_PARTS] = "parts",
        [CHAIN_PLAIN] = "sums",
        [CHAIN_SILU] = "silu_and_mul in 16 bits",
        [CHAIN_LIKELIEST] = "likeliest tokens",
    };
    strbuf_printf(out, "product    %d rows, %d features of %d, %d %stiles", p->n_rows,
                  p->n_features, p->n_depths * LINEAR_STREAM_DEPTH, p->n_tiles,
                  p->low ? "low " : "");
    if (p->ranks > 1) strbuf_printf(out, " of %d parts", p->ranks);
    strbuf_printf(out, " -> %s", ends[p->end]);
}

static void print_rows(const chain_rows *r, strbuf *out)
{
    strbuf_printf(out, "rows       %d of %d", r->n_rows, r->parts.n_features);
    if (r->parts.n_parts > 0)
        strbuf_printf(out, ", %s%d parts%s", r->residual ? "residual + " : "", r->parts.n_parts,
                      r->parts.bias ? " and bias" : "");
    if (r->reduced) strbuf_puts(out, ", summed over ranks");
    if (r->table) strbuf_puts(out, ", from the embedding");
    if (r->rows && !r->table) strbuf_puts(out, ", gathered");
    strbuf_puts(out, r->weight ? " -> norm in 16 bits" : " -> residual");
}

static void print_rope(const chain_rope *r, strbuf *out)
{
    strbuf_printf(out, "%s %d tokens, %d + %d heads of %d, %d parts%s -> %sq, KV cache",
                  r->table ? "rope      " : "append    ", r->n_tokens, r->n_q, r->n_kv, r->head_dim,
                  r->parts.n_parts, r->parts.bias ? " and bias" : "", r->q_norm ? "norm -> " : "");
}

static void print_attention(const chain_attention *a, strbuf *out)
{
    strbuf_printf(out, "attention  %d sequences, %d KV heads, groups of %d -> BF16", a->n_sequences,
                  a->n_kv, a->group);
}

void chain_step_print(const chain_step *step, strbuf *out)
{
    switch (step->kind) {
    case CHAIN_PRODUCT:
        print_product(&step->of.product, out);
        break;
    case CHAIN_ROWS:
        print_rows(&step->of.rows, out);
        break;
    case CHAIN_ROPE:
        print_rope(&step->of.rope, out);
        break;
    case CHAIN_ATTENTION:
        print_attention(&step->of.attention, out);
        break;
    }
    if (step->blocks > 0)
        strbuf_printf(out, ", %d blocks", step->blocks);
    else
        strbuf_puts(out, ", by attention's blocks");
}

/* ---- checks -------------------------------------------------------------------------------- */

typedef struct checking {
    const linear_chain *chain;
    int step, n_multiprocessors;
    const uint16_t *narrowed; /* the last step's result in BF16; NULL: none */
    int32_t n_narrowed;       /* length of its rows, in elements */
    bool begun;               /* a step has left rows, or there was a product */
    qp_error *error;
} checking;

static qp_status wrong(const checking *c, const char *what)
{
    return error_set(c->error, QP_INVALID, "step %d of a chain of %d is wrong: %s", c->step,
                     c->chain->n_steps, what);
}

#define MUST(condition, what)                                                                      \
    do {                                                                                           \
        if (!(condition)) return wrong(c, what);                                                   \
    } while (0)

static const chain_step *step_at(const checking *c, int step)
{
    return step >= 0 && step < c->chain->n_steps ? &c->chain->steps[step] : NULL;
}

/* The parts must be those of the previous product. */
static qp_status check_parts(const checking *c, const chain_parts *parts)
{
    const chain_step *before = step_at(c, c->step - 1);
    if (parts->n_parts == 0) return QP_OK;
    MUST(before && before->kind == CHAIN_PRODUCT && before->of.product.end == CHAIN_PARTS,
         "it adds parts, but the step before it leaves none");
    const chain_product *p = &before->of.product;
    MUST(parts->data == p->out && parts->n_parts == p->ranks && parts->n_rows == p->n_rows &&
             parts->n_features == p->n_features,
         "it adds other parts than the step before it leaves");
    return QP_OK;
}

static bool adds_parts(const chain_step *step)
{
    return step && ((step->kind == CHAIN_ROWS && step->of.rows.parts.n_parts > 0) ||
                    (step->kind == CHAIN_ROPE && step->of.rope.parts.n_parts > 0));
}

/* The weight's map, its tiles, or its parts. */
static bool has_weight(const checking *c, const chain_product *p)
{
    const chain_packed *w = &p->packed;
    cuda_map map;
    if (p->tiled) return p->tiles != 0 && !c->chain->packed;
    if (!c->chain->packed) return cuda_map_read(p->weight_map, &map);
    if (w->first[0] != 0 || w->n_groups * PACKED_GROUP_ROWS < p->n_features) return false;
    for (int i = 0; i < CHAIN_PACKED_PARTS; i++)
        if (w->first[i] != INT32_MAX && (!w->from[i] || w->kind[i] == PACKED_NONE)) return false;
    return true;
}

static qp_status check_product(checking *c, const chain_product *p)
{
    cuda_map x;
    const bool last = c->step + 1 == c->chain->n_steps;
    const int64_t parts = (int64_t)p->ranks * p->n_features * LINEAR_STREAM_MAX_X * 4;
    MUST(cuda_map_read(p->x_map, &x) && has_weight(c, p), "a tensor map is missing");
    MUST(x.sizes[0] * x.sizes[2] == (uint64_t)p->n_depths * LINEAR_STREAM_DEPTH &&
             x.sizes[1] == (uint64_t)p->n_rows,
         "its map of x has another shape");
    MUST(!c->begun || (c->narrowed && x.address == (cuda_address)(uintptr_t)c->narrowed),
         "the step before it does not leave its x in BF16");
    MUST(!c->begun || c->n_narrowed == p->n_depths * LINEAR_STREAM_DEPTH,
         "rows of its x have another length than those before it");
    MUST(p->n_tiles > 0 && p->ranks > 0 && p->ranks <= CHAIN_MAX_PARTS, "it has no tiles or parts");
    MUST(p->end == CHAIN_PARTS || p->ranks == 1, "only parts can be cut");
    MUST(p->end != CHAIN_PARTS || adds_parts(step_at(c, c->step + 1)),
         "its parts are not added by the next step");
    MUST(p->end != CHAIN_PARTS || parts <= CUDA_BLAS_WORKSPACE, "its parts take too much room");
    MUST((p->end != CHAIN_PLAIN && p->end != CHAIN_LIKELIEST) || last,
         "it ends the chain, but is not its last step");
    MUST(p->end != CHAIN_LIKELIEST ||
             (c->chain->ids && c->chain->best && c->chain->n_ids == p->n_rows),
         "the likeliest tokens have no place");
    MUST(p->end != CHAIN_SILU || (p->narrowed && x.address != (cuda_address)(uintptr_t)p->narrowed),
         "it leaves its output where its x is");
    c->narrowed = p->end == CHAIN_SILU ? p->narrowed : NULL;
    c->n_narrowed = p->n_features;
    return QP_OK;
}

static qp_status check_rows(checking *c, const chain_rows *r)
{
    TRY(check_parts(c, &r->parts));
    MUST(r->residual || r->table || r->reduced, "it has no rows to read");
    MUST(!r->reduced || (c->chain->reduces && r->parts.n_parts > 0), "it has no part of the sum");
    MUST(r->n_rows > 0 && r->parts.n_features > 0 &&
             r->parts.n_features <= (c->chain->wide ? CHAIN_WIDE_ROW : CHAIN_ROW),
         "its rows are too long, or none");
    MUST(!r->weight || r->narrowed, "the norm goes nowhere");
    MUST(r->weight || r->out, "the residual goes nowhere");
    c->narrowed = r->weight ? r->narrowed : NULL;
    c->n_narrowed = r->parts.n_features;
    return QP_OK;
}

static qp_status check_rope(checking *c, const chain_rope *r)
{
    const chain_step *after = step_at(c, c->step + 1);
    TRY(check_parts(c, &r->parts));
    MUST(r->parts.n_parts > 0, "it has no product to turn");
    MUST(r->cuts > 0, "it is cut into nothing");
    MUST(r->head_dim % 8 == 0 && r->head_dim <= CHAIN_WIDEST_HEAD, "its heads are too wide");
    MUST(!r->q_norm == !r->k_norm, "it normalises q or k only");
    MUST(!r->q_norm || (!r->interleaved && (r->head_dim & (r->head_dim - 1)) == 0),
         "the order of a head's squares is another");
    c->narrowed = NULL;
    if (c->chain->steps[c->step].blocks > 0) return QP_OK;
    MUST(after && after->kind == CHAIN_ATTENTION && after->of.attention.q == r->q &&
             after->of.attention.kv_indices == r->kv_indices &&
             after->of.attention.n_sequences == r->n_tokens,
         "no attention over the same tokens runs it");
    return QP_OK;
}

static qp_status check_attention(checking *c, const chain_attention *a)
{
    cuda_map k, v;
    MUST(cuda_map_read(a->k_map, &k) && cuda_map_read(a->v_map, &v), "a tensor map is missing");
    const uint64_t words =
        (uint64_t)c->chain->head / (a->type == DTYPE_F8 ? 2 : 1); /* of 16 bits */
    MUST(k.sizes[0] == words && k.sizes[1] == (uint64_t)a->n_kv && a->group > 0,
         "the cache has another shape");
    MUST(a->group <= CHAIN_GROUP, "its groups have too many heads");
    MUST(a->narrowed, "its output goes nowhere");
    c->narrowed = a->narrowed;
    c->n_narrowed = a->n_kv * a->group * c->chain->head;
    return QP_OK;
}

static qp_status check_step(checking *c, const chain_step *step)
{
    MUST(step->blocks >= 0 && step->blocks <= c->n_multiprocessors,
         "it has more blocks than there are multiprocessors");
    MUST(step->blocks > 0 || step->kind == CHAIN_ROPE, "it has no blocks");
    switch (step->kind) {
    case CHAIN_PRODUCT:
        return check_product(c, &step->of.product);
    case CHAIN_ROWS:
        return check_rows(c, &step->of.rows);
    case CHAIN_ROPE:
        return check_rope(c, &step->of.rope);
    case CHAIN_ATTENTION:
        return check_attention(c, &step->of.attention);
    default:
        return wrong(c, "there is no such kind of step");
    }
}

qp_status chain_verify(const linear_chain *chain, int n_multiprocessors, qp_error *error)
{
    checking c = {.chain = chain, .n_multiprocessors = n_multiprocessors, .error = error};
    if (chain->n_steps < 1 || chain->n_steps > CHAIN_MAX_STEPS)
        return error_set(error, QP_INVALID, "a chain has %d steps; it can have 1 to %d",
                         chain->n_steps, CHAIN_MAX_STEPS);
    if (!chain->arrived || chain->weight_stages % 2 != 0 || chain->weight_stages < 2 ||
        chain->weight_stages > CHAIN_MAX_STAGES || chain->x_stages < 2 ||
        chain->x_stages > CHAIN_MAX_STAGES || chain->in_flight < 1 || chain->first_in_flight < 1)
        return error_set(error, QP_INVALID, "a chain has no counters, or a wrong number of stages");
    for (; c.step < chain->n_steps; c.step++) {
        TRY(check_step(&c, &chain->steps[c.step]));
        c.begun = true;
    }
    return QP_OK;
}
