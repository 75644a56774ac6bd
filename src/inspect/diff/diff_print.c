/* Runs a comparison and prints it: see diff.h. */
#include "inspect/diff/diff.h"

#include "base/buffer.h"
#include "base/json.h"
#include "base/output.h"
#include "inspect/diff/diff_open.h"
#include "plan/plan.h"

#include <inttypes.h>
#include <stdio.h>

/* --- the table ------------------------------------------------------------------------------- */

static void format_element(const diff_element *e, char *text, size_t size)
{
    if (e->index[0])
        snprintf(text, size, "%s %.6g, %.6g", e->index, e->expected, e->found);
    else
        snprintf(text, size, "-");
}

static const char *kernel_of(const machine *e, int node)
{
    return machine_kernel_of(e, node).name;
}

static void print_row(const diff *d, const diff_row *row, const char *step, strbuf *out)
{
    char name[64], worst[160], allowed[32], kernels[64], added[32];
    const diff_measure *m = &row->alone;
    const char *a = kernel_of(&d->a, row->node), *b = kernel_of(&d->b, row->node);
    diff_row_name(&d->program, row, name, sizeof name);
    format_element(&m->worst, worst, sizeof worst);
    snprintf(kernels, sizeof kernels, row->same_kernel ? "%s" : "%s, %s%s", a, b,
             row->rounds ? "*" : "");
    if (program_operand(&d->program, row->node, row->operand)->type == DTYPE_I32)
        snprintf(added, sizeof added, "%" PRId64 " ids", row->together.wrong);
    else
        snprintf(added, sizeof added, "%.1e", row->together.relative);
    snprintf(allowed, sizeof allowed, m->allowed > 0 ? "%.1e" : "exact", m->allowed);
    strbuf_printf(out, "%s %-18s %-18s %-24s %9.1e %9.1e %9s %9s  %s\n", m->wrong ? "!" : " ", step,
                  name, kernels, m->absolute, m->relative, allowed, added, worst);
}

/* Whether two rows belong to the same step and view in different layers. */
static bool same_place(const program *p, const diff_row *a, const diff_row *b)
{
    return strcmp(p->steps[a->step].name, p->steps[b->step].name) == 0 &&
           a->node - p->steps[a->step].first_node == b->node - p->steps[b->step].first_node &&
           a->operand == b->operand;
}

/* The worst layer's row among those like row `at`; NULL if an earlier row was like it.
 */
static const diff_row *worst_of(const diff *d, int at)
{
    const diff_row *rows = d->report.rows, *worst = &rows[at];
    for (int i = 0; i < at; i++) {
        if (same_place(&d->program, &rows[i], &rows[at])) return NULL;
    }
    for (int i = at + 1; i < d->report.n_rows; i++) {
        if (!same_place(&d->program, &rows[i], &rows[at])) continue;
        bool equal_share = rows[i].alone.share == worst->alone.share;
        if (rows[i].alone.share > worst->alone.share ||
            (equal_share && rows[i].together.relative > worst->together.relative))
            worst = &rows[i];
    }
    return worst;
}

static void print_table(const diff *d, strbuf *out)
{
    bool rounds = false;
    strbuf_printf(out, "  %-18s %-18s %-24s %9s %9s %9s %9s  %s\n", "step", "tensor", "kernels",
                  "max abs", "relative", "allowed", "added up", "worst element");
    for (int i = 0; i < d->report.n_rows; i++) {
        const diff_row *row = d->options->list ? &d->report.rows[i] : worst_of(d, i);
        char label[64];
        if (row)
            print_row(d, row, program_step_label(&d->program, row->step, label, sizeof label), out);
        if (row) rounds |= row->rounds;
    }
    if (rounds)
        strbuf_puts(out,
                    "  * rounds its inputs to fewer bits: compared with the references with the "
                    "same roundings\n");
}

/* "pass 1, step 5.ffn_down, x[0, 17]: expected 1, found 2, allowed 1e-06". */
static void print_difference(const diff *d, const diff_row *row, const diff_measure *m, strbuf *out)
{
    char label[64], name[64];
    const diff_element *e = &m->first;
    strbuf_printf(out, "pass %d, step %s, tensor %s %s: expected %.9g, found %.9g, ", e->pass,
                  program_step_label(&d->program, row->step, label, sizeof label),
                  diff_row_name(&d->program, row, name, sizeof name), e->index, e->expected,
                  e->found);
    if (m->norm_wrong)
        strbuf_printf(out, "and the norm is off by %.3g of which %.3g are allowed", m->relative,
                      m->allowed);
    else
        strbuf_printf(out, "allowed %.3g", e->tolerance);
}

static void count_rows(const diff *d, int64_t *elements, int *wrong, const diff_row **closest)
{
    for (int i = 0; i < d->report.n_rows; i++) {
        const diff_row *row = &d->report.rows[i];
        *elements += row->alone.elements;
        *wrong += row->alone.wrong > 0;
        if (!*closest || row->alone.share > (*closest)->alone.share) *closest = row;
    }
}

static void print_alone(const diff *d, strbuf *out)
{
    const diff_report *r = &d->report;
    int64_t elements = 0;
    int wrong = 0;
    const diff_row *closest = NULL;
    char label[64], name[64];
    count_rows(d, &elements, &wrong, &closest);
    strbuf_puts(out, "step by step     ");
    if (r->first_wrong >= 0) {
        strbuf_printf(out, "%d of %d tensors differ; the first: ", wrong, r->n_rows);
        print_difference(d, &r->rows[r->first_wrong], &r->rows[r->first_wrong].alone, out);
    } else {
        strbuf_printf(out, "%d tensors, %" PRId64 " elements: %s", r->n_rows, elements,
                      closest && closest->alone.share > 0 ? "within tolerance" : "equal");
        if (closest && closest->alone.share > 0)
            strbuf_printf(out, ", %.0f %% of it at most, in %s of %s", 100 * closest->alone.share,
                          diff_row_name(&d->program, closest, name, sizeof name),
                          program_step_label(&d->program, closest->step, label, sizeof label));
    }
    strbuf_putc(out, '\n');
}

static void print_together(const diff *d, strbuf *out)
{
    const diff_report *r = &d->report;
    const diff_row *last = r->n_rows ? &r->rows[r->n_rows - 1] : NULL;
    for (int i = 0; i < r->n_rows; i++) {
        const diff_row *row = &r->rows[i];
        if (program_tensor_of(&d->program, row->node, row->operand) == PLAN_LOGITS) last = row;
    }
    strbuf_puts(out, "end to end       ");
    if (r->first_drift >= 0) {
        strbuf_puts(out, "the same kernels gave different bits; the first: ");
        print_difference(d, &r->rows[r->first_drift], &r->rows[r->first_drift].together, out);
    } else if (last) {
        char name[64];
        strbuf_printf(out, "%s differ by %.3g at most, %.3g in norm",
                      diff_row_name(&d->program, last, name, sizeof name), last->together.absolute,
                      last->together.relative);
    }
    if (r->logit_rows > 0)
        strbuf_printf(out, "; the likeliest token is the same in %" PRId64 " of %" PRId64 " rows",
                      r->same_choice, r->logit_rows);
    if (r->same_choice < r->logit_rows)
        strbuf_printf(out, " (elsewhere it leads by %.3g at most)", r->closest_margin);
    strbuf_printf(out, "\nat once          %s%s",
                  r->at_once_differs ? "bits that differ from those step by step: "
                                     : "the same bits",
                  r->at_once);
    if (r->at_once_norm > 0)
        strbuf_printf(out, "; logits, by the kernels of few rows, differ by %.3g in norm",
                      r->at_once_norm);
    strbuf_puts(out, "\n");
}

static void print_text(const diff *d, strbuf *out)
{
    const diff_request *q = &d->request;
    strbuf_puts(out, d->type_b->name);
    if (d->options->ranks > 1) strbuf_printf(out, " on %d ranks", d->options->ranks);
    strbuf_printf(out,
                  " against %s, %d thread%s: %" PRId64 " tokens in %d passes, the last %" PRId64
                  " one by one; %" PRId64 " layers\n\n",
                  d->a.type->name, thread_pool_size(d->pool),
                  thread_pool_size(d->pool) == 1 ? "" : "s", q->n_tokens, d->report.n_passes,
                  q->singles, d->program.config.n_layers);
    print_table(d, out);
    strbuf_putc(out, '\n');
    print_alone(d, out);
    print_together(d, out);
}

/* --- JSON ------------------------------------------------------------------------------------ */

static cJSON *measure_json(const diff_measure *m)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddNumberToObject(item, "max_abs", m->absolute);
    cJSON_AddNumberToObject(item, "relative", m->relative);
    cJSON_AddNumberToObject(item, "allowed", m->allowed);
    cJSON_AddNumberToObject(item, "wrong", (double)m->wrong);
    if (!m->worst.index[0]) return item;
    cJSON *worst = cJSON_AddObjectToObject(item, "worst");
    cJSON_AddNumberToObject(worst, "pass", m->worst.pass);
    cJSON_AddRawToObject(worst, "index", m->worst.index);
    cJSON_AddNumberToObject(worst, "expected", m->worst.expected);
    cJSON_AddNumberToObject(worst, "found", m->worst.found);
    cJSON_AddNumberToObject(worst, "tolerance", m->worst.tolerance);
    return item;
}

static void print_json(const diff *d, strbuf *out)
{
    const diff_report *r = &d->report;
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "a", d->a.type->name);
    cJSON_AddStringToObject(root, "b", d->type_b->name);
    if (d->options->ranks > 1) cJSON_AddNumberToObject(root, "ranks", d->options->ranks);
    cJSON_AddNumberToObject(root, "tokens", (double)d->request.n_tokens);
    cJSON_AddNumberToObject(root, "passes", r->n_passes);
    cJSON_AddBoolToObject(root, "equal", r->equal);
    cJSON_AddBoolToObject(root, "at_once_equal", !r->at_once_differs);
    cJSON_AddNumberToObject(root, "first_difference", r->first_wrong);
    cJSON_AddNumberToObject(root, "first_drift", r->first_drift);
    cJSON_AddNumberToObject(root, "logit_rows", (double)r->logit_rows);
    cJSON_AddNumberToObject(root, "same_choice", (double)r->same_choice);
    cJSON *rows = cJSON_AddArrayToObject(root, "rows");
    for (int i = 0; i < r->n_rows; i++) {
        char name[64];
        const diff_row *row = &r->rows[i];
        const program_step *step = &d->program.steps[row->step];
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "step", step->name);
        cJSON_AddNumberToObject(item, "layer", (double)step->layer);
        cJSON_AddStringToObject(item, "tensor", diff_row_name(&d->program, row, name, sizeof name));
        cJSON_AddStringToObject(item, "kernel_a", kernel_of(&d->a, row->node));
        cJSON_AddStringToObject(item, "kernel_b", kernel_of(&d->b, row->node));
        cJSON_AddItemToObject(item, "alone", measure_json(&row->alone));
        cJSON_AddItemToObject(item, "together", measure_json(&row->together));
        cJSON_AddItemToArray(rows, item);
    }
    output_json_line(root, out, NULL);
}

qp_status diff_print(const diff_options *options, strbuf *out, bool *equal, qp_error *error)
{
    diff d = {.options = options};
    qp_status status = diff_open(&d, error);
    if (status == QP_OK) status = diff_run(&d.setup, &d.a, &d.b, &d.request, &d.report, error);
    if (status == QP_OK) {
        *equal = d.report.equal;
        (options->json ? print_json : print_text)(&d, out);
        if (out->failed) status = error_no_memory(error, "the table", out->length);
    }
    diff_close(&d);
    return status;
}
