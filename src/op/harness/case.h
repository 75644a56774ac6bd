/* A test case or workload of an operator, read from its text (see op_info.cases). */
#pragma once

#include "op/table.h"

/* How one tensor of a case lies in memory. */
typedef struct case_tensor {
    bool absent;
    dtype type;
    int64_t gap;                /* elements that each stride adds to what it steps over */
    int order[TENSOR_MAX_RANK]; /* dimensions from the outermost in memory; the last stays last */
    int same_as;                /* index of the tensor whose memory and strides it shares, or -1 */
    tensor view;                /* the resulting view, without data; rank 0: absent */
    size_t bytes;               /* bytes that the view spans */
} case_tensor;

typedef struct op_case {
    const char *text;          /* what was parsed, without a workload's name */
    int64_t axes[OP_MAX_AXES]; /* -1: derived */
    double params[OP_MAX_PARAMS];
    case_tensor tensors[OP_MAX_TENSORS];
} op_case;

/* Reads `text`, with or without a workload's "name: " before it. An optional tensor is absent if
 * the text gives an axis of its shape no value. The message names the part of the text that is
 * wrong. `out->text` points into `text`. */
qp_status op_case_parse(const op_info *op, const char *text, op_case *out, qp_error *error);

/* Whether the variant handles the case's types and shapes. */
bool op_case_accepted(const op_info *op, const op_case *about, const op_variant *variant);
