/* Experts of safetensors, which have a tensor each or one for all: see source_part.h. */
#include "model/source_part.h"

#include "model/fp8.h"
#include "model/joined_experts.h"

#include <stdio.h>
#include <string.h>

source_experts_form source_experts(const weight_source *source, weight_slot slot)
{
    const char *stem = source->safetensors ? source_stem(source, slot) : NULL;
    if (!stem) return SOURCE_NO_EXPERTS;
    if (strchr(stem, '*')) return SOURCE_SPLIT_EXPERTS;
    const bool whole = weight_get_info(slot)->per_expert && stem[strlen(stem) - 1] == '.';
    return whole ? SOURCE_JOINED_EXPERTS : SOURCE_NO_EXPERTS;
}

/* ---- A tensor each --------------------------------------------------------------------------- */

static void expert_name(const weight_source *source, weight_slot slot, int64_t layer, bool bias,
                        int64_t expert, char *name, size_t size)
{
    char all[160];
    source_name(source, slot, layer, bias, all, sizeof all);
    const char *star = strchr(all, '*');
    snprintf(name, size, "%.*s%lld%s", (int)(star - all), all, (long long)expert, star + 1);
}

/* The tensor of an expert, which must be like that of the first. */
static qp_status find_expert(const weight_source *source, weight_slot slot, int64_t layer,
                             bool bias, int64_t expert, const tensor *first, tensor *out,
                             qp_error *error)
{
    char name[160], want[128], found[128];
    *out = (tensor){0};
    expert_name(source, slot, layer, bias, expert, name, sizeof name);
    if (!bias && fp8_is_stored(source->safetensors, name))
        return error_set(error, QP_UNSUPPORTED,
                         "%s: tensor \"%s\" is in FP8, which quipu does not read of experts; use a "
                         "copy in BF16, or a GGUF file",
                         source->path, name);
    TRY(safetensors_get_tensor(source->safetensors, name, out, error));
    if (out->rank == 0)
        return error_set(error, QP_FORMAT,
                         "%s: tensor \"%s\" is missing; the model has experts 0 to %lld by its "
                         "config",
                         source->path, name, (long long)source->config->n_experts - 1);
    if (!first || (out->type == first->type && out->rank == first->rank &&
                   memcmp(out->shape, first->shape, (size_t)out->rank * sizeof *out->shape) == 0))
        return QP_OK;
    return error_set(error, QP_FORMAT, "%s: tensor \"%s\" must be %s as that of expert 0, found %s",
                     source->path, name, tensor_describe(first, want, sizeof want),
                     tensor_describe(out, found, sizeof found));
}

/* The experts' tensors in memory of their own, one after the other; without data where only sizes
 * are asked for. */
static qp_status stack_experts(weight_source *source, weight_slot slot, int64_t layer, bool bias,
                               const char *name, tensor *out, qp_error *error)
{
    tensor first, one;
    const int64_t n = source->config->n_experts;
    TRY(find_expert(source, slot, layer, bias, 0, NULL, &first, error));
    const size_t bytes = tensor_bytes(&first);
    for (int64_t e = 1; e < n; e++)
        TRY(find_expert(source, slot, layer, bias, e, &first, &one, error));
    if (first.rank != (bias ? 1 : 2))
        return error_set(error, QP_FORMAT, "%s: tensors \"%s\" must have %d dimensions, found %d",
                         source->path, name, bias ? 1 : 2, first.rank);
    tensor view = bias ? tensor_2d(NULL, first.type, n, first.shape[0])
                       : tensor_3d(NULL, first.type, n, first.shape[0], first.shape[1]);
    if (bias || !source->options->sizes_only)
        TRY(source_own_memory(source, (size_t)n * bytes, name, &view.data, error));
    for (int64_t e = 0; view.data && e < n; e++) {
        TRY(find_expert(source, slot, layer, bias, e, &first, &one, error));
        memcpy((char *)view.data + (size_t)e * bytes, one.data, bytes);
        if (!bias) buffer_release_pages(one.data, bytes);
    }
    *out = view;
    return QP_OK;
}

/* Rows [begin, begin + rows) of all experts' rows. */
static void read_experts(const weight_source *source, weight_slot slot, int64_t layer, bool bias,
                         const tensor *view, int64_t begin, int64_t rows, char *dst)
{
    const int64_t columns = view->rank == 2 ? view->shape[1] : 1; /* a bias is a column */
    const size_t row_bytes = dtype_row_bytes(view->type, columns);
    const int64_t each = view->shape[0] / source->config->n_experts;
    for (int64_t row = begin, n; row < begin + rows; row += n, dst += (size_t)n * row_bytes) {
        tensor one = {0};
        n = each - row % each < begin + rows - row ? each - row % each : begin + rows - row;
        if (find_expert(source, slot, layer, bias, row / each, NULL, &one, NULL) != QP_OK) return;
        const char *at = (const char *)one.data + (size_t)(row % each) * row_bytes;
        if (!safetensors_read(source->safetensors, at, (size_t)n * row_bytes, dst))
            memcpy(dst, at, (size_t)n * row_bytes);
    }
}

/* ---- One tensor ------------------------------------------------------------------------------ */

static qp_status find_joined(const weight_source *source, weight_slot slot, int64_t layer,
                             joined_experts *out, qp_error *error)
{
    char name[160];
    const int64_t step = slot == WEIGHT_DOWN_EXPERTS ? 1 : 2;
    source_name(source, slot, layer, false, name, sizeof name);
    return joined_experts_find(source->safetensors, name, source->config->n_experts, step,
                               slot == WEIGHT_UP_EXPERTS, out, error);
}

typedef struct join_task {
    const joined_experts *experts;
    const tensor *view;
} join_task;

static void join_share(void *context, int worker, int n_workers)
{
    const join_task *task = context;
    int64_t begin, end;
    thread_share(task->view->shape[0], worker, n_workers, &begin, &end);
    if (begin < end)
        joined_experts_read(task->experts, begin, end - begin, tensor_row(task->view, begin));
}

static qp_status get_joined(weight_source *source, weight_slot slot, int64_t layer,
                            const char *name, tensor *out, qp_error *error)
{
    joined_experts x;
    TRY(find_joined(source, slot, layer, &x, error));
    if (x.type == DTYPE_COUNT) return QP_OK;
    tensor view = tensor_2d(NULL, x.type, x.n_experts * (x.rows / x.step), x.columns);
    if (!source->options->sizes_only) {
        TRY(source_own_memory(source, tensor_bytes(&view), name, &view.data, error));
        join_task task = {&x, &view};
        thread_pool_run(source->options->pool, join_share, &task);
    }
    *out = tensor_split(view, 0, x.n_experts);
    return QP_OK;
}

/* Biases of gate and up lie in turn, as their rows do. */
static qp_status get_joined_bias(weight_source *source, weight_slot slot, const char *name,
                                 tensor *out, qp_error *error)
{
    tensor all = {0};
    TRY(safetensors_get_tensor(source->safetensors, name, &all, error));
    if (all.rank != 2 || slot == WEIGHT_DOWN_EXPERTS || all.shape[1] % 2) {
        *out = all;
        return QP_OK;
    }
    tensor view = tensor_2d(NULL, all.type, all.shape[0], all.shape[1] / 2);
    const size_t element = dtype_block_bytes(all.type);
    TRY(source_own_memory(source, tensor_bytes(&view), name, &view.data, error));
    const char *from = (const char *)all.data + (slot == WEIGHT_UP_EXPERTS ? element : 0);
    for (int64_t i = 0; i < tensor_elements(&view); i++)
        memcpy((char *)view.data + (size_t)i * element, from + 2 * (size_t)i * element, element);
    *out = view;
    return QP_OK;
}

/* ---- Either ---------------------------------------------------------------------------------- */

qp_status source_get_experts(weight_source *source, weight_slot slot, int64_t layer, bool bias,
                             const char *name, tensor *out, qp_error *error)
{
    if (source_experts(source, slot) == SOURCE_SPLIT_EXPERTS)
        return stack_experts(source, slot, layer, bias, name, out, error);
    return bias ? get_joined_bias(source, slot, name, out, error)
                : get_joined(source, slot, layer, name, out, error);
}

void source_read_experts(const weight_source *source, weight_slot slot, int64_t layer, bool bias,
                         const tensor *view, int64_t begin, int64_t rows, void *dst)
{
    joined_experts x;
    if (source_experts(source, slot) == SOURCE_SPLIT_EXPERTS)
        read_experts(source, slot, layer, bias, view, begin, rows, dst);
    else if (find_joined(source, slot, layer, &x, NULL) == QP_OK)
        joined_experts_read(&x, begin, rows, dst);
}
