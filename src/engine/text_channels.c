/* Messages in channels, which gpt-oss writes in OpenAI's form "harmony":
 *
 *     <|channel|>analysis<|message|>thoughts<|end|><|start|>assistant<|channel|>final<|message|>text
 *     <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}
 *
 * A message begins with a header up to <|message|>. The channel analysis has thoughts, a recipient
 * makes the message a call; all others are content. The prompt ends inside the first header.
 */
#include "engine/text_channels.h"

#include "file/slice.h"

#include <string.h>

enum { LONGEST_HEADER = 256 };

static const char START[] = "<|start|>", CHANNEL[] = "<|channel|>", MESSAGE[] = "<|message|>",
                  TO[] = " to=", FUNCTIONS[] = "functions.";

/* What may end a message; the last one also begins the next. */
static const char *const ends[] = {"<|end|>", "<|return|>", "<|call|>", START};
enum { N_ENDS = sizeof ends / sizeof *ends };

bool text_channels_is_mark(const char *piece, size_t length)
{
    const text_slice text = {piece, length};
    for (int i = 0; i < N_ENDS; i++)
        if (slice_is(text, ends[i])) return true;
    return slice_is(text, MESSAGE) || slice_is(text, CHANNEL) || slice_is(text, "<|constrain|>");
}

/* Whether one of both begins with the other. */
static bool agree(const char *text, size_t length, const char *word)
{
    const size_t n = strlen(word);
    return memcmp(text, word, length < n ? length : n) == 0;
}

/* Whether the text is the beginning of a header, or may become one. */
static bool is_header(const char *text, size_t length)
{
    return length < LONGEST_HEADER &&
           (agree(text, length, CHANNEL) || agree(text, length, TO) || agree(text, length, START) ||
            agree(text, length, "assistant"));
}

/* The word that follows a mark in a header; of length 0: there is none. */
static size_t word_after(const char *header, size_t length, const char *mark, const char **out)
{
    bool whole;
    size_t n = 0;
    const size_t at = text_stream_find(header, length, mark, true, &whole);
    *out = header + at + (whole ? strlen(mark) : 0);
    while (whole && *out + n < header + length && !strchr(" \n<", (*out)[n]))
        n++;
    return n;
}

static bool begins_with(const char *word, size_t length, const char *prefix)
{
    return length >= strlen(prefix) && agree(word, length, prefix);
}

/* What a message is by its header, which is the last one where another was broken off. */
static void begin_message(qp_text_stream *s, const char *header, size_t length)
{
    const char *to, *channel;
    for (bool again = true; again;) {
        const size_t at = text_stream_find(header, length, START, true, &again);
        header += again ? at + strlen(START) : 0;
        length -= again ? at + strlen(START) : 0;
    }
    size_t n_to = word_after(header, length, TO, &to);
    const size_t n_channel = word_after(header, length, CHANNEL, &channel);
    s->state =
        s->thinking && begins_with(channel, n_channel, "analysis") ? TEXT_THINKING : TEXT_CONTENT;
    if (n_to == 0 || s->names.count == 0) return;
    if (begins_with(to, n_to, FUNCTIONS)) to += strlen(FUNCTIONS), n_to -= strlen(FUNCTIONS);
    tool_call_begin_arguments(&s->call, to, n_to);
    s->state = TEXT_CALL;
    s->announced = false;
}

/* Reads a header. A text that has none is content. */
static bool next_header(qp_text_stream *s, qp_text_piece *piece)
{
    size_t length;
    bool whole;
    const char *text = text_stream_rest(s, &length);
    const size_t at = text_stream_find(text, length, MESSAGE, s->ended, &whole);
    const bool header = is_header(text, whole ? at : length);
    if (header && !whole && !s->ended) return false;
    if (!header) {
        s->state = TEXT_CONTENT;
        return false;
    }
    s->handed += whole ? at + strlen(MESSAGE) : length;
    if (!whole) return false;
    begin_message(s, text, at);
    s->in_text = !s->thinking && s->state == TEXT_CONTENT;
    return s->in_text && text_stream_give(piece, QP_TEXT_CONTENT, text, at + strlen(MESSAGE));
}

/* Up to the end of the message. */
static bool next_body(qp_text_stream *s, qp_text_piece *piece)
{
    size_t length, first;
    bool whole = false;
    int end = 0;
    const char *text = text_stream_rest(s, &length);
    const qp_text_kind kind = s->state == TEXT_THINKING ? QP_TEXT_THINKING : QP_TEXT_CONTENT;
    first = length;
    for (int i = 0; i < N_ENDS; i++) {
        bool is_whole;
        const size_t at = text_stream_find(text, length, ends[i], s->ended, &is_whole);
        if (at >= first) continue;
        first = at, whole = is_whole, end = i;
    }
    if (first > 0) {
        s->handed += first;
        return text_stream_give(piece, kind, text, first);
    }
    if (!whole) return false;
    s->handed += strlen(ends[end]);
    s->state = TEXT_HEADER;
    return s->in_text && text_stream_give(piece, kind, text, strlen(ends[end]));
}

bool text_channels_next(qp_text_stream *s, qp_text_piece *piece)
{
    return s->state == TEXT_HEADER ? next_header(s, piece) : next_body(s, piece);
}
