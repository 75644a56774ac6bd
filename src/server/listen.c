/* Sockets that listen: see listen.h. */
#define _GNU_SOURCE /* strdup */
#include "server/listen.h"

#include <errno.h>
#include <event2/event.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 1024 };

const char *listen_unix_path(const char *host)
{
    static const char scheme[] = "unix:", ending[] = ".sock";
    const size_t length = strlen(host), end = sizeof ending - 1;
    if (strncmp(host, scheme, sizeof scheme - 1) == 0) return host + sizeof scheme - 1;
    return length > end && strcmp(host + length - end, ending) == 0 ? host : NULL;
}

typedef struct opening {
    listeners *out;
    struct event_base *base;
    evconnlistener_cb on_accept;
    evconnlistener_errorcb on_error;
    void *context;
} opening;

/* false: errno says why. */
static bool add(const opening *o, const struct sockaddr *address, int length, const char *path)
{
    listeners *l = o->out;
    struct evconnlistener *made =
        evconnlistener_new_bind(o->base, o->on_accept, o->context,
                                LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE,
                                BACKLOG, address, length);
    if (!made) return false;
    evconnlistener_set_error_cb(made, o->on_error);
    l->paths[l->count] = path ? strdup(path) : NULL;
    l->items[l->count++] = made;
    return true;
}

static int port_of(struct evconnlistener *listener)
{
    struct sockaddr_storage bound;
    socklen_t length = sizeof bound;
    if (getsockname(evconnlistener_get_fd(listener), (struct sockaddr *)&bound, &length) != 0)
        return 0;
    return ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                             : ((struct sockaddr_in *)&bound)->sin_port);
}

static qp_status add_address(const opening *o, const char *host, int port, qp_error *error)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    const size_t before = o->out->count;
    char text[16];
    if (o->out->port) port = o->out->port;
    snprintf(text, sizeof text, "%d", port);
    const int failed = getaddrinfo(host, text, &hints, &found);
    if (failed)
        return error_set(error, QP_IO,
                         "cannot listen at %s: %s; name an address of this host with --host", host,
                         gai_strerror(failed));
    int refused = 0;
    for (struct addrinfo *a = found; a && o->out->count == before; a = a->ai_next)
        if (!add(o, a->ai_addr, (int)a->ai_addrlen, NULL)) refused = errno;
    freeaddrinfo(found);
    if (o->out->count == before)
        return error_set(error, QP_IO, "cannot listen at %s, port %d: %s%s", host, port,
                         strerror(refused),
                         refused == EADDRINUSE ? "; choose another port with --port" : "");
    o->out->port = port_of(o->out->items[before]);
    return QP_OK;
}

/* Removes a socket that a server has left, which nobody answers at. */
static void remove_stale(const struct sockaddr_un *address)
{
    struct stat found;
    if (lstat(address->sun_path, &found) != 0 || !S_ISSOCK(found.st_mode)) return;
    const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (probe < 0) return;
    const bool dead = connect(probe, (const struct sockaddr *)address, sizeof *address) != 0 &&
                      errno == ECONNREFUSED;
    close(probe);
    if (dead) unlink(address->sun_path);
}

static qp_status add_path(const opening *o, const char *path, qp_error *error)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!*path || strlen(path) >= sizeof address.sun_path)
        return error_set(error, QP_INVALID,
                         "the path of a unix socket must have 1 to %zu bytes, found '%.200s'",
                         sizeof address.sun_path - 1, path);
    memcpy(address.sun_path, path, strlen(path) + 1);
    remove_stale(&address);
    if (add(o, (const struct sockaddr *)&address, sizeof address, path)) return QP_OK;
    return error_set(error, QP_IO, "cannot listen at %s: %s", path, strerror(errno));
}

qp_status listen_begin(listeners *out, struct event_base *base, const char *const *hosts,
                       size_t n_hosts, int port, evconnlistener_cb on_accept,
                       evconnlistener_errorcb on_error, void *context, qp_error *error)
{
    const opening o = {out, base, on_accept, on_error, context};
    if (n_hosts > LISTEN_MOST)
        return error_set(error, QP_INVALID, "the server listens at %d hosts at most, found %zu",
                         LISTEN_MOST, n_hosts);
    for (size_t i = 0; i < n_hosts; i++) {
        const char *path = listen_unix_path(hosts[i]);
        TRY(path ? add_path(&o, path, error) : add_address(&o, hosts[i], port, error));
    }
    return QP_OK;
}

void listen_end(listeners *l)
{
    for (size_t i = 0; i < l->count; i++) {
        evconnlistener_free(l->items[i]);
        if (l->paths[i]) unlink(l->paths[i]);
        free(l->paths[i]);
    }
    l->count = 0;
}

void listen_again(listeners *l)
{
    for (size_t i = 0; i < l->count; i++)
        evconnlistener_enable(l->items[i]);
}
