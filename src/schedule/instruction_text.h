/* Parts of an instruction as short texts, for listings, timelines and pages. */
#pragma once

#include "base/strbuf.h"
#include "schedule/schedule.h"

/* "linear", "noop". */
const char *instruction_name(uint16_t opcode);

/* Its slice of the node: "0:128" of the units, "part 1/4" where they are dealt at run time, with
 * " t128:256" after it where it is of some rows only; "-" for a noop. */
void instruction_print_slice(const instruction *in, strbuf *out);

/* "c7>=4", two of them with a blank between; "previous c7>=4" where the wait is for the pass
 * before; nothing where it does not wait. */
void instruction_print_waits(const instruction *in, strbuf *out);

/* Appends a view: "x", or "attn[2048:3072]" for some of its columns. */
void instruction_print_view(const schedule *s, int number, strbuf *out);

/* Its operands by the operator's names: " x=x_ weight=attn_q_weight out=attn[0:576]". */
void instruction_print_operands(const schedule *schedule, const instruction *in, strbuf *out);
