/* Quantised weights as fragments (fragments.h): which models have them, their offsets, and the
 * conversion on the GPU from the stored weights. */
#include "vm/mega/batch_fragments.h"
#include "vm/mega/parts.h"

#include "base/checked.h"

#include <stdlib.h>

/* Whether a matrix is the output's, beside matrices in FP8: checkpoints leave it in BF16. */
static bool is_output_of_f8(const program *p, int weight)
{
    const int q = program_find_weight(p, WEIGHT_ATTN_Q, 0, false);
    return p->weights[weight].slot == WEIGHT_OUTPUT && mega_fragment_kind(p, q) == FRAGMENT_F8;
}

int mega_fragment_kind(const program *p, int weight)
{
    switch (p->weights[weight].whole.type) {
    case DTYPE_Q8_0:
        return FRAGMENT_Q8_0;
    case DTYPE_Q4_0:
        return FRAGMENT_Q4_0;
    case DTYPE_Q4_1:
        return FRAGMENT_Q4_1;
    case DTYPE_Q4_K:
        return FRAGMENT_Q4_K;
    case DTYPE_Q6_K:
        return FRAGMENT_Q6_K;
    case DTYPE_F8_128:
        if (!cuda_weights_by_rows(p, p->weights[weight].stored)) return FRAGMENT_NONE;
        return p->weights[weight].slot == WEIGHT_FFN_DOWN ? FRAGMENT_F8_DOWN : FRAGMENT_F8;
    case DTYPE_BF16:
        return is_output_of_f8(p, weight) ? FRAGMENT_BF16 : FRAGMENT_NONE;
    default:
        return FRAGMENT_NONE;
    }
}

typedef qp_status visit_matrix(void *context, weight_slot slot, int64_t layer,
                               const fragment_matrix *matrix, qp_error *error);

/* How a matrix is cut. */
static fragment_matrix matrix_of(const program *p, int weight)
{
    const model_config *c = &p->config;
    const tensor view = program_weight_part(&p->weights[weight]);
    const weight_slot slot = p->weights[weight].slot;
    fragment_matrix matrix = {.kind = mega_fragment_kind(p, weight),
                              .form = FRAGMENTS_OF_ROWS,
                              .rows = (int32_t)view.shape[0],
                              .columns = (int32_t)view.shape[1],
                              .head_dim = (int32_t)c->head_dim};
    if (slot == WEIGHT_ATTN_Q || slot == WEIGHT_ATTN_K || slot == WEIGHT_ATTN_V) {
        matrix.form = FRAGMENTS_OF_PAIRS;
        matrix.turns_apart = slot != WEIGHT_ATTN_V && !c->rope.interleaved;
    } else if (slot == WEIGHT_ATTN_OUTPUT) {
        matrix.form = FRAGMENTS_OF_HEADS;
        matrix.head_columns = (int32_t)(config_q_hidden_units(c) / c->n_kv_heads);
    } else if (slot == WEIGHT_FFN_DOWN) {
        matrix.form = FRAGMENTS_OF_FEATURES;
    }
    return matrix;
}

/* Calls `visit` for every matrix that a pass multiplies by, in the order of the fragments. */
static qp_status visit_all(const program *p, visit_matrix *visit, void *context, qp_error *error)
{
    for (int64_t layer = -1; layer < p->config.n_layers; layer++) {
        for (int i = 0; i < WEIGHT_COUNT; i++) {
            const weight_slot slot = (weight_slot)i;
            const int weight = program_find_weight(p, slot, layer, false);
            if (weight < 0 || p->weights[weight].layer != layer || slot == WEIGHT_TOKEN_EMBD ||
                p->weights[weight].whole.rank != 2)
                continue;
            fragment_matrix matrix = matrix_of(p, weight);
            TRY(visit(context, slot, layer, &matrix, error));
        }
    }
    return QP_OK;
}

static size_t bytes_before(const fragment_matrix *m)
{
    return round_up((size_t)fragment_bytes_before(m), CUDA_ALIGNMENT);
}

static size_t matrix_bytes(const fragment_matrix *m)
{
    return bytes_before(m) +
           round_up((size_t)fragment_count(m) * (size_t)fragment_bytes(m->kind), CUDA_ALIGNMENT);
}

static qp_status add_kind(void *context, weight_slot slot, int64_t layer,
                          const fragment_matrix *matrix, qp_error *error)
{
    (void)slot, (void)layer, (void)error;
    *(unsigned *)context |= 1u << matrix->kind;
    return QP_OK;
}

static unsigned kinds_of(const program *p)
{
    unsigned kinds = 0;
    visit_all(p, add_kind, &kinds, NULL);
    return kinds;
}

/* Kinds that have kernels of their own, without the others. */
static const unsigned numbers = 1u << FRAGMENT_F8 | 1u << FRAGMENT_F8_DOWN | 1u << FRAGMENT_BF16;

bool mega_is_quantized(const program *p)
{
    const unsigned kinds = kinds_of(p);
    return !(kinds & 1u << FRAGMENT_NONE) && (!(kinds & numbers) || !(kinds & ~numbers));
}

bool mega_is_half(const program *p)
{
    return p->weights[program_find_weight(p, WEIGHT_ATTN_Q, 0, false)].whole.type == DTYPE_F16;
}

/* The same over a KV cache in F8, which has fewer images. */
static const char *cache_f8_image(const program *p)
{
    if (!mega_is_quantized(p)) return mega_is_half(p) ? "mega_f16_cache_f8" : "mega_cache_f8";
    return kinds_of(p) & numbers ? "mega_f8_cache_f8" : "mega_mixed_cache_f8";
}

const char *mega_image(const program *p)
{
    static const struct {
        const char *name;
        unsigned kinds;
        bool plain;
    } images[] = {{"mega_q8_0", 1u << FRAGMENT_Q8_0, false},
                  {"mega_q4_0", 1u << FRAGMENT_Q4_0, false},
                  {"mega_q4_k", 1u << FRAGMENT_Q4_K | 1u << FRAGMENT_Q6_K, true},
                  {"mega_q4_k_families", 1u << FRAGMENT_Q4_K | 1u << FRAGMENT_Q6_K, false},
                  {"mega_f8", numbers, false}};
    const bool ranks = p->options.ranks > 1;
    if (p->options.kv_type == DTYPE_F8) return cache_f8_image(p);
    if (!mega_is_quantized(p) && mega_is_half(p)) return ranks ? "mega_ranks_f16" : "mega_f16";
    if (!mega_is_quantized(p)) return ranks ? "mega_ranks" : "mega";
    if (ranks) return "mega_ranks_mixed";
    unsigned kinds = kinds_of(p);
    for (size_t i = 0; i < sizeof images / sizeof *images; i++)
        if (!(kinds & ~images[i].kinds) && (!images[i].plain || mega_is_plain(p)))
            return images[i].name;
    return "mega_mixed";
}

const char *mega_batch_image(const program *p)
{
    if (!mega_is_quantized(p) && mega_is_half(p)) return "mega_batch_f16";
    if (!mega_is_quantized(p)) return mega_is_plain(p) ? "mega_batch" : "mega_batch_families";
    const unsigned kinds = kinds_of(p);
    if (kinds & numbers) return NULL;
    return kinds == 1u << FRAGMENT_Q4_0 ? "mega_batch_q4_0" : "mega_batch_mixed";
}

int mega_stage_bytes(const program *p)
{
    unsigned kinds = kinds_of(p);
    int most = MEGA_CACHE_FRAGMENTS + MEGA_CACHE_GAPS;
    for (int kind = FRAGMENT_NONE + 1; kind < FRAGMENT_KINDS; kind++)
        if (kinds & 1u << kind && MEGA_WARPS * fragment_bytes(kind) > most)
            most = MEGA_WARPS * fragment_bytes(kind);
    return most;
}

int mega_batch_stage_bytes(const program *p)
{
    const unsigned kinds = kinds_of(p);
    int most = MEGA_STAGE;
    for (int kind = FRAGMENT_NONE + 1; kind < FRAGMENT_KINDS; kind++) {
        const int bytes = fragment_chunk_units(kind) * MEGA_WARPS * fragment_bytes(kind);
        if (kinds & 1u << kind && bytes > most) most = bytes;
    }
    return most + MEGA_SHIFT;
}

static qp_status add_bytes(void *context, weight_slot slot, int64_t layer,
                           const fragment_matrix *matrix, qp_error *error)
{
    (void)slot, (void)layer, (void)error;
    *(size_t *)context += matrix_bytes(matrix);
    return QP_OK;
}

size_t mega_count_fragments(const program *p)
{
    size_t bytes = 0;
    visit_all(p, add_bytes, &bytes, NULL);
    return bytes;
}

typedef struct fragment_maker {
    cuda_mega *mega;
    cuda_function kernel;
    size_t used;
} fragment_maker;

static qp_status make_one(void *context, weight_slot slot, int64_t layer,
                          const fragment_matrix *matrix, qp_error *error)
{
    enum { THREADS = 256, BLOCKS = 2048 };
    fragment_maker *maker = context;
    cuda_mega *m = maker->mega;
    const cuda_device *d = m->executor->device;
    fragment_matrix own = *matrix;
    m->fragments[layer + 1][slot] = maker->used + bytes_before(matrix);
    own.from = cuda_weights_address(&m->executor->weights, slot, layer);
    own.scales = cuda_weights_scales(&m->executor->weights, slot, layer);
    own.to = m->weights.address + m->fragments[layer + 1][slot];
    maker->used += matrix_bytes(matrix);
    return cuda_check(d->driver->launch(maker->kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0, d->stream,
                                        (void *[]){&own}, NULL),
                      "arranging weights", error);
}

qp_status mega_make_fragments(cuda_mega *m, qp_error *error)
{
    const cuda_executor *x = m->executor;
    size_t rows = (size_t)x->program->config.n_layers + 1;
    fragment_maker maker = {.mega = m};
    m->fragments = calloc(rows, sizeof *m->fragments);
    if (!m->fragments)
        return error_no_memory(error, "the table of fragments", rows * sizeof *m->fragments);
    TRY(cuda_buffer_alloc(x->device, mega_count_fragments(x->program), "weights as fragments",
                          &m->weights, error));
    TRY(cuda_device_function(x->device, "mega_weights", "mega_make_fragments", 0, &maker.kernel,
                             error));
    TRY(visit_all(x->program, make_one, &maker, error));
    return cuda_device_wait(x->device, "arranging weights", error);
}
