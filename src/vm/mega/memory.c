/* The megakernel's own GPU memory, and the layout of shared memory. */
#include "vm/mega/opcodes.h"
#include "vm/mega/parts.h"

#include "base/checked.h"

enum { OWN_PARTS = 10 };

/* Bytes of each part of the megakernel's own memory; returns their sum. Parts: x; q, k and v;
 * states; counters; keys; for sampling, the slots and the number of the exchange; the launch's end;
 * the stop request; queries, where heads have norms. */
static size_t count_own(const program *p, int n_blocks, size_t bytes[OWN_PARTS])
{
    const model_config *c = &p->config;
    const size_t queries = mega_has_head_norms(p) ? (size_t)(c->n_layers * c->n_heads) : 0;
    size_t layers = (size_t)c->n_layers, heads = (size_t)c->n_kv_heads;
    size_t group = (size_t)(c->n_heads / c->n_kv_heads), dim = (size_t)c->head_dim;
    const size_t parts[OWN_PARTS] = {
        2 * (2 * layers + 1) * (size_t)c->hidden_size * sizeof(int64_t),
        layers * heads * (group + 2) * dim * sizeof(uint64_t),
        heads * MEGA_MAX_PARTITIONS * group * (dim + 2) * sizeof(uint64_t),
        MEGA_COUNTER_WORDS * sizeof(uint32_t),
        2 * sizeof(uint64_t),
        2 * (size_t)n_blocks * MEGA_SLOT_WORDS * sizeof(int64_t),
        sizeof(uint32_t),
        2 * sizeof(int64_t),
        sizeof(uint32_t),
        queries * dim * sizeof(float),
    };
    size_t total = 0;
    for (int i = 0; i < OWN_PARTS; i++)
        total += bytes[i] = round_up(parts[i], CUDA_ALIGNMENT);
    return total;
}

size_t mega_count_activations(const program *p, int n_blocks)
{
    size_t bytes[OWN_PARTS];
    return count_own(p, n_blocks, bytes);
}

static uint32_t place(uint32_t *used, size_t bytes)
{
    uint32_t at = *used;
    *used += (uint32_t)round_up(bytes, 128);
    return at;
}

static int64_t largest_share(int64_t units, int64_t count)
{
    return (units + count - 1) / count;
}

/* Bytes that sampling needs: a part for each warp, facts about the logits, a key for each block of
 * all ranks. */
static size_t choice_bytes(int n_blocks)
{
    return MEGA_WARPS * MEGA_PART_BYTES + MEGA_VIEW_BYTES + (size_t)n_blocks * sizeof(uint32_t);
}

/* Elements from plane to plane. The pitch avoids bank conflicts between lanes that read all planes,
 * and leaves room for fragments that are wider than the vector. */
static uint32_t plane_pitch(const cuda_mega *m, int64_t columns)
{
    return (uint32_t)(m->quantized ? round_up((size_t)columns, FRAGMENT_WIDTH)
                                   : (size_t)columns + 8);
}

/* Bytes of a vector's planes. Quantised weights: four planes of digits, and a unit for 32 columns.
 */
static size_t planes_bytes(const cuda_mega *m, uint32_t pitch)
{
    return m->quantized ? 4 * (size_t)pitch + pitch / FRAGMENT_COLUMNS * sizeof(float)
                        : (size_t)pitch * MEGA_PARTS * 2;
}

static mega_tiles tiles_over(int64_t columns)
{
    int across = fragments_across((int)columns);
    return (mega_tiles){across, (across + MEGA_WARPS - 1) / MEGA_WARPS,
                        across < MEGA_WARPS ? MEGA_WARPS / across : 1, (255 + across) / across};
}

size_t mega_cache_chunk(const cuda_mega *m)
{
    return m->quantized ? MEGA_CACHE_FRAGMENTS : MEGA_BOX;
}

mega_attention_bytes mega_attention_of(const cuda_mega *m, size_t chunk)
{
    const model_config *c = &m->executor->program->config;
    size_t group = (size_t)(c->n_heads / c->n_kv_heads), dim = (size_t)c->head_dim;
    /* As in attention.cuh: eighths of a chunk's positions, and floats of a share's outputs. */
    size_t shares = chunk / 4 / dim / 8;
    size_t pitch = round_up(group * (dim + 8) - 16, 32) + 16;
    size_t outputs = shares * pitch * sizeof(float), merged = MEGA_CONSUMERS * 4 * sizeof(float);
    return (mega_attention_bytes){
        .inputs = 4 * dim + 80 + MEGA_PARTS * group * (2 * dim + 16),
        .states = shares * group * 2 * sizeof(float),
        .outputs = outputs > merged ? outputs : merged,
    };
}

void mega_lay_out_shared(cuda_mega *m)
{
    const model_config *c = &m->executor->program->config;
    mega_arguments *a = &m->arguments;
    mega_shared *s = &a->shared;
    int64_t blocks_of_head = m->n_blocks / c->n_kv_heads, group = c->n_heads / c->n_kv_heads;
    int64_t heads = group * c->head_dim, padded = round_up((size_t)c->hidden_size, MEGA_COLUMNS);
    int32_t grains[MEGA_GRAINS];
    mega_grains_of(m, grains);
    a->tiles[0] = tiles_over(c->hidden_size);
    a->tiles[1] = tiles_over(heads);
    int64_t features =
        grains[MEGA_GRAIN_FEATURES] *
        largest_share(c->intermediate_size / grains[MEGA_GRAIN_FEATURES], m->n_blocks);
    features = round_up((size_t)features, MEGA_TILE);
    int64_t output_rows = grains[MEGA_GRAIN_ROWS] *
                          largest_share(c->hidden_size / grains[MEGA_GRAIN_ROWS], blocks_of_head);
    output_rows = round_up((size_t)output_rows, (size_t)a->box_rows);
    int64_t pairs = (group + 2) * c->head_dim / 2;
    int64_t qkv_rows = 2 * grains[MEGA_GRAIN_PAIRS] *
                       largest_share(pairs / grains[MEGA_GRAIN_PAIRS], blocks_of_head);
    int64_t rows = 128;
    rows = 2 * features > rows ? 2 * features : rows;
    rows = output_rows > rows ? output_rows : rows;
    rows = qkv_rows > rows ? qkv_rows : rows;
    const mega_attention_bytes attention = mega_attention_of(m, mega_cache_chunk(m));
    s->plane = plane_pitch(m, padded);
    s->head_plane = plane_pitch(m, heads);
    /* Fragments of W_down may begin with features of another block. */
    s->feature_plane = plane_pitch(m, features + mega_features_lead(m));
    size_t planes = planes_bytes(m, s->plane);
    s->sum_pitch = (uint32_t)rows + 4;
    uint32_t used = 0;
    /* Attention's outputs use the memory of x's planes and of the sums. */
    s->planes = place(&used, planes);
    size_t sums = s->sum_pitch * MEGA_WARPS * sizeof(float),
           choice = choice_bytes(m->n_blocks * m->executor->program->options.ranks);
    s->sums = place(&used, sums > choice ? sums : choice);
    if (used < attention.outputs) used = (uint32_t)round_up(attention.outputs, 128);
    s->heads = place(&used, planes_bytes(m, s->head_plane));
    const size_t early = 2 * MEGA_WARPS * MEGA_EARLY_BYTES;
    size_t feature_planes = planes_bytes(m, s->feature_plane);
    s->features = place(&used, feature_planes > early ? feature_planes : early);
    s->squares = place(&used, MEGA_WARPS * sizeof(float));
    s->qkv = place(&used, attention.inputs);
    s->states = place(&used, attention.states);
    s->keys = place(&used, MEGA_WARPS * sizeof(uint64_t));
    s->full = place(&used, 2 * MEGA_MAX_STAGES * sizeof(uint64_t));
    s->empty = s->full + MEGA_MAX_STAGES * sizeof(uint64_t);
    s->entries = place(&used, (MEGA_SLOTS + 2) * sizeof(mega_entry));
    s->flow = place(&used, 128); /* and data that producer and prefetch warp share */
    s->bytes = used;
    a->stages = (m->executor->device->shared_bytes - (int)used) / a->stage_bytes;
    if (a->stages > MEGA_MAX_STAGES) a->stages = MEGA_MAX_STAGES;
}

qp_status mega_take_memory(cuda_mega *m, qp_error *error)
{
    const cuda_device *d = m->executor->device;
    mega_arguments *a = &m->arguments;
    uint64_t *const places[OWN_PARTS] = {
        &a->x,     &a->qkv,       &a->states, &a->counters,     &a->key,
        &a->slots, &a->exchanges, &a->ended,  &a->stop_request, &a->queries};
    size_t bytes[OWN_PARTS], total = count_own(m->executor->program, m->n_blocks, bytes);
    TRY(cuda_buffer_alloc(d, total, "the megakernel's activations", &m->own, error));
    cuda_address at = m->own.address;
    for (int i = 0; i < OWN_PARTS; i++) {
        *places[i] = at;
        at += bytes[i];
    }
    TRY(cuda_pinned_alloc(d, CUDA_MEGA_MAX_TOKENS * sizeof(int32_t), "tokens", &m->tokens, error));
    TRY(cuda_pinned_alloc(d, sizeof(mega_report), "a report", &m->report, error));
    TRY(cuda_pinned_alloc(d, sizeof(uint32_t), "a stop request", &m->stop_request, error));
    TRY(cuda_check(d->driver->stream_create(&m->side_stream, CUDA_STREAM_NON_BLOCKING),
                   "making a stream", error));
    a->tokens_out = m->tokens.address;
    a->report = m->report.address;
    return QP_OK;
}
