/* The megakernel over a cuda_executor's memory: see cuda_mega.h. */
#include "generate/cuda_mega.h"

#include "base/checked.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RECOMPUTE = 768, /* positions up to which every block computes its KV head's attention itself:
                      * beyond, dividing it pays for one more dependency */
    MAX_FEATURES = 160,  /* of the MLP in one block */
    BOX_UNITS = 16,      /* 16 rows by 64 columns of W_o, one a warp */
    TENSOR_MAP_BF16 = 9, /* CUDA's numbers */
    TENSOR_MAP_SWIZZLE_128 = 3,
    TENSOR_MAP_PROMOTION_256 = 3,
};

/* ---- which models ------------------------------------------------------------------------- */

static bool all_bf16(const model *m, const model_config *c)
{
    for (int slot = 0; slot < WEIGHT_COUNT; slot++) {
        const weight_info *info = weight_get_info((weight_slot)slot);
        int64_t layers = info->per_layer ? c->n_layers : 1;
        for (int64_t layer = 0; layer < layers; layer++) {
            const model_weight *w = model_get_weight(m, (weight_slot)slot, layer);
            bool vector = w->weight.rank == 1;
            if (w->bias.rank) return false;
            if (w->weight.type != DTYPE_BF16 && !(vector && w->weight.type == DTYPE_F32))
                return false;
        }
    }
    return true;
}

/* NULL, or what of the model it does not do. */
static const char *refusal(const plan *p, const model *m, int n_blocks)
{
    const model_config *c = &p->config;
    const plan_options *o = &p->options;
    int64_t group = c->n_heads / c->n_kv_heads;
    int64_t chunk = 8192 / c->head_dim; /* positions */
    if (!all_bf16(m, c)) return "the megakernel reads BF16 weights without biases";
    if (c->head_dim != 64 && c->head_dim != 128) return "the megakernel has heads of 64 and 128";
    if (c->rope.dim != c->head_dim || c->rope.scaling == ROPE_DYNAMIC)
        return "the megakernel turns whole heads by angles that do not change";
    if (group > MEGA_MAX_GROUP || (group > 4 && group * c->head_dim > 512))
        return "the megakernel has at most 8 query heads to a KV head";
    if (c->hidden_size > MEGA_MAX_HIDDEN || c->hidden_size % 64)
        return "the megakernel has hidden sizes up to 4096, in multiples of 64";
    if (o->kv_type == DTYPE_F32) return "the megakernel keeps keys and values in 16 bits";
    if (o->page_size < 8 || chunk % o->page_size)
        return "the megakernel has pages of 8, 16, 32 or 64 positions";
    if (n_blocks < c->n_kv_heads) return "the megakernel needs a block for every KV head";
    if (c->intermediate_size > (int64_t)n_blocks * MAX_FEATURES)
        return "the model's MLP is too wide for the megakernel";
    return NULL;
}

/* ---- memory of the GPU ------------------------------------------------------------------- */

enum { OWN_PARTS = 5 };

/* The machine's own memory: x, lists of q, k and v, states, counters, keys. Returns all of it. */
static size_t count_own(const model_config *c, size_t bytes[OWN_PARTS])
{
    size_t layers = (size_t)c->n_layers, heads = (size_t)c->n_kv_heads;
    size_t group = (size_t)(c->n_heads / c->n_kv_heads), dim = (size_t)c->head_dim;
    const size_t parts[OWN_PARTS] = {
        2 * (2 * layers + 1) * (size_t)c->hidden_size * sizeof(int64_t),
        layers * heads * (group + 2) * dim * sizeof(uint64_t),
        heads * MEGA_MAX_PARTITIONS * group * (dim + 2) * sizeof(float),
        (1 + layers * heads) * MEGA_COUNTER_WORDS * sizeof(uint32_t),
        2 * sizeof(uint64_t),
    };
    size_t total = 0;
    for (int i = 0; i < OWN_PARTS; i++)
        total += bytes[i] = round_up(parts[i], CUDA_ALIGNMENT);
    return total;
}

static size_t count_down(const model_config *c)
{
    return 2 * (size_t)(c->n_layers * c->hidden_size * c->intermediate_size);
}

static int64_t longest_queue(const model_config *c)
{
    return 4 * c->n_layers + 2;
}

static size_t count_program(const model_config *c, int n_blocks)
{
    return (size_t)n_blocks * ((size_t)longest_queue(c) * sizeof(mega_entry) + sizeof(int32_t));
}

cuda_mega_bytes cuda_mega_count(const plan *p, const model *model, int n_blocks)
{
    const model_config *c = &p->config;
    size_t own[OWN_PARTS];
    if (refusal(p, model, n_blocks)) return (cuda_mega_bytes){0};
    return (cuda_mega_bytes){.down = count_down(c),
                             .tables = count_own(c, own) + count_program(c, n_blocks) +
                                       (size_t)c->n_layers * MEGA_MAP_BYTES};
}

/* ---- the program ---------------------------------------------------------------------------- */

/* A block's place among those of its KV head. */
typedef struct kv_place {
    int64_t kv_head, index, count;
} kv_place;

static kv_place kv_place_of(int64_t block, int64_t n_blocks, int64_t n_kv_heads)
{
    kv_place p = {0};
    while (block >= n_blocks * (p.kv_head + 1) / n_kv_heads)
        p.kv_head++;
    int64_t first = n_blocks * p.kv_head / n_kv_heads;
    p.index = block - first;
    p.count = n_blocks * (p.kv_head + 1) / n_kv_heads - first;
    return p;
}

static instruction_span share(int64_t units, int64_t index, int64_t count, int64_t base)
{
    return (instruction_span){(int32_t)(base + units * index / count),
                              (int32_t)(base + units * (index + 1) / count)};
}

static mega_entry *add_entry(mega_entry *queue, int *length, int opcode, int64_t layer,
                             instruction_span units)
{
    mega_entry *e = &queue[(*length)++];
    *e = (mega_entry){.in = {.opcode = (uint16_t)opcode,
                             .layer = (int16_t)layer,
                             .units = units,
                             .tokens = {0, INSTRUCTION_ALL_TOKENS}}};
    return e;
}

static void add_norm(const cuda_executor *x, mega_entry *e, weight_slot slot, int64_t layer)
{
    e->weights.norm = cuda_weights_address(&x->weights, slot, layer, false);
    int64_t place = layer < 0 ? 0 : layer;
    e->weights.norm_is_f32 = model_get_weight(x->model, slot, place)->weight.type == DTYPE_F32;
}

static void add_layer(const cuda_mega *m, mega_entry *queue, int *length, int64_t layer, int block)
{
    const cuda_executor *x = m->executor;
    const model_config *c = &x->plan->config;
    const cuda_weights *w = &x->weights;
    kv_place kv = kv_place_of(block, m->n_blocks, c->n_kv_heads);
    int64_t quads = (c->n_heads / c->n_kv_heads + 2) * c->head_dim / 8;
    instruction_span units = share(quads, kv.index, kv.count, quads * kv.kv_head);
    units.begin *= 4, units.end *= 4;
    mega_entry *e = add_entry(queue, length, OP_NORM_QKV_ROPE, layer, units);
    add_norm(x, e, WEIGHT_ATTN_NORM, layer);
    const weight_slot qkv[] = {WEIGHT_ATTN_Q, WEIGHT_ATTN_K, WEIGHT_ATTN_V};
    for (int i = 0; i < 3; i++)
        e->weights.matrix[i] = cuda_weights_address(w, qkv[i], layer, false);
    e = add_entry(queue, length, OP_ATTENTION_PARTIAL, layer, share(1, 0, 1, kv.kv_head));
    e->in.part = (uint16_t)kv.index;
    e->in.parts = (uint16_t)kv.count;
    e = add_entry(queue, length, MEGA_ATTENTION_OUTPUT, layer,
                  share(c->hidden_size, kv.index, kv.count, c->hidden_size * kv.kv_head));
    e->in.parts = (uint16_t)kv.count;
    e->weights.map = (uint32_t)layer;
    e = add_entry(queue, length, MEGA_MLP, layer,
                  share(c->intermediate_size, block, m->n_blocks, 0));
    add_norm(x, e, WEIGHT_FFN_NORM, layer);
    e->weights.matrix[0] = cuda_weights_address(w, WEIGHT_FFN_GATE, layer, false);
    e->weights.matrix[1] = cuda_weights_address(w, WEIGHT_FFN_UP, layer, false);
    e->weights.matrix[2] =
        m->down.address + (size_t)(layer * c->intermediate_size * c->hidden_size * 2);
}

static void fill_queue(const cuda_mega *m, mega_entry *queue, int *length, int block)
{
    const model_config *c = &m->executor->plan->config;
    *length = 0;
    add_entry(queue, length, OP_EMBEDDING, -1, share(c->hidden_size, block, m->n_blocks, 0));
    for (int64_t layer = 0; layer < c->n_layers; layer++)
        add_layer(m, queue, length, layer, block);
    mega_entry *e =
        add_entry(queue, length, OP_NORM_LINEAR, -1, share(c->vocab_size, block, m->n_blocks, 0));
    add_norm(m->executor, e, WEIGHT_OUTPUT_NORM, -1);
    e->weights.matrix[0] = cuda_weights_address(&m->executor->weights, WEIGHT_OUTPUT, -1, false);
}

static qp_status copy_now(const cuda_device *d, cuda_address to, const void *from, size_t bytes,
                          qp_error *error)
{
    static const char operation[] = "copying the megakernel's tables to the GPU";
    TRY(cuda_check(d->driver->copy_to_device(to, from, bytes, d->stream), operation, error));
    return cuda_device_wait(d, operation, error);
}

static qp_status make_program(cuda_mega *m, qp_error *error)
{
    const cuda_device *d = m->executor->device;
    const model_config *c = &m->executor->plan->config;
    int64_t longest = longest_queue(c);
    size_t total = count_program(c, m->n_blocks);
    size_t bytes = total - (size_t)m->n_blocks * sizeof(int32_t);
    char *memory = calloc(1, total);
    if (!memory) return error_no_memory(error, "the megakernel's program", total);
    int32_t *lengths = (int32_t *)(void *)(memory + bytes);
    for (int b = 0; b < m->n_blocks; b++)
        fill_queue(m, (mega_entry *)(void *)memory + b * longest, &lengths[b], b);
    qp_status status = cuda_buffer_alloc(d, total, "the megakernel's program", &m->program, error);
    if (status == QP_OK) status = copy_now(d, m->program.address, memory, total, error);
    free(memory);
    m->arguments.program = m->program.address;
    m->arguments.lengths = m->program.address + bytes;
    m->arguments.longest = (int32_t)longest;
    return status;
}

/* ---- tensor maps ---------------------------------------------------------------------------- */

static qp_status make_map(const cuda_mega *m, void *map, cuda_address at, const uint64_t sizes[3],
                          const uint64_t strides[2], const uint32_t box[3], qp_error *error)
{
    const uint32_t steps[3] = {1, 1, 1};
    return cuda_check(m->executor->device->driver->tensor_map(
                          map, TENSOR_MAP_BF16, 3, (void *)(uintptr_t)at, sizes, strides, box,
                          steps, 0, TENSOR_MAP_SWIZZLE_128, TENSOR_MAP_PROMOTION_256, 0),
                      "describing a tensor to the GPU", error);
}

/* W_o of each layer: a box is a KV head's columns of some rows, 64 columns of all rows after the
 * next 64, as the matrix units read it. */
static qp_status make_maps(cuda_mega *m, qp_error *error)
{
    const cuda_executor *x = m->executor;
    const model_config *c = &x->plan->config;
    size_t bytes = (size_t)c->n_layers * MEGA_MAP_BYTES;
    char *maps = aligned_alloc(MEGA_MAP_BYTES, bytes);
    if (!maps) return error_no_memory(error, "tensor maps", bytes);
    uint64_t q = (uint64_t)config_q_hidden_units(c), hidden = (uint64_t)c->hidden_size;
    uint32_t groups = (uint32_t)(q / (uint64_t)c->n_kv_heads / 64);
    qp_status status = QP_OK;
    for (int64_t l = 0; l < c->n_layers && status == QP_OK; l++)
        status = make_map(m, maps + l * MEGA_MAP_BYTES,
                          cuda_weights_address(&x->weights, WEIGHT_ATTN_OUTPUT, l, false),
                          (uint64_t[]){64, hidden, q / 64}, (uint64_t[]){2 * q, 128},
                          (uint32_t[]){64, (uint32_t)m->arguments.box_rows, groups}, error);
    if (status == QP_OK)
        status = cuda_buffer_alloc(x->device, bytes, "tensor maps", &m->maps, error);
    if (status == QP_OK) status = copy_now(x->device, m->maps.address, maps, bytes, error);
    free(maps);
    m->arguments.maps = m->maps.address;
    return status;
}

/* ---- memory --------------------------------------------------------------------------------- */

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

/* Where things lie in shared memory, and how many stages of the ring fit before them. */
static void lay_out_shared(cuda_mega *m)
{
    const model_config *c = &m->executor->plan->config;
    mega_arguments *a = &m->arguments;
    mega_shared *s = &a->shared;
    int64_t blocks_of_head = m->n_blocks / c->n_kv_heads, group = c->n_heads / c->n_kv_heads;
    int64_t heads = group * c->head_dim, padded = round_up((size_t)c->hidden_size, MEGA_BLOCK);
    int64_t features =
        round_up((size_t)largest_share(c->intermediate_size, m->n_blocks), MEGA_TILE);
    int64_t output_rows = largest_share(c->hidden_size, blocks_of_head);
    output_rows = round_up((size_t)output_rows, (size_t)a->box_rows);
    int64_t qkv_rows = 8 * largest_share((group + 2) * c->head_dim / 8, blocks_of_head);
    int64_t rows = 128;
    rows = 2 * features > rows ? 2 * features : rows;
    rows = output_rows > rows ? output_rows : rows;
    rows = qkv_rows > rows ? qkv_rows : rows;
    int sets = group <= 2 ? 1 : group <= 4 ? 2 : 4;
    size_t merged = (size_t)(MEGA_WARPS / sets * heads) * sizeof(float);
    size_t planes = (size_t)(padded + 8) * MEGA_PARTS * 2;
    s->plane = (uint32_t)padded + 8;
    s->head_plane = (uint32_t)heads + 8;
    s->feature_plane = (uint32_t)features + 8;
    s->sum_pitch = (uint32_t)rows + 4;
    uint32_t used = 0;
    s->planes = place(&used, planes > merged ? planes : merged);
    s->heads = place(&used, s->head_plane * MEGA_PARTS * 2);
    s->features = place(&used, s->feature_plane * MEGA_PARTS * 2);
    s->sums = place(&used, s->sum_pitch * MEGA_WARPS * sizeof(float));
    s->squares = place(&used, MEGA_WARPS * sizeof(float));
    s->qkv = place(&used, (size_t)((group + 2) * c->head_dim) * sizeof(float));
    s->states = place(&used, (size_t)(MEGA_WARPS * group * 2) * sizeof(float));
    s->keys = place(&used, MEGA_WARPS * sizeof(uint64_t));
    s->full = place(&used, 2 * MEGA_MAX_STAGES * sizeof(uint64_t));
    s->empty = s->full + MEGA_MAX_STAGES * sizeof(uint64_t);
    s->entries = place(&used, (MEGA_SLOTS + 1) * sizeof(mega_entry));
    s->begun = place(&used, sizeof(uint64_t));
    s->bytes = used;
    a->stages = (m->executor->device->shared_bytes - (int)used) / MEGA_STAGE;
    if (a->stages > MEGA_MAX_STAGES) a->stages = MEGA_MAX_STAGES;
}

/* Allocates what count_own() counts, and what the host reads. */
static qp_status take_memory(cuda_mega *m, qp_error *error)
{
    const cuda_device *d = m->executor->device;
    mega_arguments *a = &m->arguments;
    uint64_t *const places[OWN_PARTS] = {&a->x, &a->qkv, &a->states, &a->counters, &a->key};
    size_t bytes[OWN_PARTS], total = count_own(&m->executor->plan->config, bytes);
    TRY(cuda_buffer_alloc(d, total, "the megakernel's activations", &m->own, error));
    cuda_address at = m->own.address;
    for (int i = 0; i < OWN_PARTS; i++) {
        *places[i] = at;
        at += bytes[i];
    }
    TRY(cuda_pinned_alloc(d, CUDA_MEGA_MAX_PASSES * sizeof(int32_t), "tokens", &m->tokens, error));
    TRY(cuda_pinned_alloc(d, sizeof(mega_report), "a report", &m->report, error));
    a->tokens_out = m->tokens.address;
    a->report = m->report.address;
    return QP_OK;
}

/* W_down with its columns as rows: what a block's features add lies together. */
static qp_status transpose_down(cuda_mega *m, qp_error *error)
{
    const cuda_executor *x = m->executor;
    const model_config *c = &x->plan->config;
    int rows = (int)c->hidden_size, columns = (int)c->intermediate_size;
    size_t bytes = (size_t)rows * (size_t)columns * 2;
    cuda_function transpose;
    TRY(cuda_buffer_alloc(x->device, count_down(c), "W_down transposed", &m->down, error));
    TRY(cuda_device_function(x->device, "mega", "mega_transpose", 0, &transpose, error));
    for (int64_t layer = 0; layer < c->n_layers; layer++) {
        cuda_address from = cuda_weights_address(&x->weights, WEIGHT_FFN_DOWN, layer, false);
        cuda_address to = m->down.address + (size_t)layer * bytes;
        TRY(cuda_check(x->device->driver->launch(transpose, (unsigned)(columns + 31) / 32,
                                                 (unsigned)(rows + 31) / 32, 1, 32, 8, 1, 0,
                                                 x->device->stream,
                                                 (void *[]){&from, &to, &rows, &columns}, NULL),
                       "transposing weights", error));
    }
    return cuda_device_wait(x->device, "transposing weights", error);
}

static void set_sizes(cuda_mega *m)
{
    const cuda_executor *x = m->executor;
    const model_config *c = &x->plan->config;
    mega_arguments *a = &m->arguments;
    int groups = (int)(c->n_heads / c->n_kv_heads * c->head_dim / 64);
    a->hidden = (int32_t)c->hidden_size;
    a->n_layers = (int32_t)c->n_layers;
    a->group = (int32_t)(c->n_heads / c->n_kv_heads);
    a->n_kv_heads = (int32_t)c->n_kv_heads;
    a->vocab = (int32_t)c->vocab_size;
    a->page_size = (int32_t)x->plan->options.page_size;
    a->pages_per_layer = (int32_t)x->plan->options.n_pages;
    a->interleaved = c->rope.interleaved;
    a->box_rows = 16 * (BOX_UNITS / groups);
    a->recompute = RECOMPUTE;
    a->eps = (float)c->rms_norm_eps;
    a->scale = (float)(1 / sqrt((double)c->head_dim) / log(2));
    a->embedding = cuda_weights_address(&x->weights, WEIGHT_TOKEN_EMBD, -1, false);
    a->rope_table = x->rope_table.address;
    a->k_cache = x->k_cache.address;
    a->v_cache = x->v_cache.address;
    a->logits = cuda_executor_address(x, PLAN_LOGITS, 0);
}

qp_status cuda_mega_init(cuda_mega *m, cuda_executor *x, int n_blocks, qp_error *error)
{
    const model_config *c = &x->plan->config;
    char name[32];
    *m = (cuda_mega){.executor = x, .n_blocks = n_blocks};
    if (!m->n_blocks) m->n_blocks = x->device->n_multiprocessors;
    m->why_not = x->device->major == 9 ? refusal(x->plan, x->model, m->n_blocks)
                                       : "the megakernel is for GPUs of compute capability 9.0";
    if (m->why_not) return QP_OK;
    set_sizes(m);
    lay_out_shared(m);
    if (m->arguments.stages < 3) {
        m->why_not = "the model's vectors leave the megakernel no shared memory for weights";
        return QP_OK;
    }
    TRY(take_memory(m, error));
    TRY(transpose_down(m, error));
    TRY(make_maps(m, error));
    TRY(make_program(m, error));
    snprintf(name, sizeof name, "mega_%d_%s_%d", (int)c->head_dim,
             x->plan->options.kv_type == DTYPE_F16 ? "F16" : "BF16",
             c->hidden_size <= MEGA_BLOCK ? 1 : 2);
    int shared = m->arguments.stages * MEGA_STAGE + (int)m->arguments.shared.bytes;
    return cuda_device_function(x->device, "mega", name, shared, &m->kernel, error);
}

void cuda_mega_free(cuda_mega *m)
{
    if (!m->executor) return;
    const cuda_device *d = m->executor->device;
    cuda_buffer_free(d, &m->program);
    cuda_buffer_free(d, &m->maps);
    cuda_buffer_free(d, &m->down);
    cuda_buffer_free(d, &m->own);
    cuda_pinned_free(d, &m->tokens);
    cuda_pinned_free(d, &m->report);
    *m = (cuda_mega){0};
}

/* ---- running -------------------------------------------------------------------------------- */

bool cuda_mega_takes(const cuda_mega *m, const batch *b)
{
    return m->kernel && batch_tokens(b) == 1 && b->sizes.of[-PLAN_SEQUENCES] == 1 &&
           batch_outputs(b) == 1;
}

/* The report of the block that waited too long, if that is what ended the kernel. */
static qp_status explain(const cuda_mega *m, qp_status status, qp_error *error)
{
    const mega_report *r = m->report.data;
    if (status == QP_OK || r->state == 0) return status;
    return error_set(error, QP_DEVICE,
                     "the megakernel was stuck: block %d, instruction %d (opcode %d, layer %d) "
                     "waited for %s%d, expected %u, found %u, in pass %u",
                     r->block, r->entry, r->opcode, r->layer,
                     r->waits_for == -1   ? "x "
                     : r->waits_for == -2 ? "q, k, v "
                                          : "counter ",
                     r->waits_for < 0 ? 0 : r->waits_for, r->expected, r->found, r->pass);
}

qp_status cuda_mega_run(cuda_mega *m, const batch *b, int n_passes, int32_t *tokens,
                        qp_error *error)
{
    cuda_executor *x = m->executor;
    const cuda_device *d = x->device;
    mega_arguments *a = &m->arguments;
    TRY(cuda_executor_take_inputs(x, b, error));
    a->pages = cuda_executor_address(x, PLAN_KV_INDICES, 0);
    a->token = batch_i32(b, PLAN_TOKEN_IDS)[0];
    a->first_position = batch_i32(b, PLAN_POSITION_IDS)[0];
    a->n_passes = n_passes;
    int shared = a->stages * MEGA_STAGE + (int)a->shared.bytes;
    qp_status status = cuda_check(
        d->driver->launch_cooperative(m->kernel, (unsigned)m->n_blocks, 1, 1, MEGA_THREADS, 1, 1,
                                      (unsigned)shared, d->stream, (void *[]){a}),
        "launching the megakernel", error);
    if (status == QP_OK) status = cuda_device_wait(d, "the megakernel", error);
    TRY(explain(m, status, error));
    a->first_pass += (uint32_t)n_passes;
    if (tokens) memcpy(tokens, m->tokens.data, (size_t)n_passes * sizeof *tokens);
    return QP_OK;
}
