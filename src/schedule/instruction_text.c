/* Parts of an instruction as texts: see instruction_text.h. */
#include "schedule/instruction_text.h"

#include <inttypes.h>

const char *instruction_name(uint16_t opcode)
{
    return opcode == INSTRUCTION_NOOP ? "noop" : op_get((op_code)opcode)->name;
}

void instruction_print_slice(const instruction *in, strbuf *out)
{
    if (in->opcode == INSTRUCTION_NOOP)
        strbuf_putc(out, '-');
    else if (in->parts)
        strbuf_printf(out, "part %d/%d", in->part, in->parts);
    else
        strbuf_printf(out, "%d:%d", in->units.begin, in->units.end);
    if (in->tokens.end != INSTRUCTION_ALL_TOKENS)
        strbuf_printf(out, " t%d:%d", in->tokens.begin, in->tokens.end);
}

void instruction_print_waits(const instruction *in, strbuf *out)
{
    const char *between = "";
    for (int w = 0; w < INSTRUCTION_WAITS; w++) {
        if (in->waits[w].counter == 0) continue;
        strbuf_printf(out, "%s%sc%u>=%u", between, in->flags >> w & 1 ? "previous " : "",
                      in->waits[w].counter, in->waits[w].needed);
        between = " ";
    }
}

void instruction_print_view(const schedule *s, int number, strbuf *out)
{
    const program_view *view = &s->program->views[number];
    const program_area *area = &s->program->areas[view->area];
    strbuf_puts(out, area->name);
    if (area->row_bytes == 0 || view->shape[0] >= 0) return;
    uint64_t element = dtype_block_bytes(view->type), columns = 1;
    for (int d = 1; d < view->rank; d++)
        columns *= (uint64_t)view->shape[d];
    if (columns * element == area->row_bytes) return;
    strbuf_printf(out, "[%" PRIu64 ":%" PRIu64 "]", view->offset / element,
                  view->offset / element + columns);
}

void instruction_print_operands(const schedule *s, const instruction *in, strbuf *out)
{
    if (in->opcode == INSTRUCTION_NOOP) return;
    const op_info *op = op_get((op_code)in->opcode);
    for (int i = 0; i < op_n_tensors(op); i++) {
        if (in->operands[i] == 0) continue;
        strbuf_printf(out, " %s=", op->tensors[i].name);
        instruction_print_view(s, in->operands[i], out);
    }
}
