/* The operator table, and what is common to all operators: binding, cost, choice of kernel. */
#include "op/table.h"

#include "op/expression.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const op_info *const table[OP_COUNT] = {
#define OP(NAME, name) &op_##name,
#include "op/ops.def"
#undef OP
};

const op_info *op_get(op_code code)
{
    return table[code];
}

const op_info *op_find(const char *name)
{
    for (int code = 0; code < OP_COUNT; code++) {
        if (strcmp(table[code]->name, name) == 0) return table[code];
    }
    return NULL;
}

int op_n_axes(const op_info *op)
{
    int n = 0;
    while (n < OP_MAX_AXES && op->axes[n].name)
        n++;
    return n;
}

int op_n_tensors(const op_info *op)
{
    int n = 0;
    while (n < OP_MAX_TENSORS && op->tensors[n].name)
        n++;
    return n;
}

int op_n_params(const op_info *op)
{
    int n = 0;
    while (n < OP_MAX_PARAMS && op->params[n].name)
        n++;
    return n;
}

qp_status op_x_bits_parse(const char *text, uint32_t *bits, qp_error *error)
{
    *bits = 0;
    if (strcmp(text, "8") == 0) return QP_OK;
    *bits = OP_X_16;
    if (strcmp(text, "16") == 0) return QP_OK;
    *bits = OP_X_FLOAT;
    if (strcmp(text, "float") == 0) return QP_OK;
    *bits = OP_X_BF16;
    if (strcmp(text, "bf16") == 0) return QP_OK;
    return error_set(error, QP_INVALID,
                     "activations are 8, 16, float or bf16 (or auto, for a model), found \"%s\"",
                     text);
}

const char *op_x_bits_text(uint32_t bits)
{
    return bits & OP_X_BF16    ? "rounded to BF16"
           : bits & OP_X_FLOAT ? "as float32"
           : bits & OP_X_16    ? "rounded to 16 bits"
                               : "rounded to 8 bits";
}

static bool same_name(const char *name, const char *text, size_t length)
{
    return strlen(name) == length && memcmp(name, text, length) == 0;
}

static int axis_find(const op_info *op, const char *name, size_t length)
{
    for (int a = 0; a < op_n_axes(op); a++) {
        if (same_name(op->axes[a].name, name, length)) return a;
    }
    return -1;
}

int op_axis_index(const op_info *op, const char *name)
{
    return axis_find(op, name, strlen(name));
}

int op_tensor_index(const op_info *op, const char *name)
{
    for (int t = 0; t < op_n_tensors(op); t++) {
        if (strcmp(op->tensors[t].name, name) == 0) return t;
    }
    return -1;
}

int op_param_index(const op_info *op, const char *name)
{
    for (int p = 0; p < op_n_params(op); p++) {
        if (strcmp(op->params[p].name, name) == 0) return p;
    }
    return -1;
}

/* The meaning of names in an operator's expressions. */
typedef struct scope {
    const op_info *op;
    const op_call *call;
    double axes[OP_MAX_AXES]; /* NaN: not bound yet */
} scope;

static bool scope_lookup(void *context, const char *name, size_t length, double *value)
{
    const scope *names = context;
    int axis = axis_find(names->op, name, length);
    if (axis >= 0) {
        *value = names->axes[axis];
        return !isnan(*value);
    }
    static const char prefix[] = "sizeof_";
    size_t skip = sizeof prefix - 1;
    if (length <= skip || memcmp(name, prefix, skip) != 0) return false;
    for (int t = 0; t < op_n_tensors(names->op); t++) {
        if (!same_name(names->op->tensors[t].name, name + skip, length - skip)) continue;
        if (!names->call) return false;
        const tensor *view = &names->call->tensors[t];
        *value = (double)dtype_block_bytes(view->type) / (double)dtype_block_elements(view->type);
        return true;
    }
    return false;
}

/* The text of dimension `dim` of a shape, without spaces around; NULL when there is none. */
static const char *shape_dim(const char *shape, int dim, size_t *length)
{
    for (; dim > 0; dim--) {
        shape = strchr(shape, ',');
        if (!shape) return NULL;
        shape++;
    }
    shape += strspn(shape, " ");
    *length = strcspn(shape, ",");
    while (*length > 0 && shape[*length - 1] == ' ')
        --*length;
    return shape;
}

static int shape_rank(const char *shape)
{
    int rank = 1;
    for (; *shape; shape++)
        rank += *shape == ',';
    return rank;
}

qp_status op_shape(const op_info *op, int t, const int64_t *axes, int64_t *shape, int *rank,
                   qp_error *error)
{
    scope names = {.op = op};
    for (int a = 0; a < OP_MAX_AXES; a++)
        names.axes[a] = axes[a] < 0 ? NAN : (double)axes[a];
    *rank = shape_rank(op->tensors[t].shape);
    for (int d = 0; d < *rank; d++) {
        size_t length = 0;
        double value;
        const char *text = shape_dim(op->tensors[t].shape, d, &length);
        if (!expression_evaluate(text, length, scope_lookup, &names, &value) ||
            value != floor(value) || !(value >= 0 && value < 0x1p53))
            return error_set(error, QP_INVALID, "%s: dimension %d of %s, \"%.*s\", has no value",
                             op->name, d, op->tensors[t].name, (int)length, text);
        shape[d] = (int64_t)value;
    }
    return QP_OK;
}

static qp_status check_view(const op_info *op, int t, const op_call *call, qp_error *error)
{
    const op_tensor *about = &op->tensors[t];
    const tensor *view = &call->tensors[t];
    if (!(about->types >> view->type & 1))
        return error_set(error, QP_INVALID, "%s: %s cannot be of type %s", op->name, about->name,
                         dtype_name(view->type));
    int rank = shape_rank(about->shape);
    if (view->rank != rank)
        return error_set(error, QP_INVALID, "%s: %s must be [%s], found %d dimensions", op->name,
                         about->name, about->shape, view->rank);
    return QP_OK;
}

static bool is_absent(const op_info *op, const op_call *call, int t)
{
    return op->tensors[t].optional && call->tensors[t].rank == 0;
}

/* The axis that the text of a dimension names, alone or plus a whole number ("n_sequences + 1", the
 * length of an index array of borders); -1 when the text is anything else. */
static int solvable_axis(const op_info *op, const char *text, size_t length, int64_t *added)
{
    size_t name = strcspn(text, " +,");
    *added = 0;
    if (name < length) {
        int used = 0;
        if (sscanf(text + name, " + %9" SCNd64 "%n", added, &used) != 1) return -1;
        if (name + (size_t)used != length) return -1;
        length = name;
    }
    return axis_find(op, text, length);
}

/* Gives every axis that appears alone, or plus a number, in a shape the value found there. */
static void bind_shapes(scope *names)
{
    const op_info *op = names->op;
    for (int a = 0; a < OP_MAX_AXES; a++)
        names->axes[a] = NAN;
    for (int t = 0; t < op_n_tensors(op); t++) {
        if (is_absent(op, names->call, t)) continue;
        const tensor *view = &names->call->tensors[t];
        for (int d = 0; d < view->rank; d++) {
            size_t length;
            int64_t added;
            const char *text = shape_dim(op->tensors[t].shape, d, &length);
            int axis = text ? solvable_axis(op, text, length, &added) : -1;
            if (axis < 0 || !isnan(names->axes[axis]) || view->shape[d] < added) continue;
            names->axes[axis] = (double)(view->shape[d] - added);
        }
    }
}

/* Gives the axes that depend on the contents of index tensors their values. */
static void bind_derived(scope *names)
{
    const op_info *op = names->op;
    for (int a = 0; a < op_n_axes(op); a++) {
        if (op->axes[a].kind == AXIS_DERIVED)
            names->axes[a] = op->derive(names->call, op->axes[a].name);
    }
}

static qp_status check_shape(scope *names, int t, qp_error *error)
{
    const op_tensor *about = &names->op->tensors[t];
    const tensor *view = &names->call->tensors[t];
    for (int d = 0; d < view->rank; d++) {
        size_t length = 0;
        double expected;
        const char *text = shape_dim(about->shape, d, &length);
        if (!expression_evaluate(text, length, scope_lookup, names, &expected))
            return error_set(error, QP_INVALID, "%s: %s: dimension %d, \"%.*s\", has no value",
                             names->op->name, about->name, d, (int)length, text);
        if ((double)view->shape[d] == expected) continue;
        char found[128];
        return error_set(error, QP_INVALID, "%s: %s must be [%s] with %.*s = %.0f, found %s",
                         names->op->name, about->name, about->shape, (int)length, text, expected,
                         tensor_describe(view, found, sizeof found));
    }
    return QP_OK;
}

qp_status op_bind(const op_info *op, const op_call *call, int64_t *axes, qp_error *error)
{
    scope names = {.op = op, .call = call};
    for (int t = 0; t < op_n_tensors(op); t++) {
        if (!is_absent(op, call, t)) TRY(check_view(op, t, call, error));
    }
    bind_shapes(&names);
    for (int t = 0; t < op_n_tensors(op); t++) {
        if (!is_absent(op, call, t)) TRY(check_shape(&names, t, error));
    }
    if (op->check) TRY(op->check(call, error));
    for (int a = 0; axes && a < OP_MAX_AXES; a++)
        axes[a] = isnan(names.axes[a]) ? -1 : (int64_t)names.axes[a];
    return QP_OK;
}

static double evaluate(scope *names, const char *text)
{
    double value = 0;
    return text && expression_evaluate(text, strlen(text), scope_lookup, names, &value) ? value : 0;
}

/* Finds all values of a bound call's axes that can be known. */
static scope scope_of(const op_info *op, const op_call *call)
{
    scope names = {.op = op, .call = call};
    bind_shapes(&names);
    bind_derived(&names);
    return names;
}

double op_evaluate(const op_info *op, const op_call *call, const char *text)
{
    scope names = scope_of(op, call);
    return evaluate(&names, text);
}

op_cost op_cost_of(const op_info *op, const op_call *call)
{
    scope names = scope_of(op, call);
    op_cost cost = {.flops = evaluate(&names, op->flops)};
    if (op->bytes) {
        cost.bytes = evaluate(&names, op->bytes);
        return cost;
    }
    for (int t = 0; t < op_n_tensors(op); t++) {
        if (is_absent(op, call, t)) continue;
        double times = op->tensors[t].direction >= OP_INOUT ? 2 : 1;
        cost.bytes += times * (double)tensor_bytes(&call->tensors[t]);
    }
    return cost;
}

op_kernel *op_select(const op_info *op, uint32_t features, const op_call *call,
                     const op_variant **variant)
{
    const op_variant *best = NULL;
    for (const op_variant *v = op->variants; v && v->name; v++) {
        if ((v->needs & ~features) == 0 && (!v->accepts || v->accepts(call))) best = v;
    }
    if (variant) *variant = best;
    return best ? best->kernel : op->reference;
}
