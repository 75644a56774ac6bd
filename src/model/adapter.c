/* LoRA adapters of a model: see adapter.h. */
#include "model/adapter.h"

#include "base/checksum.h"
#include "model/adapter_file.h"
#include "model/family/family.h"
#include "model/source_part.h"
#include "tensor/codec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS_ADAPTED (SLOTS_ATTENTION | SLOTS_FFN)

weight_slot adapter_leader(weight_slot slot)
{
    if (SLOTS_QKV >> slot & 1) return WEIGHT_ATTN_Q;
    return slot == WEIGHT_FFN_UP ? WEIGHT_FFN_GATE : slot;
}

int64_t adapter_place(const model_config *c, weight_slot slot)
{
    int64_t place = 0;
    for (weight_slot s = adapter_leader(slot); s < slot; s++)
        place += adapter_leader(s) == adapter_leader(slot) && c->adapters.slots >> s & 1;
    return place;
}

int64_t adapter_sharers(const model_config *c, weight_slot slot)
{
    int64_t sharers = 0;
    for (weight_slot s = 0; s < WEIGHT_COUNT; s++)
        sharers += adapter_leader(s) == adapter_leader(slot) && c->adapters.slots >> s & 1;
    return sharers;
}

tensor adapter_sizes(const model_config *c, weight_slot slot, bool b)
{
    int64_t rows, columns;
    const model_adapters *a = &c->adapters;
    weight_shape(c, slot, &rows, &columns);
    return b ? tensor_2d(NULL, DTYPE_F32, a->n * rows, a->rank)
             : tensor_2d(NULL, DTYPE_F32, a->n * adapter_sharers(c, slot) * a->rank, columns);
}

/* The adapters while they are opened. */
typedef struct adapters {
    weight_source *source;
    model_config *config;
    adapter_file *files; /* [n] */
    model_adapter *infos;
    int64_t n;
    dtype type; /* of all matrices */
    adapter_weight_of *weight_of;
    void *model;
} adapters;

static uint32_t adaptable(const model_config *c)
{
    uint32_t slots = 0;
    for (weight_slot slot = 0; slot < WEIGHT_COUNT; slot++)
        if (SLOTS_ADAPTED >> slot & 1 && family_has(c->family, slot)) slots |= 1u << slot;
    return slots;
}

/* ---- What there is --------------------------------------------------------------------------- */

/* Values that are not finite make logits that are no numbers, of all sequences in a batch. */
static qp_status check_matrix(const adapter_file *f, weight_slot slot, int64_t layer,
                              const tensor *half, qp_error *error)
{
    qp_status status = QP_OK;
    if (half->type == DTYPE_I32 || half->type == DTYPE_I64)
        return error_set(error, QP_FORMAT,
                         "%s: A and B of %s in layer %lld must be floating-point numbers, found %s",
                         f->path, weight_get_info(slot)->name, (long long)layer,
                         dtype_name(half->type));
    float *row = malloc((size_t)half->shape[1] * sizeof *row);
    if (!row) return error_no_memory(error, "a row of an adapter", (size_t)half->shape[1]);
    for (int64_t r = 0; status == QP_OK && r < half->shape[0]; r++) {
        dtype_decode(half->type, tensor_row(half, r), row, half->shape[1]);
        for (int64_t i = 0; status == QP_OK && i < half->shape[1]; i++)
            if (!isfinite(row[i]))
                status = error_set(error, QP_FORMAT,
                                   "%s: A and B of %s in layer %lld must be finite, found %g in "
                                   "row %lld",
                                   f->path, weight_get_info(slot)->name, (long long)layer,
                                   (double)row[i], (long long)r);
    }
    free(row);
    return status;
}

static qp_status look_at(adapters *a, int64_t i, weight_slot slot, int64_t layer, qp_error *error)
{
    adapter_pair pair;
    adapter_file *f = &a->files[i];
    model_adapter *info = &a->infos[i];
    TRY(adapter_file_get(f, slot, layer, &pair, error));
    if (pair.a.rank == 0) return QP_OK;
    TRY(check_matrix(f, slot, layer, &pair.a, error));
    TRY(check_matrix(f, slot, layer, &pair.b, error));
    info->checksum = checksum(pair.a.data, tensor_bytes(&pair.a), info->checksum);
    info->checksum = checksum(pair.b.data, tensor_bytes(&pair.b), info->checksum);
    a->config->adapters.slots |= 1u << slot;
    const bool first = info->rank == 0;
    if (first) info->scaling = pair.scaling;
    if (pair.a.shape[0] > info->rank) info->rank = pair.a.shape[0];
    const bool plain = pair.a.type == pair.b.type && !dtype_is_quantized(pair.a.type) &&
                       dtype_can_encode(pair.a.type) && pair.scaling == info->scaling;
    if (!plain || (a->type != DTYPE_COUNT && a->type != pair.a.type))
        a->type = DTYPE_F32;
    else if (a->type == DTYPE_COUNT)
        a->type = pair.a.type;
    return QP_OK;
}

static qp_status look_at_all(adapters *a, int64_t i, qp_error *error)
{
    const uint32_t slots = adaptable(a->config);
    for (weight_slot slot = 0; slot < WEIGHT_COUNT; slot++)
        for (int64_t layer = 0; slots >> slot & 1 && layer < a->config->n_layers; layer++)
            TRY(look_at(a, i, slot, layer, error));
    TRY(adapter_file_check_unread(&a->files[i], slots, error));
    a->infos[i].path = arena_strdup(a->source->arena, a->files[i].path);
    if (!a->infos[i].path) return error_no_memory(error, "an adapter's path", 0);
    if (a->infos[i].rank > a->config->adapters.rank) a->config->adapters.rank = a->infos[i].rank;
    return QP_OK;
}

/* ---- Beside the weights ---------------------------------------------------------------------- */

/* A row of `n` values in the type of all matrices, times `factor`; `values` is room for them. */
static void put_row(const adapters *a, dtype from, const void *row, int64_t n, double factor,
                    float *values, void *to)
{
    dtype_decode(from, row, values, n);
    for (int64_t i = 0; factor != 1 && i < n; i++)
        values[i] = (float)(values[i] * factor);
    dtype_encode(a->type, values, to, n);
}

static qp_status put_pair(adapters *a, int64_t i, weight_slot slot, int64_t layer, tensor lora_a,
                          tensor lora_b, qp_error *error)
{
    adapter_pair pair;
    const model_config *c = a->config;
    TRY(adapter_file_get(&a->files[i], slot, layer, &pair, error));
    if (pair.a.rank == 0) return QP_OK;
    const int64_t rank = pair.a.shape[0], each = lora_b.shape[0] / a->n;
    const int64_t first =
        (i * adapter_sharers(c, slot) + adapter_place(c, slot)) * c->adapters.rank;
    const int64_t widest = rank > pair.a.shape[1] ? rank : pair.a.shape[1];
    float *values = malloc((size_t)widest * sizeof *values);
    if (!values) return error_no_memory(error, "a row of an adapter", (size_t)widest);
    for (int64_t r = 0; r < rank; r++)
        put_row(a, pair.a.type, tensor_row(&pair.a, r), pair.a.shape[1], 1, values,
                tensor_row(&lora_a, first + r));
    for (int64_t row = 0; row < each; row++)
        put_row(a, pair.b.type,
                tensor_row(&pair.b, adapter_file_row(&a->files[i], slot, &pair, row)), rank,
                pair.scaling / a->infos[i].scaling, values, tensor_row(&lora_b, i * each + row));
    free(values);
    return QP_OK;
}

/* Zeros, which an adapter that does not adapt the weight keeps. */
static qp_status make_matrix(adapters *a, tensor sizes, tensor *out, qp_error *error)
{
    *out = tensor_2d(NULL, a->type, sizes.shape[0], sizes.shape[1]);
    return source_own_memory(a->source, tensor_bytes(out), "the adapters", &out->data, error);
}

static qp_status keep_slot(adapters *a, weight_slot slot, int64_t layer, qp_error *error)
{
    const model_config *c = a->config;
    model_weight *of = a->weight_of(a->model, slot, layer);
    tensor *lora_a = &a->weight_of(a->model, adapter_leader(slot), layer)->lora_a;
    if (lora_a->rank == 0) TRY(make_matrix(a, adapter_sizes(c, slot, false), lora_a, error));
    TRY(make_matrix(a, adapter_sizes(c, slot, true), &of->lora_b, error));
    for (int64_t i = 0; i < a->n; i++)
        TRY(put_pair(a, i, slot, layer, *lora_a, of->lora_b, error));
    return QP_OK;
}

/* ---- In the weights -------------------------------------------------------------------------- */

typedef struct merge_task {
    const adapter_file *file;
    const adapter_pair *pair;
    weight_slot slot;
    double factor;
    const float *a; /* (rank, columns) */
    const tensor *weight;
    bool failed[64];
} merge_task;

/* weight[row] += factor * b[row] a, in float32. */
static void merge_row(const merge_task *t, int64_t row, float *b, float *sum)
{
    const tensor *w = t->weight;
    const int64_t columns = w->shape[1], rank = t->pair->a.shape[0];
    const int64_t from = adapter_file_row(t->file, t->slot, t->pair, row);
    float *const values = sum + columns;
    dtype_decode(t->pair->b.type, tensor_row(&t->pair->b, from), b, rank);
    memset(sum, 0, (size_t)columns * sizeof *sum);
    for (int64_t r = 0; r < rank; r++)
        for (int64_t i = 0; i < columns; i++)
            sum[i] += b[r] * t->a[r * columns + i];
    dtype_decode(w->type, tensor_row(w, row), values, columns);
    for (int64_t i = 0; i < columns; i++)
        values[i] += (float)t->factor * sum[i];
    dtype_encode(w->type, values, tensor_row(w, row), columns);
}

static void merge_share(void *context, int worker, int n_workers)
{
    merge_task *t = context;
    int64_t begin, end;
    const int64_t columns = t->weight->shape[1], rank = t->pair->a.shape[0];
    float *room = malloc((size_t)(rank + 2 * columns) * sizeof *room);
    t->failed[worker % 64] |= !room;
    thread_share(t->weight->shape[0], worker, n_workers, &begin, &end);
    for (int64_t row = begin; room && row < end; row++)
        merge_row(t, row, room, room + rank);
    free(room);
}

static qp_status merge_pair(adapters *a, int64_t i, weight_slot slot, const adapter_pair *pair,
                            const tensor *weight, qp_error *error)
{
    const size_t n = (size_t)tensor_elements(&pair->a);
    float *values = malloc(n * sizeof *values);
    if (!values) return error_no_memory(error, "a matrix of an adapter", n * sizeof *values);
    dtype_decode(pair->a.type, pair->a.data, values, (int64_t)n);
    merge_task task = {.file = &a->files[i],
                       .pair = pair,
                       .slot = slot,
                       .factor = pair->scaling * a->source->options->adapters.of[i].scale,
                       .a = values,
                       .weight = weight};
    thread_pool_run(a->source->options->pool, merge_share, &task);
    free(values);
    for (int worker = 0; worker < 64; worker++)
        if (task.failed[worker]) return error_no_memory(error, "a row of a weight", n);
    return QP_OK;
}

/* The weight in memory of its own, in which adapters are added. */
static qp_status own_weight(adapters *a, weight_slot slot, tensor *weight, qp_error *error)
{
    tensor own = *weight;
    if (dtype_is_quantized(own.type))
        return error_set(error, QP_UNSUPPORTED,
                         "%s: adapters are added to weights in F32, F16 and BF16, and %s is %s: "
                         "apply them as the model runs, or merge them into the model before it is "
                         "quantised",
                         a->source->path, weight_get_info(slot)->name, dtype_name(own.type));
    TRY(source_own_memory(a->source, tensor_bytes(&own), "merged weights", &own.data, error));
    memcpy(own.data, weight->data, tensor_bytes(&own));
    *weight = own;
    return QP_OK;
}

static qp_status merge_slot(adapters *a, weight_slot slot, int64_t layer, qp_error *error)
{
    tensor *weight = &a->weight_of(a->model, slot, layer)->weight;
    bool owned = false;
    for (int64_t i = 0; i < a->n; i++) {
        adapter_pair pair;
        TRY(adapter_file_get(&a->files[i], slot, layer, &pair, error));
        if (pair.a.rank == 0) continue;
        if (!owned) TRY(own_weight(a, slot, weight, error));
        owned = true;
        TRY(merge_pair(a, i, slot, &pair, weight, error));
    }
    return QP_OK;
}

/* ---- All ------------------------------------------------------------------------------------- */

static qp_status open_all(adapters *a, qp_error *error)
{
    const adapter_choices *o = &a->source->options->adapters;
    for (int64_t i = 0; i < a->n; i++) {
        TRY(adapter_file_open(o->of[i].path, a->config, a->source->arena, &a->files[i], error));
        TRY(look_at_all(a, i, error));
    }
    const uint32_t slots = a->config->adapters.slots;
    a->config->adapters.n = o->merge ? 0 : a->n;
    for (int64_t layer = 0; layer < a->config->n_layers; layer++)
        for (weight_slot slot = 0; slot < WEIGHT_COUNT; slot++) {
            if (!(slots >> slot & 1)) continue;
            TRY(o->merge ? merge_slot(a, slot, layer, error) : keep_slot(a, slot, layer, error));
        }
    for (int64_t i = 0; o->merge && i < a->n; i++)
        a->config->adapters.merged = checksum(&o->of[i].scale, sizeof o->of[i].scale,
                                              a->config->adapters.merged ^ a->infos[i].checksum);
    return QP_OK;
}

qp_status adapter_open_all(weight_source *source, model_config *config, model_adapter *infos,
                           adapter_weight_of *weight_of, void *model, qp_error *error)
{
    adapters a = {.source = source,
                  .config = config,
                  .infos = infos,
                  .n = source->options->adapters.n,
                  .type = DTYPE_COUNT,
                  .weight_of = weight_of,
                  .model = model};
    if (a.n > ADAPTER_MAX)
        return error_set(error, QP_UNSUPPORTED, "a model has at most %d adapters, found %lld",
                         ADAPTER_MAX, (long long)a.n);
    a.files = calloc((size_t)a.n, sizeof *a.files);
    if (!a.files) return error_no_memory(error, "adapters", (size_t)a.n * sizeof *a.files);
    const qp_status status = open_all(&a, error);
    for (int64_t i = 0; i < a.n; i++)
        adapter_file_close(&a.files[i]);
    free(a.files);
    return status;
}
