/* Times and schedules of all ranks of the machine `ranks`: see ranks_machine.h. */
#include "vm/ranks_machine.h"

#include "vm/machine_run.h"

int ranks_take_records(ranks_machine *m, const machine_request *r)
{
    const bool launches = m->sink && r->n_records > 0;
    const bool timed = m->schedules.n > 0 && r->n_records > 0 && r->records[0].timings;
    m->records = timed || launches ? r->records : NULL;
    m->first.n_records = timed ? r->n_records : 0;
    m->first.n_parts = 0;
    return timed || launches ? r->n_records : 0;
}

void ranks_hand_launches(ranks_machine *m)
{
    if (!m->sink || !m->records) return;
    for (int r = 0; r < m->size; r++) {
        const rank_member *of = r == 0 ? &m->first : &m->others[r - 1].member;
        for (size_t i = 0; i < of->n_parts; i++) {
            machine_record *record = &m->records[0];
            if (of->parts[i].wait < record->begin) record->begin = of->parts[i].wait;
            if (of->parts[i].end > record->end) record->end = of->parts[i].end;
            m->sink(m->context, &of->parts[i]);
        }
    }
}

static qp_status refuse_parts(const ranks_machine *m, qp_error *error)
{
    if (m->setup.inner->whole)
        return error_set(
            error, QP_UNSUPPORTED,
            "the megakernel is timed on one GPU, and there are %d: trace launches with "
            "--exec cuda, or leave --ranks out",
            m->size);
    if (m->setup.inner->on_gpu)
        return error_set(error, QP_UNSUPPORTED,
                         "launches of %d GPUs are timed in one process: use --ranks-by threads",
                         m->size);
    return error_set(error, QP_UNSUPPORTED,
                     "parts of operators are timed on one rank, and there are %d: trace "
                     "instructions with --exec threads and without --parts, or leave --ranks out",
                     m->size);
}

static qp_status time_launches(ranks_machine *m, const machine_timing *timing,
                               const rank_command *c, qp_error *error)
{
    m->sink = timing ? timing->sink : NULL;
    m->context = timing ? timing->context : NULL;
    TRY(rank_command_send(m->first.comm, c, NULL, error));
    return ranks_checked(m, rank_member_time_launches(&m->first, c->records, error), error);
}

qp_status ranks_time(void *self, const machine_timing *timing, qp_error *error)
{
    ranks_machine *m = self;
    const int passes = timing ? (int)timing->max_passes : 0;
    const machine_type *inner = m->setup.inner;
    const bool launches = inner->on_gpu && !inner->whole && m->others;
    const rank_command c = {.what = RANK_TIME, .records = passes, .launches = launches};
    if (!timing && m->schedules.n == 0 && !m->sink) return QP_OK;
    if (launches) return time_launches(m, timing, &c, error);
    if (timing && (timing->sink || inner->on_gpu || inner->in_parts)) return refuse_parts(m, error);
    if (!inner->time) return machine_time(&m->first.machine, timing, error);
    TRY(rank_command_send(m->first.comm, &c, NULL, error));
    return ranks_checked(m, rank_member_time(&m->first, passes, &m->schedules, error), error);
}

const schedule *ranks_schedule_of(const void *self, int rank)
{
    const ranks_machine *m = self;
    if (rank == 0) return machine_schedule(&m->first.machine);
    return rank < m->schedules.n ? &m->schedules.schedules[rank] : NULL;
}

const schedule *ranks_schedule(const void *self)
{
    return ranks_schedule_of(self, 0);
}

qp_status ranks_reschedule(void *self, const schedule_options *options, const char *file,
                           qp_error *error)
{
    ranks_machine *m = self;
    qp_error refused = {0};
    strbuf message = {0};
    if (!m->setup.inner->reschedule)
        return machine_reschedule(&m->first.machine, options, file, error);
    rank_schedule_message(options, file, &message);
    const rank_command c = {.what = RANK_RESCHEDULE, .bytes = message.length};
    qp_status status = message.failed ? error_no_memory(error, "a path", message.capacity)
                                      : rank_command_send(m->first.comm, &c, message.data, error);
    if (status == QP_OK) {
        status = rank_member_reschedule(&m->first, message.data, &refused, error);
        status = ranks_checked(m, status, error);
    }
    strbuf_free(&message);
    if (status != QP_OK || refused.status == QP_OK) return status;
    return error_set(error, refused.status, "%s", refused.message);
}

qp_status ranks_limits(void *self, machine_profile *out, qp_error *error)
{
    ranks_machine *m = self;
    const rank_command c = {.what = RANK_LIMITS};
    TRY(rank_command_send(m->first.comm, &c, NULL, error));
    return ranks_checked(m, rank_member_limits(&m->first, out, error), error);
}
