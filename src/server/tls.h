/* TLS by OpenSSL: the server's certificate, which can be read again while it runs. */
#pragma once

#include "base/status.h"

#include <stdbool.h>

struct bufferevent;
struct event_base;

typedef struct tls_context tls_context;

/* Reads a certificate with its chain, and its key, both in PEM. On failure *tls stays as it was. */
qp_status tls_read(tls_context **tls, const char *certificate, const char *key, qp_error *error);
void tls_free(tls_context *tls); /* NULL is allowed */

/* The stream of an accepted socket; NULL: no memory. */
struct bufferevent *tls_accept(const tls_context *tls, struct event_base *base, int socket);

/* Says to the client that nothing more is sent. */
void tls_end(struct bufferevent *stream);
