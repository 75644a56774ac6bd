/* Describes a forward pass in words or as JSON: qp_describe_plan() in quipu.h. */
#include "base/platform.h"
#include "base/sized.h"
#include "lower/print.h"
#include "quipu.h"

enum { DEFAULT_PAGE_SIZE = 16 };

static int64_t or_default(int64_t value, int64_t fallback)
{
    return value ? value : fallback;
}

qp_status qp_describe_plan(const qp_plan_options *given, bool json, char **text, qp_error *error)
{
    qp_plan_options o;
    strbuf out = {0};
    *text = NULL;
    TRY(SIZED_READ(qp_plan_options, given, &o, error));
    if (!o.model) return error_set(error, QP_INVALID, "no model was named");
    if (o.tokens < 0)
        return error_set(error, QP_INVALID, "tokens must be 1 or more, found %lld",
                         (long long)o.tokens);
    const plan_print_options options = {.model = o.model,
                                        .tokens = o.tokens,
                                        .context = o.context,
                                        .sequences = or_default(o.sessions, 1),
                                        .ranks = 1,
                                        .page_size = or_default(o.page_size, DEFAULT_PAGE_SIZE),
                                        .kv_type = o.kv_type ? o.kv_type : "F16",
                                        .act_type = o.act_type,
                                        .available = o.memory ? o.memory : platform_free_memory(),
                                        .json = json};
    qp_status status = plan_print_lifetimes(&options, &out, error);
    if (status == QP_OK && !(*text = strbuf_take(&out)))
        status = error_no_memory(error, "the description", 0);
    strbuf_free(&out);
    return status;
}
