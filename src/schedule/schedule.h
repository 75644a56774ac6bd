/* A schedule: one forward pass of a model as instructions in queues, one queue a worker.
 *
 * Made from a plan for a number of workers, and complete in itself: a machine runs it with the
 * addresses of its memory and the sizes of the batch, and never sees the plan. Positions, context
 * lengths, token and sequence counts are read when it runs, so that one schedule serves a whole
 * conversation. Everything it refers to is by number: views of tensors, counters, nodes.
 *
 *     areas     where tensors lie: bytes of the arena, an input array, a layer's cache, a weight
 *     views     what instructions see of them: element type, shape, strides
 *     nodes     an operator with its operands; its instructions cut it in slices
 *     counters  what instructions wait on
 */
#ifndef QUIPU_SCHEDULE_SCHEDULE_H
#define QUIPU_SCHEDULE_SCHEDULE_H

#include "base/arena.h"
#include "op/op.h"
#include "plan/program.h"
#include "schedule/instruction.h"

typedef enum schedule_base {
    SCHEDULE_ARENA,
    SCHEDULE_INPUT, /* index: of the plan's tensor */
    SCHEDULE_TABLE, /* the RoPE table */
    SCHEDULE_STATE, /* index: of the plan's tensor; instructions of one node that change it touch
                     * different elements */
    SCHEDULE_K_CACHE,
    SCHEDULE_V_CACHE,
    SCHEDULE_WEIGHT,    /* index: of schedule.weights */
    SCHEDULE_SUMS,      /* index: of the plan's tensor; cleared by the pass before */
    SCHEDULE_SUMS_NEXT, /* the same: the next pass's, which this one clears */
} schedule_base;

/* Whether instructions change what lies there. */
static inline bool schedule_changes(schedule_base base)
{
    return base == SCHEDULE_ARENA || base == SCHEDULE_K_CACHE || base == SCHEDULE_V_CACHE ||
           base == SCHEDULE_SUMS || base == SCHEDULE_SUMS_NEXT;
}

/* Memory of one tensor. Areas of the arena may share bytes, at different times. */
typedef struct schedule_area {
    schedule_base base;
    int index;          /* of the input, sums or weight; the layer of a cache */
    uint64_t offset;    /* from the base, bytes */
    uint64_t bytes;     /* at the plan's capacity */
    uint64_t row_bytes; /* of a row of the batch, or of a page of a cache; 0: it has neither */
    const char *name;   /* "x", "attn_q" */
} schedule_area;

typedef struct schedule_view {
    int area;
    uint64_t offset; /* from the area, bytes */
    dtype type;
    int rank;                        /* 0: absent, as view 0 is */
    int64_t shape[TENSOR_MAX_RANK];  /* negative: an axis */
    int64_t stride[TENSOR_MAX_RANK]; /* bytes; 0: as contiguous behind the inner dimensions */
} schedule_view;

/* Where a weight's address is found in the model. */
typedef struct schedule_weight {
    int slot;      /* weight_slot */
    int64_t layer; /* -1: of the whole model */
    bool bias;
} schedule_weight;

typedef struct schedule_node {
    op_code op;
    const char *name; /* of its step: "attn_qkv" */
    int step;
    int64_t layer;         /* -1: outside the layers */
    program_axis row_axis; /* rows that tokens [begin, end) of an instruction cut */
    uint16_t operands[OP_MAX_TENSORS];
    float params[INSTRUCTION_PARAMS];
    float alone; /* cost of an instruction while no other worker works, over its cost_ns; 0: 1 */
    float signal_ns; /* from the last signal to the end of its wait; 0: the machine's */
} schedule_node;

typedef enum schedule_setting { SCHEDULE_LATENCY, SCHEDULE_THROUGHPUT } schedule_setting;

typedef enum schedule_assignment {
    SCHEDULE_RR,   /* index modulo workers */
    SCHEDULE_ZZ,   /* there and back */
    SCHEDULE_WAVE, /* runs of equal opcode, largest cost first onto the least loaded worker */
    SCHEDULE_DAG,  /* list scheduling: ready times, the critical path first */
    SCHEDULE_POOL, /* some workers for what memory bounds, the others for what arithmetic bounds */
} schedule_assignment;

/* What costs are predicted from. */
typedef struct machine_profile {
    double bytes_per_second; /* of all workers together */
    double flops_per_second; /* the same */
    double signal_ns;        /* from one worker's signal to the end of another's wait */
} machine_profile;

enum { SCHEDULE_MAX_WORKERS = 1024 };

/* Zero-initialise; a zero field takes its default. */
typedef struct schedule_options {
    int workers; /* 1 .. SCHEDULE_MAX_WORKERS */
    schedule_setting setting;
    schedule_assignment assignment;
    double memory_fraction;  /* of the workers, for pool; 0: from the costs */
    int64_t tokens;          /* that costs and parts are meant for: any number is computed right;
                              * default 1 in latency, the plan's capacity in throughput */
    int64_t context;         /* positions that costs are meant for; default 1024 or the capacity */
    int64_t tile;            /* rows in a token tile of throughput; default 128 */
    int64_t group;           /* output features that stay together; default 16, and what the
                              * operator's variants pack together */
    const int32_t *together; /* [OP_COUNT]: units that stay together, before `group`; 0: as it says.
                              * Used while the schedule is made, and NULL in what is made */
    int last_step;           /* steps of the plan from here on are left out; 0: none */
    machine_profile profile;
    const struct cost_table *costs; /* measured, of as many workers; NULL: from the profile. Used
                                     * while the schedule is made, and NULL in what is made */
} schedule_options;

typedef struct schedule {
    uint64_t fingerprint; /* of everything below but the queues: model, plan, operators */
    schedule_options options;
    schedule_area *areas;
    schedule_view *views; /* view 0 is absent */
    schedule_weight *weights;
    schedule_node *nodes;
    int n_areas, n_views, n_weights, n_nodes;
    int64_t capacity[AXES]; /* the largest batch */
    uint32_t *per_pass;     /* [n_counters]: signals of each in one pass; 0 is no counter */
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

/* Where a machine's memory lies. */
typedef struct schedule_memory {
    void *arena;
    void *const *inputs; /* by index of the area; of sums too */
    void *rope_table;
    void *k_cache, *v_cache;    /* of all layers */
    const void *const *weights; /* [n_weights] */
} schedule_memory;

/* Sizes of a batch: [AXES], by axis.
 *
 * The whole call of a node: for choosing its kernel and packing its weights. Addresses are NULL
 * where `memory` is. `packed` and `scratch` are left to the caller, here and below. */
void schedule_bind_node(const schedule *schedule, int node, const schedule_memory *memory,
                        const int64_t *sizes, op_call *call);

/* The call of an instruction's slice; false when there is nothing to do: a noop, a tile or a part
 * that is empty in this batch. It signals all the same. */
bool schedule_bind(const schedule *schedule, const instruction *in, const schedule_memory *memory,
                   const int64_t *sizes, op_call *call);

/* "latency", "rr": names of the enumerators; NULL past the last. */
const char *schedule_setting_name(int setting);
const char *schedule_assignment_name(int assignment);

#endif
