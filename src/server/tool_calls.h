/* Finds calls of tools in a model's text, in the forms that families are trained on:
 *
 *     Llama 3.x        {"name": "f", "parameters": {...}}, perhaps after <|python_tag|>
 *     Llama 3.x        <function=f>{...}</function>
 *     Qwen, Hermes     <tool_call>{"name": "f", "arguments": {...}}</tool_call> ...
 *     Mistral          [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...], or f{...}
 */
#ifndef QUIPU_SERVER_TOOL_CALLS_H
#define QUIPU_SERVER_TOOL_CALLS_H

#include "base/json.h"

/* The tools that a client offers; names point into its body. */
typedef struct tool_names {
    const char **names; /* [count] */
    size_t count;
} tool_names;

/* Whether a control token's text begins a call, so that it must be part of the text. */
bool tool_calls_marker(const char *piece, size_t length);

/* How many bytes of text[0 .. length) are certainly content. *call: a call may begin after them.
 * `begins`: the answer begins here, so that an object may be a call; `ended`: it is complete. */
size_t tool_calls_scan(const char *text, size_t length, bool begins, bool ended, bool *call);

/* The calls in the text of an answer from where tool_calls_scan() stopped: an array of
 * {"id", "name", "arguments"}, with arguments as a text of JSON; NULL: it is no call, but content.
 */
cJSON *tool_calls_parse(const char *text, size_t length, const tool_names *tools);

#endif
