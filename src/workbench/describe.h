/* Parts of descriptions that several files need. */
#pragma once

#include "op/table.h"
#include "workbench/page.h"

#include <cjson/cJSON.h>

/* Finds the operator; QP_INVALID lists all names. */
qp_status describe_find(const char *name, const op_info **out, qp_error *error);

/* The i-th of the operators that are named, or of all if n_ops is 0. */
qp_status describe_nth(const char *const *ops, int n_ops, int i, const op_info **out,
                       qp_error *error);

/* page_reserve() for each kernel of the operator, CPU or CUDA, whose name is in one of the cells.
 */
void describe_reserve(const op_info *op, bool device, const char **cells, int column, page *page);

/* "F32, F16" */
void describe_types(uint64_t types, strbuf *out);

typedef enum describe_extent {
    DESCRIBE_IN_BOOK, /* one of many: what all operators share is printed once elsewhere */
    DESCRIBE_ALONE,   /* with the header, and with the sources of functions that the reference calls
                       */
} describe_extent;

void describe_op(const op_info *op, describe_extent extent, page *page);
cJSON *describe_op_json(const op_info *op);

/* Appends what all descriptions of a book have in common: how to read them. */
void describe_notes(page *page);

/* Appends how a kernel is called: the rules, and the header's text. */
void describe_interface(page *page);
