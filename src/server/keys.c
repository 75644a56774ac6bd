/* API keys: see keys.h. */
#include "server/keys.h"

#include "base/files.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { FILE_MOST = 1 << 20 };

void keys_free(api_keys *keys)
{
    for (size_t i = 0; i < keys->count; i++)
        free(keys->keys[i]);
    free(keys->keys);
    *keys = (api_keys){0};
}

static qp_status add_key(api_keys *keys, const char *key, size_t length, qp_error *error)
{
    char **grown = realloc(keys->keys, (keys->count + 1) * sizeof *grown);
    if (grown) keys->keys = grown;
    char *copy = grown ? strndup(key, length) : NULL;
    if (!copy) return error_no_memory(error, "an API key", length);
    keys->keys[keys->count++] = copy;
    return QP_OK;
}

static qp_status read_lines(api_keys *keys, const char *path, qp_error *error)
{
    strbuf text = {0};
    qp_status status = files_read(path, FILE_MOST, &text, error);
    size_t before = keys->count;
    for (const char *line = strbuf_text(&text); status == QP_OK && *line;) {
        size_t length = strcspn(line, "\n"), begin = strspn(line, " \t\r");
        size_t end = length;
        while (end > begin && strchr(" \t\r", line[end - 1]))
            end--;
        if (end > begin && line[begin] != '#')
            status = add_key(keys, line + begin, end - begin, error);
        line += length + (line[length] == '\n');
    }
    strbuf_free(&text);
    if (status == QP_OK && keys->count == before)
        status =
            error_set(error, QP_INVALID,
                      "%s holds no API key; write one a line, or leave --api-key-file away", path);
    return status;
}

qp_status keys_read(api_keys *keys, const char *path, const char *key, qp_error *error)
{
    api_keys found = {0};
    qp_status status = key ? add_key(&found, key, strlen(key), error) : QP_OK;
    if (status == QP_OK && path) status = read_lines(&found, path, error);
    if (status != QP_OK) {
        keys_free(&found);
        return status;
    }
    found.secret = keys->secret;
    keys_free(keys);
    *keys = found;
    return QP_OK;
}

static const char *sent_key(const http_parser *request)
{
    const char *bearer = http_parser_header(request, "authorization");
    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0)
        return bearer + 7 + strspn(bearer + 7, " ");
    const char *key = http_parser_header(request, "x-api-key");
    return key ? key : "";
}

bool keys_accept(const api_keys *keys, const http_parser *request, uint64_t *owner)
{
    *owner = 0;
    if (!keys->count) return true;
    const char *sent = sent_key(request);
    size_t length = strlen(sent);
    for (size_t i = 0; i < keys->count; i++) {
        size_t needed = strlen(keys->keys[i]);
        unsigned char differ = length != needed;
        for (size_t at = 0; at < length; at++) /* as long as what was sent, whatever the key */
            differ |= (unsigned char)(sent[at] ^ keys->keys[i][at % needed]);
        if (!differ) *owner = keyed_hash(keys->secret, sent, length) | 1;
    }
    return *owner != 0;
}
