/* The parts of opening an engine: what its options ask for (open_options.c), on what it runs
 * (open_device.c), and its machines (open_machines.c). */
#pragma once

#include "engine/engine.h"
#include "vm/pack_cache.h"
#include "engine/schedule.h"

/* Tells the caller of the engine. */
void engine_say(const qp_engine *e, qp_log_level level, const char *message);

/* Whether a choice, which may be NULL, is that name; whether it is left to the engine. */
bool option_is(const char *choice, const char *name);
bool option_is_automatic(const char *choice);

bool engine_speculates(const qp_engine_options *options);

/* Whether all passes have one of two fixed shapes, so that bits do not depend on neighbours. */
bool engine_has_fixed_shapes(const qp_engine_options *options, bool on_gpu);

/* Refuses no model, and a name that is not one of a file with what fetches it. */
qp_status engine_check_model(const qp_engine_options *options, qp_error *error);

/* Capacities of the plan and the type of its cache. QP_INVALID: the type is not one of a cache. */
qp_status engine_choose_plan(const qp_engine_options *given, const model_config *config,
                             bool on_gpu, int64_t adapters_at_once, plan_options *out,
                             qp_error *error);

/* The machine that is asked for; NULL: that is left to the engine. */
qp_status engine_choose_machine(const qp_engine_options *options, const machine_type **out,
                                qp_error *error);

/* Which weights in FP8 a GPU reads so, by which it rounds activations to FP8: those with a scale a
 * row, or with "8" all; with other choices, and where `can` is false, none. */
void engine_fp8_on_gpu(const char *activations, bool can, model_options *out);

/* How products on the CPU take activations where nothing else is asked for, OP_X_...: those of a
 * small model nearly as in float32. In a large one quantised weights meet 8 bits, and BF16 weights
 * meet BF16 where the processor gains by that. */
uint32_t engine_usual_activations(const model *model, uint32_t cpu_features);

/* How products take activations: see op_x_bits_parse(). The model is open. */
qp_status engine_choose_activations(qp_engine *e, const qp_engine_options *options,
                                    const machine_type *type, qp_error *error);

/* CPU features that kernels may use. */
qp_status engine_choose_features(qp_engine *e, const qp_engine_options *options, qp_error *error);

/* Kernels in place of operators' own. */
qp_status engine_take_kernels(qp_engine *e, const qp_engine_options *options, qp_error *error);

/* Opens the GPU if it is asked for by the device or the machine, or if both leave it open and there
 * is one. */
qp_status engine_choose_device(qp_engine *e, const qp_engine_options *options,
                               const machine_type *type, qp_error *error);

/* QP_INVALID: the blocks of the megakernel that the options ask for do not run here, or none do. */
qp_status engine_check_workers(const qp_engine *e, const qp_engine_options *options,
                               qp_error *error);

/* Lets the ranks' GPUs reach each other, if ranks have GPUs. */
qp_status engine_connect_ranks(qp_engine *e, qp_error *error);

/* Fills device_text. */
void engine_name_device(qp_engine *e);

/* What machines are opened for; `inner` is the machine of each of several ranks. */
machine_setup engine_machine_setup(qp_engine *e, const qp_engine_options *options,
                                   const machine_type *inner, const schedule_options *schedule);

/* The folder of packed weights, where the options name one and a CPU runs the model; else NULL. */
pack_cache *engine_packed(qp_engine *e, const qp_engine_options *options, pack_cache *out);

/* Says what came of it; NULL is allowed. */
void engine_say_packed(const qp_engine *e, const pack_cache *cache);

/* QP_NO_MEMORY: the run does not fit; the message has the largest context that does. */
qp_status engine_check_memory(qp_engine *e, const qp_engine_options *options,
                              const machine_type *type, qp_error *error);

/* Opens the machine that has the memory, and those over it. */
qp_status engine_open_machines(qp_engine *e, const qp_engine_options *options,
                               const engine_schedule *chosen, const machine_type *type,
                               qp_error *error);

/* Tells whether a GPU also keeps weights in BF16, if they are not. */
void engine_say_copies(const qp_engine *e);

/* Tells if the megakernel's blocks have no room to choose tokens in. */
void engine_say_who_chooses(const qp_engine *e);

/* The queues that the machine which is asked first reads. */
int engine_workers(const qp_engine *e);
