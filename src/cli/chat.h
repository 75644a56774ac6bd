/* The state of a conversation, shared by quipu chat and its commands. */
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
    int64_t max_tokens; /* tokens of an answer; 0: no limit */
    conversation conversation;
    strbuf answer;  /* the answer being generated */
    word_wrap wrap; /* of that, at a terminal */
    qp_generate_result last;
    size_t total_prompt, total_generated;
    int answers;
    int64_t again; /* times that the last answer has been asked for again */
    /* Since /schedule: the schedule before that and its speed; 0: nothing is to be compared. */
    char schedule_before[512], schedule_file[4096];
    double speed_before; /* tokens/s */
} chat;

/* Runs a line that begins with a slash; *quit: it ends the conversation. */
qp_status chat_run_command(chat *c, const char *line, bool *quit);

/* Completes commands, their settings and their files: a line_completer. */
void chat_complete(const char *text, completions *out);

/* /schedule: gives the engine another schedule; without an argument shows the one there is. */
qp_status chat_reschedule(chat *c, const char *argument);

/* After an answer: says what the last /schedule did to the speed. */
void chat_compare_schedules(chat *c);

/* Generates the last answer again, with the seed after that of the time before; the old answer
 * stays if this makes none. Later questions have the seed that was set. */
qp_status chat_regenerate(chat *c);

#endif
