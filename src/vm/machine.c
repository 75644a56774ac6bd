/* The table of machines, and the checks that all machines share: see machine.h. */
#include "vm/machine_run.h"

#include "cuda/nvtx.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* ---- types --------------------------------------------------------------------------------- */

const machine_type *machine_type_at(int index)
{
    static const machine_type *const all[] = {&machine_reference, &machine_serial,
                                              &machine_threads,   &machine_operators,
                                              &machine_cuda,      &machine_megakernel};
    return index < (int)(sizeof all / sizeof *all) ? all[index] : NULL;
}

/* The current name of a machine that had another name before; NULL: there is none. */
static const char *renamed(const char *name)
{
    static const char *const names[][2] = {
        {"ref", "it is reference now"},
        {"ops", "it is operators now, and cuda on a GPU"},
        {"mk", "it is megakernel now"},
        {"cuda-ops", "it is cuda now"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i][0], name) == 0) return names[i][1];
    return NULL;
}

qp_status machine_type_find(const char *name, const machine_type **out, qp_error *error)
{
    strbuf list = {0};
    for (int i = 0; (*out = machine_type_at(i)); i++) {
        if (strcmp((*out)->name, name) == 0) {
            strbuf_free(&list);
            return QP_OK;
        }
        strbuf_printf(&list, "%s%s", i ? ", " : "", (*out)->name);
    }
    const char *now = renamed(name);
    error_set(error, QP_INVALID, "a machine is one of %s; found \"%s\"%s%s", strbuf_text(&list),
              name, now ? ": " : "", now ? now : "");
    strbuf_free(&list);
    return QP_INVALID;
}

/* ---- requests ------------------------------------------------------------------------------ */

machine_steps machine_choosing_steps(const program *p, const batch *b)
{
    const int sample = program_find_step(p, "sample", -1);
    return (machine_steps){batch_adjusts(b) ? sample - 1 : sample, sample + 1};
}

machine_steps machine_steps_of(const program *p, const machine_request *r)
{
    return (machine_steps){r->first, r->last > 0 ? r->last : p->logits_end};
}

const char *machine_refuses(const program *p, const machine_request *r)
{
    const bool feeds_back = machine_passes_of(r) > 1 || r->continues;
    const machine_steps steps = machine_steps_of(p, r);
    if (feeds_back && r->choice == MACHINE_LOGITS)
        return "a pass reads the tokens of the one before, but none are chosen";
    if (feeds_back && !batch_decodes(r->batch))
        return "passes that follow one another have one new token of each sequence";
    if (r->choice != MACHINE_LOGITS && steps.last != p->logits_end)
        return "tokens are chosen after the logits, not after other steps";
    if (feeds_back && steps.first > 0) return "passes that follow one another run all steps";
    if (feeds_back && r->logits) return "logits are handed out of passes alone";
    return NULL;
}

static bool is_stop(const machine_request *r, int32_t token)
{
    for (size_t i = 0; i < r->n_stops; i++)
        if (r->stops[i] == token) return true;
    return false;
}

bool machine_hand_on(const machine_request *r, const int32_t *tokens)
{
    bool goes_on = !r->on_tokens || r->on_tokens(r->context, tokens);
    return goes_on && !machine_is_cancelled(r) && !is_stop(r, tokens[0]);
}

/* ---- use ----------------------------------------------------------------------------------- */

qp_status machine_count_bytes(const machine_type *type, const machine_setup *setup,
                              machine_bytes *out, qp_error *error)
{
    return type->count_bytes(setup, out, error);
}

qp_status machine_open(const machine_type *type, const machine_setup *setup, machine *out,
                       qp_error *error)
{
    *out = (machine){.type = type};
    const plan_options *o = &setup->program->options;
    if (type->on_gpu && o->form != PLAN_PAGED)
        return error_set(error, QP_UNSUPPORTED,
                         "the plan %s runs on the CPU, and the machine %s on a GPU",
                         plan_form_name(o->form), type->name);
    if (type->on_gpu && o->act_type != DTYPE_F32)
        return error_set(error, QP_UNSUPPORTED,
                         "activations in %s are for the CPU, and the machine %s runs on a GPU",
                         dtype_name(o->act_type), type->name);
    if (setup->kernels && !type->takes_kernels)
        return error_set(error, QP_UNSUPPORTED,
                         "the machine %s runs its own kernels alone: custom kernels run on "
                         "threads and operators",
                         type->name);
    if (setup->cuda_kernels && !type->takes_cuda_kernels)
        return error_set(error, QP_UNSUPPORTED,
                         "the machine %s does not run custom kernels for a GPU: the machine "
                         "cuda does, with one rank",
                         type->name);
    return type->open(setup, &out->self, error);
}

void machine_close(machine *m)
{
    if (m->type) m->type->close(m->self);
    *m = (machine){0};
}

const char *machine_accepts(const machine *m, const machine_request *request)
{
    return m->type->accepts(m->self, request);
}

machine_pace machine_pace_of(const machine *m, int64_t n_sequences, machine_choice choice)
{
    return m->type->pace(m->self, n_sequences, choice);
}

/* A profiler shows the launch of a run on a GPU: "megakernel: 16 passes of 1 row". */
static void begin_range(const machine_type *type, const machine_request *request)
{
    char name[96];
    if (!type->on_gpu || !nvtx_is_open()) return;
    const int passes = request->passes > 1 ? request->passes : 1;
    const long long rows = (long long)batch_tokens(request->batch);
    snprintf(name, sizeof name, "%s: %d pass%s of %lld row%s", type->name, passes,
             passes > 1 ? "es" : "", rows, rows > 1 ? "s" : "");
    nvtx_begin(name);
}

qp_status machine_run(const machine *m, const machine_request *request, qp_error *error)
{
    const char *why_not = machine_accepts(m, request);
    if (why_not) return error_set(error, QP_UNSUPPORTED, "%s: %s", m->type->name, why_not);
    begin_range(m->type, request);
    const qp_status status = m->type->run(m->self, request, error);
    if (m->type->on_gpu) nvtx_end();
    return status;
}

qp_status machine_wait(const machine *m, int *passes, qp_error *error)
{
    int ignored;
    return m->type->wait(m->self, passes ? passes : &ignored, error);
}

qp_status machine_pass(const machine *m, const machine_request *request, qp_error *error)
{
    TRY(machine_run(m, request, error));
    return machine_wait(m, NULL, error);
}

float *machine_logits(const machine *m)
{
    return m->type->logits(m->self);
}

const machine_type *machine_inner_type(const machine *m)
{
    return m->type->of_ranks ? m->type->of_ranks(m->self) : m->type;
}

bool machine_keeps(const machine *m, plan_tensor_id id)
{
    const machine_type *type = machine_inner_type(m);
    return !type->keeps || type->keeps(id);
}

qp_status machine_read(const machine *m, plan_tensor_id id, int64_t layer, void *data, size_t bytes,
                       qp_error *error)
{
    assert(machine_keeps(m, id));
    return m->type->read(m->self, id, layer, data, bytes, error);
}

qp_status machine_write(const machine *m, plan_tensor_id id, int64_t layer, const void *data,
                        size_t bytes, qp_error *error)
{
    return m->type->write(m->self, id, layer, data, bytes, error);
}

qp_status machine_copy_page(const machine *m, int32_t from, int32_t to, qp_error *error)
{
    return m->type->copy_page(m->self, from, to, error);
}

size_t machine_page_bytes(const program *p)
{
    const size_t layer = p->tensors[PLAN_K_CACHE].bytes / (size_t)p->capacity.of[AXIS_PAGES];
    return 2 * layer * (size_t)p->config.n_layers;
}

static qp_status refuse_pages(const machine *m, qp_error *error)
{
    return error_set(error, QP_UNSUPPORTED,
                     "the pages of the machine %s are parts of pages, in several memories, and are "
                     "neither saved nor restored",
                     m->type->name);
}

qp_status machine_read_page(const machine *m, int32_t page, void *data, qp_error *error)
{
    if (m->type->read_page) return m->type->read_page(m->self, page, data, error);
    return refuse_pages(m, error);
}

qp_status machine_write_page(const machine *m, int32_t page, const void *data, qp_error *error)
{
    if (m->type->write_page) return m->type->write_page(m->self, page, data, error);
    return refuse_pages(m, error);
}

machine_kernel machine_kernel_of(const machine *m, int node)
{
    return m->type->kernel(m->self, node);
}

const schedule *machine_schedule(const machine *m)
{
    return m->type->schedule ? m->type->schedule(m->self) : NULL;
}

const schedule *machine_schedule_of_rank(const machine *m, int rank)
{
    if (m->type->schedule_of_rank) return m->type->schedule_of_rank(m->self, rank);
    return rank == 0 ? machine_schedule(m) : NULL;
}

qp_status machine_reschedule(const machine *m, const schedule_options *options, const char *file,
                             qp_error *error)
{
    if (m->type->reschedule) return m->type->reschedule(m->self, options, file, error);
    return error_set(error, QP_UNSUPPORTED,
                     "the machine %s cannot take another schedule while it is open; threads and "
                     "serial can",
                     m->type->name);
}

machine_copies machine_copies_of(const machine *m)
{
    return m->type->copies ? m->type->copies(m->self) : (machine_copies){0};
}

uint64_t machine_packing_ns(const machine *m)
{
    return m->type->packing_ns ? m->type->packing_ns(m->self) : 0;
}

qp_status machine_predict(const machine *m, const schedule_options *options, schedule *out,
                          qp_error *error)
{
    if (m->type->predict) return m->type->predict(m->self, options, out, error);
    return error_set(error, QP_UNSUPPORTED, "the machine %s runs no schedule", m->type->name);
}

qp_status machine_time(const machine *m, const machine_timing *timing, qp_error *error)
{
    if (m->type->time) return m->type->time(m->self, timing, error);
    if (!timing) return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "the machine %s times nothing; use threads, serial or operators",
                     m->type->name);
}

qp_status machine_limits(const machine *m, machine_profile *out, qp_error *error)
{
    return m->type->limits(m->self, out, error);
}
