/* quipu tokenize, detokenize and template: text in, ids or text out, without weights. */
#include "cli/cli.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

static qp_status open_vocabulary(const cli_call *call, qp_vocabulary **out)
{
    const char *path;
    TRY(cli_model_path(call, &path));
    return qp_vocabulary_open(path, out, call->error);
}

static qp_status print_ids(const qp_tokens *tokens, qp_error *error)
{
    strbuf line = {0};
    for (size_t i = 0; i < tokens->count; i++)
        strbuf_printf(&line, "%s%d", i ? " " : "", tokens->data[i]);
    strbuf_putc(&line, '\n');
    qp_status status = line.failed ? error_no_memory(error, "the ids", tokens->count)
                                   : cli_write(line.data, line.length, error);
    strbuf_free(&line);
    return status;
}

qp_status command_tokenize(const cli_call *call)
{
    qp_vocabulary *vocabulary = NULL;
    qp_tokens tokens = {0};
    char *text = NULL;
    size_t length;
    const cli_settings *s = call->settings;
    unsigned flags = s->special ? QP_SPECIAL : 0;
    if (option_source_at(call->options, &s->bos) != OPTION_FROM_DEFAULT)
        flags |= s->bos ? QP_BOS_ALWAYS : QP_BOS_NEVER;
    qp_status status = open_vocabulary(call, &vocabulary);
    if (status == QP_OK) status = cli_read_stdin(&text, &length, call->error);
    if (status == QP_OK)
        status = qp_tokenize(vocabulary, text, length, flags, &tokens, call->error);
    if (status == QP_OK) status = print_ids(&tokens, call->error);
    qp_tokens_free(&tokens);
    free(text);
    qp_vocabulary_close(vocabulary);
    return status;
}

qp_status command_detokenize(const cli_call *call)
{
    qp_vocabulary *vocabulary = NULL;
    qp_tokens ids = {0};
    char *input = NULL, *text = NULL;
    size_t length;
    qp_status status = open_vocabulary(call, &vocabulary);
    if (status == QP_OK) status = cli_read_stdin(&input, &length, call->error);
    if (status == QP_OK) status = cli_parse_ids(input, "standard input", &ids, call->error);
    if (status == QP_OK)
        status =
            qp_detokenize(vocabulary, ids.data, ids.count, call->settings->special ? QP_SPECIAL : 0,
                          &text, &length, call->error);
    if (status == QP_OK) status = cli_write(text, length, call->error);
    free(text);
    qp_tokens_free(&ids);
    free(input);
    qp_vocabulary_close(vocabulary);
    return status;
}

qp_status command_template(const cli_call *call)
{
    qp_vocabulary *vocabulary = NULL;
    char *json = NULL, *text = NULL;
    size_t length;
    qp_status status = open_vocabulary(call, &vocabulary);
    if (status == QP_OK) status = cli_read_stdin(&json, &length, call->error);
    if (status == QP_OK)
        status = qp_render_chat(vocabulary, json, length, call->settings->generation_prompt, &text,
                                call->error);
    if (status == QP_OK) status = cli_write(text, strlen(text), call->error);
    free(text);
    free(json);
    qp_vocabulary_close(vocabulary);
    return status;
}
