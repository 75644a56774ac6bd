/* The server's address: http://HOST[:PORT][/PREFIX]. */
#pragma once

#include "base/status.h"

#include <sys/socket.h>

typedef struct load_url {
    char host[256];      /* without the brackets of an IPv6 address */
    char port[8];        /* "80" where none is given */
    char prefix[256];    /* of paths, such as "" or "/api"; a final slash or /v1 is removed */
    char authority[300]; /* for the Host header */
} load_url;

/* QP_INVALID says what is wrong; https is QP_UNSUPPORTED. */
qp_status url_parse(const char *text, load_url *out, qp_error *error);

/* Finds the first of the host's addresses that accepts a connection. *fd is that connection, which
 * the caller closes. QP_IO: none does. */
qp_status url_connect(const load_url *url, struct sockaddr_storage *address, socklen_t *length,
                      int *fd, qp_error *error);
