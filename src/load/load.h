/* quipu load: drives any server that speaks OpenAI's HTTP API, and measures what its clients see.
 *
 *     workload.c      requests and their times: random, shared prefixes, traces of services
 *     prompt.c        the text or the token ids of one prompt
 *     client.c        runs: starts requests at their times, on one event loop
 *     stream.c        one connection: sends, receives, records times
 *     http_reply.c    reads HTTP/1.1
 *     event_stream.c  reads server-sent events
 *     answer.c        reads the JSON of events
 *     simulate.c      in place of client.c: servers, a router and a clock that are computed
 *     report.c        figures with the names and definitions of `vllm bench serve`
 *
 * All of it runs on one thread, which should not limit what is measured: with 256 streams and
 * 100,000 events a second it is idle for most of the time.
 */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Limits that a request must meet to count towards goodput, in milliseconds; 0: none. */
typedef struct load_limits {
    double ttft, tpot, e2e;
} load_limits;

/* "ttft:200,tpot:20,e2el:5000"; QP_INVALID says which part cannot be read. */
qp_status load_parse_limits(const char *text, load_limits *out, qp_error *error);

/* How a router chooses a server; the names of vllm-router and sglang-router. */
typedef enum load_router { LOAD_ROUND_ROBIN, LOAD_POWER_OF_TWO, LOAD_CACHE_AWARE } load_router;

typedef struct load_options {
    const char *url;     /* http://HOST[:PORT] */
    const char *model;   /* NULL: the first that the server lists */
    const char *api_key; /* NULL: none */
    bool chat;           /* /v1/chat/completions in place of /v1/completions */

    /* When requests start. `rate` 0: each stream sends its next request when it has the answer to
     * the last. Otherwise requests arrive at random, `rate` a second on average, on at most
     * `streams` connections (0: any number). */
    int64_t streams;
    double rate;
    int64_t requests; /* 0: until `seconds` are over, or the trace ends */
    double seconds;   /* no request starts after this time; 0: no limit */
    int64_t warmup;   /* requests before the measurement */

    /* What requests ask. */
    int64_t input_tokens, output_tokens;
    int64_t shared_prefix; /* first tokens that prompts of one group share */
    int64_t prefix_groups; /* request i belongs to group i % prefix_groups; at least 1 */
    const char *text;      /* prompts are pieces of this text; NULL: random ids or words */
    size_t text_length;
    bool words;         /* without `text`: words in place of ids; a chat always has words */
    int64_t vocab_size; /* for random ids; 0: as the server reports, else 32000 */
    double temperature;
    bool ignore_eos;
    uint64_t seed;

    /* A trace in place of the two above: CSV with TIMESTAMP,ContextTokens,GeneratedTokens (Azure),
     * or lines of JSON with timestamp, input_length, output_length and hash_ids (Mooncake). */
    const char *replay; /* its bytes; NULL: none */
    size_t replay_length;
    double speed;    /* times between arrivals are divided by it */
    double scale;    /* numbers of tokens are multiplied by it */
    int64_t context; /* requests that need more positions are left out; 0: no limit */
    int64_t skip;    /* leading rows of the trace to ignore */
    int64_t sample;  /* one conversation in this many: rows whose first two blocks are equal stay
                      * together; without blocks a row is a conversation; at least 1 */

    /* A simulation in place of `url`: see simulate.h. */
    const char *costs; /* rows of `quipu bench -o csv`; NULL: real servers */
    size_t costs_length;
    int64_t servers, copies; /* copies of the trace, each of users of its own; at least 1 */
    load_router router;
    int64_t parallel, chunk, kv_positions; /* of a server: slots, rows of a pass, its KV cache */

    double timeout; /* a request fails after this many seconds without a byte */
    load_limits limits;

    const volatile int
        *cancel; /* once set, no request starts and running ones are dropped; may be NULL */
    /* Called about twice a second; may be NULL. */
    void (*progress)(void *context, const char *text, bool finished);
    void *progress_context;
} load_options;

typedef enum load_outcome {
    LOAD_RUNNING,
    LOAD_DONE,
    LOAD_REFUSED, /* the server answered with an error */
    LOAD_BROKEN,  /* no connection, or one that ended before the answer */
    LOAD_UNCLEAR, /* the answer does not follow the API */
    LOAD_TIMEOUT,
    LOAD_DROPPED, /* ended by cancel */
} load_outcome;
enum { LOAD_OUTCOMES = LOAD_DROPPED + 1 };

/* The measurements of one request. Times are in seconds since the start of the run. */
typedef struct load_record {
    double begun;       /* when it was sent; with arrivals, when it arrived */
    double first, last; /* first and last event with text */
    uint32_t events;    /* number of events with text */
    uint32_t input_tokens, output_tokens, cached_tokens; /* as the server reports; else as asked */
    load_outcome outcome;
} load_record;

typedef struct load_result {
    char model[256];
    double seconds; /* from the start of the first request to the end of the last */
    load_record *records;
    size_t n_records, record_capacity;
    float *gaps; /* [n_gaps] milliseconds between events of an answer, for all complete answers */
    size_t n_gaps, gap_capacity;
    size_t counts[LOAD_OUTCOMES];
    size_t left_out;        /* requests of the trace that need more than `context` */
    qp_error first_failure; /* status QP_OK: none failed */
} load_result;

/* Runs the load. Failed requests are counted in the result and still give QP_OK. QP_INVALID: the
 * options are not usable. QP_IO: the server does not answer at all. QP_CANCELLED: after cancel; the
 * result holds what was measured. Call load_result_free() in every case. */
qp_status load_run(const load_options *options, load_result *out, qp_error *error);
void load_result_free(load_result *result);

/* Appends the figures as a table, or as one JSON object with the names of `vllm bench serve`. */
qp_status load_print(const load_options *options, const load_result *result, strbuf *out,
                     qp_error *error);
qp_status load_print_json(const load_options *options, const load_result *result, strbuf *out,
                          qp_error *error);
