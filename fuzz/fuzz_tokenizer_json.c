/* Any bytes as a tokenizer.json, and then as a text that it encodes and decodes. */
#include "text/tokenizer.h"

#include <stdint.h>
#include <stdlib.h>

enum { MAX_TEXT = 256 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    qp_error error;
    tokenizer *tokenizer;
    if (tokenizer_parse_json(text, size, "fuzz", &tokenizer, &error) != QP_OK) return 0;
    /* The end of the input as text: a fuzzer finds the vocabulary's own words there soonest. */
    size_t length = size < MAX_TEXT ? size : MAX_TEXT;
    token_ids ids = {0};
    strbuf decoded = {0};
    qp_status status =
        tokenizer_encode(tokenizer, text + size - length, length, TOKENIZER_SPECIAL, &ids, &error);
    if (status == QP_OK &&
        tokenizer_decode(tokenizer, ids.data, ids.count, 0, &decoded, &error) != QP_OK)
        abort(); /* what encoding gives, decoding takes */
    token_ids_free(&ids);
    strbuf_free(&decoded);
    tokenizer_free(tokenizer);
    return 0;
}
