/* Proof that a schedule computes its nodes in every order in which its workers may run. */
#pragma once

#include "schedule/schedule.h"

/* Proves, from the records and what operators read and write, that
 *   - every number in a record is in range, and a record says what its node says;
 *   - the instructions of a node cover each of its units in each row exactly once;
 *   - every wait is reachable and exact: 1 <= needed <= what its producers signal in a pass, and
 *     the queues can be run to their ends, pass after pass;
 *   - two accesses to the same bytes, one of them a write, come in the nodes' order, which makes
 *     each read see what it was meant to see: areas that share bytes of the arena included;
 *   - what is read was written in this pass, and not written over since;
 *   - nothing of a pass begins before all of the previous one has ended;
 *   - an exchange between ranks is one instruction, and comes after all earlier ones, so that every
 *     rank makes its exchanges in the order of its program.
 * QP_INVALID says which instruction breaks what. */
qp_status schedule_verify(const schedule *schedule, qp_error *error);

/* Proves that the schedules of all ranks can be run to their ends together: each is sound, and all
 * make the same exchanges in the same order. An exchange waits for nothing but the same one of the
 * other ranks, and all before it have been made, so no rank waits for ever. */
qp_status schedule_verify_ranks(const schedule *const *ranks, int n_ranks, qp_error *error);
