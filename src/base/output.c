/* The end of an output text: see output.h. */
#include "base/output.h"

#include <stdlib.h>

qp_status output_done(const strbuf *out, qp_error *error)
{
    return out->failed ? error_no_memory(error, "a text", out->length) : QP_OK;
}

static qp_status finish(cJSON *tree, char *text, strbuf *out, qp_error *error)
{
    cJSON_Delete(tree);
    if (text)
        strbuf_printf(out, "%s\n", text);
    else
        out->failed = true;
    cJSON_free(text);
    return output_done(out, error);
}

qp_status output_json(cJSON *tree, strbuf *out, qp_error *error)
{
    return finish(tree, cJSON_Print(tree), out, error);
}

qp_status output_json_line(cJSON *tree, strbuf *out, qp_error *error)
{
    return finish(tree, cJSON_PrintUnformatted(tree), out, error);
}
