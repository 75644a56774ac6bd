/* A rank's part of a model: see ranks.h. */
#include "vm/ranks.h"

#include "base/hash.h"
#include "plan/weights.h"
#include "quipu.h"
#include "vm/pack_cache.h"
#include "lower/lower.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAG_AGREE = 1, TAG_COMMAND, TAG_DATA };

/* The error that the group remembers; the first failure explains the others. */
static qp_status group_failed(comm *comm, qp_error *error)
{
    const qp_status status = comm_check(comm, error);
    return status != QP_OK ? status : error_no_memory(error, "what ranks exchange", 0);
}

/* ---- opening ------------------------------------------------------------------------------- */

/* What must be the same on all ranks. */
typedef struct rank_facts {
    uint64_t program, model;
    int32_t size, cut;
    char inner[24]; /* the machine of each rank */
    int32_t version[3];
} rank_facts;

/* Adds the elements of a norm. */
static qp_status mix_norm(const program *p, int weight, uint64_t *hash, qp_error *error)
{
    const size_t bytes = tensor_bytes(&p->weights[weight].whole);
    unsigned char *row = malloc(bytes);
    if (!row) return error_no_memory(error, "a weight", bytes);
    qp_status status = program_read_weight(p, weight, 0, 1, row, error);
    for (size_t i = 0; status == QP_OK && i < bytes; i++)
        *hash = hash_mix(*hash ^ row[i]);
    free(row);
    return status;
}

/* Sizes and types, and the elements of the norms, which are few and differ between models. */
static qp_status fingerprint_model(const program *p, uint64_t *out, qp_error *error)
{
    *out = p->fingerprint;
    for (int i = 0; i < p->n_weights; i++) {
        const program_weight *w = &p->weights[i];
        *out = hash_mix(*out ^ (uint64_t)w->whole.type);
        if (weight_get_info(w->slot)->is_norm && !w->bias) TRY(mix_norm(p, i, out, error));
    }
    return QP_OK;
}

static qp_status compare_facts(const rank_facts *own, const rank_facts *other, int rank,
                               qp_error *error)
{
    const char *what = memcmp(own->version, other->version, sizeof own->version)
                           ? "version of quipu"
                       : own->size != other->size || own->cut != other->cut ||
                               memcmp(own->inner, other->inner, sizeof own->inner) ||
                               own->program != other->program
                           ? "set of options"
                       : own->model != other->model ? "model"
                                                    : NULL;
    if (!what) return QP_OK;
    return error_set(error, QP_INVALID,
                     "rank %d has another %s than rank 0: all ranks must have the same program, "
                     "model and options",
                     rank, what);
}

/* Every rank compares all with the first, so that all end with the same message. */
static qp_status agree(const rank_member *m, const machine_setup *setup, qp_error *error)
{
    rank_facts *own = comm_stage(m->comm, sizeof *own);
    if (!own) return group_failed(m->comm, error);
    *own = (rank_facts){.program = setup->program->fingerprint,
                        .size = comm_size(m->comm),
                        .cut = (int32_t)setup->cut,
                        .version = {QP_VERSION_MAJOR, QP_VERSION_MINOR, QP_VERSION_PATCH}};
    snprintf(own->inner, sizeof own->inner, "%s", setup->inner->name);
    TRY(fingerprint_model(setup->program, &own->model, error));
    const comm_part *parts = comm_exchange(m->comm, TAG_AGREE, sizeof *own, sizeof *own, COMM_SLOW);
    if (!parts) return group_failed(m->comm, error);
    for (int r = 1; r < comm_size(m->comm); r++)
        TRY(compare_facts(parts[0].data, parts[r].data, r, error));
    return QP_OK;
}

static qp_status open_parts(const machine_setup *setup, rank_member *m, qp_error *error)
{
    plan_options options = setup->program->options;
    options.ranks = comm_size(m->comm);
    options.rank = comm_rank(m->comm);
    options.cut = setup->cut;
    options.own_sums = options.sums;
    TRY(lower_rebuild(setup->program, &options, &m->program, error));
    TRY(batch_init(&m->batch, &m->program, error));
    machine_setup own = *setup;
    own.program = &m->program;
    own.pool = m->pool;
    own.group = m->comm;
    if (options.rank > 0) own.progress = NULL;
    pack_cache packed; /* each rank has a part of the weights, and says nothing */
    if (own.packed) {
        packed = *own.packed;
        own.packed = options.rank > 0 ? &packed : own.packed;
    }
    TRY(machine_open(setup->inner, &own, &m->machine, error));
    return agree(m, setup, error);
}

qp_status rank_member_open(const machine_setup *setup, comm *comm, thread_pool *pool,
                           rank_member *out, qp_error *error)
{
    qp_error own = {0}, *why = error ? error : &own;
    *out = (rank_member){.comm = comm, .pool = pool, .is_process = setup->group != NULL};
    qp_status status = QP_OK;
    if (!pool) {
        status = thread_pool_create(thread_pool_size(setup->pool), &out->pool, why);
        out->owns_pool = status == QP_OK;
    }
    if (status == QP_OK) status = open_parts(setup, out, why);
    if (status != QP_OK) comm_abort(comm, why->message);
    return status;
}

void rank_member_close(rank_member *m)
{
    machine_close(&m->machine);
    batch_free(&m->batch);
    program_free(&m->program);
    if (m->owns_pool) thread_pool_destroy(m->pool);
    for (int i = 0; i < MACHINE_MAX_RUNS; i++)
        free(m->tokens[i]);
    for (int i = 0; i < RANK_KEPT; i++)
        free(m->kept[i].data);
    free(m->records);
    free(m->timings);
    free(m->parts);
    *m = (rank_member){0};
}

/* ---- parts of tensors ---------------------------------------------------------------------- */

static bool is_page(const rank_command *c)
{
    return c->what == RANK_READ_PAGE || c->what == RANK_WRITE_PAGE;
}

/* A page of the cache is as many rows as there are layers of K and V. */
static rank_pieces pieces_of(const rank_member *m, const rank_command *c)
{
    return rank_pieces_of(&m->program, is_page(c) ? PLAN_K_CACHE : (plan_tensor_id)c->tensor);
}

static size_t own_bytes(const rank_pieces *p, const rank_command *c)
{
    return p->n ? c->bytes / p->whole_row * p->own_row : c->bytes;
}

static qp_status read_own(const rank_member *m, const rank_command *c, void *data, size_t bytes,
                          qp_error *error)
{
    if (is_page(c)) return machine_read_page(&m->machine, c->from, data, error);
    return machine_read(&m->machine, (plan_tensor_id)c->tensor, c->layer, data, bytes, error);
}

/* The first `bytes` of a tensor, or a page of the cache: the member's part of its rows into the
 * stage of the group. */
static qp_status stage_part(rank_member *m, const rank_command *c, qp_error *error)
{
    const rank_pieces pieces = pieces_of(m, c);
    const size_t bytes = own_bytes(&pieces, c);
    void *stage = comm_stage(m->comm, bytes);
    return stage ? read_own(m, c, stage, bytes, error) : group_failed(m->comm, error);
}

/* A gathered tensor has the first `bytes` of each row. */
static qp_status keep_gathered(rank_member *m, plan_tensor_id id, size_t bytes,
                               const rank_pieces *p, const char *whole, size_t rows,
                               qp_error *error)
{
    const int i = id == PLAN_QK_ALL ? 2 : id == PLAN_FFN_ALL;
    char *all = malloc(rows * bytes + 1);
    if (!all) return error_no_memory(error, "rows of a tensor", rows * bytes);
    for (size_t row = 0; row < rows; row++)
        memcpy(all + row * bytes, whole + row * p->whole_row, bytes);
    free(m->kept[i].data);
    m->kept[i].id = id;
    m->kept[i].data = all;
    m->kept[i].bytes = rows * bytes;
    return QP_OK;
}

qp_status rank_member_begin(rank_member *m, int first, qp_error *error)
{
    qp_status status = QP_OK;
    for (int i = 0; i < RANK_KEPT; i++) {
        if (!m->kept[i].data) continue;
        if (status == QP_OK && program_step_access(&m->program, first, m->kept[i].id).read)
            status = machine_write(&m->machine, m->kept[i].id, 0, m->kept[i].data, m->kept[i].bytes,
                                   error);
        free(m->kept[i].data);
        m->kept[i].data = NULL;
    }
    return status;
}

qp_status rank_member_put(rank_member *m, const rank_command *c, const void *whole, qp_error *error)
{
    const rank_pieces pieces = pieces_of(m, c);
    const plan_tensor_id id = (plan_tensor_id)c->tensor;
    if (pieces.n == 0 || (!is_page(c) && pieces.gathered == id))
        return machine_write(&m->machine, id, c->layer, whole, c->bytes, error);
    const size_t rows = c->bytes / pieces.whole_row, bytes = own_bytes(&pieces, c);
    void *own = malloc(bytes + 1);
    if (!own) return error_no_memory(error, "rows of a tensor", bytes);
    rank_pieces_split(&pieces, rows, whole, own);
    qp_status status = is_page(c) ? machine_write_page(&m->machine, c->from, own, error)
                                  : machine_write(&m->machine, id, c->layer, own, bytes, error);
    free(own);
    if (status == QP_OK && !is_page(c) && pieces.gathered != PLAN_NAMED)
        status =
            keep_gathered(m, pieces.gathered, pieces.gathered_bytes, &pieces, whole, rows, error);
    if (status == QP_OK && !is_page(c) && pieces.qk_bytes)
        status = keep_gathered(m, PLAN_QK_ALL, pieces.qk_bytes, &pieces, whole, rows, error);
    return status;
}

/* ---- commands ------------------------------------------------------------------------------ */

/* Inputs of the batch follow the command, in the order of the plan's tensors; then its angles, and
 * the stop tokens. */
static const char *take_inputs(rank_member *m, const rank_command *c, const char *data)
{
    batch *b = &m->batch;
    b->sizes = c->sizes;
    for (int id = 0; id < PLAN_NAMED; id++) {
        const size_t bytes = rank_input_bytes(&m->program, (plan_tensor_id)id, &c->sizes);
        if (bytes) memcpy(b->of[id], data, bytes);
        data += bytes;
    }
    const size_t angles = rank_angle_bytes(b);
    if (angles) memcpy(b->angles, data, angles);
    return data + angles;
}

static int32_t *take_tokens(rank_member *m, size_t count, qp_error *error)
{
    const int run = m->next_run;
    m->next_run = (run + 1) % MACHINE_MAX_RUNS;
    if (m->token_capacity[run] < count) {
        free(m->tokens[run]);
        m->tokens[run] = malloc(count * sizeof *m->tokens[run]);
        m->token_capacity[run] = m->tokens[run] ? count : 0;
        if (!m->tokens[run]) error_no_memory(error, "tokens", count * sizeof *m->tokens[run]);
    }
    return m->tokens[run];
}

static qp_status run(rank_member *m, const rank_command *c, const char *data, qp_error *error)
{
    const char *stops = take_inputs(m, c, data);
    const size_t rows = (size_t)batch_outputs(&m->batch),
                 passes = c->passes > 0 ? (size_t)c->passes : 1;
    int32_t *tokens = take_tokens(m, rows * passes + c->n_stops + 1, error);
    if (!tokens) return QP_NO_MEMORY;
    memcpy(tokens + rows * passes, stops, c->n_stops * sizeof *tokens);
    machine_request request = {.batch = &m->batch,
                               .first = c->first,
                               .last = c->last,
                               .passes = c->passes,
                               .continues = c->continues,
                               .choice = (machine_choice)c->choice,
                               .tokens = tokens,
                               .stops = tokens + rows * passes,
                               .n_stops = c->n_stops};
    TRY(rank_member_take_records(m, c->records, &request, error));
    TRY(rank_member_begin(m, c->first, error));
    TRY(machine_run(&m->machine, &request, error));
    return comm_check(m->comm, error);
}

/* Gives what the leader asked for. */
static qp_status give(rank_member *m, const rank_command *c, qp_error *error)
{
    const rank_pieces pieces = pieces_of(m, c);
    TRY(stage_part(m, c, error));
    return comm_exchange(m->comm, TAG_DATA, own_bytes(&pieces, c), c->bytes, COMM_BUSY)
               ? QP_OK
               : group_failed(m->comm, error);
}

static qp_status wait(rank_member *m, qp_error *error)
{
    TRY(machine_wait(&m->machine, NULL, error));
    return rank_member_share_records(m, NULL, NULL, error);
}

static qp_status carry_out(rank_member *m, const rank_command *c, const void *data, qp_error *error)
{
    switch (c->what) {
    case RANK_RUN:
        return run(m, c, data, error);
    case RANK_WAIT:
        return wait(m, error);
    case RANK_READ:
    case RANK_READ_PAGE:
        return give(m, c, error);
    case RANK_WRITE:
    case RANK_WRITE_PAGE:
        return rank_member_put(m, c, data, error);
    case RANK_COPY_PAGE:
        return machine_copy_page(&m->machine, c->from, c->to, error);
    case RANK_TIME:
        return c->launches ? rank_member_time_launches(m, c->records, error)
                           : rank_member_time(m, c->records, NULL, error);
    case RANK_LIMITS:
        return rank_member_limits(m, NULL, error);
    case RANK_RESCHEDULE:
        return rank_member_reschedule(m, data, NULL, error);
    default:
        return QP_OK;
    }
}

/* The leader gives a command in one exchange, and data that do not fit there in another. */
static qp_status take_command(rank_member *m, rank_command *c, const void **data, qp_error *error)
{
    const size_t most = sizeof *c + RANK_INLINE_BYTES;
    if (!comm_stage(m->comm, 0)) return group_failed(m->comm, error);
    const comm_part *parts = comm_exchange(m->comm, TAG_COMMAND, 0, most, COMM_IDLE);
    if (!parts) return group_failed(m->comm, error);
    memcpy(c, parts[0].data, sizeof *c);
    *data = (const char *)parts[0].data + sizeof *c;
    if (!rank_command_has_data(c) || c->bytes <= RANK_INLINE_BYTES) return QP_OK;
    if (!comm_stage(m->comm, 0)) return group_failed(m->comm, error);
    parts = comm_exchange(m->comm, TAG_DATA, 0, c->bytes, COMM_BUSY);
    if (!parts) return group_failed(m->comm, error);
    *data = parts[0].data;
    return QP_OK;
}

qp_status rank_command_send(comm *comm, const rank_command *c, const void *data, qp_error *error)
{
    const size_t most = sizeof *c + RANK_INLINE_BYTES;
    const bool follows = rank_command_has_data(c),
               inlined = follows && c->bytes <= RANK_INLINE_BYTES;
    const size_t bytes = sizeof *c + (inlined ? c->bytes : 0);
    char *stage = comm_stage(comm, bytes);
    if (!stage) return group_failed(comm, error);
    memcpy(stage, c, sizeof *c);
    if (inlined) memcpy(stage + sizeof *c, data, c->bytes);
    if (!comm_exchange(comm, TAG_COMMAND, bytes, most, COMM_READY))
        return group_failed(comm, error);
    if (!follows || inlined) return QP_OK;
    stage = comm_stage(comm, c->bytes);
    if (!stage) return group_failed(comm, error);
    memcpy(stage, data, c->bytes);
    return comm_exchange(comm, TAG_DATA, c->bytes, c->bytes, COMM_BUSY) ? QP_OK
                                                                        : group_failed(comm, error);
}

static const comm_part *share_part(comm *comm, const void *data, size_t bytes, size_t most)
{
    void *stage = comm_stage(comm, bytes);
    if (!stage) return NULL;
    if (bytes) memcpy(stage, data, bytes);
    return comm_exchange(comm, TAG_DATA, bytes, most, COMM_BUSY);
}

const comm_part *rank_share(comm *comm, const void *data, size_t bytes, qp_error *error)
{
    const uint64_t own = bytes;
    uint64_t most = 0;
    const comm_part *parts = share_part(comm, &own, sizeof own, sizeof own);
    for (int r = 0; parts && r < comm_size(comm); r++) {
        uint64_t size;
        memcpy(&size, parts[r].data, sizeof size);
        if (size > most) most = size;
    }
    if (parts) parts = share_part(comm, data, bytes, most);
    if (!parts) group_failed(comm, error);
    return parts;
}

const comm_part *rank_member_collect(rank_member *m, const rank_command *c, qp_error *error)
{
    const rank_pieces pieces = pieces_of(m, c);
    if (stage_part(m, c, error) != QP_OK) return NULL;
    const comm_part *parts =
        comm_exchange(m->comm, TAG_DATA, own_bytes(&pieces, c), c->bytes, COMM_BUSY);
    if (!parts) group_failed(m->comm, error);
    return parts;
}

qp_status rank_member_follow(rank_member *m, qp_error *error)
{
    for (;;) {
        rank_command command;
        const void *data = NULL;
        TRY(take_command(m, &command, &data, error));
        if (command.what == RANK_CLOSE) return QP_OK;
        qp_error why = {0};
        qp_status status = carry_out(m, &command, data, &why);
        if (status == QP_OK) continue;
        comm_abort(m->comm, why.message);
        return error_set(error, status, "%s", why.message);
    }
}
