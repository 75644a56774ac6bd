/* Passes of two to eight rows: tokens of several sequences, or of one at consecutive positions.
 * Other kernels than those of one token run the same program, in separate memory.
 *
 * Their residual has another layout, and their passes have a separate count, so the two kinds of
 * passes share no state but the KV cache. Blocks of a KV head wait for each other's attention
 * inside an entry, and each block adds a share of the residual in every step. Both need one entry
 * of each step in every block. With an assignment strategy that does not give that, the megakernel
 * does not run several sequences.
 */
#include "vm/mega/batch_fragments.h"
#include "vm/mega/parts.h"

#include "base/checked.h"

#include <stdio.h>
#include <string.h>

enum {
    OWN_PARTS = 9,
    MAX_BOX = 256 /* elements of a box in one dimension, at most: CUDA's limit */
};

/* Bytes of each part; returns their sum. Parts: x; q, k and v; attention's outputs; states;
 * counters; keys; tensor maps; features; the published x. */
static size_t count_own(const model_config *c, size_t bytes[OWN_PARTS])
{
    size_t layers = (size_t)c->n_layers, heads = (size_t)c->n_kv_heads;
    size_t group = (size_t)(c->n_heads / c->n_kv_heads), dim = (size_t)c->head_dim;
    const size_t parts[OWN_PARTS] = {
        MEGA_ROWS * 2 * (2 * layers + 1) * (size_t)c->hidden_size * sizeof(int64_t),
        MEGA_ROWS * layers * heads * (group + 2) * dim * sizeof(uint64_t),
        MEGA_ROWS * layers * heads * group * dim * sizeof(uint64_t),
        MEGA_ROWS * heads * MEGA_MAX_PARTITIONS * group * (dim + 2) * sizeof(uint64_t),
        MEGA_COUNTER_WORDS * sizeof(uint32_t),
        MEGA_ROWS * 2 * sizeof(uint64_t),
        layers * (size_t)mega_column_blocks(c) * MEGA_MAP_BYTES,
        MEGA_ROWS * (size_t)c->intermediate_size * sizeof(uint64_t),
        MEGA_ROWS * 2 * (2 * layers + 1) * (size_t)c->hidden_size * sizeof(float),
    };
    size_t total = 0;
    for (int i = 0; i < OWN_PARTS; i++)
        total += bytes[i] = round_up(parts[i], CUDA_ALIGNMENT);
    return total;
}

/* The rows of a pass are dealt to blocks once, for all layers. */
static bool has_one_window(const program *p)
{
    for (int64_t layer = 1; layer < p->config.n_layers; layer++)
        if (program_window(p, layer) != program_window(p, 0)) return false;
    return true;
}

/* What kernels for several rows lack. */
static bool takes_family(const program *p)
{
    return mega_biases_qkv_only(p) && has_one_window(p);
}

static bool has_kernels(const program *p)
{
    return takes_family(p) && p->config.hidden_size <= MEGA_MAX_HIDDEN && !mega_is_quantized(p) &&
           p->options.ranks == 1 && p->options.kv_type != DTYPE_F8;
}

/* Whether rows may be of several sequences: elsewhere chains read them faster. Quantised weights
 * have kernels for nothing else, because those give other bits than one row's. */
static bool has_sequences(const program *p)
{
    const int blocks = mega_column_blocks(&p->config);
    if (p->options.ranks > 1 || !takes_family(p)) return false;
    if (!mega_is_quantized(p)) return has_kernels(p) && blocks == 1 && !mega_is_half(p);
    return mega_batch_image(p) && (blocks == 1 || (blocks == 2 && p->config.head_dim == 128));
}

static bool runs_batches(const program *p, bool verifies)
{
    return verifies ? has_kernels(p) : has_sequences(p) && p->options.max_sequences > 1;
}

static int most_rows(const cuda_mega *m)
{
    return m->quantized ? MEGA_ROWS : MEGA_ROWS / mega_column_blocks(&m->executor->program->config);
}

size_t mega_count_batch(const program *p, bool verifies)
{
    size_t bytes[OWN_PARTS];
    return runs_batches(p, verifies) ? count_own(&p->config, bytes) : 0;
}

const char *mega_verify_refusal(const program *p)
{
    return has_kernels(p) ? NULL
                          : "the megakernel reads several tokens of a sequence in a pass where "
                            "weights are BF16 or F16, the KV cache is in 16 bits, the hidden "
                            "size is at most 4096, only q, k and v have biases and all layers "
                            "have the same window";
}

static size_t place(size_t *used, size_t bytes)
{
    size_t at = *used;
    *used += round_up(bytes, 128);
    return at;
}

/* The most features of the MLP that a block has. */
static int64_t most_features(const schedule *s)
{
    int64_t most = 0;
    for (int b = 0; b < s->options.workers; b++)
        for (int i = 0; i < s->length[b]; i++) {
            const instruction *in = schedule_queue(s, b) + i;
            int64_t units = in->units.end - in->units.begin;
            if (in->opcode == OP_NORM_MLP && units > most) most = units;
        }
    return most;
}

/* Elements from sequence to sequence in a plane of features: a multiple of those multiplied at
 * once, and a gap so that eight sequences are in different banks. */
static size_t feature_row(size_t features)
{
    return round_up(features, MEGA_FEATURES) + MEGA_TILE;
}

/* Bytes of two buffers for sums of products of two chunks, and of a norm's weight for each warp's
 * columns where that is more; features of peers are stored there too. */
static size_t sums_bytes(const cuda_mega *m)
{
    const size_t norm = 128 * sizeof(float);
    if (most_rows(m) < MEGA_ROWS)
        return MEGA_WARPS * (2 * MEGA_TILE * MEGA_ROWS / 2 * sizeof(float) + 2 * norm);
    const size_t tiles = m->quantized ? FRAGMENT_TURN_TILES : 1; /* of 16 rows */
    return 2 * tiles * MEGA_WARPS * FRAGMENT_ROWS * MEGA_ROWS * sizeof(float);
}

/* Bytes of a block's features of all rows, as planes. */
static size_t feature_bytes(int64_t features)
{
    return MEGA_PARTS * MEGA_ROWS * feature_row((size_t)features) * sizeof(uint16_t);
}

/* Of quantised weights a box is a fragment's rows, for 32 features, the first of which may be
 * another block's. */
static down_boxes fragment_boxes(const cuda_mega *m, int64_t features)
{
    features += mega_features_lead(m);
    const int below = fragments_below((int)m->executor->program->config.hidden_size);
    down_boxes boxes = {.rows = (int32_t)features, .groups = 1, .chunks = below, .peers = 1};
    for (int n = MEGA_PEERS; n > 1 && boxes.peers == 1; n--)
        if (m->n_blocks % n == 0 && below % n == 0 &&
            (size_t)(n - 1) * feature_bytes(features) <= sums_bytes(m))
            boxes.peers = n;
    return boxes;
}

down_boxes mega_down_boxes(const cuda_mega *m)
{
    int64_t features = most_features(&m->schedule);
    int64_t groups = m->executor->program->config.hidden_size / 64, all = groups;
    int64_t last = (int64_t)round_up((size_t)features, MEGA_FEATURES);
    const size_t planes = feature_bytes(features);
    down_boxes boxes = {.rows = (int32_t)features, .peers = 1};
    if (features && m->quantized) return fragment_boxes(m, features);
    if (!features || last > MAX_BOX) return boxes;
    if (groups > MEGA_WARPS / 4) groups = MEGA_WARPS / 4;
    if (groups > (MAX_BOX - last) / features + 1) groups = (MAX_BOX - last) / features + 1;
    while (MEGA_COLUMNS / 64 % groups) /* a box is within a block of columns */
        groups--;
    boxes.groups = (int32_t)groups;
    boxes.chunks = (int32_t)((all + groups - 1) / groups);
    for (int n = MEGA_PEERS; n > 1 && boxes.peers == 1; n--)
        if (m->n_blocks % n == 0 && boxes.chunks % n == 0 &&
            (size_t)(n - 1) * planes <= sums_bytes(m))
            boxes.peers = n;
    return boxes;
}

/* The order in which a block multiplies chunks. The block multiplies each chunk by its own features
 * first. It also multiplies the next chunk by its own features before it multiplies this chunk by
 * the peers' features, because those arrive later. */
static void set_turns(mega_arguments *a)
{
    for (int share = -1; share < a->down_share; share++) {
        if (share + 1 < a->down_share)
            a->turns[a->n_turns++] = (mega_turn){0, (uint8_t)(share + 1)};
        for (int peer = 1; share >= 0 && peer < a->peers; peer++)
            a->turns[a->n_turns++] = (mega_turn){(uint8_t)peer, (uint8_t)share};
    }
}

/* Cuts W_down into boxes; false: it cannot be cut. The last group is read in whole tiles, which
 * must stay inside the stage, because the bytes after the ring may be NaN. */
static bool set_boxes(const cuda_mega *m, mega_arguments *a)
{
    down_boxes boxes = mega_down_boxes(m);
    if (!boxes.groups || (!m->quantized && boxes.chunks > MEGA_TURNS) ||
        a->hidden > m->n_blocks * MEGA_PUBLISHED_COLUMNS)
        return false;
    a->down_rows = boxes.rows;
    a->down_groups = boxes.groups;
    a->down_share = boxes.chunks / boxes.peers;
    a->peers = boxes.peers;
    if (!m->quantized) set_turns(a);
    return true;
}

/* Bytes of a KV head's queries of two rows, with the newest key and value of one. */
static size_t joined_inputs(const cuda_mega *m)
{
    const program *p = m->executor->program;
    const size_t dim = (size_t)p->config.head_dim, parts = p->options.kv_type == DTYPE_F16 ? 2 : 3;
    const size_t heads = 2 * (size_t)(p->config.n_heads / p->config.n_kv_heads);
    return 4 * dim + 80 + parts * heads * (2 * dim + 16);
}

/* Products and attention use the first part in turns. */
static void lay_out(const cuda_mega *m, mega_arguments *a, bool joins)
{
    const model_config *c = &m->executor->program->config;
    const mega_shared one = m->arguments.shared;
    mega_shared *s = &a->shared;
    size_t group = (size_t)(c->n_heads / c->n_kv_heads), heads = group * (size_t)c->head_dim;
    size_t results_rows = one.sum_pitch;
    const mega_attention_bytes attention = mega_attention_of(m, MEGA_BOX);
    size_t features = feature_row((size_t)a->down_rows), used = 0;
    const size_t rows = (size_t)most_rows(m);
    size_t head_sums = heads / 64 * one.sum_pitch * rows * sizeof(float);
    *s = (mega_shared){.head_row = (uint32_t)heads + 8,
                       .head_plane = ((uint32_t)heads + 8) * MEGA_ROWS,
                       .feature_row = (uint32_t)features,
                       .feature_plane = (uint32_t)features * MEGA_ROWS,
                       .sum_pitch = one.sum_pitch - 4,
                       .result_pitch = (uint32_t)results_rows};
    used = sums_bytes(m);
    s->results = (uint32_t)place(&used, rows * results_rows * sizeof(float));
    size_t planes = MEGA_PARTS * s->feature_plane * sizeof(uint16_t);
    size_t early = MEGA_EARLY_PAIRS * MEGA_EARLY_WORDS * sizeof(float);
    s->features = (uint32_t)place(&used, planes > early ? planes : early);
    size_t outputs = attention.outputs + (MEGA_ROWS - 1) * 4 * (size_t)c->head_dim;
    if (used < outputs) used = outputs; /* and new positions */
    if (used < head_sums) used = head_sums;
    if (used < MEGA_PARTS * s->head_plane * sizeof(uint16_t))
        used = MEGA_PARTS * s->head_plane * sizeof(uint16_t);
    used = round_up(used, 128);
    s->squares = (uint32_t)place(&used, MEGA_WARPS * MEGA_ROWS * sizeof(float));
    const size_t joined = joined_inputs(m);
    s->qkv = (uint32_t)place(&used, joins && joined > attention.inputs ? joined : attention.inputs);
    s->states = (uint32_t)place(&used, attention.states);
    s->keys = (uint32_t)place(&used, MEGA_WARPS * sizeof(uint64_t));
    s->full = (uint32_t)place(&used, 2 * MEGA_MAX_STAGES * sizeof(uint64_t));
    s->empty = s->full + MEGA_MAX_STAGES * sizeof(uint64_t);
    s->entries = (uint32_t)place(&used, (MEGA_SLOTS + 1) * sizeof(mega_entry));
    s->flow = (uint32_t)place(&used, sizeof(mega_flow));
    s->bytes = (uint32_t)used;
    a->stages = (m->executor->device->shared_bytes - (int)used) / a->stage_bytes;
    if (a->stages > MEGA_MAX_STAGES) a->stages = MEGA_MAX_STAGES;
    a->joins = joins;
}

/* Joins rows of a sequence where that costs no stage of the ring, and where they see the same
 * chunks whatever their windows are. */
static void lay_out_rows(const cuda_mega *m, mega_arguments *a)
{
    const model_config *c = &m->executor->program->config;
    const int64_t heads = 2 * c->n_heads / c->n_kv_heads;
    lay_out(m, a, false);
    const int stages = a->stages;
    if (!m->verifies || heads * (c->head_dim / 64) > MEGA_MAX_GROUP ||
        program_any_window(m->executor->program))
        return;
    lay_out(m, a, true);
    if (a->stages < stages) lay_out(m, a, false);
}

static int shared_bytes(const mega_arguments *a)
{
    return a->stages * a->stage_bytes + (int)a->shared.bytes;
}

qp_status mega_init_batch(cuda_mega *m, qp_error *error)
{
    const cuda_executor *x = m->executor;
    const model_config *c = &x->program->config;
    mega_arguments *a = &m->batch;
    uint64_t *const places[OWN_PARTS] = {&a->x,         &a->qkv,      &a->heads,
                                         &a->states,    &a->counters, &a->key,
                                         &a->down_maps, &a->features, &a->published};
    char name[32];
    const int64_t window = program_window(x->program, 0);
    *a = m->arguments;
    a->window = window ? (int32_t)window : INT32_MAX;
    if (m->quantized) a->stage_bytes = mega_batch_stage_bytes(x->program);
    a->tiles[0].beside = 1; /* a warp has the same columns of every tile */
    if (!runs_batches(x->program, m->verifies) || !m->one_each || !set_boxes(m, a)) return QP_OK;
    lay_out_rows(m, a);
    if (a->stages < 3) return QP_OK;
    size_t bytes[OWN_PARTS], total = count_own(c, bytes);
    TRY(cuda_buffer_alloc(x->device, total, "activations of several sequences", &m->batch_own,
                          error));
    cuda_address at = m->batch_own.address;
    for (int i = 0; i < OWN_PARTS; i++) {
        *places[i] = at;
        at += bytes[i];
    }
    /* NaN marks an element that is not published yet. Each pass clears the elements that the next
     * pass publishes; this fill is for the first pass. */
    TRY(cuda_check(
        x->device->driver->memory_set(a->published, 0xff, bytes[OWN_PARTS - 1], x->device->stream),
        "clearing x of several sequences", error));
    if (!m->quantized) TRY(mega_make_down_maps(m, error));
    snprintf(name, sizeof name, "mega_batch_%d_%s_%d", (int)c->head_dim,
             dtype_name(x->program->options.kv_type), mega_column_blocks(c));
    return cuda_device_function(x->device, mega_batch_image(x->program), name, shared_bytes(a),
                                &m->batch_kernel, error);
}

/* Passes of n rows in all, of n_sequences sequences. */
static bool takes(const cuda_mega *m, int64_t n, int64_t n_sequences)
{
    if (n == 1) return m->kernel != NULL;
    return n > 1 && n <= most_rows(m) && m->batch_kernel &&
           (n_sequences == 1 || (!m->alone && has_sequences(m->executor->program)));
}

int64_t cuda_mega_verify_rows(const cuda_mega *m)
{
    return m->verifies ? most_rows(m) : 0;
}

bool cuda_mega_takes_rows(const cuda_mega *m, int64_t n)
{
    return takes(m, n, n);
}

bool mega_takes_batch(const cuda_mega *m, const batch *b, bool verifies)
{
    int64_t n = batch_tokens(b), n_sequences = b->sizes.of[AXIS_SEQUENCES];
    if (n_sequences != n && !(verifies && m->verifies)) return false;
    if (!takes(m, n, n_sequences) || batch_outputs(b) != n) return false;
    for (int64_t i = 0; i < n; i++)
        if (batch_i32(b, PLAN_OUTPUT_ROWS)[i] != i) return false;
    return true;
}

qp_status mega_run_batch(cuda_mega *m, const batch *b, int n_passes, int32_t *tokens,
                         qp_error *error)
{
    const cuda_executor *x = m->executor;
    const cuda_device *d = x->device;
    mega_arguments *a = &m->batch;
    a->pages = cuda_executor_address(x, PLAN_KV_INDICES, 0);
    a->n_rows = (int32_t)batch_tokens(b);
    a->n_passes = n_passes;
    for (int i = 0, sequence = 0; i < a->n_rows; i++) {
        if (i == batch_i32(b, PLAN_QO_INDPTR)[sequence + 1]) sequence++;
        a->rows[i] = (mega_row){.token = batch_i32(b, PLAN_TOKEN_IDS)[i],
                                .position = batch_i32(b, PLAN_POSITION_IDS)[i],
                                .first_page = batch_i32(b, PLAN_KV_INDPTR)[sequence]};
    }
    bool timed = mega_begin_timing(m, n_passes);
    a->timings = m->arguments.timings;
    qp_status status = cuda_check(
        d->driver->launch_cooperative(m->batch_kernel, (unsigned)m->n_blocks, 1, 1, MEGA_THREADS, 1,
                                      1, (unsigned)shared_bytes(a), d->stream, (void *[]){a}),
        "launching the megakernel", error);
    if (status == QP_OK) status = cuda_device_wait(d, "the megakernel", error);
    TRY(mega_explain(m, status, error));
    a->first_pass += (uint32_t)n_passes;
    if (timed) m->n_timed += (size_t)n_passes;
    if (tokens) memcpy(tokens, m->tokens.data, (size_t)(n_passes * a->n_rows) * sizeof *tokens);
    return QP_OK;
}
