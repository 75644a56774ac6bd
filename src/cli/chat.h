/* The state of a conversation, shared by quipu chat and its commands. */
#pragma once

#include "base/json.h"
#include "cli/answer_view.h"
#include "cli/chat_input.h"
#include "cli/cli.h"

typedef struct chat {
    const cli_call *call;
    qp_engine *engine;
    qp_chat *talk; /* the messages, and the session that has read them */
    chat_input *input;
    qp_sampling sampling;
    int64_t max_tokens; /* tokens of an answer; 0: no limit */
    answer_view view;   /* of the answer being made, or the last */
    qp_generate_result last;
    size_t total_prompt, total_generated;
    int answers;
    int64_t again; /* times that the last answer has been asked for again */
    /* Since /schedule: the schedule before that and its speed; 0: nothing is to be compared. */
    char schedule_before[512], schedule_file[4096];
    double speed_before; /* tokens/s */
} chat;

/* Opens the engine and an empty conversation with the settings of the call; the settings of
 * sampling stay if there are some. */
qp_status chat_open(chat *c);

/* Runs a line that begins with a slash; *quit: it ends the conversation. */
qp_status chat_run_command(chat *c, const char *line, bool *quit);

/* Completes commands, their settings and their files: a line_completer. */
void chat_complete(const char *text, completions *out);

/* /schedule: gives the engine another schedule; without an argument shows the one there is. */
qp_status chat_reschedule(chat *c, const char *argument);

/* After an answer: says what the last /schedule did to the speed. */
void chat_compare_schedules(chat *c);

/* Asks, answers, and keeps both; a question without an answer is removed. */
qp_status chat_say(chat *c, const char *text);

/* Generates the last answer again, with the seed after that of the time before; the old answer
 * stays if this makes none. Later questions have the seed that was set. */
qp_status chat_regenerate(chat *c);

/* /set: changes a setting of the answers, or lists them. */
qp_status chat_set(chat *c, const char *argument);
void chat_list_settings(const chat *c);

/* /edit: a message from the person's editor, which begins with `argument` or the last question. */
qp_status chat_edit(chat *c, const char *argument);

/* /copy: hands the last answer to the terminal's clipboard. */
qp_status chat_copy(chat *c, const char *argument);

/* Offers `word` and a blank where it begins with `typed`; all names of settings. */
void chat_offer(completions *out, const char *typed, const char *word);
void chat_complete_settings(const char *typed, completions *out);

/* The messages, [{"role": ..., "content": ...}, ...], to cJSON_Delete(). */
qp_status chat_messages(const chat *c, cJSON **out);

/* A text of a message, "role" or "content"; "" where there is none. */
const char *chat_message_text(const cJSON *message, const char *member);

/* Replaces or adds the system message; an empty text removes it. */
qp_status chat_set_system(chat *c, const char *text);

/* Forgets all messages but the system's, or the oldest question and its answer; *count: messages
 * forgotten. */
qp_status chat_forget(chat *c, bool all, int *count);

/* Writes the messages as JSON; the file appears whole or stays as it was. A new one can be read by
 * its owner only. *count: messages. */
qp_status chat_save(const chat *c, const char *path, int *count);

/* Reads what chat_save() wrote; on failure the conversation stays as it was. */
qp_status chat_load(chat *c, const char *path, int *count);
