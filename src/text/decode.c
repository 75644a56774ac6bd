/* Decodes ids to text, one token at a time. */
#include "text/tokenizer_build.h"
#include "text/utf8.h"

#include <string.h>

void tokenizer_decoder_init(tokenizer_decoder *decoder, const tokenizer *tokenizer, unsigned flags)
{
    *decoder = (tokenizer_decoder){
        .tokenizer = tokenizer,
        .flags = flags,
        .at_start = !(flags & TOKENIZER_DECODE_CONTINUE),
    };
}

/* Appends the bytes after those held back, and holds back an unfinished character. */
static qp_status append(tokenizer_decoder *decoder, const char *bytes, size_t length, strbuf *text,
                        qp_error *error)
{
    if (length == 0) return QP_OK;
    size_t start = text->length;
    if (!strbuf_append(text, decoder->held, decoder->held_count) ||
        !strbuf_append(text, bytes, length))
        return error_no_memory(error, "decoded text", length);
    size_t unfinished = utf8_unfinished(text->data + start, text->length - start);
    text->length -= unfinished;
    memcpy(decoder->held, text->data + text->length, unfinished);
    text->data[text->length] = '\0';
    decoder->held_count = (uint8_t)unfinished;
    decoder->at_start = false;
    return QP_OK;
}

qp_status tokenizer_decoder_push(tokenizer_decoder *decoder, int32_t id, strbuf *text,
                                 qp_error *error)
{
    const tokenizer *tokenizer = decoder->tokenizer;
    if (id < 0 || id >= tokenizer_vocab_size(tokenizer))
        return error_set(error, QP_INVALID, "token id %d is not in the vocabulary of 0 .. %d", id,
                         tokenizer_vocab_size(tokenizer) - 1);
    const vocabulary_piece *piece = &tokenizer->vocabulary.pieces[id];
    const char *bytes = vocabulary_bytes(&tokenizer->vocabulary, id);
    size_t length = piece->length;
    bool is_control = piece->type == PIECE_CONTROL;
    if (is_control && !(decoder->flags & TOKENIZER_DECODE_CONTROL)) return QP_OK;
    bool may_strip = decoder->at_start && tokenizer->strip != DECODE_STRIP_NONE && !is_control &&
                     piece->type != PIECE_BYTE;
    if (may_strip && length > 0 && *bytes == ' ') {
        bytes++;
        length--;
        if (tokenizer->strip == DECODE_STRIP_ONE) decoder->at_start = false;
    }
    return append(decoder, bytes, length, text, error);
}

qp_status tokenizer_decoder_flush(tokenizer_decoder *decoder, strbuf *text, qp_error *error)
{
    if (!strbuf_append(text, decoder->held, decoder->held_count))
        return error_no_memory(error, "decoded text", decoder->held_count);
    decoder->held_count = 0;
    return QP_OK;
}

qp_status tokenizer_decode(const tokenizer *tokenizer, const int32_t *ids, size_t count,
                           unsigned flags, strbuf *text, qp_error *error)
{
    tokenizer_decoder decoder;
    tokenizer_decoder_init(&decoder, tokenizer, flags);
    for (size_t i = 0; i < count; i++)
        TRY(tokenizer_decoder_push(&decoder, ids[i], text, error));
    return tokenizer_decoder_flush(&decoder, text, error);
}
