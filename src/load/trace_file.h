/* Traces of requests to real services: times of arrival, and lengths of prompts and answers.
 *
 * Azure's LLM inference traces (github.com/Azure/AzurePublicDataset): CSV with the columns
 * TIMESTAMP, ContextTokens, GeneratedTokens. Mooncake's (github.com/kvcache-ai/Mooncake): a JSON
 * object a line with timestamp in ms, input_length, output_length and hash_ids, one for each 512
 * tokens of the prompt; prompts that begin with equal ids begin with equal text.
 */
#pragma once

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum { TRACE_BLOCK = 512, TRACE_MOST_TOKENS = 1 << 24 };
#define TRACE_MOST_SECONDS 1e12

typedef struct trace_request {
    double seconds; /* since the first request of the trace; never decreases */
    int64_t input_tokens, output_tokens;
    size_t first_block, n_blocks; /* in the trace's `blocks`; n_blocks 0: nothing is shared */
} trace_request;

typedef struct trace_file {
    trace_request *requests; /* [n_requests] */
    size_t n_requests, request_capacity;
    uint64_t *blocks; /* [n_blocks] */
    size_t n_blocks, block_capacity;
} trace_file;

/* The message of QP_FORMAT names the line. Call trace_file_free() in every case. */
qp_status trace_file_read(const char *text, size_t length, trace_file *out, qp_error *error);
void trace_file_free(trace_file *trace);
