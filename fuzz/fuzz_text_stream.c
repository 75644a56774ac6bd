/* Texts of models with thoughts and calls of tools: the pieces are the same however the text comes,
 * and arguments of whole calls are objects of JSON in UTF-8. */
#include "../tests/text_stream_test.h"
#include "text/utf8.h"

/* A text that begins with a mark of channels is of a model that has them. */
static qp_text_stream *open_stream_of(const char *text, size_t size)
{
    const bool channels = size >= 3 && memcmp(text, "<|c", 3) == 0;
    if (channels) return open_channel_stream(true);
    return open_text_stream(size > 0 && text[0] != '{');
}

static void check_arguments(const char *text, size_t size)
{
    qp_text_stream *s = open_stream_of(text, size);
    qp_text_piece piece = {.size = sizeof piece};
    strbuf arguments = {0};
    strbuf_append(&s->stop.pending, text, size);
    if (text_stream_scan(s, NULL) != QP_OK || qp_text_stream_end(s, NULL) != QP_OK) abort();
    while (qp_text_stream_next(s, &piece)) {
        if (piece.kind == QP_TEXT_CALL) strbuf_clear(&arguments);
        if (piece.kind == QP_TEXT_ARGUMENTS) strbuf_append(&arguments, piece.text, piece.length);
        if (piece.kind != QP_TEXT_CALL_END || piece.broken) continue;
        char *printed = tool_call_print_arguments(strbuf_text(&arguments), arguments.length);
        if (!printed || utf8_valid_run(printed, strlen(printed)) != strlen(printed)) abort();
        free(printed);
    }
    strbuf_free(&arguments);
    qp_text_stream_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    strbuf whole = {0};
    qp_text_stream *s = open_stream_of(text, size);
    stream_text(s, text, size, size + 1, &whole);
    qp_text_stream_close(s);
    for (size_t step = 1; step < 8; step += 3) {
        strbuf parts = {0};
        s = open_stream_of(text, size);
        stream_text(s, text, size, step, &parts);
        qp_text_stream_close(s);
        if (parts.length != whole.length ||
            memcmp(strbuf_text(&parts), strbuf_text(&whole), whole.length) != 0)
            abort();
        strbuf_free(&parts);
    }
    strbuf_free(&whole);
    check_arguments(text, size);
    return 0;
}
