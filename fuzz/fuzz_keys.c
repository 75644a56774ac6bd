/* Files of API keys: each key that was read lets a request in, and a longer one does not. */
#define _GNU_SOURCE /* memfd_create() */
#include "server/keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void must(bool good)
{
    if (!good) abort();
}

static bool is_let_in(const api_keys *keys, const char *key, const char *more)
{
    uint64_t owner;
    strbuf text = {0};
    http_parser request = {.body_most = 1};
    strbuf_printf(&text, "GET / HTTP/1.1\r\nAuthorization: Bearer %s%s\r\n\r\n", key, more);
    http_parser_feed(&request, text.data, text.length);
    const bool in = request.state == HTTP_DONE && keys_accept(keys, &request, &owner);
    must(!in || owner != 0);
    http_parser_free(&request);
    strbuf_free(&text);
    return in;
}

/* A header can carry it: no control characters, no space at its ends, and within the head's limit.
 */
static bool can_be_sent(const char *key)
{
    const size_t length = strlen(key);
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)key[i] < 0x20) return false;
    return length > 0 && length < 1000 && key[0] != ' ' && key[length - 1] != ' ';
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int file = -1;
    char path[64];
    qp_error error = {0};
    api_keys keys = {0};
    if (file < 0) file = memfd_create("keys", MFD_CLOEXEC);
    must(file >= 0 && ftruncate(file, 0) == 0 && pwrite(file, data, size, 0) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    if (keys_read(&keys, path, NULL, &error) != QP_OK) {
        must(error.message[0] && keys.count == 0);
        return 0;
    }
    for (size_t i = 0; i < keys.count && i < 8; i++) {
        must(keys.keys[i][0] && keys.keys[i][0] != '#');
        if (can_be_sent(keys.keys[i])) must(is_let_in(&keys, keys.keys[i], ""));
        if (keys.count == 1) must(!is_let_in(&keys, keys.keys[i], "x"));
    }
    must(keys.count == 0 || !is_let_in(&keys, "", ""));
    keys_free(&keys);
    return 0;
}
