/* What ranks run, and how long it takes: see ranks.h.
 *
 * Every rank has a schedule of its own. The leader gets those of all ranks as the bytes of a file,
 * and proves them before it looks at them. Times of other ranks come after each run that is timed.
 */
#include "vm/ranks.h"

#include "base/clock.h"
#include "schedule/build.h"
#include "vm/scheduled.h"
#include "lower/lower.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLOCK_ROUNDS = 64 };

/* ---- schedules ----------------------------------------------------------------------------- */

void rank_schedules_free(rank_schedules *s)
{
    for (int r = 0; r < s->n; r++) {
        if (s->schedules) schedule_free(&s->schedules[r]);
        if (s->programs) program_free(&s->programs[r]);
    }
    free(s->programs);
    free(s->schedules);
    free(s->ahead_ns);
    *s = (rank_schedules){0};
}

static qp_status allocate(rank_schedules *out, int n, qp_error *error)
{
    const size_t size = (size_t)n;
    out->programs = calloc(size, sizeof *out->programs);
    out->schedules = calloc(size, sizeof *out->schedules);
    out->ahead_ns = calloc(size, sizeof *out->ahead_ns);
    out->n = n;
    if (out->programs && out->schedules && out->ahead_ns) return QP_OK;
    return error_no_memory(error, "the schedules of ranks", size * sizeof(schedule));
}

/* All ranks have as many workers, so that a track has a rank and a worker. */
static qp_status read_schedules(const rank_member *m, const comm_part *parts, rank_schedules *out,
                                qp_error *error)
{
    const int workers = machine_schedule(&m->machine)->options.workers;
    for (int r = 1; r < out->n; r++) {
        plan_options options = m->program.options;
        char name[32];
        options.rank = r;
        snprintf(name, sizeof name, "schedule of rank %d", r);
        TRY(lower_rebuild(&m->program, &options, &out->programs[r], error));
        TRY(schedule_read(name, parts[r].data, parts[r].bytes, &out->programs[r],
                          &out->schedules[r], error));
        if (out->schedules[r].options.workers != workers)
            return error_set(error, QP_UNSUPPORTED,
                             "rank %d has %d threads and rank 0 has %d: give all the same number "
                             "with -t",
                             r, out->schedules[r].options.workers, workers);
    }
    return QP_OK;
}

/* ---- clocks -------------------------------------------------------------------------------- */

/* The least time, by both clocks, from when the first rank (or this one) gave its clock until this
 * rank (or the first) had it: the way, less or more by what the clocks differ. */
static qp_status measure_ways(comm *comm, int64_t *least, qp_error *error)
{
    for (int i = 0; i < CLOCK_ROUNDS; i++) {
        const uint64_t sent = clock_ns();
        const comm_part *parts = rank_share(comm, &sent, sizeof sent, error);
        const uint64_t now = clock_ns();
        if (!parts) return QP_IO;
        for (int r = 0; r < comm_size(comm); r++) {
            uint64_t of;
            memcpy(&of, parts[r].data, sizeof of);
            const int64_t way = (int64_t)(now - of);
            if (i == 0 || way < least[r]) least[r] = way;
        }
    }
    return QP_OK;
}

/* Each rank gives what it measured of the first; half the difference of both ways is between the
 * clocks. `ahead` is NULL on other ranks. */
static qp_status compare_clocks(comm *comm, int64_t *ahead, qp_error *error)
{
    int64_t *least = calloc((size_t)comm_size(comm), sizeof *least);
    if (!least) return error_no_memory(error, "clocks", sizeof *least);
    qp_status status = measure_ways(comm, least, error);
    const comm_part *parts =
        status == QP_OK ? rank_share(comm, &least[0], sizeof least[0], error) : NULL;
    for (int r = 1; parts && ahead && r < comm_size(comm); r++) {
        int64_t there;
        memcpy(&there, parts[r].data, sizeof there);
        ahead[r] = (there - least[r]) / 2;
    }
    free(least);
    return parts ? QP_OK : QP_IO;
}

/* ---- timing -------------------------------------------------------------------------------- */

static qp_status share_schedules(rank_member *m, rank_schedules *out, qp_error *error)
{
    strbuf bytes = {0};
    qp_status status = QP_OK;
    schedule_write(machine_schedule(&m->machine), &bytes);
    if (bytes.failed) status = error_no_memory(error, "the schedule", bytes.capacity);
    const comm_part *parts =
        status == QP_OK ? rank_share(m->comm, bytes.data, bytes.length, error) : NULL;
    if (status == QP_OK && !parts) status = QP_IO;
    if (status == QP_OK && out) status = read_schedules(m, parts, out, error);
    strbuf_free(&bytes);
    return status;
}

qp_status rank_member_time(rank_member *m, int max_passes, rank_schedules *out, qp_error *error)
{
    const machine_timing timing = {.max_passes = (size_t)max_passes};
    if (out) rank_schedules_free(out);
    TRY(machine_time(&m->machine, max_passes ? &timing : NULL, error));
    if (max_passes == 0) return QP_OK;
    if (out) TRY(allocate(out, comm_size(m->comm), error));
    TRY(share_schedules(m, out, error));
    /* Threads of a process have one clock. */
    return m->is_process ? compare_clocks(m->comm, out ? out->ahead_ns : NULL, error) : QP_OK;
}

static void keep_launch(void *context, const timeline_part *part)
{
    rank_member *m = context;
    if (m->n_parts == m->parts_capacity) {
        const size_t capacity = m->parts_capacity ? 2 * m->parts_capacity : 1024;
        timeline_part *larger = realloc(m->parts, capacity * sizeof *larger);
        if (!larger) return; /* the trace lacks a launch */
        m->parts = larger;
        m->parts_capacity = capacity;
    }
    m->parts[m->n_parts] = *part;
    m->parts[m->n_parts++].track = comm_rank(m->comm);
}

qp_status rank_member_time_launches(rank_member *m, int max_passes, qp_error *error)
{
    const machine_timing timing = {
        .max_passes = (size_t)max_passes, .sink = keep_launch, .context = m};
    m->takes_parts = max_passes > 0;
    return machine_time(&m->machine, max_passes > 0 ? &timing : NULL, error);
}

static size_t places_of(const schedule *s)
{
    return (size_t)s->options.workers * (size_t)s->longest;
}

qp_status rank_member_take_records(rank_member *m, int n_records, machine_request *request,
                                   qp_error *error)
{
    m->n_records = 0;
    m->n_parts = 0;
    if (n_records == 0) return QP_OK;
    if (m->takes_parts) {
        free(m->records);
        m->records = calloc((size_t)n_records, sizeof *m->records);
        if (!m->records) return error_no_memory(error, "the trace", sizeof *m->records);
        request->records = m->records;
        request->n_records = n_records;
        return QP_OK;
    }
    const size_t n = (size_t)n_records, places = places_of(machine_schedule(&m->machine));
    free(m->records);
    free(m->timings);
    m->records = calloc(n, sizeof *m->records);
    m->timings = calloc(n * places, sizeof *m->timings);
    if (!m->records || !m->timings)
        return error_no_memory(error, "the trace", n * places * sizeof *m->timings);
    for (size_t i = 0; i < n; i++)
        m->records[i].timings = m->timings + i * places;
    request->records = m->records;
    request->n_records = m->n_records = n_records;
    return QP_OK;
}

static void shift(uint64_t *time, int64_t ahead)
{
    if (*time) *time -= (uint64_t)ahead;
}

/* One pass of another rank into the leader's record, by the leader's clock. */
static void take_pass(const char *from, int64_t ahead, size_t places, instruction_timing *timings,
                      machine_record *record)
{
    uint64_t begin;
    memcpy(&begin, from, sizeof begin);
    memcpy(timings, from + sizeof begin, places * sizeof *timings);
    shift(&begin, ahead);
    for (size_t i = 0; i < places; i++) {
        instruction_timing *t = &timings[i];
        uint64_t *const times[] = {&t->wait, &t->work,       &t->signal,
                                   &t->end,  &t->help_begin, &t->help_end};
        for (size_t k = 0; k < sizeof times / sizeof *times; k++)
            shift(times[k], ahead);
    }
    if (begin < record->begin) record->begin = begin;
}

static qp_status take_rank(const rank_schedules *s, int rank, const comm_part *part, size_t before,
                           machine_record *records, int n_records, qp_error *error)
{
    const size_t places = places_of(&s->schedules[rank]);
    const size_t each = sizeof(uint64_t) + places * sizeof(instruction_timing);
    if (part->bytes != each * (size_t)n_records)
        return error_set(error, QP_IO, "rank %d gives times of other passes than rank 0", rank);
    for (int i = 0; i < n_records && records[i].end; i++)
        take_pass((const char *)part->data + (size_t)i * each, s->ahead_ns[rank], places,
                  records[i].timings + before, &records[i]);
    return QP_OK;
}

/* Beginning and times of each pass. */
static void write_records(const rank_member *m, size_t places, strbuf *out)
{
    for (int i = 0; i < m->n_records; i++) {
        const machine_record *record = &m->records[i];
        strbuf_append(out, &record->begin, sizeof record->begin);
        strbuf_append(out, record->timings, places * sizeof *record->timings);
    }
}

qp_status rank_member_share_records(rank_member *m, const rank_schedules *s,
                                    machine_record *records, qp_error *error)
{
    if (m->n_records == 0) return QP_OK;
    const int n = m->n_records;
    size_t before = places_of(machine_schedule(&m->machine));
    strbuf own = {0};
    if (!records) write_records(m, before, &own);
    qp_status status = own.failed ? error_no_memory(error, "the trace", own.capacity) : QP_OK;
    m->n_records = 0;
    const comm_part *parts =
        status == QP_OK ? rank_share(m->comm, own.data, own.length, error) : NULL;
    if (status == QP_OK && !parts) status = QP_IO;
    for (int r = 1; status == QP_OK && records && r < s->n; r++) {
        status = take_rank(s, r, &parts[r], before, records, n, error);
        before += places_of(&s->schedules[r]);
    }
    strbuf_free(&own);
    return status;
}

qp_status rank_member_limits(rank_member *m, machine_profile *out, qp_error *error)
{
    machine_profile own, sum = {0};
    if (!rank_share(m->comm, NULL, 0, error)) return QP_IO; /* so that all begin together */
    TRY(machine_limits(&m->machine, &own, error));
    const comm_part *parts = rank_share(m->comm, &own, sizeof own, error);
    if (!parts) return QP_IO;
    for (int r = 0; r < comm_size(m->comm); r++) {
        machine_profile of;
        memcpy(&of, parts[r].data, sizeof of);
        sum.bytes_per_second += of.bytes_per_second;
        sum.flops_per_second += of.flops_per_second;
    }
    if (out) *out = sum;
    return QP_OK;
}

/* ---- another schedule ---------------------------------------------------------------------- */

void rank_schedule_message(const schedule_options *options, const char *file, strbuf *out)
{
    schedule_options own = options ? *options : (schedule_options){0};
    own.together = NULL; /* of this process */
    own.costs = NULL;
    strbuf_append(out, &own, sizeof own);
    strbuf_puts(out, file ? file : "");
    strbuf_putc(out, '\0');
}

/* Whether this rank could run the schedule. */
static qp_status try_schedule(const rank_member *m, const schedule_options *options,
                              const char *file, qp_error *error)
{
    schedule made = {0};
    qp_status status =
        scheduled_make(&m->program, thread_pool_size(m->pool), options, file, &made, error);
    schedule_free(&made);
    return status;
}

static qp_status reschedule(rank_member *m, const schedule_options *options, const char *file,
                            qp_error *refused, qp_error *error)
{
    qp_error why = {0};
    why.status = try_schedule(m, options, file, &why);
    const comm_part *parts = rank_share(m->comm, &why, sizeof why, error);
    if (!parts) return QP_IO;
    for (int r = 0; r < comm_size(m->comm); r++) {
        qp_error of;
        memcpy(&of, parts[r].data, sizeof of);
        if (of.status == QP_OK) continue;
        error_set(refused, of.status, "rank %d: %s", r, of.message);
        return QP_OK;
    }
    return machine_reschedule(&m->machine, options, file, error);
}

qp_status rank_member_reschedule(rank_member *m, const void *data, qp_error *refused,
                                 qp_error *error)
{
    schedule_options options;
    memcpy(&options, data, sizeof options);
    /* The message is gone when ranks exchange what they found. */
    char *file = strdup((const char *)data + sizeof options);
    if (!file) return error_no_memory(error, "a path", 0);
    qp_status status = reschedule(m, &options, *file ? file : NULL, refused, error);
    free(file);
    return status;
}
