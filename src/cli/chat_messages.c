/* Changes of a conversation's messages, and the file that keeps them: see chat.h. */
#include "cli/chat.h"

#include "base/json.h"
#include "base/replace_file.h"
#include "base/status.h"
#include "cli/terminal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MOST = 64 << 20 }; /* largest file, in bytes */

qp_status chat_messages(const chat *c, cJSON **out)
{
    char *json;
    TRY(qp_chat_messages(c->talk, &json, c->call->error));
    const qp_status status =
        json_parse_exact(json, strlen(json), "the conversation", out, c->call->error);
    qp_free(json);
    return status;
}

/* Gives the conversation these messages, which are freed. */
static qp_status replace(chat *c, cJSON *messages)
{
    char *json = json_print(messages);
    cJSON_Delete(messages);
    if (!json) return error_no_memory(c->call->error, "the conversation", 0);
    qp_status status = qp_chat_drop(c->talk, SIZE_MAX, c->call->error);
    if (status == QP_OK) status = qp_chat_add(c->talk, json, strlen(json), c->call->error);
    cJSON_free(json);
    return status;
}

const char *chat_message_text(const cJSON *message, const char *member)
{
    const char *text = cJSON_GetStringValue(json_get(message, member));
    return text ? text : "";
}

static bool has_system(const cJSON *messages)
{
    return strcmp(chat_message_text(messages->child, "role"), "system") == 0;
}

qp_status chat_set_system(chat *c, const char *text)
{
    cJSON *messages;
    TRY(chat_messages(c, &messages));
    if (has_system(messages)) cJSON_DeleteItemFromArray(messages, 0);
    if (*text) {
        cJSON *message = cJSON_CreateObject();
        cJSON_AddStringToObject(message, "role", "system");
        cJSON_AddStringToObject(message, "content", text);
        cJSON_InsertItemInArray(messages, 0, message);
    }
    return replace(c, messages);
}

qp_status chat_forget(chat *c, bool all, int *count)
{
    cJSON *messages;
    TRY(chat_messages(c, &messages));
    const int first = has_system(messages), held = cJSON_GetArraySize(messages) - first;
    *count = all ? held : held < 2 ? 0 : 2;
    for (int i = 0; i < *count; i++)
        cJSON_DeleteItemFromArray(messages, first);
    return replace(c, messages);
}

/* ---- files --------------------------------------------------------------------------------- */

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

qp_status chat_save(const chat *c, const char *path, int *count)
{
    cJSON *messages;
    TRY(chat_messages(c, &messages));
    char *text = cJSON_Print(messages);
    *count = cJSON_GetArraySize(messages);
    cJSON_Delete(messages);
    if (!text) return error_no_memory(c->call->error, "the conversation", 0);
    struct stat found;
    bool there = stat(path, &found) == 0;
    char *real = realpath(path, NULL); /* a symbolic link stays one */
    qp_status status =
        there && !S_ISREG(found.st_mode) /* a device is written, not replaced */
            ? write_device(path, text, c->call->error)
            : replace_file(real ? real : path, there ? &found : NULL, text, c->call->error);
    free(real);
    cJSON_free(text);
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

qp_status chat_load(chat *c, const char *path, int *count)
{
    qp_error *error = c->call->error;
    char *text;
    size_t length;
    cJSON *messages;
    TRY(cli_read_file(path, FILE_MOST, &text, &length, error));
    qp_status status = json_parse_exact(text, length, path, &messages, error);
    free(text);
    TRY(status);
    status = check_messages(messages, path, error);
    if (status != QP_OK) {
        cJSON_Delete(messages);
        return status;
    }
    *count = cJSON_GetArraySize(messages);
    return replace(c, messages);
}
