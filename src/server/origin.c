/* Pages of browsers: see origin.h. */
#include "server/origin.h"

#include "server/listen.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Whether "host[:port]" names this host itself. */
static bool is_local(const char *host)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t length = strlen(names[i]);
        if (strncasecmp(host, names[i], length) == 0 && (!host[length] || host[length] == ':'))
            return true;
    }
    return false;
}

static bool is_loopback(const char *host)
{
    return listen_unix_path(host) || strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 ||
           strncmp(host, "127.", 4) == 0;
}

bool origin_is_loopback(const server_options *o)
{
    for (size_t i = 0; i < o->n_hosts; i++)
        if (!is_loopback(o->hosts[i])) return false;
    return true;
}

/* Whether the server listens only for this computer, and to anyone on it. */
static bool is_open_on_loopback(const server_options *o, bool has_keys)
{
    return origin_is_loopback(o) && !has_keys && !o->insecure;
}

/* Whether "host[:port]" is the address that the server listens at, or that of a named origin. */
static bool is_expected(const server_options *o, const char *host)
{
    for (size_t i = 0; i < o->n_hosts; i++) {
        const size_t length = strlen(o->hosts[i]);
        if (strncmp(host, o->hosts[i], length) == 0 && (!host[length] || host[length] == ':'))
            return true;
    }
    for (size_t i = 0; i < o->n_origins; i++) {
        const char *page = strstr(o->origins[i], "://");
        if (strcmp(o->origins[i], "*") == 0 || (page && strcasecmp(page + 3, host) == 0))
            return true;
    }
    return false;
}

/* A page whose name was made to resolve to this computer reads what it gets without an Origin. */
static qp_status check_host(const server_options *o, bool has_keys, const char *host,
                            api_error *error)
{
    if (!host || !is_open_on_loopback(o, has_keys) || is_local(host) || is_expected(o, host))
        return QP_OK;
    return api_refuse(
        error, 403, NULL,
        "this server answers as localhost only, not as %.200s: a page could have made "
        "that name resolve to this computer; start it with --cors-origin "
        "http://%.200s, or with keys",
        host, host);
}

/* Whether the option names the page's origin; "localhost": pages of this computer, at any port. */
static bool is_named(const server_options *o, const char *origin)
{
    const char *page = strstr(origin, "://");
    for (size_t i = 0; i < o->n_origins; i++) {
        const char *name = o->origins[i];
        if (strcmp(name, "*") == 0 || strcasecmp(name, origin) == 0) return true;
        if (strcmp(name, "localhost") == 0 && page && is_local(page + 3)) return true;
    }
    return false;
}

/* Whether the page came from this server. */
static bool is_own(const server_options *o, bool has_keys, const char *origin, const char *host)
{
    const char *page = strstr(origin, "://");
    if (!page || !host || strcasecmp(page + 3, host) != 0) return false;
    return has_keys || o->insecure || is_local(host);
}

qp_status origin_check(const server_options *o, bool has_keys, exchange *x, api_error *error)
{
    const http_parser *request = exchange_request(x);
    const char *origin = http_parser_header(request, "origin");
    char header[512];
    TRY(check_host(o, has_keys, http_parser_header(request, "host"), error));
    if (!origin) return QP_OK;
    if (is_named(o, origin)) {
        snprintf(header, sizeof header, "Access-Control-Allow-Origin: %.400s", origin);
        exchange_add_header(x, header);
        exchange_add_header(x, "Vary: Origin");
        if (strcmp(request->method, "OPTIONS") == 0) {
            exchange_add_header(x, "Access-Control-Allow-Methods: GET, POST, DELETE");
            exchange_add_header(x, "Access-Control-Allow-Headers: *, Authorization, Content-Type");
            exchange_add_header(x, "Access-Control-Max-Age: 600");
        }
        return QP_OK;
    }
    if (is_own(o, has_keys, origin, http_parser_header(request, "host"))) return QP_OK;
    return api_refuse(
        error, 403, NULL,
        "pages from %.200s may not use this server; start it with --cors-origin %.200s "
        "to allow them",
        origin, origin);
}
