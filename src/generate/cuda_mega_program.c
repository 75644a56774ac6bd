/* The megakernel's program: a queue of entries a block. */
#include "generate/cuda_mega_parts.h"

#include <stdlib.h>

static int64_t longest_queue(const model_config *c)
{
    return 4 * c->n_layers + 2;
}

size_t mega_count_program(const model_config *c, int n_blocks)
{
    return (size_t)n_blocks * ((size_t)longest_queue(c) * sizeof(mega_entry) + sizeof(int32_t));
}

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

mega_grains mega_grains_of(const cuda_mega *m)
{
    if (m->quantized) return (mega_grains){BRICK_ROWS / 2, BRICK_ROWS, BRICK_COLUMNS};
    return (mega_grains){MEGA_TILE / 2, 1, 1};
}

/* Units of which `grain` stay together. */
static instruction_span share(int64_t units, int64_t grain, int64_t index, int64_t count,
                              int64_t base)
{
    int64_t grains = (units + grain - 1) / grain, end = grains * (index + 1) / count * grain;
    return (instruction_span){(int32_t)(base + grains * index / count * grain),
                              (int32_t)(base + (end < units ? end : units))};
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
    mega_grains grains = mega_grains_of(m);
    kv_place kv = kv_place_of(block, m->n_blocks, c->n_kv_heads);
    int64_t pairs = (c->n_heads / c->n_kv_heads + 2) * c->head_dim / 2;
    mega_entry *e = add_entry(queue, length, OP_NORM_QKV_ROPE, layer,
                              share(pairs, grains.pairs, kv.index, kv.count, pairs * kv.kv_head));
    add_norm(x, e, WEIGHT_ATTN_NORM, layer);
    const weight_slot qkv[] = {WEIGHT_ATTN_Q, WEIGHT_ATTN_K, WEIGHT_ATTN_V};
    for (int i = 0; i < 3; i++)
        mega_set_matrix(m, &e->weights, i, qkv[i], layer);
    e = add_entry(queue, length, OP_ATTENTION_PARTIAL, layer, share(1, 1, 0, 1, kv.kv_head));
    e->in.part = (uint16_t)kv.index;
    e->in.parts = (uint16_t)kv.count;
    e = add_entry(
        queue, length, MEGA_ATTENTION_OUTPUT, layer,
        share(c->hidden_size, grains.rows, kv.index, kv.count, c->hidden_size * kv.kv_head));
    e->in.parts = (uint16_t)kv.count;
    mega_set_matrix(m, &e->weights, 0, WEIGHT_ATTN_OUTPUT, layer);
    e->weights.map = (uint32_t)layer;
    e = add_entry(queue, length, MEGA_MLP, layer,
                  share(c->intermediate_size, grains.features, block, m->n_blocks, 0));
    add_norm(x, e, WEIGHT_FFN_NORM, layer);
    const weight_slot mlp[] = {WEIGHT_FFN_GATE, WEIGHT_FFN_UP, WEIGHT_FFN_DOWN};
    for (int i = 0; i < 3; i++)
        mega_set_matrix(m, &e->weights, i, mlp[i], layer);
}

static void fill_queue(const cuda_mega *m, mega_entry *queue, int *length, int block)
{
    const model_config *c = &m->executor->plan->config;
    *length = 0;
    add_entry(queue, length, OP_EMBEDDING, -1, share(c->hidden_size, 1, block, m->n_blocks, 0));
    for (int64_t layer = 0; layer < c->n_layers; layer++)
        add_layer(m, queue, length, layer, block);
    mega_entry *e = add_entry(queue, length, OP_NORM_LINEAR, -1,
                              share(c->vocab_size, mega_grains_of(m).rows, block, m->n_blocks, 0));
    add_norm(m->executor, e, WEIGHT_OUTPUT_NORM, -1);
    mega_set_matrix(m, &e->weights, 0, WEIGHT_OUTPUT, -1);
}

qp_status mega_make_program(cuda_mega *m, qp_error *error)
{
    const cuda_device *d = m->executor->device;
    const model_config *c = &m->executor->plan->config;
    int64_t longest = longest_queue(c);
    size_t total = mega_count_program(c, m->n_blocks);
    size_t bytes = total - (size_t)m->n_blocks * sizeof(int32_t);
    char *memory = calloc(1, total);
    if (!memory) return error_no_memory(error, "the megakernel's program", total);
    int32_t *lengths = (int32_t *)(void *)(memory + bytes);
    for (int b = 0; b < m->n_blocks; b++)
        fill_queue(m, (mega_entry *)(void *)memory + b * longest, &lengths[b], b);
    qp_status status = cuda_buffer_alloc(d, total, "the megakernel's program", &m->program, error);
    if (status == QP_OK) status = mega_copy(d, m->program.address, memory, total, error);
    free(memory);
    m->arguments.program = m->program.address;
    m->arguments.lengths = m->program.address + bytes;
    m->arguments.longest = (int32_t)longest;
    return status;
}
