/* What the prefix cache holds, published over ZMQ in vLLM's form, for routers that send a prompt to
 * the server that has most of it: llm-d's, AIBrix', Dynamo's and others.
 *
 *     engine thread: a page is kept or lost -> a list -> the publisher's thread: msgpack -> sockets
 *
 * A PUB socket sends (topic, number, batch); a ROUTER socket beside it sends the last batches again
 * to who asks for those from a number on. libzmq is opened when it is needed, not linked.
 */
#pragma once

#include "engine/prefix_tree.h"

typedef struct kv_events kv_events;

typedef struct kv_events_options {
    const char *endpoint, *replay; /* such as tcp://127.0.0.1:5557; `replay` may be NULL */
    const char *topic;             /* "": vLLM's default */
    const char *medium;            /* "GPU" or "CPU" */
} kv_events_options;

/* Publishes what changes in the tree from now on; the tree must live until the publisher is closed.
 * QP_UNSUPPORTED: there is no libzmq. QP_IO: an address cannot be used. */
qp_status kv_events_open(const kv_events_options *options, prefix_tree *tree, kv_events **out,
                         qp_error *error);

/* Sends what there is, and ends; NULL is allowed. The engine thread has ended. */
void kv_events_close(kv_events *events);
