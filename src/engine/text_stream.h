/* What a qp_text_stream consists of: see quipu.h.
 *
 *     tokens -> decoder: whole UTF-8 -> stop texts: what is certain -> thoughts, calls, content
 */
#pragma once

#include "engine/stop_text.h"
#include "engine/tool_call.h"
#include "engine/vocabulary.h"

/* The marks around thoughts. Of models that write in channels `close` begins the answer. */
typedef struct thinking_marks {
    const char *open, *close;
    const char *prompt; /* channels: what ends a prompt, so that a message's header follows;
                         * NULL: the model has no channels */
} thinking_marks;

typedef enum text_state { TEXT_CONTENT, TEXT_THINKING, TEXT_CALL, TEXT_HEADER } text_state;

struct qp_text_stream {
    tokenizer_decoder decoder; /* tokenizer NULL: the model has no vocabulary */
    stop_text stop;
    char **stops, **tools; /* copies of the caller's */
    tool_names names;
    int32_t stop_tokens[QP_MAX_STOP_TOKENS];
    size_t n_stop_tokens;
    const thinking_marks *thinking; /* NULL: all is content */
    bool channels;                  /* messages have headers: text_channels.h */
    bool in_text;                   /* and the marks of this one are content */
    bool ended;
    qp_finish finish;
    size_t decoded; /* bytes of text that the tokens stand for */
    size_t certain; /* how many of them no stop text can begin in */
    /* The certain text that was not handed out, but for the first `handed` bytes. */
    strbuf rest;
    size_t handed;
    text_state state;
    bool begins;  /* nothing was said yet, or only calls were made: an object may be a call */
    bool trims;   /* blanks that follow are a mark's */
    bool opening; /* a mark was handed out, its event is next */
    tool_call_reader call;
    bool announced; /* the call's name was handed out */
    size_t n_calls;
};

/* The marks that the model's chat template has; NULL: none. */
const thinking_marks *thinking_marks_of(const qp_vocabulary *vocabulary);

/* Whether a prompt ends with the mark that opens a thought, or inside a message's header, before
 * white space. */
bool thinking_begins(const thinking_marks *marks, const tokenizer *tokenizer, const int32_t *prompt,
                     size_t n_prompt);

/* The text that was not handed out. */
const char *text_stream_rest(const qp_text_stream *stream, size_t *length);

/* Where the word stands in the text, or, unless the text has ended, where it may begin at its end;
 * `length`: nowhere. */
size_t text_stream_find(const char *text, size_t length, const char *word, bool ended, bool *whole);

/* Fills the piece that qp_text_stream_next() gives. Always true. */
bool text_stream_give(qp_text_piece *piece, qp_text_kind kind, const char *text, size_t length);

/* Takes what was appended to stop.pending, as qp_text_stream_add() does with a token's text. */
qp_status text_stream_scan(qp_text_stream *stream, qp_error *error);
