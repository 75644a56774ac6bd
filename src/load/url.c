#include "load/url.h"

#include <errno.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static qp_status refuse(const char *text, qp_error *error)
{
    return error_set(
        error, QP_INVALID,
        "\"%s\" is not the address of a server; expected http://HOST[:PORT] with a port "
        "from 1 to 65535",
        text);
}

/* Copies [begin, end) into `out` of `size` bytes; false: it does not fit. */
static bool copy(char *out, size_t size, const char *begin, const char *end)
{
    size_t length = (size_t)(end - begin);
    if (length >= size) return false;
    memcpy(out, begin, length);
    out[length] = '\0';
    return true;
}

static bool is_port(const char *digits)
{
    long port = strtol(digits, NULL, 10);
    return port > 0 && port <= 65535;
}

/* "/v1/" and "/" become "", because the paths of requests begin with /v1. */
static bool read_prefix(const char *text, load_url *out)
{
    size_t length = strcspn(text, "?#");
    if (text[length]) return false;
    while (length && text[length - 1] == '/')
        length--;
    if (length >= 3 && memcmp(text + length - 3, "/v1", 3) == 0) length -= 3;
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] <= ' ') return false;
    return copy(out->prefix, sizeof out->prefix, text, text + length);
}

qp_status url_parse(const char *text, load_url *out, qp_error *error)
{
    static const char scheme[] = "http://";
    *out = (load_url){0};
    if (strncmp(text, "https://", 8) == 0)
        return error_set(error, QP_UNSUPPORTED,
                         "%s: only http is spoken here, because encryption would be measured too",
                         text);
    if (strncmp(text, scheme, sizeof scheme - 1) != 0) return refuse(text, error);
    const char *at = text + sizeof scheme - 1;
    const char *end = at + strcspn(at, "/?#");
    bool brackets = *at == '[';
    const char *host_end = brackets ? strchr(at, ']') : at + strcspn(at, ":/?#");
    if (!host_end || host_end > end || host_end == at + brackets) return refuse(text, error);
    const char *after = host_end + brackets;
    if (!copy(out->authority, sizeof out->authority, at, end) ||
        !copy(out->host, sizeof out->host, at + brackets, host_end) ||
        strpbrk(out->authority, " \t\r\n@"))
        return refuse(text, error);
    snprintf(out->port, sizeof out->port, "80");
    if (after < end && (*after != ':' || after + 1 == end ||
                        strspn(after + 1, "0123456789") != (size_t)(end - after - 1) ||
                        !copy(out->port, sizeof out->port, after + 1, end) || !is_port(out->port)))
        return refuse(text, error);
    return read_prefix(end, out) ? QP_OK : refuse(text, error);
}

qp_status url_connect(const load_url *url, struct sockaddr_storage *address, socklen_t *length,
                      int *fd, qp_error *error)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *found;
    int code = getaddrinfo(url->host, url->port, &hints, &found);
    if (code != 0) return error_set(error, QP_IO, "%s: %s", url->authority, gai_strerror(code));
    qp_status status = QP_IO;
    for (struct addrinfo *a = found; a && status != QP_OK; a = a->ai_next) {
        *fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (*fd >= 0 && connect(*fd, a->ai_addr, a->ai_addrlen) == 0) {
            memcpy(address, a->ai_addr, a->ai_addrlen);
            *length = a->ai_addrlen;
            status = QP_OK;
        } else {
            error_set(error, QP_IO, "no server answers at http://%s: %s", url->authority,
                      strerror(errno));
            if (*fd >= 0) close(*fd);
        }
    }
    freeaddrinfo(found);
    return status;
}
