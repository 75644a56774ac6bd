/* A schedule: one forward pass of a model as instructions in queues, one queue a worker.
 *
 * Made from a program for a number of workers. Positions, context lengths, token and sequence
 * counts are read when it runs, so one schedule serves a whole conversation. Its instructions refer
 * to the program's nodes and views by number, and wait on counters. A program's node that has
 * nothing to do (program_is_noop) has no instructions.
 */
#pragma once

#include "base/arena.h"
#include "op/table.h"
#include "plan/program.h"
#include "schedule/instruction.h"

/* The opcode after the operators' own: waits and signals, nothing else. */
enum { INSTRUCTION_NOOP = OP_COUNT };

/* The part of a node's cost that depends on whether other workers work too. */
typedef struct schedule_cost {
    float alone; /* cost of an instruction while no other worker works, over its cost_ns; 0: 1 */
    float signal_ns; /* from the last signal to the end of its wait; 0: the machine's */
} schedule_cost;

typedef enum schedule_setting { SCHEDULE_LATENCY, SCHEDULE_THROUGHPUT } schedule_setting;

typedef enum schedule_assignment {
    SCHEDULE_RR,   /* round robin */
    SCHEDULE_ZZ,   /* round robin, every second round in reverse */
    SCHEDULE_WAVE, /* runs of equal opcode, largest cost first onto the least loaded worker */
    SCHEDULE_DAG,  /* list scheduling: ready times, the critical path first */
    SCHEDULE_POOL, /* some workers for memory-bound instructions, the others for the rest */
} schedule_assignment;

/* What costs are predicted from. */
typedef struct machine_profile {
    double bytes_per_second; /* of all workers together */
    double flops_per_second; /* the same */
    double signal_ns;        /* from one worker's signal to the end of another's wait */
} machine_profile;

enum { SCHEDULE_MAX_WORKERS = 1024, SCHEDULE_MAX_TILE = 1 << 20 };

/* Zero-initialise; a zero field takes its default. */
typedef struct schedule_options {
    int workers; /* 1 .. SCHEDULE_MAX_WORKERS */
    schedule_setting setting;
    schedule_assignment assignment;
    double memory_fraction; /* of the workers, for pool; 0: from the costs */
    int64_t tokens; /* for which costs and parts are chosen; any number is computed right; default 1
                       in latency, the program's capacity in throughput */
    int64_t context; /* positions for which costs are chosen; default 1024 or the capacity */
    int64_t tile;    /* rows in a token tile of throughput; default 128 */
    int64_t group;   /* output features that stay together; default 16, and what the
                      * operator's variants pack together */
    const int32_t *together; /* [OP_COUNT]: units that stay together, in place of `group`; 0: as
                              * `group` says. NULL in a finished schedule */
    bool unshared; /* every instruction is run by its own worker alone, so that what it costs can be
                    * measured */
    int last_step; /* the program's steps from here on are left out; 0: none */
    const struct schedule_skip *skip; /* what a machine leaves out when it runs (schedule/skip.h),
                                       * NULL: nothing. schedule_build() makes all of it */
    machine_profile profile;
    const struct cost_table *costs; /* measured with as many workers; NULL: from the profile. NULL
                                     * in a finished schedule */
} schedule_options;

typedef struct schedule {
    const program *program; /* areas, views and nodes; it outlives the schedule */
    schedule_options options;
    int n_nodes;          /* of the program's, those that have instructions: steps from last_step on
                           * are left out */
    schedule_cost *costs; /* [n_nodes] */
    uint32_t *per_pass;   /* [n_counters]: signals of each in one pass; 0 is no counter */
    int n_counters;
    /* Queues: [options.workers][longest], padded with noops. */
    instruction *instructions;
    int32_t *length; /* [options.workers]: of each queue, without the padding */
    int longest;
    arena memory; /* of all but the instructions */
} schedule;

static inline const instruction *schedule_queue(const schedule *s, int worker)
{
    return s->instructions + (size_t)worker * (size_t)s->longest;
}

void schedule_free(schedule *schedule);

/* Binds an instruction's slice to a batch of these sizes ([AXES]), as program_bind() does a whole
 * node. False if there is nothing to compute: a noop, or a tile or part that is empty in this
 * batch. The instruction signals all the same. */
bool schedule_bind(const schedule *schedule, const instruction *in, const program_memory *memory,
                   const int64_t *sizes, op_call *call);

/* "latency", "rr": names of the enumerators; NULL past the last. */
const char *schedule_setting_name(int setting);
const char *schedule_assignment_name(int assignment);
