/* A conversation: messages with roles, and the file that keeps them. */
#ifndef QUIPU_CLI_CONVERSATION_H
#define QUIPU_CLI_CONVERSATION_H

#include "base/json.h"
#include "base/status.h"

typedef struct conversation {
    cJSON *messages; /* [{"role": ..., "content": ...}, ...] */
} conversation;

qp_status conversation_init(conversation *c, qp_error *error);
void conversation_free(conversation *c);

/* Adds a message; `length` bytes of content, made valid UTF-8. */
qp_status conversation_add(conversation *c, const char *role, const char *content, size_t length,
                           qp_error *error);

/* Removes the last message. */
void conversation_pop(conversation *c);

/* Removes the answer at the end of the conversation and returns it, to be put back; NULL if the
 * conversation does not end in an answer. The caller owns it in between. */
cJSON *conversation_take_answer(conversation *c);
void conversation_give_back(conversation *c, cJSON *answer);

/* Replaces or adds the system message; an empty text removes it. */
qp_status conversation_set_system(conversation *c, const char *content, qp_error *error);

/* Removes everything except the system message. */
void conversation_reset(conversation *c);

/* Removes the oldest question and its answer; false when there is none. */
bool conversation_drop_oldest(conversation *c);

int conversation_length(const conversation *c);

/* The messages as JSON, to free(). */
char *conversation_json(const conversation *c);

/* Writes the conversation as JSON; the file appears whole or stays as it was. A new one is readable
 * by its owner alone. */
qp_status conversation_save(const conversation *c, const char *path, qp_error *error);

/* Reads what conversation_save() wrote; on failure the conversation stays as it was. */
qp_status conversation_load(conversation *c, const char *path, qp_error *error);

#endif
