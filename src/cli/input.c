/* What commands read: files, standard input, prompts, token ids. See cli.h. */
#include "cli/cli.h"

#include "base/files.h"
#include "base/status.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

qp_status cli_read_file(const char *path, size_t most, char **text, size_t *length, qp_error *error)
{
    strbuf buf = {0};
    qp_status status = path ? files_read(path, most, &buf, error)
                            : files_read_stream(stdin, "standard input", most, &buf, error);
    *length = buf.length;
    *text = strbuf_take(&buf);
    if (status == QP_OK && !*text) status = error_no_memory(error, "a text", *length);
    if (status == QP_OK) return QP_OK;
    free(*text);
    *text = NULL;
    return status;
}

qp_status cli_read_stdin(char **text, size_t *length, qp_error *error)
{
    if (isatty(STDIN_FILENO)) fputs("quipu: reading standard input; end it with Ctrl-D\n", stderr);
    return cli_read_file(NULL, CLI_TEXT_MOST, text, length, error);
}

qp_status cli_read_input(const char *file, char **text, size_t *length, qp_error *error)
{
    if (!file || strcmp(file, "-") == 0) return cli_read_stdin(text, length, error);
    return cli_read_file(file, CLI_TEXT_MOST, text, length, error);
}

qp_status cli_read_prompt(const cli_call *call, char **text, size_t *length)
{
    const cli_settings *s = call->settings;
    if (!s->prompt) return cli_read_input(s->file, text, length, call->error);
    *text = strdup(s->prompt);
    if (!*text) return error_no_memory(call->error, "the prompt", strlen(s->prompt));
    *length = strlen(s->prompt);
    return QP_OK;
}

qp_status cli_parse_ids(const char *text, const char *where, qp_tokens *out, qp_error *error)
{
    static const char separators[] = ", \t\r\n[]";
    for (const char *at = text + strspn(text, separators); *at; at += strspn(at, separators)) {
        char *end;
        errno = 0;
        long id = strtol(at, &end, 10);
        if (end == at || errno || id < 0 || id > INT32_MAX || !strchr(separators, *end))
            return error_set(error, QP_INVALID,
                             "%s: token ids are whole numbers separated by commas or spaces, found "
                             "\"%.*s\"",
                             where, (int)strcspn(at, separators), at);
        at = end;
        if (out->count == out->capacity) {
            size_t capacity = out->capacity ? 2 * out->capacity : 256;
            int32_t *data = realloc(out->data, capacity * sizeof *data);
            if (!data) return error_no_memory(error, "token ids", capacity * sizeof *data);
            out->data = data;
            out->capacity = capacity;
        }
        out->data[out->count++] = (int32_t)id;
    }
    return QP_OK;
}

qp_status cli_tokenize(const cli_call *call, const qp_vocabulary *vocabulary, const char *text,
                       size_t length, unsigned flags, qp_tokens *tokens)
{
    if (vocabulary) return qp_tokenize(vocabulary, text, length, flags, tokens, call->error);
    return cli_parse_ids(text, "the prompt (the model has no vocabulary)", tokens, call->error);
}

qp_status cli_read_tokens(const cli_call *call, const qp_vocabulary *vocabulary, qp_tokens *tokens)
{
    const cli_settings *s = call->settings;
    char *text = NULL;
    size_t length;
    qp_status status;
    if (s->ids) {
        status = cli_parse_ids(s->ids, "--ids", tokens, call->error);
    } else {
        TRY(cli_read_prompt(call, &text, &length));
        status = cli_tokenize(call, vocabulary, text, length, QP_BOS_DEFAULT, tokens);
        free(text);
    }
    if (status == QP_OK && tokens->count == 0)
        status = error_set(call->error, QP_INVALID,
                           "the prompt is empty: there is no token to begin from");
    return status;
}
