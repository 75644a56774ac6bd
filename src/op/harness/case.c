/* Reading test cases: see case.h. */
#include "op/harness/case.h"

#include "base/checked.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORD = 64 };

/* The first type of the set, F32 if it is in. */
static dtype usual_type(uint64_t types)
{
    if (types & OP_TYPE(F32)) return DTYPE_F32;
    for (int type = 0; type < DTYPE_COUNT; type++) {
        if (types >> type & 1) return (dtype)type;
    }
    return DTYPE_F32;
}

static void set_defaults(const op_info *op, op_case *out)
{
    for (int a = 0; a < OP_MAX_AXES; a++)
        out->axes[a] = -1;
    for (int p = 0; p < op_n_params(op); p++)
        out->params[p] = op->params[p].value;
    for (int t = 0; t < op_n_tensors(op); t++) {
        case_tensor *about = &out->tensors[t];
        *about = (case_tensor){.type = usual_type(op->tensors[t].types), .same_as = -1};
        for (int d = 0; d < TENSOR_MAX_RANK; d++)
            about->order[d] = d;
    }
}

static qp_status bad_word(const op_info *op, const char *word, const char *why, qp_error *error)
{
    return error_set(error, QP_INVALID, "%s: \"%s\" in a case: %s", op->name, word, why);
}

/* "name=value": an axis, a parameter, or a tensor that shares another tensor's memory. */
static qp_status read_value(const op_info *op, const char *word, const char *name,
                            const char *value, op_case *out, qp_error *error)
{
    char *end;
    double number = strtod(value, &end);
    bool is_number = *value && !*end;
    int axis = op_axis_index(op, name), param = op_param_index(op, name);
    int from = op_tensor_index(op, name), to = op_tensor_index(op, value);
    if (axis >= 0) {
        if (!is_number || number != floor(number) || !(number >= 0 && number < 0x1p31))
            return bad_word(op, word, "an axis takes a whole number", error);
        out->axes[axis] = (int64_t)number;
    } else if (param >= 0) {
        if (!is_number) return bad_word(op, word, "a parameter takes a number", error);
        out->params[param] = number;
    } else if (from >= 0) {
        if (to < 0 || to == from || out->tensors[to].same_as >= 0)
            return bad_word(op, word, "a tensor can share the memory of another tensor", error);
        out->tensors[from].same_as = to;
    } else {
        return bad_word(op, word, "no axis, parameter or tensor of that name", error);
    }
    return QP_OK;
}

/* "0213": a permutation that ends in its last dimension. */
static bool read_order(const char *value, int *order)
{
    int rank = (int)strlen(value);
    unsigned seen = 0;
    if (rank < 1 || rank > TENSOR_MAX_RANK) return false;
    for (int d = 0; d < TENSOR_MAX_RANK; d++)
        order[d] = d;
    for (int d = 0; d < rank; d++) {
        order[d] = value[d] - '0';
        if (order[d] < 0 || order[d] >= rank || seen & 1u << order[d]) return false;
        seen |= 1u << order[d];
    }
    return order[rank - 1] == rank - 1;
}

/* "name:TYPE", "name:-", "name+gap", "name@order". */
static qp_status read_layout(const op_info *op, const char *word, const char *name, char kind,
                             const char *value, op_case *out, qp_error *error)
{
    int t = op_tensor_index(op, name);
    if (t < 0) return bad_word(op, word, "no tensor of that name", error);
    case_tensor *about = &out->tensors[t];
    char *end;
    switch (kind) {
    case '+':
        about->gap = strtol(value, &end, 10);
        if (!*value || *end || about->gap < 0 || about->gap > 1 << 20)
            return bad_word(op, word, "a gap is a number of elements", error);
        return QP_OK;
    case '@':
        if (read_order(value, about->order)) return QP_OK;
        return bad_word(op, word, "an order names each dimension once, the last one last", error);
    default:
        if (strcmp(value, "-") == 0) {
            about->absent = op->tensors[t].optional;
            return about->absent ? QP_OK : bad_word(op, word, "it is not optional", error);
        }
        about->type = dtype_from_name(value);
        if (about->type == DTYPE_COUNT || !(op->tensors[t].types >> about->type & 1))
            return bad_word(op, word, "not a type of this tensor", error);
        return QP_OK;
    }
}

static qp_status read_word(const op_info *op, const char *word, op_case *out, qp_error *error)
{
    char name[MAX_WORD];
    size_t length = strcspn(word, "=:+@");
    if (!word[length]) return bad_word(op, word, "expected =, :, + or @", error);
    memcpy(name, word, length);
    name[length] = '\0';
    const char *value = word + length + 1;
    if (word[length] == '=') return read_value(op, word, name, value, out, error);
    return read_layout(op, word, name, word[length], value, out, error);
}

/* Strides of the view's shape in the order and with the gaps of its case; false if too large. */
static bool lay_out(case_tensor *about)
{
    tensor *view = &about->view;
    size_t block = dtype_block_bytes(about->type), bytes;
    int64_t per_block = dtype_block_elements(about->type);
    size_t gap = (size_t)((about->gap + per_block - 1) / per_block) * block;
    view->stride[view->rank - 1] = (int64_t)block;
    if (!checked_mul((size_t)(view->shape[view->rank - 1] / per_block), block, &bytes))
        return false;
    for (int at = view->rank - 2; at >= 0; at--) {
        int d = about->order[at];
        if (!checked_add(bytes, gap, &bytes) || bytes > INT64_MAX) return false;
        view->stride[d] = (int64_t)bytes;
        if (!checked_mul(bytes, (size_t)view->shape[d], &bytes)) return false;
    }
    about->bytes = bytes;
    return bytes < (size_t)1 << 40;
}

/* The view of a tensor that is present: its shape from the axes, its strides from the case. */
static qp_status find_view(const op_info *op, int t, op_case *out, qp_error *error)
{
    case_tensor *about = &out->tensors[t];
    const char *name = op->tensors[t].name;
    tensor *view = &about->view;
    view->type = about->type;
    TRY(op_shape(op, t, out->axes, view->shape, &view->rank, error));
    int64_t row = view->shape[view->rank - 1];
    if (row % dtype_block_elements(about->type))
        return error_set(error, QP_INVALID, "%s: rows of %lld in %s are not whole blocks of %s",
                         op->name, (long long)row, name, dtype_name(about->type));
    for (int d = 0; d < TENSOR_MAX_RANK; d++) {
        if ((about->order[d] < view->rank) != (d < view->rank))
            return error_set(error, QP_INVALID, "%s: the order of %s must name %d dimensions",
                             op->name, name, view->rank);
    }
    if (lay_out(about)) return QP_OK;
    return error_set(error, QP_INVALID, "%s: %s is too large", op->name, name);
}

/* A tensor in another tensor's memory has the other's strides and its own shape. */
static qp_status share_view(const op_info *op, int t, op_case *out, qp_error *error)
{
    case_tensor *about = &out->tensors[t];
    const tensor *other = &out->tensors[about->same_as].view;
    tensor *view = &about->view;
    bool fits = other->rank == view->rank && other->type == view->type;
    for (int d = 0; fits && d < view->rank; d++)
        fits = view->shape[d] <= other->shape[d];
    if (!fits)
        return error_set(error, QP_INVALID, "%s: %s cannot lie in the memory of %s", op->name,
                         op->tensors[t].name, op->tensors[about->same_as].name);
    memcpy(view->stride, other->stride, sizeof view->stride);
    return QP_OK;
}

/* Whether a dimension of the tensor has no value: its axis is not in the case. */
static bool lacks_axis(const op_info *op, int t, const op_case *about)
{
    int64_t shape[TENSOR_MAX_RANK];
    int rank;
    return op_shape(op, t, about->axes, shape, &rank, NULL) != QP_OK;
}

static qp_status find_views(const op_info *op, op_case *out, qp_error *error)
{
    for (int t = 0; t < op_n_tensors(op); t++) {
        if (op->tensors[t].optional && lacks_axis(op, t, out)) out->tensors[t].absent = true;
    }
    for (int t = 0; t < op_n_tensors(op); t++) {
        int other = out->tensors[t].same_as;
        if (other >= 0) out->tensors[t].type = out->tensors[other].type;
        if (!(op->tensors[t].types >> out->tensors[t].type & 1))
            return error_set(error, QP_INVALID, "%s: %s cannot be of type %s", op->name,
                             op->tensors[t].name, dtype_name(out->tensors[t].type));
        if (!out->tensors[t].absent) TRY(find_view(op, t, out, error));
    }
    for (int t = 0; t < op_n_tensors(op); t++) {
        if (!out->tensors[t].absent && out->tensors[t].same_as >= 0)
            TRY(share_view(op, t, out, error));
    }
    return QP_OK;
}

qp_status op_case_parse(const op_info *op, const char *text, op_case *out, qp_error *error)
{
    const char *label = strstr(text, ": ");
    if (label) text = label + 2;
    *out = (op_case){.text = text};
    set_defaults(op, out);
    for (text += strspn(text, " "); *text; text += strspn(text, " ")) {
        char word[MAX_WORD];
        size_t length = strcspn(text, " ");
        if (length >= sizeof word)
            return error_set(error, QP_INVALID, "%s: a word of a case is longer than %d: %.*s",
                             op->name, MAX_WORD - 1, (int)length, text);
        memcpy(word, text, length);
        word[length] = '\0';
        TRY(read_word(op, word, out, error));
        text += length;
    }
    return find_views(op, out, error);
}

bool op_case_accepted(const op_info *op, const op_case *about, const op_variant *variant)
{
    op_call call = {0};
    if (!variant->accepts) return true;
    memcpy(call.params, about->params, sizeof call.params);
    for (int t = 0; t < op_n_tensors(op); t++)
        call.tensors[t] = about->tensors[t].view;
    return variant->accepts(&call);
}
