/* A conversation under way: what quipu chat and its commands share. */
#ifndef QUIPU_CLI_CHAT_H
#define QUIPU_CLI_CHAT_H

#include "cli/chat_input.h"
#include "cli/cli.h"
#include "cli/conversation.h"
#include "cli/word_wrap.h"

typedef struct chat {
    const cli_call *call;
    qp_engine *engine;
    qp_session *session;
    chat_input *input;
    qp_sampling sampling;
    int64_t max_tokens; /* of an answer; 0: no limit */
    conversation conversation;
    strbuf answer;  /* the one being made */
    word_wrap wrap; /* of that, at a terminal */
    qp_generate_result last;
    size_t total_prompt, total_generated;
    int answers;
} chat;

/* Runs a line that begins with a slash; *quit when it ends the conversation. */
qp_status chat_run_command(chat *c, const char *line, bool *quit);

/* Completes commands, their settings and their files: a line_completer. */
void chat_complete(const char *text, completions *out);

/* Makes the last answer again, with the next seed; the one before stays if none is made. */
qp_status chat_regenerate(chat *c);

#endif
