/* Parts of descriptions that several files need. */
#ifndef QUIPU_WORKBENCH_DESCRIBE_H
#define QUIPU_WORKBENCH_DESCRIBE_H

#include "op/table.h"
#include "workbench/page.h"

#include <cjson/cJSON.h>

/* Finds the operator; QP_INVALID lists all names. */
qp_status describe_find(const char *name, const op_info **out, qp_error *error);

/* "F32, F16" */
void describe_types(unsigned types, strbuf *out);

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

#endif
