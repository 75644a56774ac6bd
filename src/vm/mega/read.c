/* Reads results of a megakernel pass from the GPU's memory: residual and queries. */
#include "vm/mega/parts.h"

#include "op/fixed.h"

#include <stdlib.h>
#include <string.h>

static qp_status read_back(const cuda_mega *m, cuda_address from, void *to, size_t bytes,
                           qp_error *error)
{
    static const char operation[] = "reading what the megakernel left";
    const cuda_device *d = m->executor->device;
    TRY(cuda_check(d->driver->copy_to_host(to, from, bytes, d->stream), operation, error));
    return cuda_device_wait(d, operation, error);
}

qp_status cuda_mega_read_sums(const cuda_mega *m, bool next, int64_t *out, qp_error *error)
{
    const mega_arguments *a = &m->arguments;
    size_t n = (size_t)(2 * a->n_layers + 1) * (size_t)a->hidden;
    uint32_t pass = a->first_pass - 1 + next;
    TRY(read_back(m, a->x + (pass & 1) * n * sizeof *out, out, n * sizeof *out, error));
    for (size_t i = 0; i < n; i++)
        out[i] = fixed_value(out[i]);
    return QP_OK;
}

qp_status cuda_mega_read_queries(const cuda_mega *m, int64_t layer, float *out, qp_error *error)
{
    const mega_arguments *a = &m->arguments;
    int64_t dim = m->executor->program->config.head_dim, each = a->group * dim;
    int64_t list = each + 2 * dim, heads = a->n_kv_heads;
    size_t bytes = (size_t)(heads * list) * sizeof(uint64_t);
    if (mega_has_head_norms(m->executor->program)) {
        bytes = (size_t)(heads * each) * sizeof *out;
        return read_back(m, a->queries + (size_t)layer * bytes, out, bytes, error);
    }
    uint64_t *words = malloc(bytes);
    if (!words) return error_no_memory(error, "queries", bytes);
    qp_status status = read_back(m, a->qkv + (size_t)layer * bytes, words, bytes, error);
    for (int64_t i = 0; i < heads * each && status == QP_OK; i++) {
        uint32_t bits = (uint32_t)words[i / each * list + i % each];
        memcpy(&out[i], &bits, sizeof bits);
    }
    free(words);
    return status;
}
