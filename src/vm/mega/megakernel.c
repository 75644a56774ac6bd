/* The megakernel over a cuda_executor's memory: which models it runs, and opening it. */
#include "vm/mega/parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    /* Up to this many positions, every block computes the attention of its KV head itself. Beyond,
     * it is faster to divide the attention among blocks, although that adds a dependency. */
    RECOMPUTE = 384,
    MAX_FEATURES = 160, /* features of the MLP in one block; quantised: */
    MAX_FEATURES_QUANTIZED = 256,
    CHUNK_PAGES = 16, /* in a chunk of the cache: a lane copies a page's keys, or its values */
    BOX_UNITS = 16,   /* 16 rows by 64 columns of W_o, one per warp */
};

/* ---- which models ------------------------------------------------------------------------- */

/* NULL, or why the megakernel cannot read the weights' types. Matrices must be all BF16, all F16,
 * or all quantised, FP8 too, in types that have fragments. Vectors must be F32, or have the
 * matrices' 16-bit type (BF16 if the matrices are quantised). */
static const char *types_refusal(const program *p)
{
    static const char mixed[] =
        "the megakernel reads models whose matrices are all BF16, all F16, all FP8 with a scale a "
        "row, or all in Q8_0, Q4_0, Q4_1, Q4_K and Q6_K, which may be mixed: only the output may "
        "be BF16 beside FP8, and the embedding, where it is not the output too, in any type but "
        "MXFP4, NVFP4, IQ and TQ types beside FP8 and quantised ones";
    const dtype narrow = mega_is_half(p) ? DTYPE_F16 : DTYPE_BF16;
    const bool quantized = mega_is_quantized(p);
    for (int i = 0; i < p->n_weights; i++) {
        const tensor *weight = &p->weights[i].whole;
        if (dtype_has_levels(weight->type)) return mixed;
        if (p->weights[i].bias && p->weights[i].slot == WEIGHT_OUTPUT)
            return "the megakernel adds no bias to logits";
        if (weight->rank == 2 && !quantized && weight->type != narrow) return mixed;
        if (weight->rank == 1 && weight->type != narrow && weight->type != DTYPE_F32)
            return "the megakernel's norms are F32 or of 16 bits as its matrices are, BF16 "
                   "beside quantised ones";
    }
    return NULL;
}

/* NULL, or why it does not normalise heads. */
static const char *head_norms_refusal(const program *p)
{
    for (int64_t layer = 0; layer < p->config.n_layers && mega_has_head_norms(p); layer++) {
        const int q = program_find_weight(p, WEIGHT_ATTN_Q_NORM, layer, false);
        const int k = program_find_weight(p, WEIGHT_ATTN_K_NORM, layer, false);
        if (q < 0 || k < 0 || p->weights[q].whole.type != p->weights[k].whole.type)
            return "the megakernel's norms of q and k are in all layers, and of one type";
    }
    return NULL;
}

/* Hidden sizes beyond MEGA_MAX_HIDDEN are for several ranks: weights of such models fill more than
 * a GPU, or their MLP is too wide for one's blocks. Rows of 16 bits are then read in halves. */
static bool is_wide(const program *p)
{
    return p->options.ranks > 1 && p->config.hidden_size == MEGA_WIDE && p->config.head_dim == 128;
}

/* NULL, or why the megakernel does not read the KV cache. */
static const char *cache_refusal(const program *p)
{
    const plan_options *o = &p->options;
    const int64_t bytes = mega_is_quantized(p) ? MEGA_CACHE_FRAGMENTS : MEGA_BOX;
    const bool f8 = o->kv_type == DTYPE_F8;
    if (f8 && o->ranks > 1) return "the megakernel keeps keys and values in F8 on one GPU only";
    if (!f8 && o->kv_type != DTYPE_F16 && o->kv_type != DTYPE_BF16)
        return "the megakernel keeps keys and values in F16, BF16 or F8";
    const int64_t chunk = bytes / (f8 ? 2 : 4) / p->config.head_dim; /* positions */
    if (o->page_size < 8 || chunk / o->page_size > CHUNK_PAGES || chunk % o->page_size)
        return "the megakernel needs pages of at least 8 positions (16 for heads of 64 in F8), a "
               "whole number of which fills its chunk of the cache";
    return NULL;
}

/* NULL, or why the megakernel does not run the model. */
static const char *refusal(const program *p, int n_blocks)
{
    const model_config *c = &p->config;
    const plan_options *o = &p->options;
    int64_t group = c->n_heads / c->n_kv_heads;
    const char *types = types_refusal(p), *ranks = mega_ranks_refusal(p);
    const char *cache = cache_refusal(p), *norms = head_norms_refusal(p);
    if (o->ranks > 1 && !mega_biases_qkv_only(p))
        return "the megakernel of several ranks adds only biases of q, k and v";
    if (c->adapters.n) return "the megakernel applies no adapters: merge them into the weights";
    if (program_is_other(p))
        return "the megakernel computes Llama's layers: without norms after attention and the MLP, "
               "GELU, multipliers, soft caps and tables of angles of layers that slide";
    if (types) return types;
    if (norms) return norms;
    if (ranks) return ranks;
    if (c->head_dim != 64 && c->head_dim != 128) return "the megakernel has heads of 64 and 128";
    if (c->rope.dim != c->head_dim || program_has_dynamic_rope(p))
        return "the megakernel turns whole heads by angles that do not change";
    if (group > MEGA_MAX_GROUP) return "the megakernel has at most 8 query heads to a KV head";
    if (c->hidden_size % 64 ||
        c->hidden_size > (mega_is_quantized(p) ? MEGA_WIDE : MEGA_MAX_HIDDEN)) {
        if (!is_wide(p))
            return "the megakernel has hidden sizes up to 4096, up to 8192 with quantised weights, "
                   "in multiples of 64; on several ranks also 8192 with heads of 128";
    }
    if (cache) return cache;
    if (program_any_window(p) == 1) return "the megakernel has windows of at least 2 positions";
    if (n_blocks < c->n_kv_heads) return "the megakernel needs a block for every KV head";
    if (c->intermediate_size >
        (int64_t)n_blocks * (mega_is_quantized(p) ? MAX_FEATURES_QUANTIZED : MAX_FEATURES))
        return "the model's MLP is too wide for the megakernel's number of blocks";
    return NULL;
}

const char *cuda_mega_verify_refusal(const program *p, int n_blocks)
{
    const char *whole = refusal(p, n_blocks);
    return whole ? whole : mega_verify_refusal(p);
}

cuda_mega_bytes cuda_mega_count(const program *p, int n_blocks, bool verifies)
{
    const model_config *c = &p->config;
    if (refusal(p, n_blocks)) return (cuda_mega_bytes){0};
    return (cuda_mega_bytes){.weights = mega_count_weights(p),
                             .tables =
                                 mega_count_activations(p, n_blocks) +
                                 mega_count_batch(p, verifies) + mega_count_biases(p) +
                                 mega_count_receive(p, n_blocks) + mega_count_program(c, n_blocks) +
                                 (mega_is_quantized(p) ? 0 : (size_t)c->n_layers * MEGA_MAP_BYTES)};
}

qp_status mega_copy(const cuda_device *d, cuda_address to, const void *from, size_t bytes,
                    qp_error *error)
{
    static const char operation[] = "copying the megakernel's tables to the GPU";
    TRY(cuda_check(d->driver->copy_to_device(to, from, bytes, d->stream), operation, error));
    return cuda_device_wait(d, operation, error);
}

/* ---- making it ----------------------------------------------------------------------------- */

static void set_sizes(cuda_mega *m)
{
    const cuda_executor *x = m->executor;
    const model_config *c = &x->program->config;
    mega_arguments *a = &m->arguments;
    int groups = (int)(c->n_heads / c->n_kv_heads * c->head_dim / 64);
    a->hidden = (int32_t)c->hidden_size;
    a->n_layers = (int32_t)c->n_layers;
    a->group = (int32_t)(c->n_heads / c->n_kv_heads);
    a->n_kv_heads = (int32_t)c->n_kv_heads;
    a->vocab = (int32_t)c->vocab_size;
    a->n_features = (int32_t)c->intermediate_size;
    a->page_size = (int32_t)x->program->options.page_size;
    a->pages_per_layer = (int32_t)x->program->options.n_pages;
    a->interleaved = c->rope.interleaved;
    a->box_rows = 16 * (BOX_UNITS / groups);
    a->recompute = RECOMPUTE;
    a->n_rows = 1;
    a->eps = (float)c->rms_norm_eps;
    a->group_inverse = (255 + a->group) / a->group;
    a->scale = (float)(1 / sqrt((double)c->head_dim) / log(2));
    const int table = program_find_weight(x->program, WEIGHT_TOKEN_EMBD, -1, false);
    const tensor *embedding = &x->program->weights[table].whole;
    m->quantized = mega_is_quantized(x->program);
    a->stage_bytes = m->quantized ? mega_stage_bytes(x->program) : MEGA_STAGE;
    a->embedding_type = embedding->type;
    a->embedding_bytes = (int32_t)(tensor_bytes(embedding) / (size_t)c->vocab_size);
    a->embedding = cuda_weights_rows(&x->weights, WEIGHT_TOKEN_EMBD, -1);
    a->rope_table = x->rope_table.address;
    a->k_cache = x->k_cache.address;
    a->v_cache = x->v_cache.address;
    a->logits = cuda_executor_address(x, PLAN_LOGITS, 0) +
                (size_t)x->program->shard.vocab.first * sizeof(float);
}

/* The number of blocks where the caller leaves it open. Of several ranks the fewest whose largest
 * share of the MLP is that of one block for each multiprocessor, if nearly all work then: 1b and 8b
 * on two ranks are 2% faster with 128 blocks than with 132. */
static int usual_blocks(const program *p, int n_multiprocessors)
{
    const int64_t tiles = (p->config.intermediate_size + MEGA_TILE - 1) / MEGA_TILE;
    const int64_t each = (tiles + n_multiprocessors - 1) / n_multiprocessors;
    const int n = (int)((tiles + each - 1) / each);
    return p->options.ranks > 1 && 16 * n >= 15 * n_multiprocessors ? n : n_multiprocessors;
}

qp_status cuda_mega_init(cuda_mega *m, cuda_executor *x, const cuda_mega_options *options,
                         qp_error *error)
{
    const model_config *c = &x->program->config;
    char name[32];
    *m = (cuda_mega){.executor = x,
                     .n_blocks = options->n_blocks,
                     .alone = options->alone,
                     .verifies = options->verifies};
    if (!m->n_blocks) m->n_blocks = usual_blocks(x->program, x->device->n_multiprocessors);
    m->why_not = cuda_device_has(x->device, CUDA_MEGA_NEEDS) ? refusal(x->program, m->n_blocks)
                                                             : CUDA_MEGA_REFUSAL;
    if (!m->why_not && m->verifies) m->why_not = mega_verify_refusal(x->program);
    if (m->why_not) return QP_OK;
    set_sizes(m);
    mega_lay_out_shared(m);
    if (m->arguments.stages < 3) {
        m->why_not = "the model's vectors leave the megakernel no shared memory for weights";
        return QP_OK;
    }
    TRY(mega_take_memory(m, error));
    TRY(mega_make_weights(m, error));
    TRY(mega_make_biases(m, error));
    progress_stage_ended(options->progress, "arranging weights for the megakernel");
    TRY(mega_make_program(m, options, error));
    TRY(mega_connect_ranks(m, options->group, error));
    if (m->verifies || (!m->alone && m->arguments.ranks.count == 1)) TRY(mega_init_batch(m, error));
    if (m->verifies && !m->batch_kernel) {
        m->why_not = "the megakernel has too few blocks for several tokens of a sequence in a pass";
        return QP_OK;
    }
    progress_stage_ended(options->progress, "making the megakernel's schedule");
    snprintf(name, sizeof name, "mega_%d_%s_%d", (int)c->head_dim,
             dtype_name(x->program->options.kv_type),
             m->quantized                     ? 0
             : c->hidden_size <= MEGA_COLUMNS ? 1
             : is_wide(x->program)            ? 4
                                              : 2);
    const char *image = mega_image(x->program);
    char choosing[32];
    snprintf(choosing, sizeof choosing, "%s_choosing", image);
    int shared = cuda_mega_shared_bytes(m);
    TRY(cuda_device_function(x->device, choosing, name, shared, &m->choosing, error));
    TRY(cuda_device_function(x->device, image, name, shared, &m->kernel, error));
    progress_stage_ended(options->progress, "loading the megakernel");
    return QP_OK;
}

int cuda_mega_shared_bytes(const cuda_mega *m)
{
    return m->arguments.stages * m->arguments.stage_bytes + (int)m->arguments.shared.bytes;
}

void cuda_mega_free(cuda_mega *m)
{
    if (!m->executor) return;
    const cuda_device *d = m->executor->device;
    if (m->side_stream) d->driver->stream_destroy(m->side_stream);
    schedule_free(&m->schedule);
    program_free(&m->sums);
    cuda_buffer_free(d, &m->program);
    cuda_buffer_free(d, &m->maps);
    cuda_buffer_free(d, &m->weights);
    cuda_buffer_free(d, &m->biases);
    free(m->fragments);
    cuda_buffer_free(d, &m->own);
    cuda_buffer_free(d, &m->receive);
    cuda_buffer_free(d, &m->batch_own);
    cuda_buffer_free(d, &m->timings);
    cuda_pinned_free(d, &m->tokens);
    cuda_pinned_free(d, &m->report);
    cuda_pinned_free(d, &m->stop_request);
    *m = (cuda_mega){0};
}
