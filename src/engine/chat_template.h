/* A model's chat templates: one for conversations, and perhaps one for those with tools.
 *
 * Files name several as {"name": "default"}, {"name": "tool_use"} (tokenizer_config.json), as
 * additional_chat_templates/tool_use.jinja beside chat_template.jinja, or as
 * tokenizer.chat_template.tool_use (GGUF). transformers renders "tool_use" where tools are given.
 */
#pragma once

#include "base/json.h"
#include "file/gguf.h"
#include "template/template.h"

typedef struct chat_template {
    char *source;       /* NULL: there is none */
    template *compiled; /* NULL: there is none, or it does not compile */
    qp_error error;     /* of compiling it, for callers that render */
} chat_template;

typedef struct chat_templates {
    chat_template plain, with_tools;
} chat_templates;

/* A template that does not compile is an error only for callers that render with it. Call
 * chat_templates_free() also after a failure. */
qp_status chat_templates_read_gguf(const gguf *file, chat_templates *out, qp_error *error);
qp_status chat_templates_read_directory(const char *directory, chat_templates *out,
                                        qp_error *error);
/* Replaces all by one, which must compile; else they stay. */
qp_status chat_templates_set(chat_templates *templates, const char *source, size_t length,
                             qp_error *error);
void chat_templates_free(chat_templates *templates);

/* The template for a conversation with these variables. */
const chat_template *chat_templates_choose(const chat_templates *templates, const cJSON *variables);
