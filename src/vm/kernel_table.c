/* User-supplied kernels: see kernel_table.h. */
#include "vm/kernel_table.h"

#include "quipu.h"

#include <stdio.h>
#include <string.h>

qp_status kernel_table_operator(const char *name, op_code *out, qp_error *error)
{
    for (int code = 0; name && code < OP_COUNT; code++) {
        *out = (op_code)code;
        if (strcmp(op_get(*out)->name, name) == 0) return QP_OK;
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
        op_code code;
        TRY(kernel_table_operator(given->op, &code, error));
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

/* Lists the program's operators, once each, for a message. */
static void list_operators(const program *program, char *text, size_t size)
{
    size_t used = 0;
    bool seen[OP_COUNT] = {0};
    for (int n = 0; n < program->n_nodes && used < size; n++) {
        const op_code op = program->nodes[n].op;
        if (seen[op]) continue;
        used +=
            (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "", op_get(op)->name);
        seen[op] = true;
    }
}

qp_status kernel_table_refuse(const program *program, op_code op, const char *kernel,
                              qp_error *error)
{
    const char *name = op_get(op)->name;
    char names[512];
    int n_nodes = 0;
    for (int n = 0; n < program->n_nodes; n++)
        n_nodes += program->nodes[n].op == op;
    if (n_nodes > 0)
        return error_set(error, QP_INVALID,
                         "the kernel %s accepts none of this model's %d calls of %s: its "
                         "%s_accepts() declines their types or shapes",
                         kernel, n_nodes, name, name);
    list_operators(program, names, sizeof names);
    return error_set(error, QP_INVALID,
                     "the kernel %s has nothing to do: this forward pass has no %s; it is made "
                     "of %s",
                     kernel, name, names);
}
