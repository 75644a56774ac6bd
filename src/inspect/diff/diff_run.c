/* The rounds of a comparison: see diff_run.h. */
#include "inspect/diff/diff_run.h"

#include "inspect/diff/diff_compare.h"
#include "inspect/diff/diff_runner.h"
#include "vm/rounded.h"

#include <stdlib.h>
#include <string.h>

/* --- tensors --------------------------------------------------------------------------------- */

static qp_status hand(const runner *r, const diff_side *from, const diff_side *to,
                      plan_tensor_id id, int64_t layer, qp_error *error)
{
    return diff_side_hand(from, to, id, layer, &r->batch.sizes, error);
}

/* --- batches --------------------------------------------------------------------------------- */

static qp_status clear_caches(runner *r, qp_error *error)
{
    page_list_resize(&r->list, &r->pages, 0, NULL);
    r->past = 0;
    for (int id = PLAN_K_CACHE; id <= PLAN_V_CACHE; id++) {
        size_t bytes = r->program->tensors[id].bytes;
        memset(diff_side_copy(&r->a, (plan_tensor_id)id), 0, bytes);
        for (int64_t layer = 0; layer < r->program->config.n_layers; layer++) {
            const void *zeros = diff_side_copy(&r->a, (plan_tensor_id)id);
            const diff_side *sides[2] = {&r->a, &r->b};
            for (int i = 0; i < 2; i++)
                TRY(machine_write(sides[i]->of, (plan_tensor_id)id, layer, zeros, bytes, error));
        }
    }
    return QP_OK;
}

static int64_t pass_tokens(const runner *r, int64_t past)
{
    int64_t together = r->request->n_tokens - r->request->singles - past;
    if (together <= 0) return 1;
    int64_t most = r->program->capacity.of[AXIS_TOKENS];
    return together < most ? together : most;
}

static int count_passes(const runner *r)
{
    int n = 0;
    for (int64_t past = 0; past < r->request->n_tokens; past += pass_tokens(r, past))
        n++;
    return n;
}

/* Settings with which every part of sampling has an effect. */
static void want_row(batch *b, int64_t row)
{
    int64_t at = batch_outputs(b);
    batch_want(b, row);
    ((int64_t *)b->of[PLAN_SEEDS])[at] = 1;
    batch_i32(b, PLAN_SAMPLE_POSITIONS)[at] = (int32_t)row;
    ((float *)b->of[PLAN_TEMPERATURES])[at] = 1;
    batch_i32(b, PLAN_TOP_KS)[at] = 40;
    ((float *)b->of[PLAN_TOP_PS])[at] = 0.95F;
    ((float *)b->of[PLAN_MIN_PS])[at] = 0.01F;
}

static qp_status fill_batch(runner *r, qp_error *error)
{
    batch *b = &r->batch;
    int64_t count = pass_tokens(r, r->past), most = r->program->capacity.of[AXIS_OUTPUTS];
    batch_clear(b);
    TRY(page_list_resize(&r->list, &r->pages, r->past + count, error));
    batch_add(b, r->request->tokens + r->past, count, r->past, r->list.pages);
    batch_set_adapters(b, 0, count, r->request->adapters, r->request->n_adapters);
    batch_set_angles(b, 0, r->past, count, r->request->n_tokens);
    for (int64_t row = count > most ? count - most : 0; row < count; row++)
        want_row(b, row);
    for (int id = 0; id < r->program->n_tensors; id++) {
        if (r->program->tensors[id].kind == PLAN_INPUT)
            r->a.memory.data[id] = r->b.memory.data[id] = r->oracle_a.memory.data[id] =
                r->oracle_b.memory.data[id] = b->of[id];
    }
    return QP_OK;
}

/* --- steps ----------------------------------------------------------------------------------- */

static qp_status run_steps(const runner *r, const diff_side *s, int first, int last,
                           qp_error *error)
{
    if (r->request->cancel && *r->request->cancel)
        return error_set(error, QP_CANCELLED, "interrupted");
    machine_request request = {.batch = &r->batch};
    if (!machine_inner_type(s->of)->whole) {
        request.first = first;
        request.last = last;
    }
    return machine_pass(s->of, &request, error);
}

/* Copies what the step reads from a to b; poisons what the step writes, so that an old value cannot
 * pass for a new one. */
static qp_status prepare_step(const runner *r, int step, qp_error *error)
{
    const program *p = r->program;
    int64_t layer = p->steps[step].layer;
    for (int i = 0; i < r->program->n_tensors; i++) {
        plan_tensor_id id = (plan_tensor_id)i;
        program_access access = program_step_access(p, step, id);
        if (!diff_is_compared(p->tensors[id].kind)) continue;
        if (access.read) {
            TRY(hand(r, &r->a, &r->b, id, layer, error));
            if (r->oracles) TRY(hand(r, &r->a, &r->oracle_a, id, layer, error));
            if (r->oracles) TRY(hand(r, &r->a, &r->oracle_b, id, layer, error));
        } else if (access.write) {
            memset(diff_side_copy(&r->b, id), 0xff, runner_bytes(r, id));
            TRY(machine_write(r->b.of, id, layer, diff_side_copy(&r->b, id), runner_bytes(r, id),
                              error));
        }
    }
    return QP_OK;
}

/* Whether a value from before `step` is read by that step or a later one. */
static bool is_read_later(const program *p, int step, plan_tensor_id id)
{
    for (int s = step; s < p->n_steps; s++) {
        program_access access = program_step_access(p, s, id);
        if (access.read) return true;
        if (access.write) return false;
    }
    return false;
}

/* b continues from a's state before `step`. */
static qp_status hand_over(const runner *r, int step, qp_error *error)
{
    for (int i = 0; i < r->program->n_tensors; i++) {
        plan_kind kind = r->program->tensors[i].kind;
        if (!diff_is_compared(kind) || kind == PLAN_CACHE) continue;
        if (is_read_later(r->program, step, (plan_tensor_id)i))
            TRY(hand(r, &r->a, &r->b, (plan_tensor_id)i, -1, error));
    }
    return QP_OK;
}

/* --- comparing ------------------------------------------------------------------------------- */

static void compare_choices(const runner *r)
{
    diff_report *report = r->report;
    int64_t n = r->program->config.vocab_size;
    const float *a = r->a.memory.data[PLAN_LOGITS], *b = r->b.memory.data[PLAN_LOGITS];
    for (int64_t row = 0; row < batch_outputs(&r->batch); row++) {
        float margin, ignored;
        bool same =
            diff_likeliest(a + row * n, n, &margin) == diff_likeliest(b + row * n, n, &ignored);
        report->logit_rows++;
        report->same_choice += same;
        if (!same && (double)margin > report->closest_margin)
            report->closest_margin = (double)margin;
    }
}

/* Whether a node reads the memory that operand `written` of node `writer` covers. */
static bool reads(const program *p, int node, int writer, int written)
{
    const op_info *op = op_get(p->nodes[node].op);
    const int id = program_tensor_of(p, writer, written);
    for (int i = 0; id >= 0 && i < op_n_tensors(op); i++) {
        if (op->tensors[i].direction != OP_OUT && program_tensor_of(p, node, i) == id) return true;
    }
    return false;
}

/* Whether node n is computed from the outputs that node m, before it, left on each side. This is so
 * within one step, and where b does not keep the tensors between two steps. */
static bool runs_on(const runner *r, int step, int n, int m, plan_tensor_id id)
{
    if (m >= r->program->steps[step].first_node) return true;
    return r->program->nodes[m].layer == r->program->nodes[n].layer && !diff_side_keeps(&r->b, id);
}

static int step_of(const program *p, int step, int node)
{
    while (node < p->steps[step].first_node)
        step--;
    return step;
}

/* The tolerance of a node's output: its own, and that of the inputs which nodes before it computed
 * separately on each side. */
static op_limits limits_of(const runner *r, int step, int n, int operand)
{
    const program_node *nodes = r->program->nodes;
    op_call call;
    program_bind(r->program, n, &r->a.memory, r->batch.sizes.of, &call);
    machine_kernel a = machine_kernel_of(r->a.of, n);
    machine_kernel b = machine_kernel_of(r->b.of, n);
    op_limits sum = diff_limits(op_get(nodes[n].op), &call, call.tensors[operand].type, &a, &b);
    const bool whole = machine_inner_type(r->b.of)->whole;
    for (int m = whole ? 0 : r->program->steps[step].first_node; m < n; m++) {
        const op_info *op = op_get(nodes[m].op);
        for (int i = 0; i < op_n_tensors(op); i++) {
            if (op->tensors[i].direction == OP_IN || !reads(r->program, n, m, i) ||
                !runs_on(r, step, n, m, (plan_tensor_id)program_tensor_of(r->program, m, i)))
                continue;
            op_limits before = limits_of(r, step_of(r->program, step, m), m, i);
            if (before.exact) continue;
            sum.exact = false;
            sum.relative += before.relative;
            sum.absolute += before.absolute;
        }
    }
    return sum;
}

static void compare_row(const runner *r, int index, diff_round round)
{
    diff_row *row = &r->report->rows[index];
    op_call expected, found;
    program_bind(r->program, row->node, &r->a.memory, r->batch.sizes.of, &expected);
    program_bind(r->program, row->node, &r->b.memory, r->batch.sizes.of, &found);
    const tensor *view = &expected.tensors[row->operand];
    op_limits limits = limits_of(r, row->step, row->node, row->operand);
    diff_measure *measure = round == ROUND_ALONE ? &row->alone : &row->together;
    diff_views views = {.expected = *view, .found = found.tensors[row->operand]};
    op_call oracle;
    if (r->oracles && round == ROUND_ALONE && row->rounds) {
        program_bind(r->program, row->node, &r->oracle_a.memory, r->batch.sizes.of, &oracle);
        views.oracle_expected = oracle.tensors[row->operand];
        program_bind(r->program, row->node, &r->oracle_b.memory, r->batch.sizes.of, &oracle);
        views.oracle_found = oracle.tensors[row->operand];
    }
    diff_compare(&views, &limits, r->pass, measure);
    if (measure->wrong == 0) return;
    int *first = round == ROUND_ALONE ? &r->report->first_wrong : &r->report->first_drift;
    if (*first < 0 && (round == ROUND_ALONE || r->all_same)) *first = index;
}

static qp_status compare_step(const runner *r, int step, diff_round round, qp_error *error)
{
    const program *p = r->program;
    for (int i = 0; i < r->program->n_tensors; i++) {
        plan_tensor_id id = (plan_tensor_id)i;
        if (!diff_side_keeps(&r->b, id) || !program_step_access(p, step, id).write) continue;
        TRY(runner_fetch(r, &r->a, id, p->steps[step].layer, error));
        TRY(runner_fetch(r, &r->b, id, p->steps[step].layer, error));
        if (r->oracles && round == ROUND_ALONE) {
            TRY(runner_fetch(r, &r->oracle_a, id, p->steps[step].layer, error));
            TRY(runner_fetch(r, &r->oracle_b, id, p->steps[step].layer, error));
        }
        const bool made = !program_step_access(p, step, id).read; /* else changed: adjust_logits */
        if (id == PLAN_LOGITS && made && round == ROUND_TOGETHER) compare_choices(r);
    }
    for (int i = 0; i < r->report->n_rows; i++) {
        if (r->report->rows[i].step == step) compare_row(r, i, round);
    }
    return QP_OK;
}

/* --- rounds ---------------------------------------------------------------------------------- */

/* Copies what the step reads from b to a, as far as b has kept it. */
static qp_status take_from_b(const runner *r, int step, qp_error *error)
{
    const program *p = r->program;
    int64_t layer = p->steps[step].layer;
    for (int i = 0; i < r->program->n_tensors; i++) {
        plan_tensor_id id = (plan_tensor_id)i;
        if (!diff_side_keeps(&r->b, id) || !program_step_access(p, step, id).read) continue;
        TRY(runner_fetch(r, &r->b, id, layer, error));
        if (p->tensors[id].kind == PLAN_CARRIED) diff_side_clear_sums(&r->b, step, &r->batch.sizes);
        TRY(diff_side_write(&r->a, &r->b, id, layer, &r->batch.sizes, error));
    }
    return QP_OK;
}

/* b runs the pass first. */
static qp_status run_whole_pass(const runner *r, diff_round round, qp_error *error)
{
    const int first = r->request->first, last = r->request->last;
    TRY(run_steps(r, &r->b, first, last, error));
    for (int step = first; step < last && round != ROUND_AT_ONCE; step++) {
        if (round == ROUND_ALONE) TRY(take_from_b(r, step, error));
        TRY(run_steps(r, &r->a, step, step + 1, error));
        TRY(compare_step(r, step, round, error));
    }
    return QP_OK;
}

static qp_status run_pass(runner *r, diff_round round, qp_error *error)
{
    const int first = r->request->first, last = r->request->last;
    if (machine_inner_type(r->b.of)->whole) return run_whole_pass(r, round, error);
    if (first > 0) TRY(run_steps(r, &r->a, 0, first, error));
    if (round != ROUND_ALONE) TRY(hand_over(r, first, error));
    if (round == ROUND_AT_ONCE) return run_steps(r, &r->b, first, last, error);
    for (int step = first; step < last; step++) {
        if (round == ROUND_ALONE) TRY(prepare_step(r, step, error));
        TRY(run_steps(r, &r->a, step, step + 1, error));
        TRY(run_steps(r, &r->b, step, step + 1, error));
        if (r->oracles && round == ROUND_ALONE) {
            TRY(run_steps(r, &r->oracle_a, step, step + 1, error));
            TRY(run_steps(r, &r->oracle_b, step, step + 1, error));
        }
        TRY(compare_step(r, step, round, error));
    }
    return QP_OK;
}

static qp_status run_round(runner *r, diff_round round, qp_error *error)
{
    TRY(clear_caches(r, error));
    for (r->pass = 0; r->past < r->request->n_tokens; r->pass++) {
        TRY(fill_batch(r, error));
        TRY(run_pass(r, round, error));
        if (round != ROUND_ALONE) TRY(runner_hold_tensors(r, round, error));
        r->past += batch_tokens(&r->batch);
    }
    return round == ROUND_ALONE ? QP_OK : runner_hold_caches(r, round, error);
}

static qp_status open_oracles(runner *r, const machine_setup *setup, qp_error *error)
{
    for (int i = 0; i < r->report->n_rows; i++)
        r->oracles |= r->report->rows[i].rounds;
    if (!r->oracles) return QP_OK;
    TRY(machine_open_rounded(r->a.of, setup, &r->rounded_a, error));
    TRY(machine_open_rounded(r->b.of, setup, &r->rounded_b, error));
    TRY(diff_side_open(&r->oracle_a, r->program, &r->rounded_a, error));
    return diff_side_open(&r->oracle_b, r->program, &r->rounded_b, error);
}

static qp_status open_runner(runner *r, const machine_setup *setup, machine *a, machine *b,
                             qp_error *error)
{
    const program *p = r->program;
    *r->report = (diff_report){.first_wrong = -1, .first_drift = -1};
    TRY(diff_side_open(&r->a, r->program, a, error));
    TRY(diff_side_open(&r->b, r->program, b, error));
    TRY(batch_init(&r->batch, p, error));
    TRY(page_pool_init(&r->pages, p->options.n_pages, p->options.page_size, error));
    TRY(page_list_init(&r->list, p->options.n_pages, error));
    r->report->n_passes = count_passes(r);
    size_t left = (size_t)(r->report->n_passes * r->program->n_tensors);
    r->left = calloc(left, sizeof *r->left);
    r->left_cache = calloc(2 * (size_t)p->config.n_layers, sizeof *r->left_cache);
    r->left_logits = calloc((size_t)r->report->n_passes, sizeof *r->left_logits);
    if (!r->left || !r->left_cache || !r->left_logits)
        return error_no_memory(error, "the comparison", left);
    diff_list_rows(p, a, b, r->request, r->report);
    if (!r->report->rows) return error_no_memory(error, "the report", (size_t)p->n_nodes);
    r->all_same = true;
    for (int i = 0; i < r->report->n_rows; i++)
        r->all_same &= r->report->rows[i].same_kernel;
    return open_oracles(r, setup, error);
}

static qp_status run_rounds(runner *r, qp_error *error)
{
    TRY(run_round(r, ROUND_ALONE, error));
    TRY(run_round(r, ROUND_TOGETHER, error));
    TRY(run_round(r, ROUND_AT_ONCE, error));
    diff_report *report = r->report;
    report->equal = report->first_wrong < 0 && report->first_drift < 0 && !report->at_once_differs;
    return QP_OK;
}

qp_status diff_run(const machine_setup *setup, machine *a, machine *b, const diff_request *request,
                   diff_report *report, qp_error *error)
{
    const program *p = setup->program;
    runner r = {.program = p, .request = request, .report = report};
    qp_status status = open_runner(&r, setup, a, b, error);
    if (status == QP_OK) status = run_rounds(&r, error);
    free(r.left);
    free(r.left_cache);
    for (int i = 0; i < report->n_passes && r.left_logits; i++)
        free(r.left_logits[i]);
    free(r.left_logits);
    page_list_free(&r.list, &r.pages);
    page_pool_free(&r.pages);
    batch_free(&r.batch);
    diff_side_close(&r.a);
    diff_side_close(&r.b);
    diff_side_close(&r.oracle_a);
    diff_side_close(&r.oracle_b);
    machine_close(&r.rounded_a);
    machine_close(&r.rounded_b);
    return status;
}
