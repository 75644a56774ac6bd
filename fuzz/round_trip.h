/* A tokenizer's encoding and decoding of a text from the fuzzer. */
#pragma once

#include "text/tokenizer.h"

#include <stdint.h>
#include <stdlib.h>

/* Takes the end of the input as text: a fuzzer finds the vocabulary's own words there soonest. */
static inline void round_trip(const tokenizer *tokenizer, const uint8_t *data, size_t size)
{
    enum { MAX_TEXT = 256 };
    const size_t length = size < MAX_TEXT ? size : MAX_TEXT;
    const char *text = (const char *)data + size - length;
    qp_error error;
    token_ids ids = {0};
    strbuf decoded = {0};
    if (tokenizer_encode(tokenizer, text, length, TOKENIZER_SPECIAL, &ids, &error) == QP_OK &&
        tokenizer_decode(tokenizer, ids.data, ids.count, 0, &decoded, &error) != QP_OK)
        abort(); /* what encoding gives, decoding takes */
    token_ids_free(&ids);
    strbuf_free(&decoded);
}
