/* Reads calls of tools from a model's text while it is made, in the forms that families are trained
 * on:
 *
 *     Llama 3.x        {"name": "f", "parameters": {...}}, perhaps after <|python_tag|>
 *     Llama 3.x        <function=f>{...}</function>
 *     Qwen, Hermes     <tool_call>{"name": "f", "arguments": {...}}</tool_call> ...
 *     Mistral          [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...], or f[ARGS]{...}
 *     gpt-oss          {...} in a message to the tool: text_channels.h
 *
 * A call is announced when its name is known; its arguments follow as they come. Each byte is
 * looked at once.
 */
#pragma once

#include "base/json.h"
#include "base/strbuf.h"

/* What begins a call, in the order of their marks; the last one has none. */
typedef enum tool_call_form {
    TOOL_CALL_HERMES,
    TOOL_CALL_MISTRAL,
    TOOL_CALL_PYTHON,
    TOOL_CALL_FUNCTION,
    TOOL_CALL_BARE, /* an object of JSON, which is a call if it names a tool */
    TOOL_CALL_FORMS = TOOL_CALL_BARE,
    TOOL_CALL_CHANNEL, /* only arguments: the name came before */
} tool_call_form;

extern const char *const tool_call_marks[TOOL_CALL_FORMS];

/* The tools that may be called. */
typedef struct tool_names {
    const char **names; /* [count] */
    size_t count;
} tool_names;

/* Whether a control token's text is a mark of calls, so that it must be part of the text. */
bool tool_call_is_mark(const char *piece, size_t length);

/* Bytes at the beginning of a text that may stand after a call: blanks, semicolons and marks that
 * end a call. *unsure: more text may make them more. */
size_t tool_call_skip(const char *text, size_t length, bool *unsure);

typedef enum tool_call_event {
    TOOL_CALL_MORE,      /* the next event needs more text */
    TOOL_CALL_NAMED,     /* a call begins: its name */
    TOOL_CALL_ARGUMENTS, /* the next bytes of its arguments, an object of JSON */
    TOOL_CALL_DONE,      /* it is complete: its own text, as the model wrote it */
    TOOL_CALL_BROKEN,    /* the text is no call, or not a whole one: its text up to there */
    TOOL_CALL_OVER,      /* no further call follows without a mark: what stood after the last one */
    TOOL_CALL_GO_ON,     /* inside the reader: something was read, so there may be an event */
} tool_call_event;

typedef struct tool_call_reader {
    tool_call_form form;
    int stage;
    size_t at; /* bytes of the text that were looked at */
    /* The JSON value that is read: an object with name and arguments, or (`whole`) the arguments.
     */
    size_t begin, key, value; /* where it, its last key and that one's value begin */
    int depth, place, member;
    bool in_string, escaped, whole, in_list;
    char *name;
    bool announced, has_arguments, own_sent, complete, good;
    size_t arguments, arguments_end, sent; /* their place, and how far they were handed out */
    strbuf own; /* arguments that are not handed out as they were written: a text that holds them */
} tool_call_reader;

void tool_call_begin(tool_call_reader *reader, tool_call_form form);

/* The same where the name came before, so that the text begins with the arguments. */
void tool_call_begin_arguments(tool_call_reader *reader, const char *name, size_t length);
void tool_call_free(tool_call_reader *reader);

/* The next event in text[0 .. length), which begins with the call and only grows until a call ends.
 * *out: what the event has, valid until the next call. After TOOL_CALL_DONE, TOOL_CALL_BROKEN and
 * TOOL_CALL_OVER the caller removes the bytes of *out from the text. `ended`: the text is complete.
 */
tool_call_event tool_call_next(tool_call_reader *reader, const tool_names *tools, const char *text,
                               size_t length, bool ended, const char **out, size_t *out_length);

/* Arguments as an object, to cJSON_Delete(); NULL: they are none. */
cJSON *tool_call_parse_arguments(const char *text, size_t length);

/* Arguments as JSON prints them, to free(); NULL: they are no object. */
char *tool_call_print_arguments(const char *text, size_t length);
