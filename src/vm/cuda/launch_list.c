/* Makes launch lists: walks a pass that is lowered to launches (lower/launches.h) and records them.
 */
#include "vm/cuda/launch_list.h"

#include "op/embedding/embedding.h"
#include "op/linear/linear_summed_cuda.h"

#include <stdlib.h>

enum { ADDED = 2 /* entries besides one a node: for rows of x, and to make x whole at the end */ };

/* ---- entries --------------------------------------------------------------------------------- */

/* Whether an entry's launches may start before their predecessors have ended. What follows copies
 * of a carrier is launched after they have ended, as is the choice of the likeliest tokens. */
static bool is_early(const launch_list *l, const cuda_ops *ops)
{
    const launch_entry *own = &l->entries[l->n_entries - 1];
    if (l->n_entries == 1 || (own->n_nodes == 0 && own->kernel->op == OP_ARGMAX)) return false;
    return !(ops->carrier && own[-1].kernel && own[-1].kernel->needs_ranks);
}

/* An entry of several groups is described by the one that has its nodes. */
static void describe(launch_entry *entry, const lowered_group *g)
{
    if (entry->n_nodes > 0) return;
    entry->n_nodes = g->n_nodes;
    entry->kernel = g->kernel;
    entry->chain = entry->follows = g->run != NULL; /* a chain waits before it reads activations */
    entry->epilogue = g->epilogue;
    entry->input = g->input;
    entry->output = g->output;
}

static qp_status launch_group(const lowering *l, launch_list *list, launch_entry *entry,
                              const lowered_group *g, qp_error *error)
{
    cuda_ops *ops = l->ops;
    const op_call *call = &l->calls[g->call];
    const tensor *t = call->tensors;
    if (g->run) return launch_run(list, entry, g, error);
    if (g->cut)
        return cuda_linear_summed_rows(ops, &t[EMBEDDING_TABLE],
                                       t[EMBEDDING_IDS].rank ? &t[EMBEDDING_IDS] : NULL,
                                       &t[EMBEDDING_OUT], error);
    if (g->fusion) return g->fusion->launch(ops, call, &g->forms, error);
    return g->kernel ? g->kernel->launch(ops, g->kernel, call, &g->forms, error) : QP_OK;
}

/* Adds the entry of groups [first, last). */
static qp_status add_entry(const lowering *l, int first, int last, launch_list *list,
                           qp_error *error)
{
    launch_entry *entry = &list->entries[list->n_entries++];
    *entry = (launch_entry){.node = l->groups[first].node, .record = list->recording.n_records};
    for (int i = first; i < last; i++) {
        describe(entry, &l->groups[i]);
        TRY(launch_group(l, list, entry, &l->groups[i], error));
    }
    entry->n_records = list->recording.n_records - entry->record;
    const bool early = is_early(list, l->ops);
    for (int r = entry->record; r < list->recording.n_records; r++)
        list->recording.records[r].early = early;
    return QP_OK;
}

/* Launches groups as soon as they are made. */
static qp_status walk(lowering *l, launch_list *list, launch_sink *sink, void *context,
                      qp_error *error)
{
    for (int launched = 0; !l->done;) {
        TRY(lower_next(l, error));
        for (int i = launched; i < l->n_groups; i++) {
            if (l->groups[i].continues) continue;
            TRY(add_entry(l, launched, i + 1, list, error));
            if (sink) TRY(sink(context, list, &list->entries[list->n_entries - 1], error));
            launched = i + 1;
        }
    }
    return QP_OK;
}

/* ---- lists --------------------------------------------------------------------------------- */

static void bind(const void *setting, const program_sizes *sizes, int node, op_call *call)
{
    launch_bind(setting, sizes, node, call);
}

qp_status launch_list_make(const launch_setting *setting, const launch_class *of, launch_sink *sink,
                           void *context, launch_list *out, qp_error *error)
{
    cuda_ops ops = setting->ops;
    lowering l = {.program = setting->program,
                  .of = of,
                  .memory = &setting->memory,
                  .ops = &ops,
                  .rules = setting->rules,
                  .likeliest = cuda_area_address(LAUNCH_LIKELIEST, 0),
                  .bind = bind,
                  .take_run = launch_take_run,
                  .context = setting,
                  .explained = setting->explained};
    *out = (launch_list){.of = *of};
    ops.recording = &out->recording;
    qp_status status = lower_begin(&l, error);
    const size_t n = (size_t)l.n_nodes + ADDED;
    out->entries = calloc(n, sizeof *out->entries);
    if (!out->entries && status == QP_OK)
        status = error_no_memory(error, "a list of launches", n * sizeof *out->entries);
    if (status == QP_OK) status = walk(&l, out, sink, context, error);
    lower_end(&l);
    return status;
}

void launch_list_free(launch_list *list)
{
    free(list->entries);
    free(list->step_nodes);
    cuda_recording_free(&list->recording);
    *list = (launch_list){0};
}

const char *launch_kernel_name(const cuda_record *record)
{
    return record->is_product ? "cublasLt" : record->start.name;
}
