/* The megakernel's program: the queues of a schedule, with the data that the GPU needs to run each
 * instruction. The schedule is built from the program with sums (llama_sums.c) and verified before
 * it is uploaded.
 *
 * An instruction becomes an entry, or several if it has several KV heads or parts. From what the
 * instructions write, this file counts how many parts are added to each element of x; the count
 * does not depend on the assignment strategy. Readers wait for that count, so it must be equal for
 * all elements. Every queue begins with embedding_clear, in which a block waits for the end of the
 * previous pass, and ends with norm_linear, in which the block signals the end of its own pass. A
 * queue without one of these gets an entry of no units.
 */
#include "vm/mega/opcodes.h"
#include "vm/mega/parts.h"

#include "op/exchange.h"
#include "op/fixed.h"
#include "schedule/build.h"
#include "schedule/verify.h"
#include "lower/lower.h"

#include <stdlib.h>

static int64_t usual_longest(const model_config *c)
{
    return 4 * c->n_layers + 2;
}

/* Values of the residual in a pass. */
static int64_t steps_of(const model_config *c)
{
    return 2 * c->n_layers + 1;
}

size_t mega_count_program(const model_config *c, int n_blocks)
{
    return (size_t)n_blocks * ((size_t)usual_longest(c) * sizeof(mega_entry) + sizeof(int32_t)) +
           (size_t)steps_of(c) * sizeof(uint32_t);
}

/* ---- the schedule --------------------------------------------------------------------------- */

qp_status mega_build_sums(const program *of, int n_blocks, program *out, qp_error *error)
{
    plan_options sums = of->options;
    sums.sums = sums.own_sums = true;
    sums.max_tokens = sums.max_sequences = sums.max_outputs = 1;
    sums.kv_partitions = schedule_kv_partitions(n_blocks, of->config.n_kv_heads);
    return lower_rebuild(of, &sums, out, error);
}

qp_status mega_schedule(const program *sums, const mega_schedule_options *options, schedule *out,
                        qp_error *error)
{
    /* An H200's bandwidth, arithmetic rate, and the ns until a block sees another block's data; for
     * strategies that use costs. */
    static const machine_profile profile = {4.5e12, 60e12, 900};
    const schedule_options how = {.workers = options->n_blocks,
                                  .assignment = options->assignment,
                                  .together = options->together,
                                  .costs = options->costs,
                                  .context = options->context,
                                  .last_step = sums->logits_end,
                                  .profile = profile};
    TRY(schedule_build(sums, &how, out, error));
    return mega_prove(out, error);
}

qp_status mega_prove(const schedule *s, qp_error *error)
{
    TRY(schedule_verify(s, error));
    return mega_check_waits(s, error);
}

/* ---- entries -------------------------------------------------------------------------------- */

typedef struct queues {
    const cuda_mega *mega;
    const schedule *s;
    /* [views]: the count of each element when the sum is complete; 0: the view is no sum. */
    uint32_t *parts;
    mega_entry *entries; /* [blocks][longest] */
    /* [blocks], and [2 n_layers + 1] counts of x by step; stored after the entries, in the same
     * allocation */
    int32_t *lengths;
    uint32_t *step_parts;
    int longest;
    size_t bytes; /* of entries, lengths and counts */
} queues;

/* The table's row of an instruction's opcode. */
static const mega_opcode *row_of(const instruction *in)
{
    return mega_opcode_of((op_code)in->opcode);
}

/* The most units of an entry: all units, or those of one KV head or one part. */
static int64_t most_units(const schedule *s, const instruction *in)
{
    switch (row_of(in)->split) {
    case MEGA_BY_PART:
        return 1;
    case MEGA_BY_HEAD:
        return mega_units_of_head(s, (int)in->node);
    default:
        return INT32_MAX;
    }
}

/* The units of the first of the entries that [begin, end) becomes. */
static instruction_span first_units(int64_t most, int32_t begin, int32_t end)
{
    int64_t last = (begin / most + 1) * most;
    return (instruction_span){begin, last < end ? (int32_t)last : end};
}

/* Whether the schedule's queue already has the first, or last, entry that a block needs. */
static bool has_begin(const schedule *s, int block)
{
    return s->length[block] && row_of(schedule_queue(s, block))->first;
}
static bool has_end(const schedule *s, int block)
{
    int last = s->length[block] - 1;
    while (last >= 0 && mega_entries_of(s, schedule_queue(s, block) + last) == 0)
        last--;
    return last >= 0 && row_of(schedule_queue(s, block) + last)->last;
}

int mega_entries_of(const schedule *s, const instruction *in)
{
    if (op_exchanges((op_code)in->opcode)) return 0;
    int64_t most = most_units(s, in);
    return (int)((in->units.end - 1) / most - in->units.begin / most) + 1;
}

int mega_entries_before(const schedule *s, int block)
{
    return !has_begin(s, block);
}

static int count_entries(const schedule *s, int block)
{
    int n = mega_entries_before(s, block) + !has_end(s, block);
    for (int i = 0; i < s->length[block]; i++)
        n += mega_entries_of(s, schedule_queue(s, block) + i);
    return n;
}

static const program_weight *weight_of(const schedule *s, const program_node *node, int i)
{
    return &s->program->weights[s->program->areas[s->program->views[node->operands[i]].area].index];
}

static void set_weights(const queues *p, mega_weights *w, const program_node *node)
{
    const mega_opcode *row = mega_opcode_of(node->op);
    for (int i = 0; i < row->n_matrices; i++) {
        const program_weight *from = weight_of(p->s, node, row->matrices[i]);
        mega_set_matrix(p->mega, w, i, from->slot, from->layer);
    }
    w->map = node->layer < 0 ? 0 : (uint32_t)node->layer;
    w->biases = mega_biases_of(p->mega, node->op, node->layer);
    if (row->norm == MEGA_NO_OPERAND) return;
    const program_weight *from = weight_of(p->s, node, row->norm);
    w->norm = cuda_weights_address(&p->mega->executor->weights, from->slot, from->layer);
    w->norm_is_f32 = p->s->program->views[node->operands[row->norm]].type == DTYPE_F32;
}

/* How the heads of an entry's layer turn, and the norms of q and k for attention. */
static void set_turning(const queues *p, mega_entry *e, int64_t layer, bool attends)
{
    const cuda_executor *x = p->mega->executor;
    const program *of = x->program;
    if (layer_set_has(&of->config.no_rope, layer)) e->weights.turning |= MEGA_UNTURNED;
    if (!mega_has_head_norms(of)) return;
    e->weights.turning |= MEGA_NORMED;
    for (int i = 0; i < 2 && attends; i++) {
        const weight_slot slot = i ? WEIGHT_ATTN_K_NORM : WEIGHT_ATTN_Q_NORM;
        e->weights.matrix[1 + i] = cuda_weights_address(&x->weights, slot, layer);
        e->weights.norm_is_f32 =
            of->weights[program_find_weight(of, slot, layer, false)].whole.type == DTYPE_F32;
    }
}

/* Attention's units are parts of a KV head's context, or rows of W_o for a KV head. */
static void set_head(const queues *p, mega_entry *e, mega_split split)
{
    const int64_t layer = p->s->program->nodes[e->in.node].layer;
    const int64_t window = program_window(p->mega->executor->program, layer);
    e->weights.window = window ? (int32_t)window : INT32_MAX;
    set_turning(p, e, layer, true);
    int64_t n_states = p->mega->partitions, unit = e->in.units.begin;
    int64_t each = split == MEGA_BY_PART ? n_states : mega_units_of_head(p->s, (int)e->in.node);
    e->in.part = (uint16_t)(split == MEGA_BY_PART ? unit % n_states : 0);
    e->in.parts = (uint16_t)n_states;
    e->weights.kv_head = (int32_t)(unit / each);
    e->weights.row = (int32_t)(unit % each);
}

/* The columns of x that the block adds to the sums: as large a share as it has of the units. */
static void set_share(const queues *p, mega_entry *e, int x)
{
    op_call call;
    program_bind(p->s->program, (int)e->in.node, NULL, p->s->program->capacity.of, &call);
    int64_t hidden = call.tensors[x].shape[1];
    e->weights.share = (instruction_span){(int32_t)(hidden * e->in.units.begin / call.end),
                                          (int32_t)(hidden * e->in.units.end / call.end)};
}

static void set_entry(const queues *p, mega_entry *e, const instruction *in, instruction_span units)
{
    const program_node *node = &p->s->program->nodes[in->node];
    const mega_opcode *row = mega_opcode_of(node->op);
    *e = (mega_entry){.in = *in};
    e->in.units = units;
    if (row->split != MEGA_WHOLE) set_head(p, e, row->split);
    if (node->op == OP_NORM_QKV_ROPE) set_turning(p, e, node->layer, false);
    if (row->x != MEGA_NO_OPERAND) e->weights.parts = p->parts[node->operands[row->x]];
    if (row->n_matrices) set_weights(p, &e->weights, node);
    if (row->shares_x) set_share(p, e, row->x);
}

/* An entry of no units, to begin or end a queue. */
static void add_empty(const queues *p, mega_entry *e, int node)
{
    const program_node *about = &p->s->program->nodes[node];
    const instruction in = {.opcode = (uint16_t)about->op,
                            .step = (uint16_t)about->step,
                            .layer = (int16_t)about->layer,
                            .node = (uint32_t)node,
                            .tokens = {0, INSTRUCTION_ALL_TOKENS}};
    set_entry(p, e, &in, in.units);
}

/* The last node that has entries. */
static int logits_node(const schedule *s)
{
    int node = s->n_nodes - 1;
    while (op_exchanges(s->program->nodes[node].op))
        node--;
    return node;
}

static void fill_queue(queues *p, int block)
{
    const schedule *s = p->s;
    mega_entry *queue = p->entries + (size_t)block * (size_t)p->longest;
    const instruction *records = schedule_queue(s, block);
    int n = 0, length = s->length[block];
    if (!has_begin(s, block)) add_empty(p, &queue[n++], 0);
    for (int i = 0; i < length; i++) {
        if (mega_entries_of(s, &records[i]) == 0) continue;
        const int64_t most = most_units(s, &records[i]);
        instruction_span rest = records[i].units, units;
        for (; rest.begin < rest.end; rest.begin = units.end) {
            units = first_units(most, rest.begin, rest.end);
            set_entry(p, &queue[n++], &records[i], units);
        }
    }
    if (!has_end(s, block)) add_empty(p, &queue[n++], logits_node(s));
    /* Two entries that can be skipped never follow each other, because there is only one slot for
     * them. */
    for (int i = 1; i < n; i++)
        queue[i].weights.skippable = row_of(&queue[i].in)->split == MEGA_BY_PART &&
                                     row_of(&queue[i - 1].in)->split != MEGA_BY_PART;
    queue[0].weights.begins = 1;
    queue[n - 1].weights.ends = 1;
    p->lengths[block] = n;
}

/* ---- how many parts x has ------------------------------------------------------------------- */

/* Counts the parts that a node's entries add to each of `hidden` elements. */
static qp_status count_node(const queues *p, int node, int64_t hidden, uint32_t *counts,
                            qp_error *error)
{
    const schedule *s = p->s;
    op_code op = s->program->nodes[node].op;
    int sums = mega_opcode_of(op)->sums;
    op_call call;
    if (sums == MEGA_NO_OPERAND) return QP_OK;
    program_bind(s->program, node, NULL, s->program->capacity.of, &call);
    for (int64_t i = 0; i < hidden; i++)
        counts[i] = 0;
    for (int b = 0; b < s->options.workers; b++)
        for (int r = 0; r < s->length[b]; r++) {
            const instruction *in = schedule_queue(s, b) + r;
            if ((int)in->node != node) continue;
            instruction_span rest = in->units, units;
            for (; rest.begin < rest.end; rest.begin = units.end) {
                units = first_units(most_units(s, in), rest.begin, rest.end);
                op_columns at = op_get(op)->columns(&call, sums, units.begin, units.end);
                for (int64_t i = at.begin; i < at.end; i++)
                    counts[i]++;
            }
        }
    for (int64_t i = 0; i < hidden; i++)
        if (counts[i] != counts[0] || counts[i] == 0 || counts[i] > FIXED_MOST_COUNTED)
            return error_set(
                error, QP_UNSUPPORTED,
                "the megakernel counts 1 to %d parts of each element of x, the same of "
                "all: %s gives %u to element 0 and %u to %lld; give other --workers, or --exec "
                "cuda",
                FIXED_MOST_COUNTED, s->program->nodes[node].name, counts[0], counts[i],
                (long long)i);
    p->parts[s->program->nodes[node].operands[sums]] = counts[0];
    return QP_OK;
}

static qp_status count_parts(const queues *p, qp_error *error)
{
    int64_t hidden = p->mega->executor->program->config.hidden_size;
    uint32_t *counts = calloc((size_t)hidden, sizeof *counts);
    if (!counts) return error_no_memory(error, "parts of x", (size_t)hidden * sizeof *counts);
    qp_status status = QP_OK;
    int step = 0;
    for (int node = 0; node < p->s->n_nodes && status == QP_OK; node++) {
        const program_node *of = &p->s->program->nodes[node];
        const int sums = mega_opcode_of(of->op)->sums;
        status = count_node(p, node, hidden, counts, error);
        if (sums != MEGA_NO_OPERAND) p->step_parts[step++] = p->parts[of->operands[sums]];
    }
    free(counts);
    return status;
}

/* A block adds at most one element of x per thread to the sums, and only its first and last entries
 * begin and end the pass. */
static qp_status check_queue(const queues *p, int block, qp_error *error)
{
    const mega_entry *queue = p->entries + (size_t)block * (size_t)p->longest;
    for (int i = 0; i < p->lengths[block]; i++) {
        const mega_entry *e = &queue[i];
        const mega_opcode *row = row_of(&e->in), *before = i > 0 ? row_of(&e[-1].in) : NULL;
        if ((row->first && before && !before->first) || (before && before->last && !row->last) ||
            e->weights.share.end - e->weights.share.begin > MEGA_CONSUMERS)
            return error_set(error, QP_UNSUPPORTED,
                             "the megakernel cannot run block %d's queue: its entry %d, %s, is too "
                             "large or out of its place; give more --workers, or --exec cuda",
                             block, i, op_get((op_code)e->in.opcode)->name);
    }
    return QP_OK;
}

/* Whether a block's logits are one contiguous range, and fit in the memory of its x. */
static bool can_choose(const queues *p, int block)
{
    const mega_entry *queue = p->entries + (size_t)block * (size_t)p->longest;
    const instruction_span *units = &queue[p->lengths[block] - 1].in.units;
    int n = 0;
    for (int i = 0; i < p->lengths[block]; i++)
        n += row_of(&queue[i].in)->last;
    return n == 1 && units->end - units->begin <= (int64_t)p->mega->arguments.shared.plane;
}

/* Whether a block has one entry of each step, and at most one of attention's parts. */
static bool has_one_each(const queues *p, int block)
{
    const mega_entry *queue = p->entries + (size_t)block * (size_t)p->longest;
    int64_t of[OP_COUNT] = {0}, layers = p->mega->executor->program->config.n_layers;
    for (int i = 0; i < p->lengths[block]; i++)
        of[queue[i].in.opcode]++;
    for (int i = 1; i < p->lengths[block]; i++)
        if (queue[i].in.node == queue[i - 1].in.node) return false;
    for (int op = 0; op < OP_COUNT; op++) {
        mega_number number = mega_opcode_of((op_code)op)->number;
        if ((number == MEGA_ONE_A_PASS && of[op] != 1) ||
            (number == MEGA_ONE_A_LAYER && of[op] != layers))
            return false;
    }
    return true;
}

/* The units that a block has of a node. */
static instruction_span features_of(const queues *p, int block, uint32_t node)
{
    const mega_entry *queue = p->entries + (size_t)block * (size_t)p->longest;
    for (int i = 0; i < p->lengths[block]; i++)
        if (queue[i].in.node == node) return queue[i].in.units;
    return (instruction_span){0, 0};
}

/* For several sequences: the features of the other blocks of the group, and the block's share of
 * W_down's columns. Blocks of a group begin at the same place in their shares, other groups
 * elsewhere. */
static void set_peers(const queues *p, const down_boxes *boxes)
{
    int n_peers = boxes->peers, share = boxes->chunks / n_peers;
    for (int b = 0; b < p->s->options.workers; b++)
        for (int i = 0; i < p->lengths[b]; i++) {
            mega_entry *e = p->entries + (size_t)b * (size_t)p->longest + i;
            if (e->in.opcode != OP_NORM_MLP) continue;
            e->weights.down_first = (uint16_t)(b % n_peers * share);
            e->weights.down_shift = (uint16_t)(share ? b / n_peers % share : 0);
            for (int k = 1; k < n_peers; k++)
                e->weights.peers[k - 1] =
                    features_of(p, b / n_peers * n_peers + (b + k) % n_peers, e->in.node);
        }
}

/* ---- making it ------------------------------------------------------------------------------ */

/* Replaces the operators' opcodes by those of the kernels. */
static void set_codes(const queues *p)
{
    for (int b = 0; b < p->s->options.workers; b++)
        for (int i = 0; i < p->lengths[b]; i++) {
            instruction *in = &p->entries[(size_t)b * (size_t)p->longest + (size_t)i].in;
            in->opcode = (uint16_t)row_of(in)->code;
        }
}

static qp_status upload(cuda_mega *m, const queues *q, qp_error *error)
{
    const cuda_device *d = m->executor->device;
    TRY(cuda_buffer_alloc(d, q->bytes, "the megakernel's program", &m->program, error));
    TRY(mega_copy(d, m->program.address, q->entries, q->bytes, error));
    m->arguments.program = m->program.address;
    m->arguments.lengths =
        m->program.address + (size_t)((const char *)q->lengths - (const char *)q->entries);
    m->arguments.ranks.parts =
        m->program.address + (size_t)((const char *)q->step_parts - (const char *)q->entries);
    m->arguments.longest = (int32_t)q->longest;
    return QP_OK;
}

static qp_status fill(queues *p, qp_error *error)
{
    TRY(count_parts(p, error));
    for (int b = 0; b < p->s->options.workers; b++) {
        fill_queue(p, b);
        TRY(check_queue(p, b, error));
    }
    return QP_OK;
}

bool mega_has_head_norms(const program *p)
{
    return program_find_weight(p, WEIGHT_ATTN_Q_NORM, 0, false) >= 0;
}

bool mega_is_plain(const program *p)
{
    bool plain = mega_count_biases(p) == 0 && !mega_has_head_norms(p) && !program_any_window(p);
    for (int64_t layer = 0; layer < p->config.n_layers; layer++)
        plain = plain && !layer_set_has(&p->config.no_rope, layer);
    return plain;
}

/* The most features of the MLP that a block has, if so many stay together. */
static int64_t most_together(const cuda_mega *m, int64_t together)
{
    const int64_t all = m->executor->program->config.intermediate_size / together;
    return (all + m->n_blocks - 1) / m->n_blocks * together;
}

/* Features of the MLP in fragments: 32, which a fragment of W_down has; or 16, the rows of a tile
 * of gate and up, where that leaves the block with the most fewer. Two blocks then read a fragment
 * of W_down. */
static int32_t features_together(const cuda_mega *m)
{
    return most_together(m, FRAGMENT_ROWS) < most_together(m, FRAGMENT_COLUMNS) ? FRAGMENT_ROWS
                                                                                : FRAGMENT_COLUMNS;
}

int64_t mega_features_lead(const cuda_mega *m)
{
    return m->quantized ? FRAGMENT_COLUMNS - features_together(m) : 0;
}

void mega_grains_of(const cuda_mega *m, int32_t grains[])
{
    const bool q = m->quantized;
    grains[MEGA_GRAIN_NONE] = 0;
    grains[MEGA_GRAIN_PAIRS] = q ? FRAGMENT_ROWS / 2 : MEGA_TILE / 2;
    grains[MEGA_GRAIN_ROWS] = q ? FRAGMENT_ROWS : 1;
    grains[MEGA_GRAIN_LOGITS] = q ? FRAGMENT_ROWS : MEGA_TILE / 2;
    grains[MEGA_GRAIN_FEATURES] = q ? features_together(m) : 1;
}

qp_status cuda_mega_plan(const cuda_mega *m, const cuda_mega_options *options, schedule *out,
                         qp_error *error)
{
    int32_t together[OP_COUNT], grains[MEGA_GRAINS];
    mega_grains_of(m, grains);
    for (int op = 0; op < OP_COUNT; op++)
        together[op] = grains[mega_opcode_of((op_code)op)->grain];
    const mega_schedule_options how = {.n_blocks = m->n_blocks,
                                       .assignment = options->assignment,
                                       .together = together,
                                       .costs = options->costs,
                                       .context = options->context};
    return mega_schedule(&m->sums, &how, out, error);
}

/* Room for the queues and their lengths, as they are uploaded. */
static qp_status open_queues(queues *q, qp_error *error)
{
    const int n_blocks = q->s->options.workers;
    for (int b = 0; b < n_blocks; b++) {
        int n = count_entries(q->s, b);
        q->longest = n > q->longest ? n : q->longest;
    }
    size_t entries = (size_t)n_blocks * (size_t)q->longest * sizeof(mega_entry);
    const size_t lengths = (size_t)n_blocks * sizeof(int32_t);
    q->bytes = entries + lengths + (size_t)steps_of(&q->s->program->config) * sizeof(uint32_t);
    q->entries = calloc(1, q->bytes);
    q->parts = calloc((size_t)q->s->program->n_views, sizeof *q->parts);
    if (!q->entries || !q->parts)
        return error_no_memory(error, "the megakernel's program", q->bytes);
    q->lengths = (int32_t *)(void *)((char *)q->entries + entries);
    q->step_parts = (uint32_t *)(void *)((char *)q->entries + entries + lengths);
    return QP_OK;
}

/* Finds what the queues allow: several sequences, and sampling on the GPU. */
static void look_at_queues(cuda_mega *m, const queues *q)
{
    m->one_each = m->can_choose = true;
    for (int b = 0; b < m->n_blocks; b++) {
        m->one_each = m->one_each && has_one_each(q, b);
        m->can_choose = m->can_choose && can_choose(q, b);
    }
}

qp_status mega_make_program(cuda_mega *m, const cuda_mega_options *options, qp_error *error)
{
    TRY(mega_build_sums(m->executor->program, m->n_blocks, &m->sums, error));
    TRY(cuda_mega_plan(m, options, &m->schedule, error));
    m->partitions = schedule_kv_partitions(m->n_blocks, m->executor->program->config.n_kv_heads);
    m->arguments.parts_inverse = (uint32_t)(UINT32_MAX / (uint32_t)m->partitions + 1);
    queues q = {.mega = m, .s = &m->schedule};
    qp_status status = open_queues(&q, error);
    if (status == QP_OK) status = fill(&q, error);
    if (status == QP_OK) {
        look_at_queues(m, &q);
        const down_boxes boxes = mega_down_boxes(m);
        if (m->one_each) set_peers(&q, &boxes);
        set_codes(&q);
        status = upload(m, &q, error);
    }
    free(q.parts);
    free(q.entries);
    return status;
}
