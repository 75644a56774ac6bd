/* Quantised weights as bricks (bricks.h): which models have them, their offsets, and the conversion
 * on the GPU from the stored weights. */
#include "vm/mega/parts.h"

#include "base/checked.h"

#include <stdlib.h>

/* Whether a matrix is the output's, beside matrices in FP8: checkpoints leave it in BF16. */
static bool is_output_of_f8(const program *p, int weight)
{
    const int q = program_find_weight(p, WEIGHT_ATTN_Q, 0, false);
    return p->weights[weight].slot == WEIGHT_OUTPUT && mega_brick_kind(p, q) == BRICK_F8;
}

int mega_brick_kind(const program *p, int weight)
{
    switch (p->weights[weight].whole.type) {
    case DTYPE_Q8_0:
        return BRICK_Q8_0;
    case DTYPE_Q4_0:
        return BRICK_Q4_0;
    case DTYPE_Q4_1:
        return BRICK_Q4_1;
    case DTYPE_Q4_K:
        return BRICK_Q4_K;
    case DTYPE_Q6_K:
        return BRICK_Q6_K;
    case DTYPE_F8_128:
        if (!cuda_weights_by_rows(p, p->weights[weight].stored)) return BRICK_NONE;
        return p->weights[weight].slot == WEIGHT_FFN_DOWN ? BRICK_F8_DOWN : BRICK_F8;
    case DTYPE_BF16:
        return is_output_of_f8(p, weight) ? BRICK_BF16 : BRICK_NONE;
    default:
        return BRICK_NONE;
    }
}

typedef qp_status visit_matrix(void *context, weight_slot slot, int64_t layer,
                               const brick_matrix *matrix, qp_error *error);

/* How a matrix is cut. */
static brick_matrix matrix_of(const program *p, int weight)
{
    const model_config *c = &p->config;
    const tensor view = program_weight_part(&p->weights[weight]);
    const weight_slot slot = p->weights[weight].slot;
    brick_matrix matrix = {.kind = mega_brick_kind(p, weight),
                           .form = BRICKS_OF_ROWS,
                           .rows = (int32_t)view.shape[0],
                           .columns = (int32_t)view.shape[1],
                           .head_dim = (int32_t)c->head_dim};
    if (slot == WEIGHT_ATTN_Q || slot == WEIGHT_ATTN_K || slot == WEIGHT_ATTN_V) {
        matrix.form = BRICKS_OF_PAIRS;
        matrix.turns_apart = slot != WEIGHT_ATTN_V && !c->rope.interleaved;
    } else if (slot == WEIGHT_ATTN_OUTPUT) {
        matrix.form = BRICKS_OF_HEADS;
        matrix.head_columns = (int32_t)(config_q_hidden_units(c) / c->n_kv_heads);
    } else if (slot == WEIGHT_FFN_DOWN) {
        matrix.form = BRICKS_OF_FEATURES;
    }
    return matrix;
}

/* Calls `visit` for every matrix that a pass multiplies by, in the order of the bricks. */
static qp_status visit_all(const program *p, visit_matrix *visit, void *context, qp_error *error)
{
    for (int64_t layer = -1; layer < p->config.n_layers; layer++) {
        for (int i = 0; i < WEIGHT_COUNT; i++) {
            const weight_slot slot = (weight_slot)i;
            const int weight = program_find_weight(p, slot, layer, false);
            if (weight < 0 || p->weights[weight].layer != layer || slot == WEIGHT_TOKEN_EMBD ||
                p->weights[weight].whole.rank != 2)
                continue;
            brick_matrix matrix = matrix_of(p, weight);
            TRY(visit(context, slot, layer, &matrix, error));
        }
    }
    return QP_OK;
}

static size_t bytes_before(const brick_matrix *m)
{
    return round_up((size_t)brick_bytes_before(m), CUDA_ALIGNMENT);
}

static size_t matrix_bytes(const brick_matrix *m)
{
    return bytes_before(m) +
           round_up((size_t)brick_count(m) * (size_t)brick_bytes(m->kind), CUDA_ALIGNMENT);
}

static qp_status add_kind(void *context, weight_slot slot, int64_t layer,
                          const brick_matrix *matrix, qp_error *error)
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
static const unsigned numbers = 1u << BRICK_F8 | 1u << BRICK_F8_DOWN | 1u << BRICK_BF16;

bool mega_is_quantized(const program *p)
{
    const unsigned kinds = kinds_of(p);
    return !(kinds & 1u << BRICK_NONE) && (!(kinds & numbers) || !(kinds & ~numbers));
}

bool mega_is_half(const program *p)
{
    return p->weights[program_find_weight(p, WEIGHT_ATTN_Q, 0, false)].whole.type == DTYPE_F16;
}

const char *mega_image(const program *p)
{
    static const struct {
        const char *name;
        unsigned kinds;
    } images[] = {
        {"mega_q8_0", 1u << BRICK_Q8_0}, {"mega_q4_0", 1u << BRICK_Q4_0}, {"mega_f8", numbers}};
    const bool ranks = p->options.ranks > 1;
    if (!mega_is_quantized(p) && mega_is_half(p)) return ranks ? "mega_ranks_f16" : "mega_f16";
    if (!mega_is_quantized(p)) return ranks ? "mega_ranks" : "mega";
    if (ranks) return "mega_ranks_bricks";
    unsigned kinds = kinds_of(p);
    for (size_t i = 0; i < sizeof images / sizeof *images; i++)
        if (!(kinds & ~images[i].kinds)) return images[i].name;
    return "mega_bricks";
}

int mega_stage_bytes(const program *p)
{
    unsigned kinds = kinds_of(p);
    int most = MEGA_CACHE_BRICKS + MEGA_CACHE_GAPS;
    for (int kind = BRICK_NONE + 1; kind < BRICK_KINDS; kind++)
        if (kinds & 1u << kind && MEGA_WARPS * brick_bytes(kind) > most)
            most = MEGA_WARPS * brick_bytes(kind);
    return most;
}

static qp_status add_bytes(void *context, weight_slot slot, int64_t layer,
                           const brick_matrix *matrix, qp_error *error)
{
    (void)slot, (void)layer, (void)error;
    *(size_t *)context += matrix_bytes(matrix);
    return QP_OK;
}

size_t mega_count_bricks(const program *p)
{
    size_t bytes = 0;
    visit_all(p, add_bytes, &bytes, NULL);
    return bytes;
}

typedef struct brick_maker {
    cuda_mega *mega;
    cuda_function kernel;
    size_t used;
} brick_maker;

static qp_status make_one(void *context, weight_slot slot, int64_t layer,
                          const brick_matrix *matrix, qp_error *error)
{
    enum { THREADS = 256, BLOCKS = 2048 };
    brick_maker *maker = context;
    cuda_mega *m = maker->mega;
    const cuda_device *d = m->executor->device;
    brick_matrix own = *matrix;
    m->bricks[layer + 1][slot] = maker->used + bytes_before(matrix);
    own.from = cuda_weights_address(&m->executor->weights, slot, layer);
    own.scales = cuda_weights_scales(&m->executor->weights, slot, layer);
    own.to = m->weights.address + m->bricks[layer + 1][slot];
    maker->used += matrix_bytes(matrix);
    return cuda_check(d->driver->launch(maker->kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0, d->stream,
                                        (void *[]){&own}, NULL),
                      "arranging weights", error);
}

qp_status mega_make_bricks(cuda_mega *m, qp_error *error)
{
    const cuda_executor *x = m->executor;
    size_t rows = (size_t)x->program->config.n_layers + 1;
    brick_maker maker = {.mega = m};
    m->bricks = calloc(rows, sizeof *m->bricks);
    if (!m->bricks) return error_no_memory(error, "the table of bricks", rows * sizeof *m->bricks);
    TRY(cuda_buffer_alloc(x->device, mega_count_bricks(x->program), "weights as bricks",
                          &m->weights, error));
    TRY(cuda_device_function(x->device, "mega_weights", "mega_make_bricks", 0, &maker.kernel,
                             error));
    TRY(visit_all(x->program, make_one, &maker, error));
    return cuda_device_wait(x->device, "arranging weights", error);
}
