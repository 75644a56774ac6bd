/* The end of an output text: prints a JSON tree, and checks once for lack of memory. */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"

#include <cjson/cJSON.h>

/* Prints the tree with a line break at its end, and deletes it. A failure stays in out->failed too.
 */
qp_status output_json(cJSON *tree, strbuf *out, qp_error *error);

/* The same on one line. */
qp_status output_json_line(cJSON *tree, strbuf *out, qp_error *error);

/* QP_NO_MEMORY if the text could not be built. */
qp_status output_done(const strbuf *out, qp_error *error);
