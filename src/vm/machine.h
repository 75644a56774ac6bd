/* Machines: the only way to run forward passes.
 *
 * A machine holds a model's weights, activations, RoPE table and KV cache in memory of its own and
 * runs a program's passes over batches. Some run the program node by node, others run a schedule of
 * it. The engine, diff, trace, measure and compare use machines only through this interface.
 *
 *     open -> { accepts -> run -> ... -> wait -> logits, read, write } -> close
 *
 * run() starts passes and may return while a GPU works on them; wait() ends the oldest run. A
 * machine can be opened over another one; it then uses that machine's weights, KV cache and
 * activations, and only one of the two may run at a time.
 */
#pragma once

#include "base/progress.h"
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
    uint32_t cpu_features;       /* that kernels may use; references use none */
    const kernel_table *kernels; /* replace the operators' own kernels; NULL: none */
    /* Of `cuda`: rows of custom kernels, by operator (cuda_ops.custom); NULL: none. */
    const struct cuda_kernel *cuda_kernels;
    progress *progress;        /* of packing and uploading weights; may be NULL */
    struct pack_cache *packed; /* where packed weights are kept (vm/pack_cache.h); NULL: nowhere */
    /* Of `threads` with memory of its own, and without `packed`: the first passes pack the weights,
     * so that the first results come sooner. */
    bool pack_later;
    /* Of types that run a schedule; NULL: the defaults. For the megakernel, `workers` is the number
     * of blocks; 0: one for each multiprocessor. */
    const schedule_options *schedule;
    const char *schedule_file; /* of threads and serial: queues that schedule_save() wrote, in place
                                * of queues made by `schedule`; NULL: there is no file */
    uint64_t order; /* of `serial`: seed of the order of instructions; 0: workers take turns, and
                       each runs as far as it can */
    cuda_device *device; /* of types that run on a GPU; NULL: they open one */
    /* Of `cuda` for a rank of several: the GPUs of all (cuda/ranks.h), of which it takes its own in
     * place of `device`; NULL: there is one rank. */
    const struct cuda_ranks *gpus;
    /* Of `ranks`: the machine of every rank, their number, and how they cut the model. The program
     * is that of one rank. */
    const machine_type *inner;
    int n_ranks;
    plan_cut cut;
    struct comm *group; /* of a rank's machine: the ranks of which the program is one's; of `ranks`:
                           this process's place among them, NULL: they are threads of it */
    const machine *over; /* a machine with the same program, whose memory and weights are used:
                            `cuda` for the megakernel, `operators` for threads; of `ranks` another
                            one, as its ranks' machines. NULL: memory of its own. Close the machine
                            that was opened over the other first */
    /* The megakernel runs one sequence only: batches are left to the machine that it runs over. */
    bool alone;
    /* The megakernel also runs requests that verify, or it does not open. */
    bool verifies;
} machine_setup;

/* Bytes of the machine's own memory, each part exact. */
typedef struct machine_bytes {
    uint64_t weights, activations, kv_cache, rope_table, inputs, workspace;
    uint64_t state;                 /* of sequences, for what their requests do to logits */
    uint64_t weights_again, tables; /* of the megakernel: weights in its own order, the rest */
    uint64_t total;
    uint64_t copies; /* not of the total: of weights, for batches and prompts on a GPU, which are
                        made if it has room */
} machine_bytes;

enum { MACHINE_MAX_RUNS = 4 }; /* runs that a machine may have in flight */

/* ---- what is run --------------------------------------------------------------------------- */

typedef enum machine_choice {
    MACHINE_LOGITS,    /* no tokens are chosen */
    MACHINE_LIKELIEST, /* the largest logit of each row; of equal ones the first */
    MACHINE_SAMPLED,   /* by the batch's settings of each row, with the program's steps
                          "adjust_logits" (if a row uses it) and "sample" */
} machine_choice;

/* What a machine records of a pass. */
typedef struct machine_record {
    instruction_timing *timings; /* in: [workers][longest] of machine_schedule(), of one rank after
                                  * the other; or NULL */
    uint64_t begin, end;         /* clock_ns(); of the steps up to the logits */
    uint64_t chosen;             /* when its tokens were chosen; 0: not known */
    bool timed;                  /* the instructions' times are in `timings`, by clock_ns() */
    double room_ns, memory_ns; /* of the megakernel: how long blocks waited, on average, for room in
                                  the ring of weights and for memory */
} machine_record;

/* Receives a timed part of an operator, or a timed launch. */
typedef void machine_part_sink(void *context, const timeline_part *part);

/* What is timed from now on. */
typedef struct machine_timing {
    size_t max_passes;       /* passes that can be recorded */
    machine_part_sink *sink; /* receives the parts of each pass, in order of time within a track.
                                NULL: instructions run whole */
    void *context;
    int n_tracks; /* `serial`: number of chunks of an operator; each has its own track */
} machine_timing;

/* Called with the tokens of a pass, [n_outputs], when they arrive. Return false to end the run
 * soon. Called by run() or wait(), in the caller's thread. */
typedef bool machine_token_sink(void *context, const int32_t *tokens);

/* Zero-initialise. */
typedef struct machine_request {
    /* The batch of the first pass. For several passes, every sequence has one new token, one row of
     * logits, and the pages of all passes: batch_add_ahead(). May change after run() has returned.
     */
    const batch *batch;
    int first, last; /* steps [first, last) of the program; 0, 0: all up to the logits */
    int passes;      /* each reads the tokens that the previous one chose; 0: 1 */
    /* The first pass reads the tokens that the previous run chose, before that run has been waited
     * for. The sequences and their order must be the same. The batch's token ids are ignored. */
    bool continues;
    machine_choice choice;
    /* Sequences may have several new tokens, each with a row of logits, whose bits are those of
     * passes of one token. Machines that are not `whole` run these like any others. */
    bool verifies;
    bool logits; /* keep the logits for machine_logits(); for one pass only. If tokens are chosen,
                    these are the logits that they were chosen from */
    const int32_t *logit_rows; /* [n_logit_rows]: keep at least these rows; NULL: all */
    int64_t n_logit_rows;
    int32_t *tokens;               /* [passes][n_outputs]: chosen tokens, valid after wait() */
    machine_token_sink *on_tokens; /* may be NULL */
    void *context;
    const int32_t *stops; /* tokens that end a run of one sequence */
    size_t n_stops;
    const volatile int *cancel; /* a value other than 0 ends the run soon; may be NULL */
    machine_record *records;    /* [n_records]: of the first passes; see machine_time() */
    int n_records;
} machine_request;

/* The best number of passes for a run, and the most runs that may be in flight; 0, 0: the machine
 * does not run such passes. */
typedef struct machine_pace {
    int passes, runs;
} machine_pace;

/* Bytes of weights that a GPU can also keep in BF16, and that it does keep; and of those in BF16
 * that it also keeps in the order in which several sequences read them. 0: none. */
typedef struct machine_copies {
    uint64_t wanted, made, tiles;
    bool in_f8; /* the first two are not in BF16, but in FP8 in the order of up to 64 rows */
} machine_copies;

/* What computes a node. Kernels of one name give the same bits for the same inputs. */
typedef struct machine_kernel {
    const char *name;          /* "reference", "avx2" */
    bool reference;            /* exact but for one rounding to the output's type */
    const op_variant *variant; /* the variant whose tolerances apply; NULL: the operator's own */
} machine_kernel;

/* ---- the types ----------------------------------------------------------------------------- */

/* The functions implement those of the same name below. NULL: the machine does not have the
 * function. */
struct machine_type {
    const char *name; /* "threads" */
    bool on_gpu;
    bool references;         /* runs only reference kernels */
    bool takes_kernels;      /* those of machine_setup.kernels */
    bool takes_cuda_kernels; /* those of machine_setup.cuda_kernels */
    bool in_parts; /* with timing, it always reports parts of operators, or launches of several
                      operators */
    /* For one sequence, the machine adds each token to PLAN_HISTORY as soon as it chooses it. Other
     * machines count a token in the pass that reads it, if the row's uses have ADJUST_COUNT. */
    bool counts_chosen;
    bool whole; /* runs the steps up to the logits all at once, one token of each sequence */
    /* Of types that are `whole`: NULL, or why a machine for the setup runs no request that
     * verifies. */
    const char *(*verify_refusal)(const machine_setup *setup);
    /* Rows that a pass may have which verifies proposals of one sequence; NULL: any number. */
    int64_t (*verify_rows)(const void *self);
    const machine_type *(*of_ranks)(const void *self); /* of `ranks`: the type of each */
    qp_status (*count_bytes)(const machine_setup *setup, machine_bytes *out, qp_error *error);
    qp_status (*open)(const machine_setup *setup, void **self, qp_error *error);
    void (*close)(void *self); /* also accepts NULL, and a machine that failed to open */
    const char *(*accepts)(const void *self, const machine_request *request);
    machine_pace (*pace)(const void *self, int64_t n_sequences, machine_choice choice);
    qp_status (*run)(void *self, const machine_request *request, qp_error *error);
    qp_status (*wait)(void *self, int *passes, qp_error *error);
    float *(*logits)(void *self);
    bool (*keeps)(plan_tensor_id id); /* whether it can be read after a pass; NULL: all can */
    qp_status (*read)(void *self, plan_tensor_id id, int64_t layer, void *data, size_t bytes,
                      qp_error *error);
    qp_status (*write)(void *self, plan_tensor_id id, int64_t layer, const void *data, size_t bytes,
                       qp_error *error);
    qp_status (*copy_page)(void *self, int32_t from, int32_t to, qp_error *error);
    qp_status (*read_page)(void *self, int32_t page, void *data, qp_error *error);
    qp_status (*write_page)(void *self, int32_t page, const void *data, qp_error *error);
    machine_copies (*copies)(const void *self);
    uint64_t (*packing_ns)(const void *self);
    machine_kernel (*kernel)(const void *self, int node);
    const schedule *(*schedule)(const void *self);
    const schedule *(*schedule_of_rank)(const void *self, int rank); /* NULL: there is one rank */
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
/* Several ranks as one machine: ranks.c. machine_setup.inner says what runs on each. */
extern const machine_type machine_ranks;

/* All of these, in that order; NULL: past the last. */
const machine_type *machine_type_at(int index);

/* Finds the type of that name. If there is none, QP_INVALID lists the types, and gives the new name
 * if the name is an old one. */
qp_status machine_type_find(const char *name, const machine_type **out, qp_error *error);

/* ---- use ----------------------------------------------------------------------------------- */

/* Computes the memory that a machine would need. No GPU is needed: the setup's schedule gives the
 * megakernel's number of blocks. For a model that the megakernel does not run, it adds nothing. */
qp_status machine_count_bytes(const machine_type *type, const machine_setup *setup,
                              machine_bytes *out, qp_error *error);

/* QP_UNSUPPORTED says why the type does not run this model here. machine_close() the result, also
 * after a failure. */
qp_status machine_open(const machine_type *type, const machine_setup *setup, machine *out,
                       qp_error *error);
void machine_close(machine *machine);

/* NULL, or a sentence that says why the machine does not run this. */
const char *machine_accepts(const machine *machine, const machine_request *request);

/* The pace of passes that have one new token per sequence and feed the chosen tokens back. */
machine_pace machine_pace_of(const machine *machine, int64_t n_sequences, machine_choice choice);

/* Starts a run that machine_accepts(). Everything that the request points to, except the batch,
 * must stay valid until the run has been waited for. Do not wait for a run that was refused or
 * failed. */
qp_status machine_run(const machine *machine, const machine_request *request, qp_error *error);

/* Ends the oldest run. *passes (may be NULL): the number of passes that ran; fewer than requested
 * if the request's callback, stops or cancel flag ended the run. */
qp_status machine_wait(const machine *machine, int *passes, qp_error *error);

/* machine_run(), then machine_wait(). */
qp_status machine_pass(const machine *machine, const machine_request *request, qp_error *error);

/* float32 [n_outputs][vocab_size] of the last run that was waited for, if its request asked for
 * logits. Valid until the next run; the caller may change them. */
float *machine_logits(const machine *machine);

/* Its type; of `ranks` the type of each rank's machine. */
const machine_type *machine_inner_type(const machine *machine);

/* Whether the tensor can be read after a pass. */
bool machine_keeps(const machine *machine, plan_tensor_id id);

/* Reads the first `bytes` of an activation, an output, the RoPE table, a layer's cache, or the slot
 * `layer` of a state (negative: of all slots). No run may be in flight. */
qp_status machine_read(const machine *machine, plan_tensor_id id, int64_t layer, void *data,
                       size_t bytes, qp_error *error);
qp_status machine_write(const machine *machine, plan_tensor_id id, int64_t layer, const void *data,
                        size_t bytes, qp_error *error);

/* Copies a page of the KV cache, K and V of every layer, after the runs that are in flight. */
qp_status machine_copy_page(const machine *machine, int32_t from, int32_t to, qp_error *error);

/* Bytes of a page of the KV cache: K and V of every layer. */
size_t machine_page_bytes(const program *program);

/* Reads or writes a page of the KV cache, machine_page_bytes(): for each layer, K and then V, each
 * (page_size, n_kv_heads, head_dim) in the type of the cache. No run may be in flight. */
qp_status machine_read_page(const machine *machine, int32_t page, void *data, qp_error *error);
qp_status machine_write_page(const machine *machine, int32_t page, const void *data,
                             qp_error *error);

/* Copies of weights, on which the bits of prompts and of several sequences depend. */
machine_copies machine_copies_of(const machine *machine);

/* The time in which runs have packed weights that were left to them until now. */
uint64_t machine_packing_ns(const machine *machine);

/* The kernel that ran a node of the program in the last pass. */
machine_kernel machine_kernel_of(const machine *machine, int node);

/* The schedule whose instructions are timed; for a machine that runs no schedule, one queue of all
 * nodes. NULL: the machine times nothing. */
const schedule *machine_schedule(const machine *machine);

/* The same of a rank, of those that machine_time() has enabled; NULL: past the last. */
const schedule *machine_schedule_of_rank(const machine *machine, int rank);

/* Gives `threads` or `serial`, or ranks of them, another schedule: one built from `options` (NULL:
 * the defaults), or the one in `file`. No run may be in flight. After a failure the old one stays.
 * Other types: QP_UNSUPPORTED. */
qp_status machine_reschedule(const machine *machine, const schedule_options *options,
                             const char *file, qp_error *error);

/* The same schedule made again with other costs, profile and context of `options`: for predictions.
 * schedule_free() it, also after a failure. */
qp_status machine_predict(const machine *machine, const schedule_options *options, schedule *out,
                          qp_error *error);

/* Enables the recording of passes; NULL disables it. With a sink, `serial` runs each node and
 * `threads` each instruction as its mathematical parts (vm/parts.h), which changes logits by
 * rounding. QP_UNSUPPORTED if the machine times nothing, or if the program has fused operators,
 * which have no parts. */
qp_status machine_time(const machine *machine, const machine_timing *timing, qp_error *error);

/* How fast the hardware under the machine reads memory and multiplies, measured now or known by its
 * clocks. */
qp_status machine_limits(const machine *machine, machine_profile *out, qp_error *error);
