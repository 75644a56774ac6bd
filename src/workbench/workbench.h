/* The operator workbench: every operator described, every kernel checked and timed, ours or a
 * stranger's. Texts are appended to a strbuf; nothing here prints.
 */
#ifndef QUIPU_WORKBENCH_WORKBENCH_H
#define QUIPU_WORKBENCH_WORKBENCH_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdint.h>

typedef enum workbench_format {
    WORKBENCH_TEXT,
    WORKBENCH_MARKDOWN,
    WORKBENCH_JSON
} workbench_format;

/* Every operator with its axes, types and variants; `features` are the CPU's, cpu_features(). */
qp_status workbench_list(uint32_t features, bool json, strbuf *out, qp_error *error);

/* All that there is to know for writing a kernel of the operator. */
qp_status workbench_describe(const char *op_name, workbench_format format, strbuf *out,
                             qp_error *error);

/* The same of all operators: what doc/OPERATORS.md is in Markdown, an array in JSON. */
qp_status workbench_describe_all(workbench_format format, strbuf *out, qp_error *error);

/* The description as a page for a language model that writes kernels. `last`: with the verdict on
 * the last candidate that was checked, from the file at `verdict_path` (NULL: without). */
qp_status workbench_prompt(const char *op_name, const char *verdict_path, strbuf *out,
                           qp_error *error);

#endif
