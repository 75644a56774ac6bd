/* The machine `ranks`, as its owner sees it: see ranks.h. */
#include "vm/ranks_machine.h"

#include "vm/machine_run.h"
#include "lower/lower.h"

#include <stdlib.h>
#include <string.h>

/* ---- opening and closing ------------------------------------------------------------------- */

static void *live(void *context)
{
    rank_thread *t = context;
    threads_bind(comm_rank(t->comm), comm_size(t->comm) - 1, thread_pool_size(t->setup.pool));
    /* The group remembers what went wrong, and the leader reports it. */
    if (rank_member_open(&t->setup, t->comm, NULL, &t->member, NULL) == QP_OK)
        rank_member_follow(&t->member, NULL);
    rank_member_close(&t->member);
    return NULL;
}

qp_status ranks_follow(const machine_setup *setup, qp_error *error)
{
    rank_member member;
    qp_status status = rank_member_open(setup, setup->group, setup->pool, &member, error);
    if (status == QP_OK) status = rank_member_follow(&member, error);
    rank_member_close(&member);
    return status;
}

const machine *ranks_machine_of(const machine *ranks, int rank)
{
    const ranks_machine *m = ranks->self;
    return rank == 0 ? &m->first.machine : &m->others[rank - 1].member.machine;
}

/* What a rank's member is opened for: a machine over those of other ranks is over its rank's. */
static machine_setup setup_of(const ranks_machine *m, int rank)
{
    machine_setup setup = m->setup;
    if (setup.over) setup.over = ranks_machine_of(setup.over, rank);
    return setup;
}

static qp_status start_threads(ranks_machine *m, qp_error *error)
{
    m->ends = calloc((size_t)m->size, sizeof *m->ends);
    m->others = calloc((size_t)m->size, sizeof *m->others);
    if (!m->ends || !m->others) return error_no_memory(error, "ranks", (size_t)m->size);
    TRY(comm_threads_open(m->size, m->ends, error));
    for (int r = 1; r < m->size; r++) {
        rank_thread *t = &m->others[r - 1];
        *t = (rank_thread){.setup = setup_of(m, r), .comm = m->ends[r]};
        t->started = pthread_create(&t->thread, NULL, live, t) == 0;
        if (t->started) continue;
        comm_abort(m->ends[0], "a thread for another rank could not be started");
        return comm_check(m->ends[0], error);
    }
    return QP_OK;
}

static qp_status open_ranks(const machine_setup *setup, void **self, qp_error *error)
{
    ranks_machine *m = *self = calloc(1, sizeof *m);
    if (!m) return error_no_memory(error, "the machine", sizeof *m);
    m->setup = *setup;
    m->size = setup->group ? comm_size(setup->group) : setup->n_ranks;
    if (!setup->group) TRY(start_threads(m, error));
    comm *own = setup->group ? setup->group : m->ends[0];
    const machine_setup first = setup_of(m, 0);
    return rank_member_open(&first, own, setup->pool, &m->first, error);
}

static void close_ranks(void *self)
{
    ranks_machine *m = self;
    const rank_command end = {.what = RANK_CLOSE};
    if (!m) return;
    if (m->first.comm) rank_command_send(m->first.comm, &end, NULL, NULL);
    if (m->ends && m->ends[0] && !m->first.comm) comm_abort(m->ends[0], "it was not opened");
    for (int r = 1; m->others && r < m->size; r++)
        if (m->others[r - 1].started) pthread_join(m->others[r - 1].thread, NULL);
    rank_member_close(&m->first);
    rank_schedules_free(&m->schedules);
    for (int r = 0; m->ends && r < m->size; r++)
        comm_close(m->ends[r]);
    free(m->ends);
    free(m->others);
    free(m->pieces);
    free(m->message);
    free(m);
}

static void add_bytes(machine_bytes *sum, const machine_bytes *of)
{
    sum->weights += of->weights;
    sum->activations += of->activations;
    sum->kv_cache += of->kv_cache;
    sum->rope_table += of->rope_table;
    sum->inputs += of->inputs;
    sum->workspace += of->workspace;
    sum->state += of->state;
    sum->total += of->total;
}

/* Of this process: of all ranks, or of one. */
static qp_status count_ranks(const machine_setup *setup, machine_bytes *out, qp_error *error)
{
    const int size = setup->group ? comm_size(setup->group) : setup->n_ranks;
    const int first = setup->group ? comm_rank(setup->group) : 0, n = setup->group ? 1 : size;
    *out = (machine_bytes){0};
    for (int r = first; r < first + n; r++) {
        plan_options options = setup->program->options;
        program own;
        machine_bytes bytes = {0};
        options.ranks = size, options.rank = r, options.cut = setup->cut;
        qp_status status = lower_rebuild(setup->program, &options, &own, error);
        machine_setup of_rank = *setup;
        of_rank.program = &own;
        if (status == QP_OK) status = machine_count_bytes(setup->inner, &of_rank, &bytes, error);
        program_free(&own);
        TRY(status);
        add_bytes(out, &bytes);
    }
    return QP_OK;
}

static const machine_type *type_of_ranks(const void *self)
{
    const ranks_machine *m = self;
    return m->setup.inner;
}

/* ---- running ------------------------------------------------------------------------------- */

static const char *accepts_ranks(const void *self, const machine_request *request)
{
    const ranks_machine *m = self;
    return machine_accepts(&m->first.machine, request);
}

static machine_pace pace_of_ranks(const void *self, int64_t n_sequences, machine_choice choice)
{
    const ranks_machine *m = self;
    return machine_pace_of(&m->first.machine, n_sequences, choice);
}

size_t rank_input_bytes(const program *p, plan_tensor_id id, const program_sizes *sizes)
{
    const plan_tensor *t = &p->tensors[id];
    if (t->kind != PLAN_INPUT) return 0;
    size_t bytes = dtype_block_bytes(t->type);
    for (int d = 0; d < t->rank; d++)
        bytes *= (size_t)(t->dims[d].size < 0 ? sizes->of[-t->dims[d].size] : t->dims[d].size);
    return bytes;
}

size_t rank_angle_bytes(const batch *b)
{
    if (!b->angles) return 0;
    return (size_t)(batch_tokens(b) * b->program->config.rope.dim) * sizeof *b->angles;
}

/* The inputs of the batch, its angles and the stop tokens, as take_inputs() reads them. */
static qp_status write_message(ranks_machine *m, const machine_request *r, size_t *bytes,
                               qp_error *error)
{
    const batch *b = r->batch;
    *bytes = rank_angle_bytes(b) + r->n_stops * sizeof *r->stops;
    for (int id = 0; id < PLAN_NAMED; id++)
        *bytes += rank_input_bytes(&m->first.program, (plan_tensor_id)id, &b->sizes);
    if (*bytes > m->capacity) {
        free(m->message);
        m->message = malloc(*bytes);
        m->capacity = m->message ? *bytes : 0;
        if (!m->message) return error_no_memory(error, "a batch for other ranks", *bytes);
    }
    char *to = m->message;
    for (int id = 0; id < PLAN_NAMED; id++) {
        const size_t n = rank_input_bytes(&m->first.program, (plan_tensor_id)id, &b->sizes);
        if (n) memcpy(to, b->of[id], n);
        to += n;
    }
    if (rank_angle_bytes(b)) memcpy(to, b->angles, rank_angle_bytes(b));
    if (r->n_stops) memcpy(to + rank_angle_bytes(b), r->stops, r->n_stops * sizeof *r->stops);
    return QP_OK;
}

qp_status ranks_checked(const ranks_machine *m, qp_status status, qp_error *error)
{
    if (status != QP_OK) {
        comm_abort(m->first.comm, error ? error->message : "it cannot go on");
        return status;
    }
    return comm_check(m->first.comm, error);
}

static qp_status run_ranks(void *self, const machine_request *r, qp_error *error)
{
    ranks_machine *m = self;
    rank_command c = {.what = RANK_RUN,
                      .first = r->first,
                      .last = r->last,
                      .passes = r->passes,
                      .choice = (int32_t)r->choice,
                      .continues = r->continues,
                      .records = ranks_take_records(m, r),
                      .n_stops = r->n_stops,
                      .sizes = r->batch->sizes};
    TRY(write_message(m, r, &c.bytes, error));
    TRY(rank_command_send(m->first.comm, &c, m->message, error));
    qp_status status = rank_member_begin(&m->first, r->first, error);
    if (status == QP_OK) status = machine_run(&m->first.machine, r, error);
    return ranks_checked(m, status, error);
}

static qp_status wait_ranks(void *self, int *passes, qp_error *error)
{
    ranks_machine *m = self;
    const rank_command c = {.what = RANK_WAIT};
    TRY(rank_command_send(m->first.comm, &c, NULL, error));
    qp_status status = machine_wait(&m->first.machine, passes, error);
    ranks_hand_launches(m);
    if (status == QP_OK)
        status = rank_member_share_records(&m->first, &m->schedules, m->records, error);
    return ranks_checked(m, status, error);
}

static float *logits_of_ranks(void *self)
{
    const ranks_machine *m = self;
    return machine_logits(&m->first.machine);
}

/* ---- what it runs -------------------------------------------------------------------------- */

/* A step has the nodes of one rank first, and exchanges after them. */
static machine_kernel kernel_of_ranks(const void *self, int node)
{
    const ranks_machine *m = self;
    const program *whole = m->setup.program, *own = &m->first.program;
    const int step = whole->nodes[node].step;
    return machine_kernel_of(&m->first.machine,
                             own->steps[step].first_node + node - whole->steps[step].first_node);
}

/* All ranks have weights of the same size. */
static machine_copies copies_of_ranks(const void *self)
{
    const ranks_machine *m = self;
    return machine_copies_of(&m->first.machine);
}

const machine_type machine_ranks = {.name = "ranks",
                                    .takes_kernels = true,
                                    .of_ranks = type_of_ranks,
                                    .count_bytes = count_ranks,
                                    .open = open_ranks,
                                    .close = close_ranks,
                                    .accepts = accepts_ranks,
                                    .pace = pace_of_ranks,
                                    .run = run_ranks,
                                    .wait = wait_ranks,
                                    .logits = logits_of_ranks,
                                    .read = ranks_read,
                                    .write = ranks_write,
                                    .copy_page = ranks_copy_page,
                                    .copies = copies_of_ranks,
                                    .read_page = ranks_read_page,
                                    .write_page = ranks_write_page,
                                    .kernel = kernel_of_ranks,
                                    .schedule = ranks_schedule,
                                    .schedule_of_rank = ranks_schedule_of,
                                    .reschedule = ranks_reschedule,
                                    .time = ranks_time,
                                    .limits = ranks_limits};
