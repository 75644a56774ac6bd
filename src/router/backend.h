/* A request to the process of a model, and its reply as it comes. On the I/O thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct event_base;

typedef struct backend backend;

/* backend_close() may be called in these. */
typedef struct backend_receiver {
    void (*header)(void *context, const char *line); /* "Name: value", before `begin` */
    /* `length`: of the body; -1: it comes in pieces. */
    void (*begin)(void *context, int status, long long length);
    void (*body)(void *context, const char *bytes, size_t length);
    /* The last call. False: the process is not there, or went within its reply. */
    void (*end)(void *context, bool whole);
    void *context;
} backend_receiver;

/* Sends the bytes to the unix socket. NULL: no memory, or no descriptor is left. */
backend *backend_open(struct event_base *base, const char *socket, const void *request,
                      size_t length, const backend_receiver *receiver);

/* Reads no more for now; the process then pauses the answer. */
void backend_pause(backend *b, bool pauses);

/* Without `end`. The process sees that its client has left. NULL is allowed. */
void backend_close(backend *b);
