/* User-supplied kernels: see kernel_table.h. */
#include "vm/kernel_table.h"

#include <string.h>

static qp_status find_code(const char *name, int *out, qp_error *error)
{
    for (*out = 0; name && *out < OP_COUNT; ++*out) {
        if (strcmp(op_get((op_code)*out)->name, name) == 0) return QP_OK;
    }
    return error_set(error, QP_INVALID,
                     "a kernel is given for the operator '%.60s', which does not exist; `quipu ops "
                     "list` shows them",
                     name ? name : "");
}

qp_status kernel_table_fill(kernel_table *table, const qp_kernel *kernels, size_t n_kernels,
                            qp_error *error)
{
    *table = (kernel_table){0};
    for (size_t i = 0; i < n_kernels; i++) {
        const qp_kernel *given = &kernels[i];
        int code;
        TRY(find_code(given->op, &code, error));
        op_variant *variant = &table->of[code];
        if (variant->kernel)
            return error_set(error, QP_INVALID, "two kernels are given for %s", given->op);
        if (!given->kernel)
            return error_set(error, QP_INVALID, "the kernel given for %s has no function",
                             given->op);
        *variant = (op_variant){.name = given->name ? given->name : "candidate",
                                .kernel = given->kernel,
                                .accepts = given->accepts,
                                .scratch_bytes = given->scratch_bytes};
    }
    return QP_OK;
}

const op_variant *kernel_table_find(const kernel_table *table, op_code op)
{
    return table && table->of[op].kernel ? &table->of[op] : NULL;
}
