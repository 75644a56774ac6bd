/* Packing weights: see pack.h. */
#include "vm/pack.h"

#include "base/checked.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/platform.h"
#include "op/linear/linear.h"
#include "plan/weights.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    PACKED_ALIGNMENT = 64,
    PIECE_BYTES = 8 << 20,  /* stored bytes that are packed before they are released: a few
                               instructions' worth of memory in addition to the weights */
    READ_BYTES = 256 << 10, /* stored bytes that a worker reads at a time: they stay in L2 */
};

/* Bytes of a node's packed weights; 0 if kernels read them as stored. `call` is the call of the
 * whole node. */
static size_t packed_bytes_of(const executor *x, int n, op_call *call)
{
    const op_variant *variant = x->nodes[n].variant;
    if (!variant || !variant->packed_bytes) return 0;
    executor_bind(x, n, &x->program->capacity, call);
    return round_up(variant->packed_bytes(call), PACKED_ALIGNMENT);
}

static bool is_packed(const executor *x, int n)
{
    return x->nodes[n].variant && x->nodes[n].variant->packed_bytes;
}

/* The number of the weight whose elements the operand reads; -1: none, or a bias, which is never
 * packed. */
static int stored_weight(const executor *x, int n, int operand)
{
    const program_weight *weight = program_weight_of(x->program, n, operand);
    return weight && !weight->bias ? weight->stored : -1;
}

static bool reads_weight(const executor *x, int n, int weight)
{
    for (int i = 0; i < op_n_tensors(op_get(x->program->nodes[n].op)); i++) {
        if (stored_weight(x, n, i) == weight) return true;
    }
    return false;
}

/* Whether a node that is not packed (yet) reads the weight. */
static bool is_needed_as_stored(const executor *x, int weight)
{
    for (int n = 0; n < x->program->n_nodes; n++) {
        if (!x->nodes[n].packed && reads_weight(x, n, weight)) return true;
    }
    return false;
}

/* Only matrices are packed; a fused product reads the weight of its norm as stored. */
static bool is_vector(const executor *x, int weight)
{
    return x->program->weights[weight].whole.rank == 1;
}

/* Gives back the executor's own copy of an operand's weight if no node reads it as stored any more.
 * A tied output has a copy for itself. */
static void discard_own(const executor *x, int n, int operand)
{
    const program_weight *weight = program_weight_of(x->program, n, operand);
    for (int m = 0; m < x->program->n_nodes; m++)
        for (int i = 0; i < op_n_tensors(op_get(x->program->nodes[m].op)); i++)
            if (!x->nodes[m].packed && program_weight_of(x->program, m, i) == weight) return;
    executor_discard_own(x, (int)(weight - x->program->weights));
}

/* Releases the stored form of a node's weights, permanently where nothing reads it any more. */
static void release_weights(const executor *x, int n, bool is_done)
{
    for (int i = 0; i < op_n_tensors(op_get(x->program->nodes[n].op)); i++) {
        const int weight = stored_weight(x, n, i);
        if (weight < 0) continue;
        if (is_done && !is_vector(x, weight)) discard_own(x, n, i);
        program_release_weight(x->program, weight);
        if (is_done && !is_vector(x, weight) && !is_needed_as_stored(x, weight))
            program_discard_weight(x->program, weight);
    }
}

typedef struct pack_task {
    const op_variant *variant;
    const op_call *call;
    void *packed;
    int64_t begin, end; /* units */
} pack_task;

static void pack_share(void *context, int worker, int n_workers)
{
    const pack_task *task = context;
    op_call call = *task->call;
    int64_t group = task->variant->pack_units, units = task->end - task->begin, begin, end;
    thread_share((units + group - 1) / group, worker, n_workers, &begin, &end);
    call.begin = task->begin + begin * group;
    call.end = end * group < units ? task->begin + end * group : task->end;
    if (call.begin < call.end) task->variant->pack(&call, task->packed);
}

/* ---- weights in files ---------------------------------------------------------------------- */

/* The weight that only a product reads from a file, so that it can be read in parts; -1: the node
 * has other weights. */
static int weight_to_read(const executor *x, int n)
{
    if (x->program->nodes[n].op != OP_LINEAR) return -1;
    const program_weight *w = program_weight_of(x->program, n, LINEAR_WEIGHT);
    if (!w || w->bias || w->lora) return -1;
    const int weight = (int)(w - x->program->weights);
    return program_weight_is_mapped(x->program, weight) && !program_weight_has_columns(w) ? weight
                                                                                          : -1;
}

/* Rows that a worker reads at a time, in whole groups of the variant. */
static int64_t rows_to_read(const op_variant *variant, const tensor *weight)
{
    const int64_t group = variant->pack_units, fit = READ_BYTES / weight->stride[0] / group * group;
    return fit > group ? fit : group;
}

static size_t bytes_to_read(const executor *x)
{
    size_t most = 0;
    op_call call;
    for (int n = 0; n < x->program->n_nodes; n++) {
        if (packed_bytes_of(x, n, &call) == 0 || weight_to_read(x, n) < 0) continue;
        const tensor *weight = &call.tensors[LINEAR_WEIGHT];
        const size_t bytes =
            (size_t)(rows_to_read(x->nodes[n].variant, weight) * weight->stride[0]);
        if (bytes > most) most = bytes;
    }
    return round_up(most, PACKED_ALIGNMENT);
}

typedef struct read_task {
    const program *program;
    int weight;
    const op_variant *variant;
    const op_call *call; /* of the whole node */
    char *packed, *rooms;
    size_t room_bytes;  /* of a worker */
    atomic_llong begin; /* the first row that no worker has taken */
} read_task;

/* Rows [begin, end), which are read to `room`. */
static void read_and_pack(const read_task *task, int64_t begin, int64_t end, char *room)
{
    const tensor *whole = &task->call->tensors[LINEAR_WEIGHT];
    op_call part = *task->call, before = part;
    before.tensors[LINEAR_WEIGHT] = tensor_slice(*whole, 0, 0, begin);
    part.tensors[LINEAR_WEIGHT] = tensor_slice(*whole, 0, begin, end - begin);
    part.tensors[LINEAR_WEIGHT].data = room;
    part.begin = 0;
    part.end = end - begin;
    program_read_weight(task->program, task->weight, begin, end - begin, room, NULL);
    task->variant->pack(&part, task->packed + task->variant->packed_bytes(&before));
}

/* Workers take rows in turn: one may be suspended, or also run another thread. */
static void read_share(void *context, int worker, int n_workers)
{
    (void)n_workers;
    read_task *task = context;
    const tensor *weight = &task->call->tensors[LINEAR_WEIGHT];
    const int64_t rows = weight->shape[0], each = rows_to_read(task->variant, weight);
    for (int64_t begin; (begin = atomic_fetch_add(&task->begin, each)) < rows;)
        read_and_pack(task, begin, begin + each < rows ? begin + each : rows,
                      task->rooms + (size_t)worker * task->room_bytes);
}

/* ---- weights that passes read until they are packed ---------------------------------------- */

/* Whether executor_pack() leaves the node to executor_pack_more(). */
static bool is_left(const executor *x, int n)
{
    return x->unpacked && x->unpacked[n].variant;
}

/* Whether what is read twice from files stays in memory beside the packed weights. Otherwise the
 * disk would be read twice. */
static bool stay_cached(const executor *x)
{
    uint64_t bytes = 0;
    op_call call;
    for (int n = 0; n < x->program->n_nodes; n++)
        bytes += packed_bytes_of(x, n, &call);
    return 2 * bytes <= platform_free_memory();
}

qp_status executor_leave_unpacked(executor *x, qp_error *error)
{
    if (!stay_cached(x)) return QP_OK;
    const size_t room_at = round_up(x->scratch_bytes, PACKED_ALIGNMENT);
    size_t most = 0;
    op_call call;
    x->unpacked = calloc((size_t)x->program->n_nodes, sizeof *x->unpacked);
    if (!x->unpacked)
        return error_no_memory(error, "weights that are not packed",
                               (size_t)x->program->n_nodes * sizeof *x->unpacked);
    for (int n = 0; n < x->program->n_nodes; n++) {
        const int weight = weight_to_read(x, n);
        if (packed_bytes_of(x, n, &call) == 0 || weight < 0) continue;
        const op_variant *variant = x->nodes[n].variant;
        x->unpacked[n] = (unpacked){x->program, weight, variant, room_at, NULL};
        const size_t bytes = unpacked_room(variant, &call);
        if (bytes > most) most = bytes;
    }
    x->scratch_bytes = room_at + round_up(most, PACKED_ALIGNMENT);
    return QP_OK;
}

/* ---- all weights --------------------------------------------------------------------------- */

/* The number of units whose weights take about PIECE_BYTES, in whole groups of the variant. */
static int64_t units_of_piece(const op_variant *variant, size_t packed_bytes, int64_t units)
{
    int64_t group = variant->pack_units, pieces = (int64_t)(packed_bytes / PIECE_BYTES) + 1;
    int64_t each = (units + pieces - 1) / pieces;
    return (each + group - 1) / group * group;
}

/* Packs what is in memory, or mapped, and releases it piece by piece. */
static void pack_stored(executor *x, int n, const op_call *call, size_t bytes, char *packed,
                        progress *progress)
{
    const op_variant *variant = x->nodes[n].variant;
    int64_t units = op_get(x->program->nodes[n].op)->units(call);
    int64_t each = units_of_piece(variant, bytes, units);
    size_t reported = 0;
    for (int64_t begin = 0; begin < units; begin += each) {
        int64_t end = begin + each < units ? begin + each : units;
        pack_task task = {variant, call, packed, begin, end};
        thread_pool_run(x->pool, pack_share, &task);
        release_weights(x, n, false);
        size_t done = (size_t)((double)bytes * (double)end / (double)units);
        progress_advance(progress, done - reported);
        reported = done;
    }
}

static void pack_node(executor *x, int n, const op_call *call, size_t bytes, char *packed,
                      progress *progress)
{
    const int weight = weight_to_read(x, n);
    if (weight >= 0) {
        read_task task = {.program = x->program,
                          .weight = weight,
                          .variant = x->nodes[n].variant,
                          .call = call,
                          .packed = packed,
                          .rooms = x->reading.data,
                          .room_bytes = x->reading.bytes / (size_t)thread_pool_size(x->pool)};
        thread_pool_run(x->pool, read_share, &task);
        progress_advance(progress, bytes);
        x->nodes[n].packed = packed;
        return;
    }
    pack_stored(x, n, call, bytes, packed, progress);
    x->nodes[n].packed = packed;
    release_weights(x, n, true);
}

/* Reading a tensor also maps pages of its neighbours, some of which were released before. What is
 * still read as stored are norms and rows of the embedding, which lie far from each other. */
static void release_all(const executor *x)
{
    for (int i = 0; i < x->program->n_weights; i++) {
        program_release_weight(x->program, i);
        program_read_sparsely(x->program, i);
    }
}

/* The embedding's number, if it is in a mapped file and only single rows of it are still read; else
 * -1. */
static int table_read_by_rows(const executor *x)
{
    const int table = program_find_weight(x->program, WEIGHT_TOKEN_EMBD, -1, false);
    if (table < 0 || !program_weight_is_mapped(x->program, table)) return -1;
    for (int n = 0; n < x->program->n_nodes; n++) {
        const bool stored = !x->nodes[n].packed && !is_left(x, n);
        if (stored && x->program->nodes[n].op != OP_EMBEDDING && reads_weight(x, n, table))
            return -1;
    }
    return table;
}

static qp_status make_rows(executor *x, int weight, qp_error *error)
{
    const tensor *table = &x->program->weights[weight].whole;
    size_t row_bytes = (size_t)table->stride[0], tokens = (size_t)x->program->options.max_tokens;
    size_t rows_bytes = round_up(tokens * row_bytes, PACKED_ALIGNMENT);
    TRY(buffer_alloc(&x->rows.memory, rows_bytes + tokens * sizeof(int32_t), "embedding rows",
                     error));
    x->rows.weight = weight;
    x->rows.table = table->data;
    x->rows.row_bytes = row_bytes;
    x->rows.numbers = (int32_t *)((char *)x->rows.memory.data + rows_bytes);
    for (size_t i = 0; i < tokens; i++)
        x->rows.numbers[i] = (int32_t)i;
    x->weights[weight] = x->rows.memory.data;
    return QP_OK;
}

/* A number for what is packed, and by which kernels. */
static uint64_t shape_of(const executor *x)
{
    op_call call;
    uint64_t sum = 0;
    for (int n = 0; n < x->program->n_nodes; n++) {
        const size_t bytes = packed_bytes_of(x, n, &call);
        if (bytes == 0) continue;
        const char *name = x->nodes[n].variant->name;
        sum = checksum(name, strlen(name), hash_random(sum, (uint64_t)n, bytes));
        for (int i = 0; i < op_n_tensors(op_get(x->program->nodes[n].op)); i++) {
            const program_weight *w = program_weight_of(x->program, n, i);
            if (!w) continue;
            const int64_t facts[] = {
                w->slot,       w->layer,         w->bias,          w->rows.first,
                w->rows.count, w->columns.first, w->columns.count, (int64_t)w->whole.type};
            sum = checksum(facts, sizeof facts, sum);
        }
    }
    return sum;
}

/* Whether files hold all weights that are packed, so that a file can keep their packed form. */
static bool is_in_files(const executor *x)
{
    for (int n = 0; n < x->program->n_nodes; n++)
        for (int i = 0; i < op_n_tensors(op_get(x->program->nodes[n].op)); i++) {
            const int weight = stored_weight(x, n, i);
            if (is_packed(x, n) && weight >= 0 && !program_weight_is_mapped(x->program, weight))
                return false;
        }
    return true;
}

/* Packs all nodes, or, if their packed weights are there already, only finds their places. */
static void pack_all(executor *x, bool packed, progress *progress)
{
    op_call call;
    size_t offset = 0;
    for (int n = 0; n < x->program->n_nodes; n++) {
        const size_t bytes = packed_bytes_of(x, n, &call);
        if (bytes == 0) continue;
        char *at = (char *)x->packed.data + offset;
        if (packed)
            x->nodes[n].packed = at;
        else if (is_left(x, n))
            x->unpacked[n].packed_to = at;
        else
            pack_node(x, n, &call, bytes, at, progress);
        offset += bytes;
    }
}

static qp_status pack(executor *x, size_t total, progress *progress, qp_error *error)
{
    const size_t room_bytes = bytes_to_read(x) * (size_t)thread_pool_size(x->pool);
    TRY(buffer_alloc(&x->packed, total, "packed weights", error));
    TRY(buffer_alloc(&x->reading, room_bytes, "weights that are read", error));
    progress_begin(progress, "arranging weights", total);
    pack_all(x, false, progress);
    progress_end(progress);
    progress_stage_ended(progress, "arranging weights");
    if (!x->unpacked) buffer_free(&x->reading);
    return QP_OK;
}

/* The same with a file: mapped, or written. */
static qp_status pack_with_cache(executor *x, pack_cache *cache, size_t total, progress *progress,
                                 qp_error *error)
{
    const uint64_t shape = shape_of(x);
    if (pack_cache_load(cache, x->pool, shape, total, &x->packed)) {
        pack_all(x, true, progress);
        progress_stage_ended(progress, "mapping arranged weights");
        return QP_OK;
    }
    TRY(pack(x, total, progress, error));
    pack_cache_save(cache, x->pool, shape, &x->packed, progress);
    progress_stage_ended(progress, "saving arranged weights");
    return QP_OK;
}

qp_status executor_pack(executor *x, pack_cache *cache, progress *progress, qp_error *error)
{
    op_call call;
    size_t total = 0;
    for (int n = 0; n < x->program->n_nodes; n++)
        total += packed_bytes_of(x, n, &call);
    if (total == 0) return QP_OK;
    if (cache && is_in_files(x))
        TRY(pack_with_cache(x, cache, total, progress, error));
    else
        TRY(pack(x, total, progress, error));
    release_all(x);
    const int table = table_read_by_rows(x);
    return table >= 0 ? make_rows(x, table, error) : QP_OK;
}

bool executor_pack_more(executor *x, uint64_t ns)
{
    const uint64_t begin = clock_ns();
    bool some = false;
    int n = 0;
    for (; x->unpacked && n < x->program->n_nodes; n++) {
        op_call call;
        if (!is_left(x, n)) continue;
        if (clock_ns() - begin >= ns) return some;
        const size_t bytes = packed_bytes_of(x, n, &call);
        pack_node(x, n, &call, bytes, x->unpacked[n].packed_to, NULL);
        x->unpacked[n].variant = NULL;
        some = true;
    }
    free(x->unpacked);
    x->unpacked = NULL;
    buffer_free(&x->reading);
    return some;
}

/* Bytes of the node's weights that stay as stored. The embedding is counted whole, although a run
 * touches few of its rows if it is in a mapped file. */
static uint64_t stored_bytes_of(const executor *x, int n)
{
    op_call call;
    uint64_t bytes = 0;
    executor_bind(x, n, &x->program->capacity, &call);
    for (int i = 0; i < op_n_tensors(op_get(x->program->nodes[n].op)); i++) {
        const tensor *weight = &call.tensors[i];
        const program_weight *of = program_weight_of(x->program, n, i);
        if (!of || of->bias) continue;
        if (weight->rank == 1 || !is_packed(x, n)) bytes += tensor_bytes(weight);
    }
    return bytes;
}

uint64_t executor_weight_bytes(const executor *x)
{
    uint64_t bytes = 0;
    op_call call;
    for (int n = 0; n < x->program->n_nodes; n++)
        bytes += packed_bytes_of(x, n, &call) + stored_bytes_of(x, n);
    return bytes;
}

void executor_take_rows(executor *x, const batch *batch)
{
    const int32_t *ids = batch->of[PLAN_TOKEN_IDS];
    const size_t row_bytes = x->rows.row_bytes;
    for (int64_t i = 0; i < batch_tokens(batch); i++) {
        memcpy((char *)x->rows.memory.data + (size_t)i * row_bytes,
               x->rows.table + (size_t)ids[i] * row_bytes, row_bytes);
        program_release_weight(x->program, x->rows.weight); /* reading a row maps a megabyte */
    }
    x->memory.data[PLAN_TOKEN_IDS] = x->rows.numbers;
}
