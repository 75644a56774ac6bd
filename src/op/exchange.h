/* all_reduce and all_gather of ranks that run apart. Their calls have the group of the ranks where
 * other operators have packed weights. Such a call is one exchange, so it is never cut into slices.
 * After a failure the outputs are not written, and the group knows why: comm_check(). */
#pragma once

#include "comm/comm.h"
#include "op/table.h"

/* Whether an operator exchanges rows between ranks. */
static inline bool op_exchanges(op_code code)
{
    return code == OP_ALL_REDUCE || code == OP_ALL_GATHER;
}

/* The group of an exchange's call; NULL: the parts of all ranks are in one memory. */
static inline comm *exchange_group(const op_call *call)
{
    return (comm *)(uintptr_t)call->packed;
}

void exchange_sum(const op_call *call);
void exchange_columns(const op_call *call);
