/* Machines: the only way to run forward passes.
 *
 * A machine holds a model's weights, activations, RoPE table and KV cache in memory of its own and
 * runs a plan's passes over batches. Some run the plan node by node, some a schedule of it. The
 * engine, diff, trace, measure and compare open machines by this file and see no more of them.
 *
 *     open -> { accepts -> run -> ... -> wait -> logits, read, write } -> close
 *
 * run() starts passes and may return while a GPU works on them; wait() ends the oldest run. A
 * machine over another one shares that one's weights, KV cache and activations: the two take turns.
 */
#ifndef QUIPU_VM_MACHINE_H
#define QUIPU_VM_MACHINE_H

#include "base/log.h"
#include "base/strbuf.h"
#include "base/threads.h"
#include "cuda/driver.h"
#include "plan/program.h"
#include "schedule/schedule.h"
#include "schedule/timeline.h"
#include "vm/batch.h"
#include "vm/kernel_table.h"

typedef struct machine_type machine_type;

typedef struct machine {
    const machine_type *type; /* NULL: not open */
    void *self;
} machine;

/* ---- what a machine is opened for ---------------------------------------------------------- */

/* Everything here outlives the machine. */
typedef struct machine_setup {
    const program *program; /* with its model's weights */
    thread_pool *pool;
    uint32_t cpu_features;            /* that kernels may use; references use none */
    const kernel_table *kernels;      /* in place of operators' own; NULL: none */
    progress *progress;               /* of packing and uploading weights; may be NULL */
    const schedule_options *schedule; /* of types that run a schedule; NULL: the usual. Of the
                                       * megakernel `workers` are its blocks; 0: one for each
                                       * multiprocessor */
    const char *schedule_file; /* of threads and serial: queues that schedule_save() wrote, in place
                                * of queues made by `schedule`; NULL: there is no file */
    uint64_t order;            /* of `serial`: seed of the order of instructions; 0: each
                                * worker goes as far as it can, in turn */
    cuda_device *device;       /* of types that run on a GPU; NULL: they open one */
    const machine *over;       /* a machine of the same plan, whose memory and weights are
                                * used: `cuda` for the megakernel, `operators` for threads.
                                * NULL: memory of its own. Close the one that is over first */
} machine_setup;

/* Bytes of memory, where the machine has its own: each part exact. */
typedef struct machine_bytes {
    uint64_t weights, activations, kv_cache, rope_table, inputs, workspace;
    uint64_t state;                 /* of sequences, for what their requests do to logits */
    uint64_t weights_again, tables; /* of the megakernel: weights in its own order, all the rest */
    uint64_t total;
} machine_bytes;

enum { MACHINE_MAX_RUNS = 4 }; /* that a machine may have under way at once */

/* ---- what is run --------------------------------------------------------------------------- */

typedef enum machine_choice {
    MACHINE_LOGITS,    /* no tokens are chosen */
    MACHINE_LIKELIEST, /* the largest logit of each row; of equal ones the first */
    MACHINE_SAMPLED,   /* as the batch's settings of each row say, by the plan's steps
                        * "adjust_logits", if a row uses that, and "sample" */
} machine_choice;

/* What a machine records of a pass. */
typedef struct machine_record {
    instruction_timing *timings; /* in: [workers][longest] of machine_schedule(), or NULL */
    uint64_t begin, end;         /* clock_ns(); of the steps up to the logits */
    uint64_t chosen;             /* when its tokens were; 0: not known */
    bool timed;                  /* the instructions' times are in `timings`, by clock_ns() */
    double room_ns, memory_ns;   /* of the megakernel: means of what blocks waited for room in the
                                  * ring of weights, and for memory */
} machine_record;

/* Takes a part of an operator, or a launch, after it has been timed. */
typedef void machine_part_sink(void *context, const timeline_part *part);

/* What is timed from now on. */
typedef struct machine_timing {
    size_t max_passes;       /* that can be recorded */
    machine_part_sink *sink; /* gets the parts of each pass, in order of time within a track. NULL:
                              * instructions run whole */
    void *context;
    int n_tracks; /* `serial`: chunks that operators are cut in, each on a track of its own */
} machine_timing;

/* Called with the tokens of a pass as they come, [n_outputs]; false: no more are wanted, and the
 * run ends soon. Called by run() or wait(), in the caller's thread. */
typedef bool machine_token_sink(void *context, const int32_t *tokens);

/* Zero-initialise. */
typedef struct machine_request {
    /* Of the first pass. For several passes every sequence has one new token and one row of logits,
     * and pages for all of them: batch_add_ahead(). May change once run() has returned. */
    const batch *batch;
    int first, last; /* steps [first, last) of the plan; 0, 0: all up to the logits */
    int passes;      /* each reads the tokens that the one before has chosen; 0: 1 */
    /* The first pass reads what the run before has chosen, which has not been waited for; sequences
     * and their order are the same. The batch's token ids are not looked at. */
    bool continues;
    machine_choice choice;
    bool logits; /* they are wanted: machine_logits(); of one pass. If tokens are chosen, those that
                  * they were chosen from */
    int32_t *tokens;               /* [passes][n_outputs]: chosen tokens, there after wait() */
    machine_token_sink *on_tokens; /* may be NULL */
    void *context;
    const int32_t *stops; /* tokens that end a run of one sequence */
    size_t n_stops;
    const volatile int *cancel; /* set from elsewhere: the run ends soon; may be NULL */
    machine_record *records;    /* [n_records]: of the first passes; see machine_time() */
    int n_records;
} machine_request;

/* How many passes a run had best have, and how many runs may be under way at once; 0, 0: the
 * machine does not run such passes. */
typedef struct machine_pace {
    int passes, runs;
} machine_pace;

/* What computes a node. Kernels of one name give the same bits for the same inputs. */
typedef struct machine_kernel {
    const char *name;          /* "reference", "avx2" */
    bool reference;            /* exact but for one rounding to the output's type */
    const op_variant *variant; /* whose tolerances hold; NULL: the operator's own do */
} machine_kernel;

/* ---- the types ----------------------------------------------------------------------------- */

/* Functions are as those below of the same name; of a NULL one the machine has nothing to say. */
struct machine_type {
    const char *name; /* "threads" */
    const char *help; /* what it is, in a phrase */
    bool on_gpu;
    bool references;    /* runs reference kernels alone */
    bool takes_kernels; /* those of machine_setup.kernels */
    bool in_parts;      /* timed, it always hands over parts of operators, or launches of several */
    /* Of one sequence it counts the tokens that it chooses in PLAN_HISTORY itself, at once. Other
     * machines count a token in the pass that reads it, where the row's uses have ADJUST_COUNT. */
    bool counts_chosen;
    bool whole; /* runs the steps up to the logits all at once, one token of each sequence */
    qp_status (*count_bytes)(const machine_setup *setup, machine_bytes *out, qp_error *error);
    qp_status (*open)(const machine_setup *setup, void **self, qp_error *error);
    void (*close)(void *self); /* of NULL and after a failure to open too */
    const char *(*accepts)(const void *self, const machine_request *request);
    machine_pace (*pace)(const void *self, int64_t n_sequences, machine_choice choice);
    qp_status (*run)(void *self, const machine_request *request, qp_error *error);
    qp_status (*wait)(void *self, int *passes, qp_error *error);
    float *(*logits)(void *self);
    bool (*keeps)(plan_tensor_id id); /* what can be read after a pass; NULL: everything */
    qp_status (*read)(void *self, plan_tensor_id id, int64_t layer, void *data, size_t bytes,
                      qp_error *error);
    qp_status (*write)(void *self, plan_tensor_id id, int64_t layer, const void *data, size_t bytes,
                       qp_error *error);
    qp_status (*copy_page)(void *self, int32_t from, int32_t to, qp_error *error);
    machine_kernel (*kernel)(const void *self, int node);
    const schedule *(*schedule)(const void *self);
    qp_status (*reschedule)(void *self, const schedule_options *options, const char *file,
                            qp_error *error);
    qp_status (*predict)(const void *self, const schedule_options *options, schedule *out,
                         qp_error *error);
    qp_status (*time)(void *self, const machine_timing *timing, qp_error *error);
    qp_status (*limits)(void *self, machine_profile *out, qp_error *error);
};

/* Of the CPU: machine_cpu.c, of a GPU: cuda/machine.c and mega/machine.c. */
extern const machine_type machine_reference, machine_serial, machine_threads, machine_operators;
extern const machine_type machine_cuda, machine_megakernel;

/* All of these, in that order; NULL: past the last. */
const machine_type *machine_type_at(int index);

/* The type of that name; QP_INVALID names the types that there are, and the new name of an old one.
 */
qp_status machine_type_find(const char *name, const machine_type **out, qp_error *error);

/* ---- use ----------------------------------------------------------------------------------- */

/* What a machine would take. A GPU need not be there: the setup's schedule says how many blocks the
 * megakernel would have. Of a model that the megakernel does not run it adds nothing. */
qp_status machine_count_bytes(const machine_type *type, const machine_setup *setup,
                              machine_bytes *out, qp_error *error);

/* QP_UNSUPPORTED says why the type does not run this model here. machine_close() the result, also
 * after a failure. */
qp_status machine_open(const machine_type *type, const machine_setup *setup, machine *out,
                       qp_error *error);
void machine_close(machine *machine);

static inline bool machine_is_open(const machine *m)
{
    return m->self != NULL;
}

/* NULL, or a sentence that says why the machine does not run this. */
const char *machine_accepts(const machine *machine, const machine_request *request);

/* Of passes of one new token of each sequence, which feed back what they choose. */
machine_pace machine_pace_of(const machine *machine, int64_t n_sequences, machine_choice choice);

/* Starts a run, which machine_accepts(). What the request points to, but for its batch, stays until
 * the run has been waited for. A run that is refused or fails is not waited for. */
qp_status machine_run(const machine *machine, const machine_request *request, qp_error *error);

/* Ends the oldest run. *passes (may be NULL): how many there were; fewer than were asked for where
 * the request's callback, stops or cancel flag ended it. */
qp_status machine_wait(const machine *machine, int *passes, qp_error *error);

/* Both at once. */
qp_status machine_pass(const machine *machine, const machine_request *request, qp_error *error);

/* float32 [n_outputs][vocab_size] of the last run that was waited for, if its request wanted them;
 * theirs until the next run, and may be changed. */
float *machine_logits(const machine *machine);

/* Whether the tensor can be read after a pass. */
bool machine_keeps(const machine *machine, plan_tensor_id id);

/* The first `bytes` of an activation, an output, the RoPE table, a layer's cache, or of a state
 * that of the slot `layer`. No run may be under way. */
qp_status machine_read(const machine *machine, plan_tensor_id id, int64_t layer, void *data,
                       size_t bytes, qp_error *error);
qp_status machine_write(const machine *machine, plan_tensor_id id, int64_t layer, const void *data,
                        size_t bytes, qp_error *error);

/* Copies a page of the KV cache, K and V of every layer, after the runs that are under way. */
qp_status machine_copy_page(const machine *machine, int32_t from, int32_t to, qp_error *error);

/* The kernel of a node of the plan, as in the last pass. */
machine_kernel machine_kernel_of(const machine *machine, int node);

/* The schedule whose instructions are timed; of a machine that runs no schedule one queue of all
 * nodes. NULL: nothing is timed there. */
const schedule *machine_schedule(const machine *machine);

/* Gives `threads` or `serial` another schedule: one that is made by `options` (NULL: the usual), or
 * the one in `file`. No run may be under way. After a failure the old one stays. Other types:
 * QP_UNSUPPORTED. */
qp_status machine_reschedule(const machine *machine, const schedule_options *options,
                             const char *file, qp_error *error);

/* The same schedule made again with other costs, profile and context of `options`: for predictions.
 * schedule_free() it, also after a failure. */
qp_status machine_predict(const machine *machine, const schedule_options *options, schedule *out,
                          qp_error *error);

/* From now on passes can be recorded; NULL: no longer. With a sink `serial` runs the program node
 * by node, and `threads` its instructions, in parts, as what they are in mathematics (vm/parts.h);
 * that changes logits by rounding. QP_UNSUPPORTED where nothing is timed, or where fused operators
 * would have to be taken apart. */
qp_status machine_time(const machine *machine, const machine_timing *timing, qp_error *error);

/* How fast the hardware under the machine reads memory and multiplies, measured now or known by its
 * clocks. */
qp_status machine_limits(const machine *machine, machine_profile *out, qp_error *error);

#endif
