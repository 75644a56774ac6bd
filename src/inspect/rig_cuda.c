/* A model made ready to be timed on a GPU: launches of the megakernel, each of a few passes, whose
 * entries' times are the instructions'. See rig.h.
 */
#include "inspect/rig.h"

#include "base/cpu.h"

#include <stdlib.h>

qp_status rig_cuda_open(rig *r, qp_error *error)
{
    TRY(executor_init_host(&r->executor, &r->plan, r->model, r->pool, cpu_features(0), error));
    return cuda_executor_init(&r->cuda, &r->device, &r->plan, r->model, r->executor.rope_table.data,
                              &r->progress, error);
}

void rig_cuda_close(rig *r)
{
    if (!r->device.driver) return;
    cuda_executor_free(&r->cuda);
    cuda_device_close(&r->device);
}

typedef struct launcher {
    cuda_mega mega;
    instruction_timing *timings; /* [RIG_LAUNCH][workers][longest] */
} launcher;

/* The quickest but the first, which begins with an empty ring. */
static int quickest(const uint64_t *begins)
{
    int best = 1;
    for (int i = 2; i < RIG_LAUNCH; i++) {
        if (begins[i + 1] - begins[i] < begins[best + 1] - begins[best]) best = i;
    }
    return best;
}

static qp_status run_launch(void *self, const batch *batch, instruction_timing *timings, double *ns,
                            qp_error *error)
{
    launcher *l = self;
    const schedule *s = &l->mega.schedule;
    const size_t places = (size_t)s->options.workers * (size_t)s->longest;
    instruction_timing *passes[RIG_LAUNCH];
    uint64_t begins[RIG_LAUNCH + 1];
    TRY(cuda_mega_time(&l->mega, RIG_LAUNCH, error));
    int n = RIG_LAUNCH;
    TRY(cuda_mega_run(&l->mega, batch, NULL, &n, NULL, error));
    for (int i = 0; i < RIG_LAUNCH; i++) {
        passes[i] = l->timings + (size_t)i * places;
        TRY(cuda_mega_read_timings(&l->mega, (size_t)i, passes[i], NULL, error));
    }
    cuda_mega_part_passes(s, passes, RIG_LAUNCH, begins);
    int best = quickest(begins);
    memcpy(timings, passes[best], places * sizeof *timings);
    *ns = (double)(begins[best + 1] - begins[best]);
    return QP_OK;
}

static void close_launcher(void *self)
{
    launcher *l = self;
    cuda_mega_free(&l->mega);
    free(l->timings);
    free(l);
}

qp_status rig_cuda_machine_open(rig *r, const schedule_options *options, rig_machine *out,
                                qp_error *error)
{
    launcher *l = calloc(1, sizeof *l);
    if (!l) return error_no_memory(error, "the machine", sizeof *l);
    *out = (rig_machine){
        .schedule = &l->mega.schedule, .self = l, .run = run_launch, .close = close_launcher};
    const cuda_mega_options how = {.n_blocks = r->options->threads,
                                   .assignment = options->assignment,
                                   .costs = options->costs,
                                   .context = options->context};
    TRY(cuda_mega_init(&l->mega, &r->cuda, &how, error));
    if (!l->mega.kernel) return error_set(error, QP_UNSUPPORTED, "%s", l->mega.why_not);
    const schedule *s = &l->mega.schedule;
    size_t places = (size_t)s->options.workers * (size_t)s->longest;
    l->timings = calloc(RIG_LAUNCH * places, sizeof *l->timings);
    return l->timings ? QP_OK : error_no_memory(error, "timings", RIG_LAUNCH * places);
}
