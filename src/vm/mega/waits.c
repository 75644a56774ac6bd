/* How the megakernel implements the waits of its schedule.
 *
 * Instructions wait for counters, as on every machine. The megakernel has no counters for most of
 * these waits: the data itself shows when it is complete, and the reader checks it (opcodes.h):
 *
 *     instruction   waits for                waits until
 *     a norm        the parts of its x       each element counts all its parts (MEGA_COUNTS)
 *     attention     q, k, v of its heads     each value has this pass's number (MEGA_TAGS)
 *     W_o           attention's parts        each state has the number of this pass and layer;
 *                                            in a short context as attention
 *     any           the previous pass        all blocks have ended it
 *
 *     an exchange   the parts of this rank   the pushing warps count them, and the keys follow a
 *     of ranks                               counter of all blocks (ranks.cuh)
 *
 * A schedule with any other wait is refused, because the megakernel has no means to wait for it.
 */
#include "op/exchange.h"
#include "vm/mega/opcodes.h"
#include "vm/mega/parts.h"

#include <stdlib.h>

/* The instructions that signal a counter. */
typedef struct signaller {
    int node;           /* -1: several nodes, or instructions that only signal */
    int64_t begin, end; /* from the first unit to the last */
    bool known;
} signaller;

static void take_signal(signaller *of, const instruction *in)
{
    int node = in->opcode == INSTRUCTION_NOOP ? -1 : (int)in->node;
    if (!of->known) {
        *of = (signaller){node, in->units.begin, in->units.end, true};
        return;
    }
    if (of->node != node) of->node = -1;
    if (in->units.begin < of->begin) of->begin = in->units.begin;
    if (in->units.end > of->end) of->end = in->units.end;
}

int64_t mega_units_of_head(const schedule *s, int node)
{
    int cache = mega_opcode_of(s->program->nodes[node].op)->k_cache;
    if (cache == MEGA_NO_OPERAND) return 0;
    op_call call;
    program_bind(s->program, node, NULL, s->program->capacity.of, &call);
    return call.end / call.tensors[cache].shape[2];
}

/* Whether an instruction's KV heads include all of those of the units [begin, end) of a node. */
static bool has_heads(const schedule *s, const instruction *in, int node, int64_t begin,
                      int64_t end)
{
    int64_t mine = mega_units_of_head(s, (int)in->node), theirs = mega_units_of_head(s, node);
    return s->program->nodes[in->node].layer == s->program->nodes[node].layer &&
           begin / theirs >= in->units.begin / mine &&
           (end - 1) / theirs <= (in->units.end - 1) / mine;
}

static bool is_carried(const schedule *s, const instruction *in, const signaller *by)
{
    if (by->node < 0) return false;
    const program_node *waiter = &s->program->nodes[in->node],
                       *writer = &s->program->nodes[by->node];
    const mega_opcode *reads = mega_opcode_of(waiter->op), *writes = mega_opcode_of(writer->op);
    switch (reads->carrier) {
    case MEGA_COUNTS:
        return writes->sums != MEGA_NO_OPERAND &&
               waiter->operands[reads->x] == writer->operands[writes->sums];
    case MEGA_TAGS:
        return writer->op == reads->writer && has_heads(s, in, by->node, by->begin, by->end);
    default:
        return false;
    }
}

static qp_status refuse(const schedule *s, int block, int place, const instruction *in, int writer,
                        qp_error *error)
{
    const char *name = in->opcode < OP_COUNT ? op_get((op_code)in->opcode)->name : "noop";
    return error_set(error, QP_UNSUPPORTED,
                     "the megakernel has nothing that carries a wait of its schedule: block %d, "
                     "instruction %d (%s, layer %d) waits for %s; --exec cuda runs any model",
                     block, place, name, in->layer,
                     writer < 0 ? "several nodes or none"
                                : op_get(s->program->nodes[writer].op)->name);
}

static qp_status check_instruction(const schedule *s, const signaller *signallers, int block,
                                   int place, qp_error *error)
{
    const instruction *in = schedule_queue(s, block) + place;
    if (in->opcode == INSTRUCTION_NOOP) return refuse(s, block, place, in, -1, error);
    if (op_exchanges((op_code)in->opcode)) return QP_OK;
    for (int w = 0; w < INSTRUCTION_WAITS; w++) {
        uint32_t counter = in->waits[w].counter;
        if (counter == 0 || in->flags >> w & 1) continue;
        const signaller *by = &signallers[counter];
        if (in->waits[w].needed != s->per_pass[counter] || !is_carried(s, in, by))
            return refuse(s, block, place, in, by->node, error);
    }
    return QP_OK;
}

qp_status mega_check_waits(const schedule *s, qp_error *error)
{
    signaller *signallers = calloc((size_t)s->n_counters, sizeof *signallers);
    if (!signallers)
        return error_no_memory(error, "who signals what",
                               (size_t)s->n_counters * sizeof *signallers);
    for (int w = 0; w < s->options.workers; w++)
        for (int i = 0; i < s->length[w]; i++) {
            const instruction *in = schedule_queue(s, w) + i;
            take_signal(&signallers[in->signal], in);
        }
    qp_status status = QP_OK;
    for (int w = 0; w < s->options.workers && status == QP_OK; w++)
        for (int i = 0; i < s->length[w] && status == QP_OK; i++)
            status = check_instruction(s, signallers, w, i, error);
    free(signallers);
    return status;
}
