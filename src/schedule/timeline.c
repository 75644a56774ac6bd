/* Slices from predictions and from measurements: see timeline.h. */
#include "schedule/timeline.h"

#include "base/json.h"
#include "schedule/instruction_text.h"

#include <stdio.h>
#include <assert.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Operands as the node's first instruction would list them. */
static const char *describe_node(timeline *t, const schedule *s, const program_node *node)
{
    instruction in = {.opcode = (uint16_t)node->op};
    for (int i = 0; i < OP_MAX_TENSORS; i++)
        in.operands[i] = node->operands[i];
    strbuf text = {0};
    instruction_print_operands(s, &in, &text);
    const char *found = strbuf_text(&text);
    char *copy = arena_strdup(&t->memory, *found == ' ' ? found + 1 : found);
    strbuf_free(&text);
    return copy;
}

qp_status timeline_create(const schedule *s, const char *title, timeline *out, qp_error *error)
{
    const char *name = strrchr(title, '/');
    *out = (timeline){.title = name && name[1] ? name + 1 : title,
                      .n_tracks = s->options.workers,
                      .n_at_once = s->options.workers,
                      .n_nodes = s->n_nodes,
                      .limits = s->options.profile,
                      .unit = "worker",
                      .kinds = {[TIMELINE_NOOP] = "noop"},
                      .n_kinds = 1};
    snprintf(out->about, sizeof out->about, "%s, %s, %d worker%s",
             schedule_setting_name(s->options.setting),
             schedule_assignment_name(s->options.assignment), s->options.workers,
             s->options.workers == 1 ? "" : "s");
    out->nodes = arena_alloc(&out->memory, (size_t)s->n_nodes, sizeof *out->nodes);
    for (int n = 0; out->nodes && n < s->n_nodes; n++) {
        const program_node *node = &s->program->nodes[n];
        if (program_is_noop(s->program, n)) continue;
        out->nodes[n] = (timeline_node){.kind = timeline_find_kind(out, op_get(node->op)->name),
                                        .name = node->name,
                                        .layer = node->layer,
                                        .detail = describe_node(out, s, node),
                                        .of = n};
        if (!out->nodes[n].detail) return error_no_memory(error, "the timeline", 0);
    }
    return out->nodes ? QP_OK : error_no_memory(error, "the timeline", (size_t)s->n_nodes);
}

void timeline_free(timeline *t)
{
    arena_free(&t->memory);
    *t = (timeline){0};
}

void timeline_panel_free(timeline_panel *panel)
{
    free(panel->slices);
    free(panel->chain);
    *panel = (timeline_panel){0};
}

/* One slice an instruction, without times; `timings` (may be NULL) say where one for help comes
 * before it. */
static qp_status take_slices(const schedule *s, const instruction_timing *timings,
                             timeline_panel *out, qp_error *error)
{
    size_t count = 0;
    for (int w = 0; w < s->options.workers; w++)
        count += 2 * (size_t)s->length[w];
    *out = (timeline_panel){.slices = calloc(count + 1, sizeof *out->slices)};
    if (!out->slices) return error_no_memory(error, "the timeline", count * sizeof *out->slices);
    for (int w = 0; w < s->options.workers; w++) {
        for (int i = 0; i < s->length[w]; i++) {
            const instruction *in = schedule_queue(s, w) + i;
            const instruction_timing *at = timings ? &timings[w * s->longest + i] : NULL;
            if (at && at->help_end) {
                const instruction *helped = &s->instructions[at->help];
                out->slices[out->count++] = (timeline_slice){.track = w,
                                                             .node = (int32_t)helped->node,
                                                             .number = i,
                                                             .blocker = -1,
                                                             .in = helped,
                                                             .help = true};
            }
            out->slices[out->count++] = (timeline_slice){
                .track = w, .node = (int32_t)in->node, .number = i, .blocker = -1, .in = in};
        }
    }
    return QP_OK;
}

/* What signals counters: of counter c, items [first[c], first[c + 1]) by the time of the signal. */
typedef struct producer {
    uint64_t signal;
    int32_t slice;
} producer;

typedef struct producers {
    int32_t *first;
    producer *items;
} producers;

static int by_signal(const void *a, const void *b)
{
    const producer *x = a, *y = b;
    if (x->signal != y->signal) return x->signal < y->signal ? -1 : 1;
    return (x->slice > y->slice) - (x->slice < y->slice);
}

static bool find_producers(const schedule *s, const timeline_panel *panel, producers *out)
{
    size_t counters = (size_t)s->n_counters;
    out->first = calloc(counters + 2, sizeof *out->first);
    out->items = calloc((size_t)panel->count + 1, sizeof *out->items);
    if (!out->first || !out->items) return false;
    for (int32_t i = 0; i < panel->count; i++)
        out->first[panel->slices[i].in->signal + 2]++;
    for (size_t c = 0; c < counters; c++)
        out->first[c + 1] += out->first[c];
    for (int32_t i = 0; i < panel->count; i++) {
        const timeline_slice *slice = &panel->slices[i];
        out->items[out->first[slice->in->signal + 1]++] = (producer){slice->signal, i};
    }
    for (size_t c = 1; c < counters; c++)
        qsort(out->items + out->first[c], (size_t)(out->first[c + 1] - out->first[c]),
              sizeof *out->items, by_signal);
    return true;
}

/* The slice that sent the last signal that the instruction needed; -1: it needs none of this pass.
 */
static int32_t find_blocker(const schedule *s, const producers *producers,
                            const timeline_panel *panel, const instruction *in)
{
    int32_t last = -1;
    for (int w = 0; w < INSTRUCTION_WAITS; w++) {
        uint32_t counter = in->waits[w].counter;
        if (counter == 0 || (in->flags >> w & 1)) continue;
        int32_t at = producers->first[counter] + (int32_t)in->waits[w].needed - 1;
        if (in->waits[w].needed == s->per_pass[counter]) /* helpers come in addition */
            at = producers->first[counter + 1] - 1;
        if (at < producers->first[counter] || at >= producers->first[counter + 1]) continue;
        int32_t slice = producers->items[at].slice;
        if (last < 0 || panel->slices[slice].signal > panel->slices[last].signal) last = slice;
    }
    return last;
}

int32_t timeline_cause(const timeline_panel *panel, int32_t at)
{
    const timeline_slice *slice = &panel->slices[at];
    bool waited = slice->blocker >= 0 && panel->slices[slice->blocker].signal > slice->wait;
    if (waited && panel->slices[slice->blocker].work <= slice->work) return slice->blocker;
    for (int32_t before = at - 1; before >= 0; before--) {
        if (panel->slices[before].track != slice->track) break;
        if (panel->slices[before].work <= slice->work) return before;
    }
    return -1;
}

/* The chain goes from the slice that ended last back to the beginning of the pass. */
bool timeline_find_chain(timeline_panel *panel)
{
    int32_t at = -1, n = 0;
    panel->chain = calloc((size_t)panel->count + 1, sizeof *panel->chain);
    if (!panel->chain) return false;
    for (int32_t i = 0; i < panel->count; i++) {
        if (at < 0 || panel->slices[i].end > panel->slices[at].end) at = i;
    }
    /* A chain goes back in time; clocks that differ by a little must not make it a circle. */
    for (; at >= 0 && !panel->slices[at].critical; at = timeline_cause(panel, at)) {
        panel->slices[at].critical = true;
        panel->chain[n++] = at;
    }
    for (int32_t i = 0; i < n / 2; i++) {
        int32_t swap = panel->chain[i];
        panel->chain[i] = panel->chain[n - 1 - i];
        panel->chain[n - 1 - i] = swap;
    }
    panel->n_chain = n;
    return true;
}

static qp_status find_blockers(const schedule *s, timeline_panel *panel, qp_error *error)
{
    producers producers = {0};
    bool enough = find_producers(s, panel, &producers);
    for (int32_t i = 0; enough && i < panel->count; i++) {
        timeline_slice *slice = &panel->slices[i];
        if (!slice->help) slice->blocker = find_blocker(s, &producers, panel, slice->in);
    }
    free(producers.first);
    free(producers.items);
    enough = enough && timeline_find_chain(panel);
    return enough ? QP_OK : error_no_memory(error, "the timeline", (size_t)panel->count);
}

qp_status timeline_predicted(const schedule *s, const schedule_prediction *prediction,
                             timeline_panel *out, qp_error *error)
{
    TRY(take_slices(s, NULL, out, error));
    snprintf(out->title, sizeof out->title, "planned: %lld token%s at %lld positions",
             (long long)s->options.tokens, s->options.tokens == 1 ? "" : "s",
             (long long)s->options.context);
    out->tokens = s->options.tokens;
    out->length = (uint64_t)prediction->total;
    for (int32_t i = 0; i < out->count; i++) {
        timeline_slice *slice = &out->slices[i];
        size_t place = (size_t)slice->track * (size_t)s->longest + (size_t)slice->number;
        slice->wait = slice->number > 0 ? out->slices[i - 1].end : 0;
        slice->work = (uint64_t)prediction->begin[place];
        slice->signal = slice->end = (uint64_t)prediction->end[place];
    }
    return find_blockers(s, out, error);
}

bool timeline_cache_is_far(const program *p, const int64_t *sizes)
{
    enum { CACHES = 32 << 20 }; /* bytes: the caches of a large processor */
    const plan_tensor *k = &p->tensors[PLAN_K_CACHE];
    const double page = (double)k->bytes / (double)p->capacity.of[AXIS_PAGES];
    return 2 * page * (double)sizes[AXIS_PAGE_REFS] * (double)p->config.n_layers > CACHES;
}

typedef struct node_cost {
    double flops, bytes, far;
} node_cost;

/* Bytes of a call that do not come from caches: its weights, but for the table of an embedding, of
 * which it reads some rows, and a large KV cache. */
static double far_bytes(const program *p, int node, const op_call *call, double bytes, bool far)
{
    const op_info *op = op_get(p->nodes[node].op);
    double sum = 0;
    for (int t = 0; t < op_n_tensors(op); t++) {
        const int tensor = program_tensor_of(p, node, t);
        if (far && (tensor == PLAN_K_CACHE || tensor == PLAN_V_CACHE)) return bytes;
        if (p->nodes[node].op != OP_EMBEDDING && program_weight_of(p, node, t))
            sum += (double)tensor_bytes(&call->tensors[t]);
    }
    return sum < bytes ? sum : bytes;
}

/* Costs of whole nodes in a batch. */
static node_cost *cost_nodes(const schedule *s, const program_memory *memory, const int64_t *sizes)
{
    const bool far = timeline_cache_is_far(s->program, sizes);
    node_cost *costs = calloc((size_t)s->n_nodes + 1, sizeof *costs);
    for (int n = 0; costs && n < s->n_nodes; n++) {
        op_call call;
        program_bind(s->program, n, memory, sizes, &call);
        const op_cost cost = op_cost_of(op_get(s->program->nodes[n].op), &call);
        costs[n] =
            (node_cost){cost.flops, cost.bytes, far_bytes(s->program, n, &call, cost.bytes, far)};
    }
    return costs;
}

/* The part of its node's work that an instruction does. All rows count equally, although attention
 * costs more for rows that see more positions. */
static double share_of(const schedule *s, const instruction *in, const int64_t *sizes)
{
    op_call call;
    if (!schedule_bind(s, in, NULL, sizes, &call)) return 0;
    double units = (double)op_get((op_code)in->opcode)->units(&call);
    double share = (double)(call.end - call.begin) / units;
    if (in->flags & INSTRUCTION_ROW_SLICES) {
        int32_t rows = (int32_t)sizes[s->program->nodes[in->node].row_axis];
        instruction_span own = instruction_rows(in, rows);
        share *= (double)(own.end - own.begin) / (double)rows;
    }
    return share;
}

/* A worker that helped waits until then, and again after it. */
static void set_times(timeline_slice *slice, const instruction_timing *at, uint64_t begin)
{
    slice->wait = at->wait - begin;
    if (slice->help) {
        slice->work = at->help_begin - begin;
        slice->signal = slice->end = at->help_end - begin;
        return;
    }
    if (at->help_end) slice->wait = at->help_end - begin;
    slice->work = at->work - begin;
    slice->signal = at->signal - begin;
    slice->end = at->end - begin;
}

qp_status timeline_measured(const schedule *s, const instruction_timing *timings, uint64_t begin,
                            uint64_t end, const program_memory *memory, const int64_t *sizes,
                            timeline_panel *out, qp_error *error)
{
    TRY(take_slices(s, timings, out, error));
    node_cost *costs = cost_nodes(s, memory, sizes);
    if (!costs) return error_no_memory(error, "the timeline", (size_t)s->n_nodes);
    out->tokens = sizes[AXIS_TOKENS];
    out->length = end - begin;
    for (int32_t i = 0; i < out->count; i++) {
        timeline_slice *slice = &out->slices[i];
        const instruction_timing *at =
            &timings[(size_t)slice->track * (size_t)s->longest + (size_t)slice->number];
        double share = slice->help ? 0 : share_of(s, slice->in, sizes);
        set_times(slice, at, begin);
        slice->flops = share * costs[slice->node].flops;
        slice->bytes = share * costs[slice->node].bytes;
        slice->far = share * costs[slice->node].far;
    }
    free(costs);
    return find_blockers(s, out, error);
}

int timeline_find_kind(timeline *t, const char *name)
{
    int kind = 0;
    while (kind < t->n_kinds && strcmp(t->kinds[kind], name) != 0)
        kind++;
    if (kind == t->n_kinds) {
        assert(kind < TIMELINE_KINDS);
        t->kinds[t->n_kinds++] = name;
    }
    return kind;
}

int timeline_slice_kind(const timeline *t, const timeline_slice *slice)
{
    bool noop = slice->in && slice->in->opcode == INSTRUCTION_NOOP;
    return noop ? TIMELINE_NOOP : t->nodes[slice->node].kind;
}

const char *timeline_color(const char *kind)
{
    static const struct {
        const char *part, *color; /* of a kind's name, in small letters; the first that is found */
    } colors[] = {
        {"noop", "#8d959e"},
        {"norm_qkv_rope", "#2f6f9f"},
        {"norm_gate_up", "#3b8ec2"},
        {"norm_mlp", "#3b8ec2"},
        {"attention_output", "#b5832a"},
        {"norm_linear", "#2c5680"},
        {"merge", "#b5832a"},
        {"prefill", "#d0702a"},
        {"decode", "#d0702a"},
        {"attention", "#d0702a"},
        {"matmul", "#d0702a"},
        {"mask", "#8d7f72"},
        {"normalize", "#a3485e"},
        {"norm", "#4c9a57"},
        {"linear", "#4a78b5"},
        {"silu", "#9260ad"},
        {"rope", "#a08c1f"},
        {"append", "#8a6a55"},
        {"copy", "#8a6a55"},
        {"embedding", "#35918a"},
        {"top_k", "#a8577f"},
        {"sampl", "#c04f83"},
        {"argmax", "#c04f83"},
        {"all_reduce", "#b0504a"},
        {"all_gather", "#b0504a"},
        {"add", "#5f7f6a"},
        {"exp", "#c2574a"},
        {"concat", "#6d5f9c"},
        {"repeat", "#9a6a3f"},
        {"mul", "#7a8f2f"},
        {"max", "#c9862f"},
    };
    char small[64];
    size_t length = 0;
    for (; kind[length] && length + 1 < sizeof small; length++)
        small[length] = (char)tolower((unsigned char)kind[length]);
    small[length] = '\0';
    for (size_t i = 0; i < sizeof colors / sizeof *colors; i++) {
        if (strstr(small, colors[i].part)) return colors[i].color;
    }
    return "#6b7683";
}

void timeline_print_string(const char *text, strbuf *out)
{
    cJSON *item = cJSON_CreateString(text);
    char *printed = cJSON_PrintUnformatted(item);
    cJSON_Delete(item);
    if (!printed) out->failed = true;
    for (const char *c = printed; c && *c; c++) {
        if (*c == '<')
            strbuf_puts(out, "\\u003c");
        else
            strbuf_putc(out, *c);
    }
    free(printed);
}

void timeline_print_shape(const timeline_slice *slice, strbuf *out)
{
    const timeline_part *part = slice->part;
    if (part)
        strbuf_printf(out, "%s%s%s", part->inputs, *part->inputs ? " -> " : "", part->outputs);
    else
        instruction_print_slice(slice->in, out);
}

void timeline_print_step(const timeline_node *node, strbuf *out)
{
    strbuf_puts(out, node->name);
    if (node->layer >= 0) strbuf_printf(out, " %lld", (long long)node->layer);
}
