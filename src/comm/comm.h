/* A group of ranks: what programs that run one model together say to each other.
 *
 * There is one kind of conversation, the exchange: every rank gives some bytes and gets those of
 * all ranks. All ranks make the same exchanges in the same order, and each has a tag by which they
 * notice that they do not. A rank puts what it gives into the stage, so that nothing is copied
 * twice. The ranks are threads of one process, or processes of one host, which share memory
 * (shared.c), or processes of many hosts, which send messages (mpi.c).
 *
 * A failure is final: it is remembered, and all later exchanges return at once.
 */
#pragma once

#include "base/crew.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct comm comm; /* one rank's place in the group */

/* What a rank gave. */
typedef struct comm_part {
    const void *data;
    size_t bytes;
} comm_part;

/* How long a rank waits for the others. */
typedef enum comm_wait {
    COMM_BUSY,  /* they compute the same as this rank did since the last exchange: a few times as
                   long as that, and 4 seconds */
    COMM_READY, /* they wait for this rank already: 4 seconds */
    COMM_SLOW,  /* they read a model: ten minutes */
    COMM_IDLE,  /* they may have nothing to say: for ever, with little use of the processor */
} comm_wait;

/* Ranks that are threads of this process: ends[size], one for each. comm_close() each of them. */
qp_status comm_threads_open(int size, comm **ends, qp_error *error);

/* This process's place among those that mpirun has started, through Open MPI, which is opened at
 * run time. Once in a process. `shares`: all ranks of one host exchange through memory that they
 * share, if all ranks want that. QP_UNSUPPORTED: there is no Open MPI. */
qp_status comm_mpi_open(bool shares, comm **out, qp_error *error);

void comm_close(comm *comm);

int comm_rank(const comm *comm);
int comm_size(const comm *comm);

/* What this rank does with the rows of an exchange, in pieces: threads of the rank that wait may
 * take some. */
crew *comm_crew(comm *comm);

/* Memory that all ranks have in common, zeroed, for what they all would keep otherwise: the same
 * part of it for the same call. All ranks call in the same order. NULL, on all of them: the ranks
 * do not share memory, or no more of it. */
void *comm_common(comm *comm, size_t bytes);

/* Whether an address is in that memory. */
bool comm_is_common(const comm *comm, const void *at);

/* Memory for what this rank gives in its next exchange, 64-byte aligned. NULL: there is none, and
 * the group has failed. */
void *comm_stage(comm *comm, size_t bytes);

/* Gives the first `bytes` of the stage. Returns what all ranks gave, [size], valid until this
 * rank's next exchange; NULL: the group has failed. `tag` is the same on all ranks, and `most` is
 * as many bytes as any of them gives. One thread of a rank at a time. */
const comm_part *comm_exchange(comm *comm, uint32_t tag, size_t bytes, size_t most, comm_wait wait);

/* Tells all ranks that this one cannot go on, and why. */
void comm_abort(comm *comm, const char *why);

/* QP_OK, or QP_IO and the first failure, which names its rank. */
qp_status comm_check(const comm *comm, qp_error *error);
