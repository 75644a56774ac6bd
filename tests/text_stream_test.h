/* What a text stream makes of a text that comes in pieces, written as one line:
 *
 *     content "say ", thoughts "{think}", calls "<name(arguments)>", "<name(arguments!text>" if
 * broken
 */
#pragma once

#include "engine/text_stream.h"

#include <stdlib.h>
#include <string.h>

/* A stream of texts, for tools "weather" and "f", with or without thoughts. */
static inline qp_text_stream *open_text_stream(bool thinking)
{
    static const thinking_marks marks = {.open = "<think>", .close = "</think>"};
    static const char *const tools[] = {"weather", "f"};
    static const char *const stops[] = {"STOP"};
    const qp_sampling sampling = {.size = sizeof sampling, .stops = stops, .n_stops = 1};
    const qp_text_stream_options options = {
        .size = sizeof options, .sampling = &sampling, .tools = tools, .n_tools = 2};
    qp_text_stream *s;
    if (qp_text_stream_open(NULL, &options, &s, NULL) != QP_OK) abort();
    if (thinking) s->thinking = &marks;
    return s;
}

/* The same of messages in channels, after a prompt that ends inside a header. */
static inline qp_text_stream *open_channel_stream(bool thinking)
{
    qp_text_stream *s = open_text_stream(thinking);
    s->channels = true;
    s->state = TEXT_HEADER;
    return s;
}

static inline void write_piece(const qp_text_piece *p, qp_text_kind *last, strbuf *out)
{
    if (*last == QP_TEXT_THINKING && p->kind != QP_TEXT_THINKING) strbuf_puts(out, "}");
    if (*last != QP_TEXT_THINKING && p->kind == QP_TEXT_THINKING) strbuf_puts(out, "{");
    *last = p->kind;
    if (p->kind == QP_TEXT_CALL) strbuf_puts(out, "<");
    if (p->kind == QP_TEXT_CALL_END) strbuf_puts(out, p->broken ? "!" : ")>");
    if (p->kind != QP_TEXT_CALL_END || p->broken) strbuf_append(out, p->text, p->length);
    if (p->kind == QP_TEXT_CALL) strbuf_puts(out, "(");
    if (p->kind == QP_TEXT_CALL_END && p->broken) strbuf_puts(out, ">");
}

/* Gives the text to the stream in pieces of `step` bytes, and writes all that comes out. */
static inline void stream_text(qp_text_stream *s, const char *text, size_t length, size_t step,
                               strbuf *out)
{
    qp_text_piece piece = {.size = sizeof piece};
    qp_text_kind last = QP_TEXT_CONTENT;
    for (size_t at = 0; at < length && !s->ended; at += step) {
        strbuf_append(&s->stop.pending, text + at, length - at < step ? length - at : step);
        if (text_stream_scan(s, NULL) != QP_OK) abort();
        while (qp_text_stream_next(s, &piece))
            write_piece(&piece, &last, out);
    }
    if (qp_text_stream_end(s, NULL) != QP_OK) abort();
    while (qp_text_stream_next(s, &piece))
        write_piece(&piece, &last, out);
    if (last == QP_TEXT_THINKING) strbuf_puts(out, "}");
    strbuf_append(out, "", 0);
}
