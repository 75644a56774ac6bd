/* The schedules of all ranks of a program: see ranks.h. */
#include "schedule/ranks.h"

#include "schedule/build.h"
#include "schedule/verify.h"
#include "lower/lower.h"

#include <stdlib.h>

static qp_status make_rank(const program *p, int rank, const schedule_options *options,
                           const char *file, schedule_ranks *out, qp_error *error)
{
    plan_options own = p->options;
    own.rank = rank;
    TRY(lower_rebuild(p, &own, &out->programs[rank], error));
    if (file) return schedule_load(file, &out->programs[rank], &out->schedules[rank], error);
    return schedule_build(&out->programs[rank], options, &out->schedules[rank], error);
}

static qp_status verify(const schedule_ranks *r, qp_error *error)
{
    const schedule **all = calloc((size_t)r->n, sizeof *all);
    if (!all) return error_no_memory(error, "schedules", (size_t)r->n * sizeof *all);
    for (int i = 0; i < r->n; i++)
        all[i] = &r->schedules[i];
    qp_status status = schedule_verify_ranks(all, r->n, error);
    free(all);
    return status;
}

qp_status schedule_ranks_make(const program *p, const schedule_options *options, const char *file,
                              schedule_ranks *out, qp_error *error)
{
    const int n = p->options.ranks > 1 ? p->options.ranks : 1;
    *out = (schedule_ranks){.n = n,
                            .programs = calloc((size_t)n, sizeof *out->programs),
                            .schedules = calloc((size_t)n, sizeof *out->schedules)};
    if (!out->programs || !out->schedules)
        return error_no_memory(error, "schedules", (size_t)n * sizeof *out->schedules);
    for (int rank = 0; rank < n; rank++)
        TRY(make_rank(p, rank, options, file, out, error));
    return verify(out, error);
}

void schedule_ranks_free(schedule_ranks *r)
{
    for (int i = 0; i < r->n; i++) {
        if (r->schedules) schedule_free(&r->schedules[i]);
        if (r->programs) program_free(&r->programs[i]);
    }
    free(r->schedules);
    free(r->programs);
    *r = (schedule_ranks){0};
}
