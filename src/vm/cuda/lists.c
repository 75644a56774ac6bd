/* The launch lists that an executor keeps, and how they run: see executor.h and launch_list.h. */
#include "vm/cuda/executor_parts.h"

#include "cuda/nvtx.h"
#include "op/attention/attention_cuda.h"

#include <stdio.h>
#include <string.h>

/* ---- areas --------------------------------------------------------------------------------- */

/* Inputs lie elsewhere in each pass of a group, sums alternate between two places, and tokens are
 * stored where the next pass reads them. */
static bool moves(const program *program, int area)
{
    const int id = area - LAUNCH_TENSORS;
    if (id < 0) return area == LAUNCH_LIKELIEST;
    return id == PLAN_NEXT || program->tensors[id].kind == PLAN_INPUT ||
           program->tensors[id].kind == PLAN_CARRIED;
}

static cuda_address area_address(const cuda_executor *x, int area)
{
    switch (area) {
    case LAUNCH_WEIGHTS:
        return x->weights.memory.address;
    case LAUNCH_DECODED:
        return x->weights.decoded.address;
    case LAUNCH_PACKED:
        return x->weights.packed.memory.address;
    case LAUNCH_TILES:
        return x->tiles.memory.address;
    case LAUNCH_WORKSPACE:
        return x->ops.workspace.address;
    case LAUNCH_LIKELIEST:
        return x->likeliest;
    case LAUNCH_COUNTERS:
        return x->exchange ? x->exchange->rounds : 0;
    case LAUNCH_FAILURE:
        return x->exchange ? x->exchange->failure : 0;
    default:
        if (area >= LAUNCH_TENSORS) return cuda_device_form(x->memory.data[area - LAUNCH_TENSORS]);
        return x->exchange ? x->exchange->receive[area - LAUNCH_RECEIVE] : 0;
    }
}

/* The areas that move, or the others. */
static void find_areas(const cuda_executor *x, bool moving, cuda_address areas[CUDA_MAX_AREAS])
{
    memset(areas, 0, CUDA_MAX_AREAS * sizeof *areas);
    for (int area = 0; area < LAUNCH_TENSORS + x->program->n_tensors; area++)
        if (moves(x->program, area) == moving) areas[area] = area_address(x, area);
}

/* ---- the lists ----------------------------------------------------------------------------- */

static bool same_class(const launch_class *a, const launch_class *b)
{
    return memcmp(a->sizes.of, b->sizes.of, sizeof a->sizes.of) == 0 && a->first == b->first &&
           a->last == b->last && a->n_chunks == b->n_chunks && a->n_decode == b->n_decode &&
           a->likeliest == b->likeliest;
}

/* The list of a class. NULL: there is none, and *oldest is the least recently used one. */
static launch_list *find_list(cuda_executor *x, const launch_class *of, launch_list **oldest)
{
    *oldest = &x->lists[0];
    for (int i = 0; i < CUDA_MAX_LISTS; i++) {
        launch_list *list = &x->lists[i];
        if (list->bound && same_class(&list->of, of)) return list;
        if (list->used < (*oldest)->used) *oldest = list;
    }
    return NULL;
}

void cuda_executor_free_lists(cuda_executor *x)
{
    for (int i = 0; i < CUDA_MAX_LISTS; i++)
        launch_list_free(&x->lists[i]);
    launch_setting_free(&x->setting);
}

/* ---- running ------------------------------------------------------------------------------- */

static qp_status mark(const cuda_executor *x, const launch_entry *entry, qp_error *error)
{
    cuda_marks *m = x->marks;
    if (!m || m->count == m->capacity) return QP_OK;
    m->entries[m->count] = entry;
    return cuda_check(x->device->driver->event_record(m->events[m->count++], x->device->stream),
                      "marking a launch", error);
}

static qp_status run_records(const cuda_executor *x, const launch_list *list,
                             const launch_entry *entry, qp_error *error)
{
    const bool follows = x->follows && entry == list->entries && entry->follows;
    for (int i = entry->record; i < entry->record + entry->n_records; i++)
        TRY(cuda_recording_run(&list->recording, i, list->recording.records[i].early || follows,
                               x->device, x->ops.blas, x->ops.workspace.address, error));
    return QP_OK;
}

/* A launch's range has the name of its step, or the first and last step of a chain. */
static void begin_range(const program *p, const launch_entry *entry)
{
    char first[64], last[64], name[136];
    if (!nvtx_is_open()) return;
    const int from = p->nodes[entry->node].step;
    const int to = p->nodes[entry->node + (entry->n_nodes > 0 ? entry->n_nodes - 1 : 0)].step;
    program_step_label(p, from, first, sizeof first);
    program_step_label(p, to, last, sizeof last);
    snprintf(name, sizeof name, from == to ? "%s" : "%s to %s", first, last);
    nvtx_begin(name);
}

qp_status cuda_executor_run_entry(const cuda_executor *x, const launch_list *list,
                                  const launch_entry *entry, qp_error *error)
{
    TRY(mark(x, entry, error));
    begin_range(x->program, entry);
    const qp_status status = run_records(x, list, entry, error);
    nvtx_end();
    return status;
}

/* What a list that is being made is bound to. */
typedef struct list_areas {
    const cuda_executor *x;
    cuda_address fixed[CUDA_MAX_AREAS], moving[CUDA_MAX_AREAS];
} list_areas;

/* Binds and runs the last entry of a list that is being made. */
static qp_status run_new_entry(void *context, launch_list *list, const launch_entry *entry,
                               qp_error *error)
{
    const list_areas *areas = context;
    TRY(cuda_recording_bind(&list->recording, areas->x->device, areas->fixed, error));
    cuda_recording_set(&list->recording, areas->moving);
    return cuda_executor_run_entry(areas->x, list, entry, error);
}

/* Makes the list of a class in the place of another one, and runs it. */
static qp_status run_new_list(cuda_executor *x, const launch_class *of, launch_list *list,
                              qp_error *error)
{
    list_areas areas = {.x = x};
    find_areas(x, false, areas.fixed);
    find_areas(x, true, areas.moving);
    launch_list_free(list);
    TRY(launch_list_make(&x->setting, of, run_new_entry, &areas, list, error));
    list->bound = true;
    return QP_OK;
}

static qp_status run_list(const cuda_executor *x, launch_list *list, qp_error *error)
{
    cuda_address areas[CUDA_MAX_AREAS];
    find_areas(x, true, areas);
    cuda_recording_set(&list->recording, areas);
    for (int i = 0; i < list->n_entries; i++)
        TRY(cuda_executor_run_entry(x, list, &list->entries[i], error));
    return QP_OK;
}

qp_status cuda_executor_launch(cuda_executor *x, const program_sizes *sizes, int first, int last,
                               qp_error *error)
{
    const launch_class of = {.sizes = *sizes,
                             .first = first,
                             .last = last,
                             .n_chunks = x->longest > 0 ? cuda_decode_chunks(x->longest) : 0,
                             .n_decode = x->n_decode,
                             .likeliest = x->likeliest != 0};
    launch_list *oldest;
    if (first == last) return QP_OK;
    launch_list *list = find_list(x, &of, &oldest);
    const bool is_new = !list;
    if (is_new) list = oldest;
    TRY(is_new ? run_new_list(x, &of, list, error) : run_list(x, list, error));
    list->used = ++x->n_uses;
    return mark(x, NULL, error); /* the end */
}
