/* POST /v1/responses: its items and tools as messages and functions, and back. */
#pragma once

#include "server/call.h"

/* Where a call's body holds the items of the response that it goes on from. */
#define RESPONSES_EARLIER "quipu earlier"

/* What stands before thoughts in "encrypted_content": clients keep it as it is. Nothing in it is
 * secret from the client. */
#define RESPONSES_SEAL "quipu:"

/* Reads the conversation of previous_response_id, where one is named, into the call's body. */
qp_status responses_open_earlier(call *c, api_error *error);

/* Keeps a response that has ended, and the items of its output, unless its request says otherwise.
 */
void responses_keep(const call *c, const strbuf *reply, const strbuf *output);

/* The name under which the model sees a tool of a namespace ("": of none). */
void responses_full_name(const char *space, const char *name, char *out, size_t size);

/* Appends the call's instructions and input to a list of messages. All items that the model wrote
 * in one turn are one message, as it wrote them. */
qp_status responses_messages(const call *c, cJSON *list, api_error *error);

/* The call's tools as functions. A `custom` tool is a function of one text, those of a `namespace`
 * have its name before theirs. Tools that OpenAI's own servers would run are left out, and a header
 * of the reply says so. */
cJSON *responses_tools(const call *c);

/* Whether a tool of the call takes a text in place of arguments. */
bool responses_is_custom(const call *c, const char *name);

/* The item's id of a call of a tool. */
void responses_call_id(bool custom, const char *call_id, char *out, size_t size);

/* A call of a tool as an item: of a function, or of a custom tool. `done`: with what it is called
 * with. */
cJSON *responses_call_item(const call *c, const cJSON *tool_call, bool done);
