/* Passes of fixed shapes: with the option batch_invariant.
 *
 * On a GPU the kernels of a pass, and with them the last bits of its logits, depend on how many
 * rows it has. Passes that read prompts have max_tokens rows and max_outputs rows of logits. Passes
 * that continue sequences have one row for each session, or where all numbers of rows from
 * LEAST_ROWS on have the same bits, at least that many. A pass never mixes the two: a token's bits
 * then depend on whether it was read with a prompt, and not on its neighbours. Rows that no
 * sequence needs read token 0 at the first positions of texts of their own. They all write to one
 * page, which nothing else reads.
 */
#include "engine/step_parts.h"

#include <stdlib.h>

/* On a GPU, passes of 2 to MOST_ROWS rows run the same kernels, or others with the same bits. The
 * exceptions are the megakernel, which may run up to eight, and passes of MOST_ROWS whose weights
 * are not stored in BF16: cuBLASLt may multiply those. */
enum { LEAST_ROWS = 9, MOST_ROWS = 64 };

static bool has_bf16_weights(const program *p)
{
    for (int i = 0; i < p->n_weights; i++) {
        const tensor *w = &p->weights[i].whole;
        const bool matrix = !p->weights[i].bias && w->rank == 2 && w->shape[0] > 1;
        if (matrix && w->type != DTYPE_BF16) return false;
    }
    return true;
}

static int64_t least_rows(const program *p, int64_t sessions)
{
    const int64_t most = has_bf16_weights(p) ? MOST_ROWS : MOST_ROWS - 1;
    return sessions > LEAST_ROWS && sessions <= most ? LEAST_ROWS : sessions;
}

qp_status step_fix_shapes(qp_engine *e, qp_error *error)
{
    const plan_options *o = &e->program.options;
    const size_t tokens = (size_t)o->max_tokens;
    const size_t pages = (size_t)((o->context + o->page_size - 1) / o->page_size);
    step_fixed *f = &e->step.fixed;
    f->zeros = calloc(tokens, sizeof *f->zeros);
    f->pages = malloc(pages * sizeof *f->pages);
    if (!f->zeros || !f->pages)
        return error_no_memory(error, "rows that fill passes", (tokens + pages) * sizeof *f->pages);
    for (size_t i = 0; i < pages; i++)
        f->pages[i] = (int32_t)o->n_pages - 1;
    f->slot = (int32_t)o->max_sequences - 1;
    f->rows = least_rows(&e->program, e->max_sessions);
    return QP_OK;
}

bool step_reads_prompts(const qp_sequence *all, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!all[i].like && all[i].count > 0 && !step_is_cancelled(&all[i]) &&
            !step_continues(&all[i]))
            return true;
    return false;
}

/* A row of logits that nothing is made of. */
static void add_output(qp_engine *e, int64_t row)
{
    batch *b = &e->batch;
    const int64_t output = batch_outputs(b);
    batch_want(b, row);
    sampler_set_row(e->greedy, b, output, e->step.fixed.slot, 1);
}

static void pad_prompts(qp_engine *e)
{
    batch *b = &e->batch;
    const step_fixed *f = &e->step.fixed;
    const plan_options *o = &e->program.options;
    while (batch_tokens(b) < o->max_tokens) {
        const int64_t row = batch_tokens(b), rest = o->max_tokens - row;
        const int64_t count = rest < o->context ? rest : o->context;
        batch_add(b, f->zeros, count, 0, f->pages);
        batch_set_angles(b, row, 0, count, count);
    }
    while (batch_outputs(b) < o->max_outputs)
        add_output(e, batch_tokens(b) - 1);
}

static void pad_going(qp_engine *e, int64_t passes)
{
    batch *b = &e->batch;
    for (int64_t row = batch_tokens(b); row < e->step.fixed.rows; row++) {
        batch_add_ahead(b, 0, 0, passes, e->step.fixed.pages);
        batch_set_angles(b, row, 0, 1, 1);
        add_output(e, row);
    }
}

void step_pad(qp_engine *e, bool prompts, int64_t passes)
{
    if (e->step.fixed.rows == 0 || batch_tokens(&e->batch) == 0) return;
    if (prompts)
        pad_prompts(e);
    else
        pad_going(e, passes);
}
