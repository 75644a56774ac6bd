/* A simulated server: slots, a KV cache with a prefix cache in it, and passes that take every
 * decoding sequence and as many tokens of prompts as there is room for. Passes that only decode are
 * taken together, up to the next end. doc/FLEET.md has what quipu's scheduler does differently.
 */
#pragma once

#include "load/block_cache.h"
#include "load/load.h"
#include "load/pass_costs.h"

/* A request: its numbers of tokens, and the keys of the blocks that its prompt begins with. */
typedef struct fleet_request {
    int64_t input, output;
    const uint64_t *blocks; /* [n_blocks] ids; a key is made of these and the copy */
    size_t n_blocks;
    uint64_t copy;
} fleet_request;

uint64_t fleet_block_key(const fleet_request *request, size_t i);

/* What all servers of a fleet share. */
typedef struct fleet {
    const pass_costs *costs;
    size_t slots;
    int64_t chunk;        /* most rows of a pass that reads prompts */
    int64_t positions;    /* of a KV cache */
    int64_t block;        /* tokens of a block */
    load_record *records; /* by the number of the request */
    fleet_request (*request)(void *context, size_t number);
    void *context;
} fleet;

typedef struct fleet_sequence fleet_sequence;

typedef struct fleet_server {
    size_t load; /* requests that wait or run */
    double end;  /* of the passes under way, in seconds; INFINITY: there are none */
    double begin;
    int64_t passes;          /* under way, at least one where there are any */
    double first_pass;       /* seconds of the first of them */
    double next_pass;        /* seconds that each next one takes longer */
    fleet_sequence *running; /* [slots] */
    size_t n_running;
    uint32_t *queue; /* [queue_capacity] numbers of requests that wait, a ring */
    size_t queue_first, n_queued, queue_capacity;
    int64_t held; /* positions of sequences, and of blocks that they use */
    block_cache cache;
} fleet_server;

qp_status fleet_server_open(fleet_server *server, const fleet *fleet, qp_error *error);
void fleet_server_close(fleet_server *server);

/* A request comes at `now`. */
qp_status fleet_server_take(fleet_server *server, const fleet *fleet, size_t number, double now,
                            qp_error *error);

/* The passes under way end, at `end`; the next ones begin. */
qp_status fleet_server_step(fleet_server *server, const fleet *fleet, qp_error *error);
