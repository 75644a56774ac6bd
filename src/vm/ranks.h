/* The machine `ranks`: a model on several ranks, as one machine.
 *
 *     leader   rank 0: its owner's calls become commands, which all ranks carry out
 *     member   every rank, the first too: its part of the program, and a machine that runs it
 *
 * The ranks are threads of this process, or processes that mpirun has started. The owner sees the
 * program of one rank: read() puts tensors together that ranks have parts of, and write() takes
 * them apart. Every rank gets every request and chooses the tokens by itself, from the same logits.
 */
#pragma once

#include "comm/comm.h"
#include "schedule/timeline.h"
#include "vm/machine.h"

enum { RANK_KEPT = 3 }; /* PLAN_ATTN_ALL, PLAN_FFN_ALL and PLAN_QK_ALL */

/* One rank. */
typedef struct rank_member {
    comm *comm;
    program program;
    thread_pool *pool;
    bool owns_pool;
    bool is_process; /* as all ranks are, each with a clock of its own */
    machine machine;
    batch batch;
    int32_t *tokens[MACHINE_MAX_RUNS]; /* [passes][outputs] of the runs that are in flight */
    size_t token_capacity[MACHINE_MAX_RUNS];
    int next_run;
    /* Of the passes of the run that is under way, if they are timed: [n_records], and
     * [n_records][workers][longest]. */
    machine_record *records;
    instruction_timing *timings;
    int n_records;
    /* Launches of these passes, if those are timed: [n_parts]. `takes_parts`: they are wanted. */
    timeline_part *parts;
    size_t n_parts, parts_capacity;
    bool takes_parts;
    /* Rows of all ranks that were written before the step that reads them. Their tensor may share
     * bytes with others until then. */
    struct {
        plan_tensor_id id;
        void *data; /* NULL: none */
        size_t bytes;
    } kept[RANK_KEPT];
} rank_member;

/* A call of the owner. Tensors, inputs of a batch and stop tokens follow it. */
typedef struct rank_command {
    enum {
        RANK_CLOSE,
        RANK_RUN,
        RANK_WAIT,
        RANK_READ,
        RANK_WRITE,
        RANK_COPY_PAGE,
        RANK_READ_PAGE,
        RANK_WRITE_PAGE,
        RANK_TIME,
        RANK_LIMITS,
        RANK_RESCHEDULE,
    } what;
    int32_t first, last, passes, choice, continues; /* of a request */
    int32_t records;  /* of a request: passes that are timed; of RANK_TIME: the most that will be */
    int32_t launches; /* of RANK_TIME: whether launches are timed, not instructions */
    int32_t from, to; /* pages */
    int64_t tensor, layer;
    uint64_t bytes; /* of what follows */
    uint64_t n_stops;
    program_sizes sizes; /* of the batch */
} rank_command;

/* Opens the member of a rank, and then checks that all ranks run the same program of the same
 * model: setup->program is that of one rank, of which it builds its own. If it fails, the other
 * ranks are told. rank_member_close() it, also after a failure. */
qp_status rank_member_open(const machine_setup *setup, comm *comm, thread_pool *pool,
                           rank_member *out, qp_error *error);
void rank_member_close(rank_member *member);

/* Carries out the leader's commands until RANK_CLOSE or a failure. */
qp_status rank_member_follow(rank_member *member, qp_error *error);

/* The first `bytes` of a tensor, or a page of the cache: the member's part of its rows, out of
 * `whole`. */
qp_status rank_member_put(rank_member *member, const rank_command *command, const void *whole,
                          qp_error *error);

/* Called by every rank before it runs steps from `first` on. */
qp_status rank_member_begin(rank_member *member, int first, qp_error *error);

/* The leader sends a command to all ranks, with `data` if the command has any. */
qp_status rank_command_send(comm *comm, const rank_command *command, const void *data,
                            qp_error *error);

/* After RANK_READ or RANK_READ_PAGE: the parts of all ranks, [size], the leader's own among them.
 * NULL: the group has failed. */
const comm_part *rank_member_collect(rank_member *member, const rank_command *command,
                                     qp_error *error);

enum { RANK_INLINE_BYTES = 16 << 10 }; /* data that travel with their command */

static inline bool rank_command_has_data(const rank_command *c)
{
    return c->what == RANK_RUN || c->what == RANK_WRITE || c->what == RANK_WRITE_PAGE ||
           c->what == RANK_RESCHEDULE;
}

/* Called by every rank with bytes of its own, whose number may differ; returns those of all ranks,
 * [size]. NULL: the group has failed. */
const comm_part *rank_share(comm *comm, const void *data, size_t bytes, qp_error *error);

/* ---- schedules and times (rank_schedule.c) ------------------------------------------------- */

/* The schedules of all ranks, while they are timed, and their clocks. */
typedef struct rank_schedules {
    int n;               /* 0: they are not timed */
    program *programs;   /* [n]; that of the first rank is empty, because it has its own */
    schedule *schedules; /* [n]; the same */
    int64_t *ahead_ns;   /* [n]: how much the clock of a rank is later than the first one's */
} rank_schedules;

/* RANK_TIME, on every rank: times its passes, and shares its schedule. The leader gets those of all
 * ranks in *out, which is NULL elsewhere; rank_schedules_free() it, also after a failure. */
qp_status rank_member_time(rank_member *member, int max_passes, rank_schedules *out,
                           qp_error *error);
void rank_schedules_free(rank_schedules *schedules);

/* The same of launches, which each rank keeps in its parts: with the rank as their track. Ranks are
 * threads of one process. */
qp_status rank_member_time_launches(rank_member *member, int max_passes, qp_error *error);

/* Places for the times of a run, and after it the same of all ranks in the leader's `records` (NULL
 * elsewhere) [n_records], by the leader's clock. */
qp_status rank_member_take_records(rank_member *member, int n_records, machine_request *request,
                                   qp_error *error);
qp_status rank_member_share_records(rank_member *member, const rank_schedules *schedules,
                                    machine_record *records, qp_error *error);

/* RANK_LIMITS, on every rank: measures what all ranks reach together, at the same time. */
qp_status rank_member_limits(rank_member *member, machine_profile *out, qp_error *error);

/* RANK_RESCHEDULE, on every rank: another schedule. If one of the ranks cannot run it, all keep
 * their old one, and *refused (may be NULL) says why. `data` is what rank_schedule_message() made
 * of the options and the file. */
qp_status rank_member_reschedule(rank_member *member, const void *data, qp_error *refused,
                                 qp_error *error);
void rank_schedule_message(const schedule_options *options, const char *file, strbuf *out);

/* Bytes of an input of a batch of these sizes, and of its angles, in a command. */
size_t rank_input_bytes(const program *program, plan_tensor_id id, const program_sizes *sizes);
size_t rank_angle_bytes(const batch *batch);

/* The machine of a rank, of an open machine `ranks` whose ranks are threads. */
const machine *ranks_machine_of(const machine *ranks, int rank);

/* The life of a rank other than the first in a process of its own: opens its member of setup->group
 * and follows. */
qp_status ranks_follow(const machine_setup *setup, qp_error *error);

/* ---- tensors that ranks have parts of ------------------------------------------------------ */

enum { RANK_MAX_PIECES = 3 };

/* Where a rank's parts of a tensor's rows lie in the rows of one rank's program, in bytes. A tensor
 * with no pieces is whole on every rank. */
typedef struct rank_pieces {
    size_t whole_row, own_row;
    int n;
    struct {
        size_t whole, own, bytes;
    } of[RANK_MAX_PIECES];
    /* The tensor that has the first `gathered_bytes` of each row of all ranks, from which the next
     * product reads; PLAN_NAMED: none. */
    plan_tensor_id gathered;
    size_t gathered_bytes;
    size_t qk_bytes; /* the same of PLAN_QK_ALL; 0: it has none */
    /* Of sums in fixed point: elements at the beginning of a row that are whole on every rank; the
     * others are the sums of all ranks' elements. 0: there is nothing to add. */
    size_t sums_after;
} rank_pieces;

rank_pieces rank_pieces_of(const program *own, plan_tensor_id id);

/* Copies the rank's parts of `rows` rows: own to whole, or whole to own. */
void rank_pieces_join(const rank_pieces *pieces, size_t rows, const void *own, void *whole);

/* Adds another rank's elements of sums to `whole`, which has those of the ranks before it. */
void rank_pieces_add(const rank_pieces *pieces, size_t bytes, const void *own, void *whole);
void rank_pieces_split(const rank_pieces *pieces, size_t rows, const void *whole, void *own);
