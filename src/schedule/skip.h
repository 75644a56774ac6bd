/* What a run leaves out of a schedule, so that its cost can be told: kinds of instructions, waits,
 * steps. What is computed then is wrong, but nothing reads or writes outside its memory. */
#pragma once

#include "base/strbuf.h"
#include "schedule/schedule.h"

/* Zero-initialise; a NULL field leaves out nothing. */
typedef struct schedule_skip {
    const char *kinds; /* operators and steps, with commas: "linear,attn_qkv". Their instructions
                        * become noops, which wait and signal. With "waits" among them every wait is
                        * over at once, as if all counters were full */
    /* Steps such as "5.attn_qkv". The instructions up to `start_after` and after `stop_after`
     * become noops that wait for nothing. */
    const char *start_after, *stop_after;
} schedule_skip;

/* Leaves that out of a finished schedule, which keeps a copy of `skip` in its options. QP_INVALID
 * names what the schedule does not have. */
qp_status schedule_leave_out(schedule *schedule, const schedule_skip *skip, qp_error *error);

/* Appends the names of the operators that the schedule has, with commas, in the program's order. */
void schedule_print_kinds(const schedule *schedule, strbuf *out);
