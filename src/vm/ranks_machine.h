/* The parts of the machine `ranks`, for ranks.c, which opens and runs it.
 */
#pragma once

#include "vm/ranks.h"

#include <pthread.h>

/* A rank that is a thread of this process. */
typedef struct rank_thread {
    pthread_t thread;
    bool started;
    machine_setup setup;
    comm *comm;
    rank_member member;
} rank_thread;

typedef struct ranks_machine {
    machine_setup setup;
    rank_member first;
    rank_thread *others; /* [size - 1]; NULL: they are other processes */
    comm **ends;         /* [size], where they are threads */
    int size;
    rank_pieces *pieces; /* [size][n_tensors]; NULL: no tensor has been read yet */
    char *message;       /* a command's data */
    size_t capacity;
    rank_schedules schedules; /* while they are timed */
    machine_record *records;  /* of the run that is under way, if it is timed */
    machine_part_sink *sink;  /* of timed launches; NULL: they are not timed */
    void *context;            /* of `sink` */
} ranks_machine;

/* What goes wrong on one rank ends the others. */
qp_status ranks_checked(const ranks_machine *machine, qp_status status, qp_error *error);

/* ---- ranks_memory.c: members of machine_type ----------------------------------------------- */

qp_status ranks_read(void *self, plan_tensor_id id, int64_t layer, void *data, size_t bytes,
                     qp_error *error);
qp_status ranks_write(void *self, plan_tensor_id id, int64_t layer, const void *data, size_t bytes,
                      qp_error *error);
qp_status ranks_read_page(void *self, int32_t page, void *data, qp_error *error);
qp_status ranks_write_page(void *self, int32_t page, const void *data, qp_error *error);
qp_status ranks_copy_page(void *self, int32_t from, int32_t to, qp_error *error);

/* ---- ranks_time.c: members of machine_type ------------------------------------------------- */

qp_status ranks_time(void *self, const machine_timing *timing, qp_error *error);
qp_status ranks_limits(void *self, machine_profile *out, qp_error *error);
const schedule *ranks_schedule(const void *self);
const schedule *ranks_schedule_of(const void *self, int rank);
qp_status ranks_reschedule(void *self, const schedule_options *options, const char *file,
                           qp_error *error);

/* Before a run: where the leader's own times go. Returns how many passes all ranks time. */
int ranks_take_records(ranks_machine *machine, const machine_request *request);

/* After it: hands out the launches of all ranks, which have ended the run: they have taken the
 * command after it. */
void ranks_hand_launches(ranks_machine *machine);
