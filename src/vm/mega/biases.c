/* Biases in the megakernel's order: float32, those of an entry one after the other, so that a
 * kernel has one address and no types. */
#include "vm/mega/biases.h"
#include "vm/mega/opcodes.h"
#include "vm/mega/parts.h"

#include "base/checked.h"

#include <string.h>

/* The matrices of an operator, in the order in which its biases lie. */
typedef struct biased_node {
    op_code op;
    weight_slot slots[3];
    int n;
} biased_node;

static const biased_node nodes[] = {
    {OP_NORM_QKV_ROPE, {WEIGHT_ATTN_Q, WEIGHT_ATTN_K, WEIGHT_ATTN_V}, 3},
    {OP_ATTENTION_OUTPUT, {WEIGHT_ATTN_OUTPUT}, 1},
    {OP_NORM_MLP, {WEIGHT_FFN_GATE, WEIGHT_FFN_UP, WEIGHT_FFN_DOWN}, 3},
};
enum { NODES = sizeof nodes / sizeof *nodes };

static int bias_of(const program *p, weight_slot slot, int64_t layer)
{
    return program_find_weight(p, slot, layer, true);
}

static bool has_biases(const program *p, const biased_node *node, int64_t layer)
{
    for (int i = 0; i < node->n; i++)
        if (bias_of(p, node->slots[i], layer) >= 0) return true;
    return false;
}

static int64_t rows_of(const program *p, weight_slot slot, int64_t layer)
{
    return program_weight_part(&p->weights[program_find_weight(p, slot, layer, false)]).shape[0];
}

/* Bytes of a node's biases; 0: it has none. */
static size_t node_bytes(const program *p, const biased_node *node, int64_t layer)
{
    int64_t elements = 0;
    if (!has_biases(p, node, layer)) return 0;
    for (int i = 0; i < node->n; i++)
        elements += rows_of(p, node->slots[i], layer);
    return round_up((size_t)elements * sizeof(float), CUDA_ALIGNMENT);
}

/* Bytes of all biases before those of a layer's operator; OP_COUNT: after the last. */
static size_t bytes_before(const program *p, op_code op, int64_t of_layer)
{
    size_t bytes = 0;
    for (int64_t layer = 0; layer < p->config.n_layers; layer++)
        for (int i = 0; i < NODES; i++) {
            if (layer == of_layer && nodes[i].op == op) return bytes;
            bytes += node_bytes(p, &nodes[i], layer);
        }
    return bytes;
}

size_t mega_count_biases(const program *p)
{
    return bytes_before(p, OP_COUNT, -1);
}

bool mega_biases_qkv_only(const program *p)
{
    for (int64_t layer = 0; layer < p->config.n_layers; layer++)
        for (int i = 1; i < NODES; i++)
            if (has_biases(p, &nodes[i], layer)) return false;
    return true;
}

cuda_address mega_biases_of(const cuda_mega *m, op_code op, int64_t layer)
{
    const program *p = m->executor->program;
    for (int i = 0; i < NODES; i++)
        if (nodes[i].op == op && has_biases(p, &nodes[i], layer))
            return m->biases.address + bytes_before(p, op, layer);
    return 0;
}

static qp_status make_node(const cuda_mega *m, cuda_function kernel, const biased_node *node,
                           int64_t layer, qp_error *error)
{
    enum { THREADS = 256, BLOCKS = 64 };
    const cuda_executor *x = m->executor;
    const model_config *c = &x->program->config;
    bias_vectors vectors = {
        .to = mega_biases_of(m, node->op, layer),
        .group = node->op == OP_NORM_QKV_ROPE ? (int32_t)(c->n_heads / c->n_kv_heads) : 0,
        .head_dim = (int32_t)c->head_dim,
        .interleaved = c->rope.interleaved};
    if (!vectors.to) return QP_OK;
    for (int i = 0; i < node->n; i++) {
        const int bias = bias_of(x->program, node->slots[i], layer);
        vectors.count[i] = (int32_t)rows_of(x->program, node->slots[i], layer);
        if (bias < 0) continue;
        vectors.from[i] = x->weights.memory.address + x->weights.offsets[bias];
        vectors.type[i] = x->program->weights[bias].whole.type;
    }
    return cuda_check(x->device->driver->launch(kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0,
                                                x->device->stream, (void *[]){&vectors}, NULL),
                      "arranging biases", error);
}

qp_status mega_make_biases(cuda_mega *m, qp_error *error)
{
    const cuda_executor *x = m->executor;
    const size_t bytes = mega_count_biases(x->program);
    cuda_function kernel;
    if (bytes == 0) return QP_OK;
    TRY(cuda_buffer_alloc(x->device, bytes, "biases in float32", &m->biases, error));
    TRY(cuda_device_function(x->device, "mega_weights", "mega_make_biases", 0, &kernel, error));
    for (int64_t layer = 0; layer < x->program->config.n_layers; layer++)
        for (int i = 0; i < NODES; i++)
            TRY(make_node(m, kernel, &nodes[i], layer, error));
    return cuda_device_wait(x->device, "arranging biases", error);
}
