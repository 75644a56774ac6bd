/* A conversation: see conversation.h. */
#include "cli/conversation.h"

#include "base/replace_file.h"
#include "cli/cli.h"
#include "text/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONVERSATION_MOST = 64 << 20 }; /* largest file, in bytes */

qp_status conversation_init(conversation *c, qp_error *error)
{
    c->messages = cJSON_CreateArray();
    return c->messages ? QP_OK : error_no_memory(error, "the conversation", 0);
}

void conversation_free(conversation *c)
{
    cJSON_Delete(c->messages);
    c->messages = NULL;
}

/* {"role": ..., "content": ...}. Invalid bytes, and NULs, which a model may produce and cJSON
 * cannot hold, become U+FFFD. */
static cJSON *make_message(const char *role, const char *content, size_t length)
{
    strbuf text = {0};
    while (length > 0) {
        const size_t run = strnlen(content, length), taken = run + (run < length);
        utf8_put_valid(&text, content, run);
        if (taken > run) strbuf_puts(&text, UTF8_REPLACEMENT);
        content += taken;
        length -= taken;
    }
    cJSON *message = text.failed ? NULL : cJSON_CreateObject();
    const bool made = message && cJSON_AddStringToObject(message, "role", role) &&
                      cJSON_AddStringToObject(message, "content", strbuf_text(&text));
    strbuf_free(&text);
    if (made) return message;
    cJSON_Delete(message);
    return NULL;
}

qp_status conversation_add(conversation *c, const char *role, const char *content, size_t length,
                           qp_error *error)
{
    bool is_user = strcmp(role, "user") == 0;
    const char *nul = memchr(content, '\0', length);
    if (nul && is_user)
        return error_set(error, QP_INVALID,
                         "a message must not hold a NUL character, found one at byte %zu; remove "
                         "it, or give the text without a chat template (--raw)",
                         (size_t)(nul - content));
    cJSON *message = make_message(role, content, length);
    if (message && cJSON_AddItemToArray(c->messages, message)) return QP_OK;
    return error_no_memory(error, "a message", length);
}

void conversation_pop(conversation *c)
{
    cJSON_DeleteItemFromArray(c->messages, conversation_length(c) - 1);
}

static const char *role_at(const conversation *c, int index)
{
    const char *role =
        cJSON_GetStringValue(json_get(cJSON_GetArrayItem(c->messages, index), "role"));
    return role ? role : "";
}

cJSON *conversation_take_answer(conversation *c)
{
    int last = conversation_length(c) - 1;
    if (last < 1 || strcmp(role_at(c, last), "assistant") != 0) return NULL;
    return cJSON_DetachItemFromArray(c->messages, last);
}

void conversation_give_back(conversation *c, cJSON *answer)
{
    cJSON_AddItemToArray(c->messages, answer);
}

static bool has_system(const conversation *c)
{
    return strcmp(role_at(c, 0), "system") == 0;
}

qp_status conversation_set_system(conversation *c, const char *content, qp_error *error)
{
    cJSON *message = *content ? make_message("system", content, strlen(content)) : NULL;
    if (*content && !message) return error_no_memory(error, "the system message", strlen(content));
    if (has_system(c)) cJSON_DeleteItemFromArray(c->messages, 0);
    if (message) cJSON_InsertItemInArray(c->messages, 0, message);
    return QP_OK;
}

void conversation_reset(conversation *c)
{
    while (conversation_length(c) > has_system(c))
        conversation_pop(c);
}

bool conversation_drop_oldest(conversation *c)
{
    int first = has_system(c);
    if (conversation_length(c) < first + 2) return false;
    cJSON_DeleteItemFromArray(c->messages, first);
    cJSON_DeleteItemFromArray(c->messages, first);
    return true;
}

int conversation_length(const conversation *c)
{
    return cJSON_GetArraySize(c->messages);
}

char *conversation_json(const conversation *c)
{
    return cJSON_Print(c->messages);
}

static bool write_text(FILE *file, const char *text)
{
    const size_t length = strlen(text);
    return fwrite(text, 1, length, file) == length && fputc('\n', file) != EOF && fflush(file) == 0;
}

static qp_status write_device(const char *path, const char *text, qp_error *error)
{
    FILE *file = fopen(path, "we");
    if (!file) return error_set(error, QP_IO, "%s: cannot be opened: %s", path, strerror(errno));
    const bool written = write_text(file, text);
    const int why = errno;
    fclose(file);
    if (written) return QP_OK;
    return error_set(error, QP_IO, "%s: cannot be written: %s", path, strerror(why));
}

/* A new file in place of the old one, whose mode it gets. */
static qp_status replace_file(const char *path, const struct stat *old, const char *text,
                              qp_error *error)
{
    file_replacement to;
    TRY(file_replacement_begin(path, 0600, &to, error));
    if (old) fchmod(fileno(to.stream), old->st_mode & 07777);
    qp_status status = write_text(to.stream, text) ? file_replacement_end(&to, error)
                                                   : file_replacement_failed(&to, error);
    file_replacement_drop(&to);
    return status;
}

qp_status conversation_save(const conversation *c, const char *path, qp_error *error)
{
    char *text = conversation_json(c);
    if (!text) return error_no_memory(error, "the conversation", 0);
    struct stat found;
    bool there = stat(path, &found) == 0;
    char *real = realpath(path, NULL);                  /* a symbolic link stays one */
    qp_status status = there && !S_ISREG(found.st_mode) /* a device is written, not replaced */
                           ? write_device(path, text, error)
                           : replace_file(real ? real : path, there ? &found : NULL, text, error);
    free(real);
    free(text);
    return status;
}

static qp_status check_messages(const cJSON *messages, const char *path, qp_error *error)
{
    if (!cJSON_IsArray(messages))
        return error_set(error, QP_FORMAT, "%s: must be an array of messages, found %s", path,
                         json_type_name(messages));
    int index = 0;
    const cJSON *message;
    cJSON_ArrayForEach(message, messages)
    {
        if (!cJSON_IsString(json_get(message, "role")) ||
            !cJSON_IsString(json_get(message, "content")))
            return error_set(error, QP_FORMAT,
                             "%s: message %d must have a \"role\" and a \"content\" text", path,
                             index);
        index++;
    }
    return QP_OK;
}

qp_status conversation_load(conversation *c, const char *path, qp_error *error)
{
    char *text;
    size_t length;
    cJSON *messages;
    TRY(cli_read_file(path, CONVERSATION_MOST, &text, &length, error));
    qp_status status = json_parse(text, length, path, &messages, error);
    free(text);
    TRY(status);
    status = check_messages(messages, path, error);
    if (status != QP_OK) {
        cJSON_Delete(messages);
        return status;
    }
    cJSON_Delete(c->messages);
    c->messages = messages;
    return QP_OK;
}
