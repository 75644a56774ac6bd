/* What start is made of: see start.h. */
#include "inspect/start.h"

#include "base/clock.h"
#include "engine/engine.h"

#include <string.h>

/* The time of a pass of one token, up to its logits. */
static qp_status time_pass(qp_engine *e, qp_session *session, uint64_t *ns, qp_error *error)
{
    static const int32_t token = 0;
    const qp_input input = {.session = session, .tokens = &token, .count = 1};
    const uint64_t begin = clock_ns();
    TRY(qp_eval(e, &input, 1, NULL, NULL, NULL, error));
    *ns = clock_ns() - begin;
    return QP_OK;
}

qp_status start_measure(qp_engine *e, start_times *out, qp_error *error)
{
    qp_session *session = NULL;
    uint64_t first = 0;
    *out = (start_times){.n_stages = e->progress.n_stages};
    memcpy(out->stages, e->progress.stages, sizeof e->progress.stages);
    TRY(qp_session_open(e, &session, error));
    qp_status status = time_pass(e, session, &first, error);
    if (status == QP_OK) status = time_pass(e, session, &out->second_ns, error);
    qp_session_close(session);
    out->stages[out->n_stages++] = (progress_stage){"the first pass", first};
    for (int i = 0; i < out->n_stages; i++)
        out->total_ns += out->stages[i].ns;
    return status;
}
