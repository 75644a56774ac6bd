/* Workloads in memory: see workload.h. */
#include "workbench/workload.h"

#include "op/harness/fill.h"

#include <ctype.h>
#include <string.h>

enum { DISTINCT_BYTES = 1 << 20 };

/* Fills a contiguous tensor. Of a large tensor only the first part is random, and the rest repeats
 * it, because making random values is slow and no kernel looks for repetitions. */
static void fill_quickly(const tensor *view, uint64_t seed)
{
    size_t all = tensor_bytes(view);
    tensor part = *view;
    if (all > DISTINCT_BYTES && view->rank > 1 && tensor_is_contiguous(view)) {
        int64_t most = (int64_t)(DISTINCT_BYTES / view->stride[0]) + 1;
        if (part.shape[0] > most) part.shape[0] = most;
    }
    fill_tensor(&part, FILL_NORMAL, seed);
    size_t some = tensor_bytes(&part);
    for (size_t at = some; at < all && some > 0; at += some)
        memcpy((char *)view->data + at, view->data, all - at < some ? all - at : some);
}

/* Whether the text of a shape contains an axis that changes from batch to batch. */
static bool is_variable(const op_info *op, const char *shape)
{
    while (*shape) {
        size_t length = 0;
        while (isalnum((unsigned char)shape[length]) || shape[length] == '_')
            length++;
        for (int a = 0; a < op_n_axes(op) && length > 0; a++) {
            if (op->axes[a].kind == AXIS_VARIABLE && strlen(op->axes[a].name) == length &&
                memcmp(op->axes[a].name, shape, length) == 0)
                return true;
        }
        shape += length ? length : 1;
    }
    return false;
}

static void fill_inputs(const op_info *op, op_call *call, uint64_t seed, bool all)
{
    for (int t = 0; t < op_n_tensors(op); t++) {
        const tensor *view = &call->tensors[t];
        if (view->rank == 0 || op->tensors[t].direction == OP_OUT) continue;
        if (all || is_variable(op, op->tensors[t].shape)) fill_quickly(view, seed + (uint64_t)t);
    }
    if (op->prepare) op->prepare(call, seed);
}

qp_status workload_create(const op_info *op, const char *text, uint64_t seed, workload *out,
                          qp_error *error)
{
    *out = (workload){0};
    qp_status status = op_case_parse(op, text, &out->about, error);
    memcpy(out->call.params, out->about.params, sizeof out->call.params);
    for (int t = 0; t < op_n_tensors(op) && status == QP_OK; t++) {
        const case_tensor *about = &out->about.tensors[t];
        out->call.tensors[t] = about->view;
        if (about->view.rank == 0 || about->same_as >= 0) continue;
        status = buffer_alloc(&out->memory[t], about->bytes + 1, op->tensors[t].name, error);
        out->call.tensors[t].data = out->memory[t].data;
    }
    for (int t = 0; t < op_n_tensors(op) && status == QP_OK; t++) {
        const case_tensor *about = &out->about.tensors[t];
        if (about->view.rank > 0 && about->same_as >= 0)
            out->call.tensors[t].data = out->call.tensors[about->same_as].data;
    }
    if (status == QP_OK) {
        fill_inputs(op, &out->call, seed, true);
        status = op_bind(op, &out->call, NULL, error);
    }
    if (status != QP_OK) workload_free(out);
    return status;
}

void workload_free(workload *workload)
{
    for (int t = 0; t < OP_MAX_TENSORS; t++)
        buffer_free(&workload->memory[t]);
}

void workload_refill(const op_info *op, const op_call *call, uint64_t seed)
{
    op_call copy = *call;
    fill_inputs(op, &copy, seed, false);
}
