/* The machine `ranks`, as its owner sees it: see ranks.h. */
#include "vm/ranks.h"

#include "vm/machine_run.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A rank that is a thread of this process. */
typedef struct rank_thread {
    pthread_t thread;
    bool started;
    machine_setup setup;
    comm *comm;
    rank_member member;
} rank_thread;

typedef struct ranks_machine {
    machine_setup setup;
    rank_member first;
    rank_thread *others; /* [size - 1]; NULL: they are other processes */
    comm **ends;         /* [size], where they are threads */
    int size;
    rank_pieces *pieces; /* [size][PLAN_TENSOR_COUNT]; NULL: no tensor has been read yet */
    char *message;       /* a command's data */
    size_t capacity;
    rank_schedules schedules; /* while they are timed */
    machine_record *records;  /* of the run that is under way, if it is timed */
    machine_part_sink *sink;  /* of timed launches; NULL: they are not timed */
    void *context;            /* of `sink` */
} ranks_machine;

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
        qp_status status = program_rebuild(setup->program, &options, &own, error);
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
    for (int id = 0; id < PLAN_TENSOR_COUNT; id++)
        *bytes += rank_input_bytes(&m->first.program, (plan_tensor_id)id, &b->sizes);
    if (*bytes > m->capacity) {
        free(m->message);
        m->message = malloc(*bytes);
        m->capacity = m->message ? *bytes : 0;
        if (!m->message) return error_no_memory(error, "a batch for other ranks", *bytes);
    }
    char *to = m->message;
    for (int id = 0; id < PLAN_TENSOR_COUNT; id++) {
        const size_t n = rank_input_bytes(&m->first.program, (plan_tensor_id)id, &b->sizes);
        if (n) memcpy(to, b->of[id], n);
        to += n;
    }
    if (rank_angle_bytes(b)) memcpy(to, b->angles, rank_angle_bytes(b));
    if (r->n_stops) memcpy(to + rank_angle_bytes(b), r->stops, r->n_stops * sizeof *r->stops);
    return QP_OK;
}

/* What goes wrong on one rank ends the others. */
static qp_status checked(const ranks_machine *m, qp_status status, qp_error *error)
{
    if (status != QP_OK) {
        comm_abort(m->first.comm, error ? error->message : "it cannot go on");
        return status;
    }
    return comm_check(m->first.comm, error);
}

/* The leader's own times go where its owner wants them. */
static int take_records(ranks_machine *m, const machine_request *r)
{
    const bool launches = m->sink && r->n_records > 0;
    const bool timed = m->schedules.n > 0 && r->n_records > 0 && r->records[0].timings;
    m->records = timed || launches ? r->records : NULL;
    m->first.n_records = timed ? r->n_records : 0;
    m->first.n_parts = 0;
    return timed || launches ? r->n_records : 0;
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
                      .records = take_records(m, r),
                      .n_stops = r->n_stops,
                      .sizes = r->batch->sizes};
    TRY(write_message(m, r, &c.bytes, error));
    TRY(rank_command_send(m->first.comm, &c, m->message, error));
    qp_status status = rank_member_begin(&m->first, r->first, error);
    if (status == QP_OK) status = machine_run(&m->first.machine, r, error);
    return checked(m, status, error);
}

/* Hands out the launches of all ranks, which have ended the run: they have taken the command after
 * it. */
static void hand_launches(ranks_machine *m)
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

static qp_status wait_ranks(void *self, int *passes, qp_error *error)
{
    ranks_machine *m = self;
    const rank_command c = {.what = RANK_WAIT};
    TRY(rank_command_send(m->first.comm, &c, NULL, error));
    qp_status status = machine_wait(&m->first.machine, passes, error);
    hand_launches(m);
    if (status == QP_OK)
        status = rank_member_share_records(&m->first, &m->schedules, m->records, error);
    return checked(m, status, error);
}

static float *logits_of_ranks(void *self)
{
    const ranks_machine *m = self;
    return machine_logits(&m->first.machine);
}

/* ---- memory -------------------------------------------------------------------------------- */

/* The pieces of every rank's tensors, from the programs of all. */
static qp_status find_pieces(ranks_machine *m, qp_error *error)
{
    const size_t n = (size_t)m->size * PLAN_TENSOR_COUNT;
    if (m->pieces) return QP_OK;
    rank_pieces *pieces = calloc(n, sizeof *pieces);
    if (!pieces) return error_no_memory(error, "ranks", n * sizeof *pieces);
    qp_status status = QP_OK;
    for (int r = 0; r < m->size && status == QP_OK; r++) {
        plan_options options = m->first.program.options;
        program of;
        options.rank = r;
        status = program_rebuild(&m->first.program, &options, &of, error);
        for (int id = 0; status == QP_OK && id < PLAN_TENSOR_COUNT; id++)
            pieces[r * PLAN_TENSOR_COUNT + id] = rank_pieces_of(&of, (plan_tensor_id)id);
        program_free(&of);
    }
    if (status == QP_OK) m->pieces = pieces;
    if (status != QP_OK) free(pieces);
    return status;
}

/* Puts rows together from the parts of all ranks, which are as many as the command asks for. */
static qp_status join(ranks_machine *m, const rank_command *c, void *data, qp_error *error)
{
    const plan_tensor_id id = c->what == RANK_READ_PAGE ? PLAN_K_CACHE : (plan_tensor_id)c->tensor;
    TRY(find_pieces(m, error));
    TRY(rank_command_send(m->first.comm, c, NULL, error));
    const comm_part *parts = rank_member_collect(&m->first, c, error);
    if (!parts) return QP_IO;
    if (m->pieces[id].n == 0) {
        memcpy(data, parts[0].data, c->bytes);
        for (int r = 1; r < m->size; r++)
            rank_pieces_add(&m->pieces[id], c->bytes, parts[r].data, data);
        return QP_OK;
    }
    for (int r = 0; r < m->size; r++) {
        const rank_pieces *pieces = &m->pieces[r * PLAN_TENSOR_COUNT + id];
        rank_pieces_join(pieces, c->bytes / pieces->whole_row, parts[r].data, data);
    }
    return QP_OK;
}

static qp_status read_ranks(void *self, plan_tensor_id id, int64_t layer, void *data, size_t bytes,
                            qp_error *error)
{
    const rank_command c = {.what = RANK_READ, .tensor = id, .layer = layer, .bytes = bytes};
    return join(self, &c, data, error);
}

static qp_status read_page_ranks(void *self, int32_t page, void *data, qp_error *error)
{
    const ranks_machine *m = self;
    const rank_command c = {
        .what = RANK_READ_PAGE, .from = page, .bytes = machine_page_bytes(m->setup.program)};
    return join(self, &c, data, error);
}

static qp_status write_all(ranks_machine *m, const rank_command *c, const void *data,
                           qp_error *error)
{
    TRY(rank_command_send(m->first.comm, c, data, error));
    return checked(m, rank_member_put(&m->first, c, data, error), error);
}

static qp_status write_ranks(void *self, plan_tensor_id id, int64_t layer, const void *data,
                             size_t bytes, qp_error *error)
{
    const rank_command c = {.what = RANK_WRITE, .tensor = id, .layer = layer, .bytes = bytes};
    return write_all(self, &c, data, error);
}

static qp_status write_page_ranks(void *self, int32_t page, const void *data, qp_error *error)
{
    ranks_machine *m = self;
    const rank_command c = {
        .what = RANK_WRITE_PAGE, .from = page, .bytes = machine_page_bytes(m->setup.program)};
    return write_all(m, &c, data, error);
}

static qp_status copy_page_ranks(void *self, int32_t from, int32_t to, qp_error *error)
{
    ranks_machine *m = self;
    const rank_command c = {.what = RANK_COPY_PAGE, .from = from, .to = to};
    TRY(rank_command_send(m->first.comm, &c, NULL, error));
    return checked(m, machine_copy_page(&m->first.machine, from, to, error), error);
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
    return checked(m, rank_member_time_launches(&m->first, c->records, error), error);
}

static qp_status time_ranks(void *self, const machine_timing *timing, qp_error *error)
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
    return checked(m, rank_member_time(&m->first, passes, &m->schedules, error), error);
}

static const schedule *schedule_of_rank(const void *self, int rank)
{
    const ranks_machine *m = self;
    if (rank == 0) return machine_schedule(&m->first.machine);
    return rank < m->schedules.n ? &m->schedules.schedules[rank] : NULL;
}

static const schedule *schedule_of_ranks(const void *self)
{
    return schedule_of_rank(self, 0);
}

static qp_status reschedule_ranks(void *self, const schedule_options *options, const char *file,
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
        status = checked(m, status, error);
    }
    strbuf_free(&message);
    if (status != QP_OK || refused.status == QP_OK) return status;
    return error_set(error, refused.status, "%s", refused.message);
}

/* All ranks have weights of the same size. */
static machine_copies copies_of_ranks(const void *self)
{
    const ranks_machine *m = self;
    return machine_copies_of(&m->first.machine);
}

static qp_status limits_of_ranks(void *self, machine_profile *out, qp_error *error)
{
    ranks_machine *m = self;
    const rank_command c = {.what = RANK_LIMITS};
    TRY(rank_command_send(m->first.comm, &c, NULL, error));
    return checked(m, rank_member_limits(&m->first, out, error), error);
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
                                    .read = read_ranks,
                                    .write = write_ranks,
                                    .copy_page = copy_page_ranks,
                                    .copies = copies_of_ranks,
                                    .read_page = read_page_ranks,
                                    .write_page = write_page_ranks,
                                    .kernel = kernel_of_ranks,
                                    .schedule = schedule_of_ranks,
                                    .schedule_of_rank = schedule_of_rank,
                                    .reschedule = reschedule_ranks,
                                    .time = time_ranks,
                                    .limits = limits_of_ranks};
