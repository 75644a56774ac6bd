/* Where the server listens: addresses of this host, and unix sockets. */
#pragma once

#include "base/status.h"

#include <event2/listener.h>

enum { LISTEN_MOST = 16 };

/* The path of a unix socket that a --host names ("unix:PATH", or a path that ends in .sock); NULL:
 * it is a name or an address. */
const char *listen_unix_path(const char *host);

/* Zero-initialise; listen_end() at the end. */
typedef struct listeners {
    struct evconnlistener *items[LISTEN_MOST];
    char *paths[LISTEN_MOST]; /* of unix sockets, which are removed; NULL: none */
    size_t count;
    int port; /* of the first that has one; 0: none has */
} listeners;

/* Listens at each of the hosts, at the port; 0: one that is free, the same for all. */
qp_status listen_begin(listeners *out, struct event_base *base, const char *const *hosts,
                       size_t n_hosts, int port, evconnlistener_cb on_accept,
                       evconnlistener_errorcb on_error, void *context, qp_error *error);
void listen_end(listeners *listeners);

/* Accepts again, after on_error() has disabled a listener. */
void listen_again(listeners *listeners);
