/* Traces of requests: whatever is read has times that never decrease, and blocks within the
 * trace's.
 */
#include "load/trace_file.h"

#include <stdlib.h>

static void check(const trace_file *t)
{
    double before = 0;
    size_t blocks = 0;
    for (size_t i = 0; i < t->n_requests; i++) {
        const trace_request *r = &t->requests[i];
        if (!(r->seconds >= before && r->seconds <= 2 * TRACE_MOST_SECONDS)) abort();
        before = r->seconds;
        if (r->input_tokens < 0 || r->output_tokens < 0) abort();
        if (r->input_tokens > TRACE_MOST_TOKENS || r->output_tokens > TRACE_MOST_TOKENS) abort();
        if (r->n_blocks && r->first_block != blocks) abort();
        blocks += r->n_blocks;
    }
    if (blocks != t->n_blocks) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    trace_file trace;
    qp_error error = {0};
    const qp_status status = trace_file_read((const char *)data, size, &trace, &error);
    if (status == QP_OK) check(&trace);
    if (status == QP_OK ? trace.n_requests == 0 : !error.message[0]) abort();
    trace_file_free(&trace);
    return 0;
}
